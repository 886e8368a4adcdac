"""Mappings for people: the tables of docs/engines.md are made here, so that they say what the code does."""

from __future__ import annotations

from collections.abc import Iterable

from sources.engines.mapping import EVERY, Candidate, Histogram, Mapping, engines, mapping_of

EVIDENCE = {
    "capture": "captures of a real server",
    "observation": "a real server, observed",
    "documentation": "documentation and source only",
}


def overview() -> str:
    """A Markdown table of all engines."""
    lines = [
        "| engine | also called | versions | checked against | page | health |",
        "|---|---|---|---|---|---|",
    ]
    for name in engines():
        one = mapping_of(name)
        aliases = ", ".join(f"`{alias}`" for alias in one.aliases) or "-"
        lines.append(
            f"| `{one.engine}` | {aliases} | {one.versions} | {EVIDENCE[one.evidence]} "
            f"| `{one.metrics_path}` | `{one.health_path}` |"
        )
    return "\n".join(lines)


def table(mapping: Mapping) -> str:
    """A Markdown table of one engine's readings: the metric of each, and why some are unknown."""
    lines = ["| reading | metric | unknown, because |", "|---|---|---|"]
    for reading in EVERY:
        candidates: Iterable[Candidate | Histogram] = (
            mapping.readings.get(reading) or mapping.latencies.get(reading) or ()  # type: ignore[call-overload]
        )
        metrics = "<br>".join(_candidate(one) for one in candidates) or "-"
        late = mapping.late.get(reading)
        why = mapping.not_told.get(reading) or (f"at times: {late.why}" if late else "")
        lines.append(f"| {reading} | {metrics} | {why} |")
    started = [_candidate(one) for one in mapping.process_started_at_ms]
    if mapping.boot_header:
        started.append(f"header `{mapping.boot_header}`")
    lines.append(f"| boot | {'<br>'.join(started) or '-'} | {'' if started else _NO_START} |")
    return "\n".join(lines)


_NO_START = "it tells no process start; the agent names boots itself"


def _candidate(one: Candidate | Histogram) -> str:
    text = f"`{one.metric if isinstance(one, Histogram) else one.provenance}`"
    if one.sum_over:
        text += f", summed over {', '.join(one.sum_over)}"
    ages = [f"since {one.since}"] if one.since else []
    ages += [f"until {one.until}"] if one.until else []
    return f"{text} ({', '.join(ages)})" if ages else text
