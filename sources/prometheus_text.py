"""A lean parser of Prometheus' text format (0.0.4) that keeps only the metrics that were asked for.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/. An engine's page has some 600 lines
and is read several times a second, so lines of other metrics are skipped unparsed. A line of a wanted metric
is read strictly: what is not exactly a sample makes *all* of that metric unusable, since nobody can say
what the line should have been.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from schemas.base import EARLIEST_MS, LATEST_MS
from sources.problems import Problem, ProblemKind, Unreadable

MAX_BYTES = 4 * 1024 * 1024
"""A longer text is refused whole: a real engine's is some 50 kB."""

VALUE = r"[ \t]*(?:[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|[+-]?Inf)"
"""A pattern of a value. ``float`` alone would take "1_0", "infinity" and other scripts' digits."""
_VALUE = re.compile(rf"({VALUE})(?:[ \t]+(-?[0-9]{{1,15}}))?[ \t\r]*")
"""A value and perhaps a time stamp."""
_ALL_VALUES = re.compile(rf"(?:{VALUE}[ \t\r]*\n)*")
_PAIR = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(?:(,)|$)', re.ASCII)
_ESCAPE = re.compile(r"\\([\\n\"])")
_UNESCAPED = {"\\": "\\", "n": "\n", '"': '"'}


_HISTOGRAM_PARTS = frozenset({"bucket", "sum", "count"})
_PARTS = ("_total", "_sum", "_count")


class Labels:
    """The labels of a series, parsed once per distinct label text. Hashes and compares by content."""

    __slots__ = ("_hash", "_key", "by_name")

    def __init__(self, by_name: dict[str, str]) -> None:
        self.by_name = by_name
        self._key = frozenset(by_name.items())
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Labels) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Labels({self.by_name!r})"


class Series(NamedTuple):
    """One sample. ``value`` may be NaN or infinite here; whoever makes a reading of it must refuse those.

    ``line`` is its place among the wanted lines of the text.
    """

    labels: Labels
    value: float
    timestamp_ms: int | None = None
    line: int = 0


