"""A rank's stream to the fleet: random schedules against an engine that remembers all, and boots."""

from __future__ import annotations

import random

import pytest

from minds.prefix_keys import BlockHasher, Salt
from schemas.caches import KvEvent
from sources.boots import Boot
from sources.kv_events.follower import BOOT_WAIT_MS, RESTATE_MS, RankFollower
from sources.kv_events.wire import Batch, Cleared, KvChange, Removed, Stored

HASHER = BlockHasher("tiny", Salt("s", bytes(32)), block_tokens=32)
NOW_MS = 1_795_981_800_000


class Reader:
    """What a router makes of fleet.kv: the newest boot's blocks."""

    def __init__(self) -> None:
        self.boot: str | None = None
        self.blocks: dict[str, set[str]] = {}

    def read(self, event: KvEvent) -> None:
        if event.boot != self.boot or event.kind == "cleared":
            self.boot, self.blocks = event.boot, {}
        if event.prefix is not None:
            held = self.blocks.setdefault(event.medium, set())
            (held.update if event.kind == "stored" else held.difference_update)(event.prefix.blocks)

    def sees(self, view: dict[str, frozenset[str]]) -> bool:
        return {medium: frozenset(names) for medium, names in self.blocks.items() if names} == view


class Engine:
    """An engine's cache and its publisher, through several lives; the truth is in ``held``."""

    def __init__(self, rng: random.Random, buffer: int) -> None:
        self.rng, self.clock, self.limit = rng, NOW_MS / 1000, buffer
        self.lives = 0
        self.restart()

    def restart(self) -> None:
        self.clock += 1.0
        self.lives += 1
        self.boot = Boot(f"b{self.lives}", int(self.clock * 1000))
        self.held: dict[int, int] = {}
        self.buffer: list[Batch] = []
        self.seq = 0

    def publish(self) -> Batch:
        self.clock += self.rng.choice([0.3, 0.5, -0.2]) + self.rng.random() * 1e-4
        events = tuple(self._event() for _ in range(self.rng.randint(1, 3)))
        made = Batch(self.seq, self.clock, 0, events)
        self.seq += 1
        self.buffer = [*self.buffer, made][-self.limit :]
        return made

    def _event(self) -> KvChange:
        roll = self.rng.random()
        if roll < 0.03:
            self.held = {}
            return Cleared()
        if roll < 0.4 and self.held:
            name = self.rng.choice(list(self.held))
            self.held[name] -= 1
            if not self.held[name]:
                del self.held[name]
            return Removed((name,))
        name = self.rng.randint(0, 30)
        self.held[name] = self.held.get(name, 0) + 1
        return Stored((name,), None, [name] * 32, 32)


class Rig:
    """A follower of an engine, with a replay socket that may be dead, and a reader of what it tells."""

    def __init__(self, engine: Engine, replay_works: bool) -> None:
        self.engine, self.replay_works = engine, replay_works
        self.follower = RankFollower("i", "m@1", 0, HASHER, now_ms=NOW_MS)
        self.reader = Reader()
        self.boot: Boot | None = None

    @property
    def now_ms(self) -> int:
        return int(self.engine.clock * 1000)

    def take(self, live: Batch | None) -> None:
        if live is None:
            events, ask_from = self.follower.tick(self.boot, self.now_ms)
        else:
            events, ask_from = self.follower.live(live, self.boot, self.now_ms)
        for asked in range(4):
            for event in events:
                self.reader.read(event)
            if ask_from is None:
                return
            got = [one for one in self.engine.buffer if one.seq >= ask_from]
            given = got if asked < 2 and self.replay_works else None
            events, ask_from = self.follower.replayed(given, live, self.boot, self.now_ms)
        pytest.fail("it asks without end")

    def check(self) -> None:
        told = {name: count for (_, _, name), count in self.follower.view.content().items()}
        assert all(count <= self.engine.held.get(name, 0) for name, count in told.items())  # type: ignore[call-overload]
        if self.follower.whole:
            assert told == self.engine.held


@pytest.mark.parametrize("buffer", [10_000, 6])
def test_random_schedules_never_claim_what_is_not_held(buffer: int) -> None:
    wholes = 0
    for seed in range(150):
        rng = random.Random(f"{buffer} {seed}")
        engine = Engine(rng, buffer)
        rig = Rig(engine, replay_works=rng.random() < 0.8)
        loss = rng.choice([0.0, 0.1, 0.5])
        for _ in range(60):
            if rng.random() < 0.04:
                engine.restart()
            made = engine.publish()
            if rng.random() < 0.5:
                rig.boot = engine.boot  # the scraper is now and then later than the stream
            arrivals = sum(rng.random() >= loss for _ in range(rng.choice([1, 1, 1, 2])))
            for _ in range(arrivals):
                rig.take(made)
            if arrivals and rig.boot == engine.boot:
                assert rig.follower.position.last == made.seq
                rig.check()
                wholes += rig.follower.whole
                assert rig.reader.boot == engine.boot.name
                assert rig.reader.sees(rig.follower.view.fleet_blocks())
        rig.boot = engine.boot
        engine.clock += BOOT_WAIT_MS / 1000 + 1
        for _ in range(2):
            rig.take(None)
        if rig.replay_works:
            assert rig.follower.position.last == engine.seq - 1
            assert rig.follower.whole or buffer == 6
            rig.check()
        assert rig.reader.sees(rig.follower.view.fleet_blocks())
    assert wholes > 1000, "the schedules must not be all losses"


