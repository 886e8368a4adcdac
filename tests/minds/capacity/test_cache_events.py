"""KV events in the table: when the last came, what a cache loses, and unknown where none is told."""

from __future__ import annotations

import copy
import random
from typing import Literal

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from minds.capacity.cache_events import (
    SLOT_MS,
    TOLD_FOR_MS,
    CacheNews,
    CacheTold,
    add_cache_told,
    cache_readings,
    count_kv_event,
    forget_old,
)
from schemas.caches import KvEvent
from schemas.prefixes import PrefixKey

T0 = 1_796_000_000_000


def event(
    at_ms: int, kind: Literal["stored", "removed", "cleared"], blocks: int = 0, boot: str = "b0"
) -> KvEvent:
    names = [f"{number:016x}" for number in range(blocks)]
    prefix = None if kind == "cleared" else PrefixKey(scheme="tok:t:512", salt_id="s", blocks=names)
    return KvEvent(instance="i", boot=boot, pool="m@v1", at_ms=at_ms, engine_seq=1, kind=kind, prefix=prefix)


def told(*events: KvEvent) -> CacheTold:
    made: CacheTold = {}
    for one in events:
        count_kv_event(made, one)
    return made


def test_removals_of_the_last_minute_are_a_rate() -> None:
    made = told(
        event(T0 - 65_000, "removed", 600),
        event(T0 - 55_000, "removed", 90),
        event(T0 - 12_000, "removed", 30),
        event(T0 - 11_000, "stored", 1_000),
        event(T0 - 1_000, "cleared"),
    )
    last_at_ms, evicted = cache_readings([made], "b0", T0)
    assert (last_at_ms, evicted.value, evicted.quality) == (T0 - 1_000, 2.0, "fresh")
    assert cache_readings([made, told(event(T0 - 12_000, "removed", 60))], "b0", T0)[1].value == 3.0


def test_nothing_lost_is_nought_and_nothing_told_is_unknown() -> None:
    made = told(event(T0, "stored", 3))
    assert cache_readings([made], "b0", T0)[1].value == 0.0
    for parts, boot, now_ms in (([made], "b1", T0), ([made], "b0", T0 + TOLD_FOR_MS + 1), ([], "b0", T0)):
        last_at_ms, evicted = cache_readings(parts, boot, now_ms)
        assert (last_at_ms, evicted.quality) == (None, "unknown")


def test_what_is_kept_is_bounded() -> None:
    made = told(*[event(T0 + 1_000 * n, "removed", 1) for n in range(1_000)])
    forget_old(made, T0 + 1_000_000)
    assert len(made["b0"].removed) <= 8
    forget_old(made, T0 + 1_000_000 + TOLD_FOR_MS)
    assert made == {}


events = st.lists(
    st.builds(
        lambda at, kind, blocks, boot: event(T0 + at, kind, blocks, boot),
        st.integers(0, 200_000),
        st.sampled_from(["stored", "removed", "cleared"]),
        st.integers(0, 3),
        st.sampled_from(["b0", "b1"]),
    ),
    max_size=20,
)


@given(events, st.integers(0, 2**20))
def test_deltas_add_up_in_any_order_and_however_they_are_cut(drawn: list[KvEvent], seed: int) -> None:
    mark_ms = T0 + 200_000 // SLOT_MS * SLOT_MS
    reference = told(*drawn)
    forget_old(reference, mark_ms)
    rng = random.Random(seed)
    again = list(drawn)
    rng.shuffle(again)
    closed: CacheTold = {}
    for at in range(0, len(again), 4):
        delta = msgspec.json.decode(msgspec.json.encode(told(*again[at : at + 4])), type=dict[str, CacheNews])
        before = copy.deepcopy(delta)
        add_cache_told(closed, delta)
        assert delta == before
        if rng.random() < 0.5:
            forget_old(closed, mark_ms)
    forget_old(closed, mark_ms)
    assert closed == reference
