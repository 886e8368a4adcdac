"""The random model's file: what is in it, and that its tokenizer's vocabulary can build every word."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import StackError
from infra.llamacpp.tiny_model import CONTEXT_TOKENS, MODEL_SIZES, vocabulary, weights, write_model
from sim.workloads.prompts import WORDS

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    reader = gguf.GGUFReader(write_model(tmp_path / "model.gguf"))
    shape = MODEL_SIZES["tiny"]
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["llama.context_length"] == CONTEXT_TOKENS
    assert fields["llama.block_count"] == shape.blocks
    assert fields["tokenizer.ggml.tokens"] == vocabulary(WORDS)[0]
    tensors = {tensor.name: tuple(map(int, tensor.shape)) for tensor in reader.tensors}
    assert len(tensors) == 3 + 9 * shape.blocks
    assert tensors["blk.1.ffn_down.weight"] == (shape.feed_forward, shape.width)
    assert (tmp_path / "model.gguf").stat().st_size < 700_000
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_the_seed_fixes_every_weight(tmp_path: Path) -> None:
    first, same, other = (
        write_model(tmp_path / f"{index}.gguf", seed=seed).read_bytes()
        for index, seed in enumerate((1, 1, 2))
    )
    assert first == same
    assert first != other


def test_no_block_changes_the_dimension_that_lowers_what_is_no_word() -> None:
    is_word = [False, True, True]
    made = weights(MODEL_SIZES["tiny"], is_word, 0)
    assert (made["token_embd.weight"][:, 0] == 1.0).all()
    assert [value < 0 for value in made["output.weight"][:, 0]] == [True, False, False]
    assert not any(
        tensor[0].any()
        for name, tensor in made.items()
        if name.endswith(("output.weight", "down.weight")) and name.startswith("blk")
    )


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=6), min_size=1, max_size=20, unique=True))
def test_every_word_can_be_merged_letter_by_letter(words: list[str]) -> None:
    tokens, types, scores = vocabulary(words)
    known = set(tokens)
    assert len(tokens) == len(known) == len(types) == len(scores)
    assert {f"<0x{byte:02X}>" for byte in range(256)} <= known
    for word in words:
        assert all("▁" + word[:length] in known for length in range(len(word) + 1))


@pytest.mark.parametrize(
    ("name", "size", "says"), [("model.gguf", "huge", "'huge'"), ("absent/model.gguf", "tiny", "absent")]
)
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, name: str, size: str, says: str) -> None:
    with pytest.raises(StackError, match=says):
        write_model(tmp_path / name, size)
    assert list(tmp_path.iterdir()) == []
