"""The view against a plain reference, over random schedules, and over what a real vLLM 0.32.0 said."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minds.prefix_keys import BlockHasher, Salt
from sources.kv_events import view as view_module
from sources.kv_events.sequence import Forget, Position
from sources.kv_events.view import FleetChange, KvCacheView
from sources.kv_events.wire import Cleared, KvChange, Removed, Stored, decode

TESTS = Path(__file__).resolve().parents[2]
CAPTURES = {
    "trimmed": TESTS / "fixtures" / "vllm-0.32.0" / "kv_events.jsonl",
    "whole": TESTS.parents[1] / "shared" / "captures" / "vllm-0.32.0" / "kv_events.jsonl",
}
SALT = Salt("s1", bytes(range(32)))
SPAN = 64
HASHER = BlockHasher("tiny", SALT, block_tokens=SPAN)


class Plain:
    """The same content the slow and obvious way: all prompts kept in full, everything computed anew."""

    def __init__(self, block_tokens: int) -> None:
        self.size = block_tokens
        self.copies: Counter[tuple[str, int, int | bytes]] = Counter()
        self.prompts: dict[int | bytes, tuple[list[int | bytes], list[int]]] = {}

    def apply(self, event: KvChange) -> None:
        if isinstance(event, Cleared):
            self.copies.clear()
        elif isinstance(event, Stored):
            path, tokens = ([], []) if event.parent is None else self.prompts[event.parent]
            for index, name in enumerate(event.hashes):
                if event.tokens:
                    path = [*path, name]
                    tokens = [*tokens, *event.tokens[index * self.size : (index + 1) * self.size]]
                    self.prompts[name] = (path, tokens)
                self.copies[event.medium, event.group, name] += 1
        else:
            for index, name in enumerate(event.hashes):
                key = (event.medium, event.group, name)
                if self.copies[key]:
                    self.copies[key] -= 1
                    if event.remaining is not None:
                        self.copies[key] = event.remaining[index]

    def content(self) -> dict[tuple[str, int, int | bytes], int]:
        return {key: count for key, count in self.copies.items() if count}

    def fleet(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for medium in {key[0] for key in self.content()}:
            for path, tokens in self.prompts.values():
                blocks = HASHER.key_of(tokens).blocks
                for number, block in enumerate(blocks):
                    first, last = number * SPAN // self.size, ((number + 1) * SPAN - 1) // self.size
                    if all(self.copies[medium, 0, path[at]] for at in range(first, last + 1)):
                        found.setdefault(medium, set()).add(block)
        return {medium: frozenset(names) for medium, names in found.items()}


class Engine:
    """A cache that stores, evicts in any order, moves to host memory, and clears, at random."""

    def __init__(self, rng: random.Random, block_tokens: int) -> None:
        self.rng, self.size = rng, block_tokens
        self.plain = Plain(block_tokens)
        self._salt = rng.random()

    def next(self) -> KvChange:
        held = [key for key in self.plain.content() if key[1] == 0]
        on_device = [key[2] for key in held if key[0] == "device"]
        roll = self.rng.random()
        if roll < 0.02:
            return Cleared()
        if roll < 0.4 and held:
            medium, group, name = self.rng.choice(held)
            count = self.plain.copies[medium, group, name]
            remaining = (self.rng.choice([count - 1, 0]),) if self.rng.random() < 0.3 else None
            return Removed((name,), medium, group, remaining)
        if roll < 0.5 and on_device:
            return Stored((self.rng.choice(on_device),), None, [], self.size, "host")
        return self._store(on_device)

    def _store(self, on_device: list[int | bytes]) -> Stored:
        parent, path_tokens = None, []
        if on_device and self.rng.random() < 0.85:
            parent = self.rng.choice(on_device)
            path_tokens = self.plain.prompts[parent][1]
        blocks = self.rng.randint(1, 4)
        # Few different tokens, so that prompts share beginnings and blocks are stored twice.
        tokens = [self.rng.randint(0, 1) for _ in range(blocks) for _ in range(self.size)]
        for block in range(blocks):
            begin = block * self.size
            tokens[begin : begin + self.size] = [tokens[begin]] * self.size
        names = tuple(
            hash((self._salt, tuple(path_tokens + tokens[: (block + 1) * self.size]))) & (2**64 - 1)
            for block in range(blocks)
        )
        return Stored(names, parent, tokens, self.size)


def told(changes: list[FleetChange], fleet: dict[str, set[str]]) -> None:
    """What a reader makes of the changes that a view reports."""
    for change in changes:
        if change.kind == "cleared":
            fleet.clear()
        elif change.kind == "stored":
            assert not fleet.setdefault(change.medium, set()) & set(change.blocks)
            fleet[change.medium] |= set(change.blocks)
        else:
            assert fleet[change.medium] >= set(change.blocks)
            fleet[change.medium] -= set(change.blocks)


@pytest.mark.parametrize("block_tokens", [1, 16, 24, 32, 64, 80, 128])
def test_random_histories_fold_to_what_a_plain_reference_says(block_tokens: int) -> None:
    for seed in range(6):
        rng = random.Random(f"{block_tokens} {seed}")
        engine, view, reader = Engine(rng, block_tokens), KvCacheView(HASHER), {}
        for _ in range(120):
            event = engine.next()
            engine.plain.apply(event)
            told(view.fold(event), reader)
            assert view.content() == engine.plain.content()
        assert view.fleet_blocks() == engine.plain.fleet()
        assert {medium: frozenset(names) for medium, names in reader.items() if names} == view.fleet_blocks()
        assert (view.unknown_removals, view.unusable) == (0, None)
        for medium, group, name in list(view.content()):
            told(view.fold(Removed((name,), medium, group, (0,))), reader)
        assert view.content() == {}
        assert view.fleet_blocks() == {}
        assert not any(reader.values())
        assert view.known == 0, "nothing is kept of blocks that are gone"


@pytest.mark.parametrize("which", CAPTURES)
def test_the_capture_folds_to_the_exact_content(which: str) -> None:
    if not CAPTURES[which].exists():
        pytest.skip(f"there is no {CAPTURES[which]}")
    lines = [json.loads(line) for line in CAPTURES[which].read_text().splitlines()]
    held: set[int] = set()
    next_seq, gaps = 0, 0
    for line in lines:  # the plain loop: a set, emptied at a clear and where batches are missing
        if line["i"] == 0:
            if line["seq"] != next_seq:
                held, gaps = set(), gaps + 1
            next_seq = line["seq"] + 1
        event = line["event"]
        if event["type"] == "BlockStored":
            held |= set(event["block_hashes"])
        elif event["type"] == "BlockRemoved":
            held -= set(event["block_hashes"])
        else:
            held = set()
    view, position = KvCacheView(HASHER), Position()
    for batch in batches(lines):
        verdict = position.live(batch)
        if verdict.ask_from is not None:
            verdict = position.replayed(None, batch)
        for step in verdict.steps:
            if isinstance(step, Forget):
                view.clear()
            else:
                for event in step.events:
                    view.fold(event)
    assert gaps == 1
    assert (position.counts.gaps_lost, position.counts.restarts, position.whole) == (1, 0, True)
    assert {name for _, _, name in view.content()} == held
    assert len(held) == 19
    assert set(view.content().values()) == {1}
    assert max(held) > 2**63
    (blocks,) = view.fleet_blocks().values()
    assert len(blocks) == 9, "19 blocks of 32 tokens in one prompt make up 9 of 64"


def batches(lines: list[dict[str, Any]]) -> list[Any]:
    """The lines of a capture, one for each event, as the messages that they came from."""
    messages: dict[int, list[Any]] = {}
    for line in lines:
        messages.setdefault(line["seq"], [line["batch_ts"], [], line["dp_rank"]])[1].append(line["event"])
    return [
        decode([b"kv-events", seq.to_bytes(8, "big"), msgspec.msgpack.encode(payload)])
        for seq, payload in messages.items()
    ]


def test_blocks_without_a_known_beginning_make_no_fleet_blocks_until_it_is_known() -> None:
    view = KvCacheView(HASHER)
    tokens = list(range(SPAN))
    assert view.fold(Stored((2,), 1, tokens[32:], 32)) == []
    assert view.fold(Removed((9,))) == []
    assert view.unknown_removals == 1
    assert view.content() == {("device", 0, 2): 1}
    assert view.fold(Stored((1,), None, tokens[:32], 32)) == []
    (change,) = view.fold(Stored((2,), 1, tokens[32:], 32))
    assert change == FleetChange("stored", "device", tuple(HASHER.key_of(tokens).blocks))
    assert view.content() == {("device", 0, 1): 1, ("device", 0, 2): 2}


def test_adapters_and_images_have_blocks_of_their_own() -> None:
    tokens = list(range(SPAN))
    plain = HASHER.key_of(tokens).blocks
    view = KvCacheView(HASHER)
    view.fold(Stored((1,), None, tokens, SPAN))
    view.fold(Stored((2,), None, tokens, SPAN, adapter="sql"))
    view.fold(Stored((3,), None, tokens, SPAN, extras=(b"image",)))
    (blocks,) = view.fleet_blocks().values()
    assert len(blocks) == 3
    assert blocks > {*plain, *HASHER.key_of(tokens, adapter="sql").blocks}


def test_only_one_full_attention_group_speaks_for_the_fleet() -> None:
    tokens = list(range(SPAN))
    view = KvCacheView(HASHER)
    assert view.fold(Stored((1,), None, tokens, SPAN, group=1, full_attention=False)) == []
    assert len(view.fold(Stored((1,), None, tokens, SPAN, group=0))) == 1
    assert view.fold(Stored((1,), None, tokens, SPAN, group=2)) == []
    assert view.fold(Removed((1,), group=1)) == []
    assert [change.kind for change in view.fold(Removed((1,), group=0))] == ["removed"]
    assert view.content() == {("device", 2, 1): 1}


def test_an_engine_whose_names_are_not_chained_is_not_believed() -> None:
    view = KvCacheView(HASHER)
    view.fold(Stored((1, 2), None, [1] * SPAN + [2] * SPAN, SPAN))
    assert view.fold(Stored((2,), 7, [2] * SPAN, SPAN)) == [FleetChange("cleared")]
    assert view.unusable is not None
    assert "beginnings" in view.unusable
    assert view.fold(Stored((3,), None, [3] * SPAN, SPAN)) == []
    assert view.content() == {}
    view.fold(Cleared())
    assert view.unusable is None


def test_an_engine_that_never_removes_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "MAX_BLOCKS_KNOWN", 3)
    view = KvCacheView(HASHER)
    view.fold(Stored((1,), None, [1] * SPAN, SPAN))
    assert view.fold(Stored((2, 3, 4), 1, [1] * SPAN * 3, SPAN)) == [FleetChange("cleared")]
    assert view.unusable is not None
    assert view.known == 0
