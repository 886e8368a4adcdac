"""Readers of compacted rows: newest by (epoch, version), zombies fenced by claims, age makes unknown."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minds.rows import RowView, tombstone_headers
from minds.staleness import quality_of
from schemas.base import header_of
from schemas.codec import Refused, headers_for, to_json
from schemas.operations import CLAIM_KEY, Claim
from schemas.tables import RegionRow
from schemas.topics import OUTCOMES, REGIONS

T0 = 1_796_000_000_000
KEY = "eu|m@v1"


def region(epoch: int, version: int, *, as_of_ms: int = T0, ready: int = 1) -> RegionRow:
    return RegionRow(
        as_of_ms=as_of_ms,
        valid_for_ms=3000.0,
        epoch=epoch,
        version=version,
        region="eu",
        pool="m@v1",
        ready_endpoints=ready,
        known_endpoints=ready,
    )


class Log:
    """One partition as it was written, applied to a view record by record."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes, tuple[tuple[str, bytes], ...], bytes | None]] = []

    def put(self, row: RegionRow) -> int:
        self.records.append((row.key().encode(), tuple(headers_for(row)), to_json(row)))
        return len(self.records) - 1

    def claim(self, owner: str = "w") -> int:
        value = to_json(Claim(owner=owner, at_ms=T0))
        self.records.append((CLAIM_KEY.encode(), tuple(headers_for(Claim)), value))
        return len(self.records) - 1

    def remove(self, epoch: int, version: int) -> int:
        self.records.append((KEY.encode(), tuple(tombstone_headers(epoch, version)), None))
        return len(self.records) - 1

    def read(self, *, offsets: list[int] | None = None) -> RowView:
        view = RowView(REGIONS)
        for offset in offsets if offsets is not None else range(len(self.records)):
            key, headers, value = self.records[offset]
            view.apply(0, offset, key, headers, value)
        return view


def test_rows_before_the_last_claim_are_unknown_until_published_again() -> None:
    log = Log()
    first = log.claim()
    log.put(region(first, 1))
    assert log.read().get(KEY, T0) is not None
    assert log.read().get(KEY, T0)[1] == "fresh"  # type: ignore[index]
    second = log.claim()
    assert log.read().get(KEY, T0)[1] == "unknown"  # type: ignore[index]
    log.put(region(second, 1, ready=2))
    row, quality = log.read().get(KEY, T0)  # type: ignore[misc]
    assert (row.ready_endpoints, quality) == (2, "fresh")


def test_a_zombies_late_row_and_tombstone_change_nothing() -> None:
    log = Log()
    first, second = log.claim("old"), log.claim("new")
    log.put(region(second, 1, ready=5))
    log.put(region(first, 99, ready=9))
    log.remove(first, 100)
    view = log.read()
    assert view.row(KEY).ready_endpoints == 5
    log.remove(second, 2)
    assert log.read().row(KEY) is None


def test_a_row_older_than_its_tombstone_does_not_come_back() -> None:
    log = Log()
    epoch = log.claim()
    log.remove(epoch, 7)
    log.put(region(epoch, 6))
    assert log.read().row(KEY) is None
    log.put(region(epoch, 8))
    assert log.read().row(KEY) is not None


@given(seed=st.integers(0, 2**32))
def test_who_was_there_and_who_starts_new_end_on_the_same_row(seed: int) -> None:
    """Whatever owners and zombies write, compaction (the last record of each key) changes no one's result
    once the owner has published again, as its heartbeat does."""
    rng, log, epochs, versions = random.Random(seed), Log(), [], {}
    epochs.append(log.claim())
    for _ in range(rng.randint(1, 30)):
        if rng.random() < 0.15:
            epochs.append(log.claim())
            continue
        epoch = epochs[-1] if rng.random() < 0.7 else rng.choice(epochs)
        versions[epoch] = versions.get(epoch, 0) + 1
        if rng.random() < 0.2:
            log.remove(epoch, versions[epoch])
        else:
            log.put(region(epoch, versions[epoch], ready=rng.randint(0, 9)))
    owner = epochs[-1]
    last = log.put(region(owner, versions.get(owner, 0) + 1, ready=42))
    newest = {log.records[offset][0]: offset for offset in range(len(log.records))}
    there, new = log.read(), log.read(offsets=sorted(newest.values()))
    for view in (there, new):
        assert view.get(KEY, T0) == (there.row(KEY), "fresh")
        assert view.row(KEY).ready_endpoints == 42
        assert view.claim_of(0) == owner
    assert newest[KEY.encode()] == last


def test_age_turns_fresh_to_stale_to_unknown() -> None:
    log = Log()
    log.put(region(log.claim(), 1))
    view = log.read()
    ages = {age: view.get(KEY, T0 + age)[1] for age in (0, 3000, 3001, 6000, 6001)}  # type: ignore[index]
    assert ages == {0: "fresh", 3000: "fresh", 3001: "stale", 6000: "stale", 6001: "unknown"}
    assert quality_of(-500, 3000) == "fresh"


def test_what_cant_be_used_is_refused_and_leaves_the_view_as_it_was() -> None:
    log = Log()
    log.put(region(log.claim(), 1))
    view = log.read()
    with pytest.raises(Refused):
        view.apply(0, 9, KEY.encode(), (("schema", header_of(RegionRow).encode()),), b"{")
    with pytest.raises(Refused):
        view.apply(0, 10, KEY.encode(), (("schema", b"region/99"),), b"{}")
    assert view.row(KEY).version == 1
    assert len(view) == 1


def test_a_raw_topic_has_no_rows() -> None:
    with pytest.raises(ValueError, match="not compacted"):
        RowView(OUTCOMES)