@dataclass(slots=True)
class Exposition:
    """What a text says about the wanted metrics.

    A metric in ``broken`` has a line that could not be read, a series twice or two types: none of its
    series may be used, and the problem says why.
    """

    series: dict[str, list[Series]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    broken: dict[str, Problem] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _labels: dict[str, set[Labels]] = field(default_factory=dict)

    def type_of(self, metric: str) -> str | None:
        """The declared type of the family that this sample belongs to.

        OpenMetrics declares a counter ``x_total`` as ``x``, and a histogram's samples are ``x_bucket``,
        ``x_sum`` and ``x_count``.
        """
        if own := self.types.get(metric):
            return own
        family, _, part = metric.rpartition("_")
        kind = self.types.get(family)
        if kind == "histogram":
            return kind if part in _HISTOGRAM_PARTS else None
        return kind if part == "total" else None


@dataclass(frozen=True, slots=True)
class Scan:
    """The wanted lines of a text, not yet read: what they name apart from the values that they give.

    Two scrapes of one engine differ in their ``values`` only, so that what ``keys`` mean needs to be worked
    out but once. A TYPE line has a key with ``#`` before it, and the value 0.
    """

    body: str
    cut_off: str
    """What follows the last line feed."""
    keys: tuple[str, ...]
    values: list[str]

    def numbers(self) -> list[float] | None:
        """The values, where each is a number (or NaN, or infinite) and nothing else, such as a time stamp."""
        return numbers_of(self.values)


def numbers_of(values: list[str]) -> list[float] | None:
    """The values as floats; None where one is not exactly a value."""
    if _ALL_VALUES.fullmatch("\n".join([*values, ""])) is None:
        return None
    return [float(value) for value in values]


def scan(body: bytes, wanted: frozenset[str]) -> Scan:
    """Find the wanted lines. Raises sources.problems.Unreadable where the text is too large."""
    if len(body) > MAX_BYTES:
        raise Unreadable("too_large", f"The metrics page is over {MAX_BYTES // 1024} kB; refused unread.")
    text, _, last = body.decode("utf-8", "replace").rpartition("\n")
    keys: list[str] = []
    values: list[str] = []
    for name, line in _scanner(wanted).findall(f"\n{text}\n"):
        if name:
            cut = line.rfind("}") + 1  # a value has no brace, so the last one closes the labels
            keys.append(name + line[:cut])
            values.append(line[cut:])
        else:
            keys.append(f"#{line}")
            values.append("0")
    return Scan(text, last.strip(), tuple(keys), values)


def parse(body: bytes, wanted: frozenset[str]) -> Exposition:
    """The wanted metrics of an exposition.

    ``wanted`` are sample names (``x_total``, not the family ``x``). Raises sources.problems.Unreadable where
    the text is too large or no exposition at all.
    """
    return read_scan(scan(body, wanted), wanted)


def read_scan(scanned: Scan, wanted: frozenset[str]) -> Exposition:
    """What the scanned lines say; raises sources.problems.Unreadable where the text is no exposition."""
    found = Exposition()
    if scanned.cut_off:
        # The format ends every line with a line feed; a cut-off "12" may once have been "1234".
        sentence = "The text does not end with a line feed, so its last line may be cut off and was dropped."
        found.problems.append(Problem("truncated", sentence))
        _mark_cut_off(found, scanned.cut_off, wanted)
    for number, (key, value) in enumerate(zip(scanned.keys, scanned.values, strict=True)):
        if key.startswith("#"):
            _take_type(found, key[1:])
        else:
            _take_sample(found, key, value, number)
    if not found.types and not found.series and not found.broken and "# TYPE " not in scanned.body:
        kind = "an HTML page" if scanned.body.lstrip()[:1] == "<" else "not Prometheus text"
        raise Unreadable("not_metrics", f"The answer is {kind}: it has no TYPE line and no metric we know.")
    for name, broken in found.broken.items():
        found.series.pop(name, None)
        found.problems.append(broken)
    return found


def _mark_cut_off(found: Exposition, line: str, wanted: frozenset[str]) -> None:
    name = re.split(r"[{ \t]", line, maxsplit=1)[0]
    if name in wanted:
        _break(found, name, "truncated", "its last line is cut off")


@lru_cache(maxsize=64)
def _scanner(wanted: frozenset[str]) -> re.Pattern[str]:
    """Finds the lines that matter in one pass of the regex engine, some four times as fast as a Python loop.

    Groups: the metric's name and the rest of its line, or no name and the rest of a TYPE line.
    """
    declared = wanted | {name.rpartition("_")[0] for name in wanted if name.endswith(_PARTS)}
    sample = rf"({any_of(wanted)})(?=[ \t\r\n{{])"
    kind = rf"#[ \t]*TYPE[ \t]+(?={any_of(declared)}[ \t])"
    return re.compile(rf"\n[ \t]*(?:{sample}|{kind})([^\n]*)")


def any_of(names: Iterable[str]) -> str:
    """A pattern of these names as a tree of prefixes: plain alternatives are each tried on each line."""
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(name[:1], []).append(name[1:])
    branches = [
        re.escape(first) + (any_of(rest) if any(rest) else "")
        for first, rest in sorted(by_first.items(), reverse=True)  # the end of a name, "", comes last
    ]
    if not branches:
        return "(?!)"  # no names: matches nothing
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _take_type(found: Exposition, line: str) -> None:
    words = line.split()
    if len(words) != 2:
        return
    name, kind = words
    if found.types.setdefault(name, kind) != kind:
        _break(found, name, "wrong_type", f"it is declared both {found.types[name]} and {kind}")


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)


def _take_sample(found: Exposition, key: str, value: str, line: int) -> None:
    match = _NAME.match(key)
    name = match[0] if match else key
    inside = key[len(name) :].strip(" \t")
    labels = NO_LABELS if not inside else parse_labels(inside[1:-1]) if inside.startswith("{") else None
    numbers = _VALUE.fullmatch(value)
    if labels is None or numbers is None:
        return _break(found, name, "unparseable", "one of its lines is not a sample")
    stamp = None if numbers[2] is None else int(numbers[2])
    if stamp is not None and not EARLIEST_MS <= stamp <= LATEST_MS:
        return _break(found, name, "unparseable", "something other than a time stamp follows its value")
    seen = found._labels.setdefault(name, set())
    if labels in seen:
        return _break(found, name, "duplicate", "it has the same series twice")
    seen.add(labels)
    found.series.setdefault(name, []).append(Series(labels, float(numbers[1]), stamp, line))
    return None


def _break(found: Exposition, name: str, kind: ProblemKind, why: str) -> None:
    found.broken.setdefault(name, Problem(kind, f"{name} can't be used: {why}.", metric=name))


@lru_cache(maxsize=32_768)
def parse_labels(text: str) -> Labels | None:
    """The labels between the braces, or None where they are malformed or one name comes twice."""
    by_name: dict[str, str] = {}
    position, end = 0, len(text.rstrip(" \t"))
    while position < end:
        pair = _PAIR.match(text, position)
        if pair is None or pair[1] in by_name:
            return None
        value = pair[2]
        if "\\" in value:
            value = _ESCAPE.sub(lambda escape: _UNESCAPED[escape[1]], value)
        by_name[pair[1]] = value
        position = pair.end()
    return Labels(by_name)


NO_LABELS = Labels({})
