"""Tokens, block hashes and seeded outputs."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.text import (
    VOCABULARY,
    Generation,
    block_hashes,
    plan_generation,
    tokens_of_chat,
    tokens_of_text,
)

WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "d"]), max_size=80)


def plan(
    prompt: list[str], *, max_tokens: int = 50, ignore_eos: bool = True, seed: int | None = None
) -> Generation:
    return plan_generation(
        prompt,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        block_tokens=16,
        instance_seed=0,
        request_seed=seed,
    )


@settings(deadline=None)
@given(WORDS, WORDS)
def test_hashes_agree_exactly_on_the_common_full_blocks(one: list[str], two: list[str]) -> None:
    hashes_one, hashes_two = block_hashes(one, 4), block_hashes(two, 4)
    assert len(hashes_one) == len(one) // 4
    for index, (left, right) in enumerate(zip(hashes_one, hashes_two, strict=False)):
        end = (index + 1) * 4
        assert (left == right) == (one[:end] == two[:end])


def test_next_turn_of_a_chat_starts_with_the_tokens_of_the_last_one_and_its_answer() -> None:
    turn = [("system", "be brief"), ("user", "what is it")]
    first = plan(tokens_of_chat(turn))
    answer = " ".join(first.words)
    second = tokens_of_chat([*turn, ("assistant", answer), ("user", "and then")])
    known = len(first.block_hashes)
    assert known == (first.prompt_tokens + 50) // 16
    assert block_hashes(second, 16)[:known] == list(first.block_hashes)


def test_ignore_eos_gives_exactly_max_tokens_and_length() -> None:
    generation = plan(["a"], max_tokens=3_000)
    assert len(generation.words) == 3_000
    assert generation.finish_reason == "length"


def test_natural_ends_are_within_the_limit_and_of_the_stated_mean() -> None:
    lengths = []
    for index in range(2_000):
        generation = plan([f"p{index}"], max_tokens=20_000, ignore_eos=False)
        assert generation.finish_reason == "stop"
        lengths.append(len(generation.words))
    assert min(lengths) >= 1
    assert 190 <= sum(lengths) / len(lengths) <= 235
    cut = plan(["p1"], max_tokens=2, ignore_eos=False)
    assert (len(cut.words), cut.finish_reason) == (2, "length")


def test_same_prompt_gets_the_same_answer_and_seeds_change_it() -> None:
    assert plan(["a", "b"]).words == plan(["a", "b"]).words
    assert plan(["a", "b"]).words != plan(["a", "c"]).words
    assert plan(["a", "b"], seed=1).words != plan(["a", "b"], seed=2).words


def test_vocabulary_words_are_single_tokens_that_need_no_escaping() -> None:
    assert len(set(VOCABULARY)) == len(VOCABULARY)
    for word in VOCABULARY:
        assert tokens_of_text(f" {word}") == [word]
        assert json.dumps(word) == f'"{word}"'
