"""The bytes that every arm is fed, and the plain loop that their results are checked against."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

KEYS = 500
PARTITIONS = 4
DRAWN = 8_191
"""Different figures of events; a prime, so that keys and figures never fall into step."""
SINGLE_HEADER = ("schema", b"outcome/1")
BATCH_HEADER = ("schema", b"outcome.batch/1")


def instance_of(key: int) -> str:
    """The name of a key."""
    return f"i{key:04d}"


def pool_of(key: int) -> str:
    """Its pool."""
    return f"m{key % 8}@v1"


def partition_of_key(key: int) -> int:
    """Events of one key are in one partition: the peers need that, this app does not."""
    return key % PARTITIONS


class Loop:
    """The plain loop: what there was after each event of each key. Arrays: millions of objects would make the
    benchmark's own garbage collector stop it for longer than what it measures.
    """

    def __init__(self) -> None:
        self._oks: dict[str, array[int]] = {}
        self._tokens: dict[str, array[int]] = {}
        self.at_ms: dict[str, array[int]] = {}
        """Each event's time, key by key."""

    def take(self, instance: str, ok: bool, tokens: int, at_ms: int) -> None:
        """Count one event."""
        times = self.at_ms.get(instance)
        if times is None:
            times = self.at_ms[instance] = array("q")
            self._oks[instance], self._tokens[instance] = array("q", [0]), array("q", [0])
        oks, totals = self._oks[instance], self._tokens[instance]
        oks.append(oks[-1] + ok)
        totals.append(totals[-1] + tokens)
        times.append(at_ms)

    @property
    def events(self) -> int:
        """How many there were."""
        return sum(map(len, self.at_ms.values()))

    def agrees(self, instance: str, n: int, ok: int, tokens: int) -> bool:
        """Whether a row is what the loop had after ``n`` events of the key."""
        oks, totals = self._oks.get(instance, (0,)), self._tokens.get(instance, (0,))
        return n < len(oks) and (oks[n], totals[n]) == (ok, tokens)


def _figures(rng: random.Random) -> tuple[bool, int, bytes, bytes]:
    """Whether it ended well, its tokens, and its JSON before and after the time."""
    ok, tokens = rng.random() < 0.97, rng.randrange(1, 500)
    cause, within = (b"ok", b"true") if ok else (b"timeout", b"false")
    after = b',"ttft_ms":%.1f,"tpot_ms":%.2f,"output_tokens":%d,"within_slo":%s' % (
        rng.lognormvariate(5.0, 0.5),
        rng.lognormvariate(3.0, 0.2),
        tokens,
        within,
    )
    return ok, tokens, b'"cause":"%s","at_ms":' % cause, after


class Stream:
    """A seeded stream of outcomes; with ``full`` as long as our own routers write them (650 bytes)."""

    def __init__(self, seed: int, *, full: bool = False) -> None:
        self._rng = rng = random.Random(seed)
        self._full = full
        self.loop = Loop()
        self._number = 0
        # Parts are drawn once: whoever writes an event must not cost what the readers are measured by.
        self._drawn = [_figures(rng) for _ in range(DRAWN)]
        self._names = [
            b'"pool":"%s","entry_region":"eu","region":"eu","instance":"%s","instance_boot":"b0",'
            % (pool_of(key).encode(), instance_of(key).encode())
            for key in range(KEYS)
        ]
        self._instances = [instance_of(key) for key in range(KEYS)]

    def event(self, key: int, at_ms: int) -> bytes:
        """One outcome of this key as JSON, counted in the loop."""
        ok, tokens, before, after = self._drawn[self._number % DRAWN]
        self.loop.take(self._instances[key], ok, tokens, at_ms)
        self._number += 1
        figures = b"%b%b%d%b" % (self._names[key], before, at_ms, after)
        if not self._full:
            return b"{%b}" % figures
        return (
            b'{"decision_id":"router-0-19f3c2a1-%06d","intent_id":"intent-%06d","intent_inferred":false,'
            b'"attempt":1,"router":"router-0","router_boot":"19f3c2a1","tenant":"public",'
            b'"service_class":"interactive",%s,"status":200,"intent_started_at_ms":%d,"started_at_ms":%d,'
            b'"first_token_at_ms":%d,"e2e_ms":3000.0,"prompt_tokens":1155,"ttft_slo_ms":2000.0,'
            b'"tpot_slo_ms":60.0,"deadline_at_ms":%d,"work_tokens":420.0}'
        ) % (self._number, self._number, figures, at_ms, at_ms, at_ms, at_ms)

    def records(self, events: int, batch: int, first_ms: int, span_ms: int) -> Iterator[tuple[int, bytes]]:
        """``(partition, value)``: events of random keys whose times rise over the span."""
        waiting: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
        seq = 0
        for number in range(events):
            key = self._rng.randrange(KEYS)
            value = self.event(key, first_ms + number * span_ms // events)
            partition = partition_of_key(key)
            if batch == 1:
                yield partition, value
                continue
            waiting[partition].append(value)
            if len(waiting[partition]) == batch:
                yield partition, self.envelope(partition, seq, first_ms, waiting[partition])
                waiting[partition], seq = [], seq + 1
        for partition, values in waiting.items():
            if values:
                yield partition, self.envelope(partition, seq, first_ms, values)

    @staticmethod
    def envelope(partition: int, seq: int, sent_at_ms: int, values: list[bytes]) -> bytes:
        """Several events of one producer as one record."""
        head = b'{"producer":"r%d","boot":"b","seq":%d,"sent_at_ms":%d,"events":[' % (
            partition,
            seq,
            sent_at_ms,
        )
        return head + b",".join(values) + b"]}"
