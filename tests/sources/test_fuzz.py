"""10,000 mutated pages: no crash, and no reading whose value the page does not state for that metric."""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Callable

from sources.engines.mapping import BOUNDS, Candidate, mapping_of
from sources.engines.reader import EngineSample, read_engine
from sources.problems import Unreadable

MUTATIONS = 10_000
VLLM = mapping_of("vllm")
FAMILIES = [one.metric for candidates in VLLM.latencies.values() for one in candidates]
READ = sorted({*VLLM.wanted, *(f"{name}_{part}" for name in FAMILIES for part in ("bucket", "sum", "count"))})
ANY_READ = re.compile("|".join(map(re.escape, READ)))
CANDIDATES = {(name, one.provenance): one for name, all_of in VLLM.readings.items() for one in all_of}
JUNK = [
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e999",
    "0x10",
    "1_0",
    "",
    "1.0 2",
    "ten",
    "1e-400",
    "--1",
    "2,5",
    "{",
    "}",
]


def _mutate(lines: list[str], rng: random.Random) -> bytes:
    """One to three of the accidents that befall text: bits, lines, values, names, types, an early end."""
    lines = list(lines)
    relevant = [n for n, line in enumerate(lines) if ANY_READ.search(line)]
    for _ in range(rng.randint(1, 3)):
        at = rng.choice(relevant) if rng.random() < 0.8 else rng.randrange(len(lines))
        at = min(at, len(lines) - 1)
        line, kind = lines[at], rng.randrange(9)
        where = rng.randrange(len(line) + 1)
        if kind == 0:
            lines[at] = line[:where] + chr(rng.randrange(256)) + line[where + 1 :]
        elif kind == 1:
            lines[at] = line[:where] + rng.choice('0123456789 "{},\n\t\\=#x') + line[where:]
        elif kind == 2:
            lines[at] = line[:where] + line[where + rng.randint(1, 4) :]
        elif kind == 3:
            lines.insert(rng.randrange(len(lines)), line)
        elif kind == 4:
            lines.pop(at)
        elif kind == 5:
            lines[at] = line.rpartition(" ")[0] + " " + rng.choice(JUNK)
        elif kind == 6:
            lines[at] = line.replace(rng.choice(READ), rng.choice(READ))
        elif kind == 7:
            lines[at] = re.sub(r"(gauge|counter)$", rng.choice(["gauge", "counter", "histogram", ""]), line)
        else:
            lines[at] = line + lines[at - 1]
    body = ("\n".join(lines) + "\n").encode()
    return body[: rng.randrange(len(body))] if rng.random() < 0.1 else body


STATES = re.compile(
    r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{.*\})?[ \t]*([0-9.eE+-]+)(?:[ \t]+[0-9]+)?[ \t\r]*"
)
Stated = dict[str, list[tuple[str, float]]]


def _stated(body: bytes) -> Stated:
    """Label text and value of each line that states a value, by metric; another way than the parser's."""
    found: Stated = {}
    for line in body.decode("utf-8", "replace").split("\n"):
        if match := STATES.fullmatch(line):
            with contextlib.suppress(ValueError):
                found.setdefault(match[1], []).append((match[2] or "", float(match[3])))
    return found


def _backed(stated: Stated, sample: EngineSample, candidate: Candidate, value: float) -> bool:
    (metric,) = candidate.metrics
    lines = stated.get(metric, [])
    if candidate.labels_product:
        factors = [
            {int(number) for labels, _ in lines for number in re.findall(rf'\b{label}\s*=\s*"(\d+)"', labels)}
            for label in candidate.labels_product
        ]
        products = {1}
        for numbers in factors:
            products = {product * number for product in products for number in numbers}
        return value in products
    if candidate.sum_over:
        mine = [one for labels, one in lines if f'"{sample.rank}"' in labels or not labels]
        return math.isclose(value, math.fsum(mine)) or value in [one for _, one in lines]
    return value in [one * candidate.scale for _, one in lines]


def test_mutated_pages_never_crash_and_never_give_a_value_they_do_not_state(
    capture: Callable[[str], bytes],
) -> None:
    rng = random.Random(20_260_802)
    pages = [capture(name).decode().splitlines() for name in ("under_load", "after", "small_cache")]
    refused = unknowns = values = histograms = 0
    for number in range(MUTATIONS):
        body = _mutate(pages[number % len(pages)], rng)
        try:
            samples = read_engine(body, VLLM, default_model="tiny", latencies=True)
        except Unreadable:
            refused += 1
            continue
        assert samples
        stated = _stated(body)
        for sample in samples:
            for totals in sample.latencies:
                assert sum(totals.counts) in [one for _, one in stated[f"{totals.metric}_count"]]
                assert totals.sum_ms in [one * 1000.0 for _, one in stated[f"{totals.metric}_sum"]]
                assert min(totals.counts) >= 0
                assert list(totals.bounds_ms) == sorted(totals.bounds_ms)
                histograms += 1
            for name, reading in [*sample.gauges, *sample.counters]:
                if reading.value is None:
                    assert reading.quality == "unknown"
                    assert sample.problems or name in sample.not_yet, "an unknown reading must say why"
                    unknowns += 1
                    continue
                low, high = BOUNDS[name]
                assert low <= reading.value <= high
                origin = sample.provenance[name]
                used = CANDIDATES[name, origin]
                assert _backed(stated, sample, used, reading.value), (name, reading.value)
                values += 1
    assert refused > 0, "the mutations were too tame"
    assert unknowns > MUTATIONS / 10
    assert values > MUTATIONS
    assert histograms > MUTATIONS