def stored(seq: int, name: int, ts_s: float) -> Batch:
    return Batch(seq, ts_s, 0, (Stored((name,), None, [name] * 32, 32),))


def hashes(*names: int) -> set[str]:
    return {HASHER.key_of([name] * 32).blocks[0] for name in names}


def kinds(events: list[KvEvent]) -> list[tuple[str, str, int]]:
    return [(event.kind, event.boot, len(event.prefix.blocks) if event.prefix else 0) for event in events]


def test_nothing_is_told_before_the_boot_is_known_and_then_all() -> None:
    follower = RankFollower("i", "m@1", 3, HASHER, now_ms=NOW_MS)
    began_s = NOW_MS / 1000
    assert follower.live(stored(0, 1, began_s), None, NOW_MS) == ([], None)
    events, _ = follower.live(stored(1, 2, began_s + 1), Boot("b1", NOW_MS - 5000), NOW_MS + 5)
    assert kinds(events) == [("cleared", "b1", 0), ("stored", "b1", 1), ("stored", "b1", 1)]
    last = events[-1]
    assert (last.instance, last.pool, last.rank, last.engine_seq, last.at_ms, last.medium) == (
        ("i", "m@1", 3, 1, NOW_MS + 5, "device")
    )
    assert last.prefix is not None
    assert (last.prefix.scheme, last.prefix.salt_id) == ("tok:tiny:32", "s")
    assert set(last.prefix.blocks) == hashes(2)


def test_a_stream_that_restarts_first_waits_for_the_boot() -> None:
    old, new = Boot("b1", NOW_MS - 5000), Boot("b2", NOW_MS + 10_000)
    follower = RankFollower("i", "m@1", 0, HASHER, now_ms=NOW_MS)
    follower.live(stored(0, 1, NOW_MS / 1000), old, NOW_MS)
    follower.live(stored(1, 2, NOW_MS / 1000 + 1), old, NOW_MS)
    events, _ = follower.live(stored(0, 3, NOW_MS / 1000 + 20), old, NOW_MS + 20_000)
    assert kinds(events) == [("cleared", "b1", 0)]
    events, _ = follower.live(stored(1, 4, NOW_MS / 1000 + 21), new, NOW_MS + 21_000)
    assert kinds(events) == [("cleared", "b2", 0), ("stored", "b2", 1), ("stored", "b2", 1)]
    assert follower.view.fleet_blocks() == {"device": hashes(3, 4)}


def test_a_stream_that_restarts_without_a_new_boot_is_told_on_after_a_while() -> None:
    boot = Boot("b1", NOW_MS - 5000)
    follower = RankFollower("i", "m@1", 0, HASHER, now_ms=NOW_MS)
    follower.live(stored(0, 1, NOW_MS / 1000), boot, NOW_MS)
    follower.live(stored(0, 2, NOW_MS / 1000 + 1), boot, NOW_MS)
    assert follower.tick(boot, NOW_MS + BOOT_WAIT_MS - 1)[0] == []
    assert kinds(follower.tick(boot, NOW_MS + BOOT_WAIT_MS)[0]) == [("stored", "b1", 1)]


def test_a_boot_that_is_known_first_empties_what_was_heard_before_it() -> None:
    old, new = Boot("b1", NOW_MS - 5000), Boot("b2", NOW_MS + 10_000)
    follower = RankFollower("i", "m@1", 0, HASHER, now_ms=NOW_MS)
    follower.live(stored(0, 1, NOW_MS / 1000), old, NOW_MS)
    events, ask_from = follower.tick(new, NOW_MS + 11_000)
    assert (kinds(events), ask_from) == ([("cleared", "b2", 0)], 0)
    # A number that happens to follow the old life's last one must not be taken for its next.
    events, ask_from = follower.live(stored(1, 2, NOW_MS / 1000 + 12), new, NOW_MS + 12_000)
    assert (events, ask_from) == ([], 0)


def test_all_that_is_held_is_told_again_now_and_then() -> None:
    boot = Boot("b1", NOW_MS - 5000)
    follower = RankFollower("i", "m@1", 0, HASHER, now_ms=NOW_MS)
    names = range(1, 1201)
    batch = Batch(0, NOW_MS / 1000, 0, tuple(Stored((name,), None, [name] * 32, 32) for name in names))
    follower.live(batch, boot, NOW_MS)
    assert follower.tick(boot, NOW_MS + 1000)[0] == []
    events, _ = follower.tick(boot, NOW_MS + RESTATE_MS)
    assert [len(event.prefix.blocks) for event in events if event.prefix] == [512, 512, 176]
    assert follower.tick(boot, NOW_MS + RESTATE_MS + 1000)[0] == []
