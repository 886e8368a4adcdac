"""Line charts as inline SVG: linear or logarithmic axes, direct labels, no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 520, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 30, 40

# Okabe and Ito's palette for the colour-blind, darkened a little for thin lines on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3aa0d8", "#6a3d9a", "#444444")
DASHES = ("", "6 3", "2 3")


@dataclass(frozen=True, slots=True)
class Series:
    """A named line. ``low`` and ``high`` are an interval around ``y``, drawn as whiskers; may be empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = COLOURS[0]
    dash: str = ""
    width: float = 1.6
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    markers: bool = False
    step: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its label, whether it is logarithmic, and its ends (None: from the data)."""

    label: str
    log: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class _Scale:
    axis: Axis
    begin: float
    end: float
    low: float = field(init=False)
    high: float = field(init=False)

    def fit(self, values: Sequence[float]) -> None:
        """Take the ends from the data, where the axis doesn't say."""
        usable = [v for v in values if isfinite(v) and (v > 0 or not self.axis.log)]
        low = min(usable, default=1.0 if self.axis.log else 0.0)
        high = max(usable, default=10.0 if self.axis.log else 1.0)
        if self.axis.log:
            self.low = log10(self.axis.low if self.axis.low is not None else low)
            self.high = log10(self.axis.high if self.axis.high is not None else high)
            if self.high - self.low < 0.3:
                self.low, self.high = self.low - 0.15, self.high + 0.15
            return
        self.low = self.axis.low if self.axis.low is not None else low
        self.high = self.axis.high if self.axis.high is not None else high
        if self.high <= self.low:
            self.high = self.low + (abs(self.low) or 1.0)

    def at(self, value: float) -> float:
        """The pixel of a value; beyond the axis it is cut."""
        if self.axis.log:
            value = log10(value) if value > 0 else self.low
        value = min(max(value, self.low), self.high)
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> list[tuple[float, str]]:
        """Where lines are drawn, and what they say."""
        if not self.axis.log:
            step = _nice_step(self.high - self.low)
            first = ceil(self.low / step - 1e-9)
            last = floor(self.high / step + 1e-9)
            return [(i * step, _short(i * step)) for i in range(first, last + 1)]
        few = self.high - self.low < 2.2
        marks = (1, 2, 5) if few else (1,)
        powers = range(floor(self.low), ceil(self.high) + 1)
        values = [mark * 10.0**power for power in powers for mark in marks]
        kept = [v for v in values if self.low - 1e-9 <= log10(v) <= self.high + 1e-9]
        return [(v, _short(v)) for v in kept]


def _nice_step(span: float) -> float:
    rough = span / 5.0
    power = 10.0 ** floor(log10(rough))
    return next(power * mark for mark in (1, 2, 2.5, 5, 10) if power * mark >= rough * 0.999)


def _short(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value / 1_000:g}k"
    return f"{value:.6g}"


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series], mark_x: float | None = None) -> str:
    """The chart as an SVG element. ``mark_x``: a vertical line there, the knee."""
    horizontal = _Scale(x, _LEFT, WIDTH - _RIGHT)
    vertical = _Scale(y, HEIGHT - _BOTTOM, _TOP)
    horizontal.fit([v for line in series for v in line.x])
    vertical.fit([v for line in series for v in (*line.y, *line.low, *line.high)])
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="16" class="title">{escape(title)}</text>',
    ]
    for value, text in vertical.ticks():
        at = vertical.at(value)
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 3.5:.1f}" class="tick end">{text}</text>')
    for value, text in horizontal.ticks():
        at = horizontal.at(value)
        base = HEIGHT - _BOTTOM
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{base}" y2="{base + 4}" class="axis"/>')
        parts.append(f'<text x="{at:.1f}" y="{base + 16}" class="tick mid">{text}</text>')
    parts.append(
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - _BOTTOM}" '
        'class="axis"/>'
    )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 6}" class="tick mid">{escape(x.label)}</text>')
    parts.append(
        f'<text x="12" y="{(HEIGHT - _BOTTOM + _TOP) / 2:.0f}" class="tick mid" '
        f'transform="rotate(-90 12 {(HEIGHT - _BOTTOM + _TOP) / 2:.0f})">{escape(y.label)}</text>'
    )
    if mark_x is not None:
        at = horizontal.at(mark_x)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" class="knee"/>'
            f'<text x="{at + 4:.1f}" y="{_TOP + 8}" class="tick">knee</text>'
        )
    for line in series:
        parts.append(_line(line, horizontal, vertical))
    return "".join(parts) + "</svg>"


def _line(line: Series, horizontal: _Scale, vertical: _Scale) -> str:
    points = [
        (horizontal.at(a), vertical.at(b))
        for a, b in zip(line.x, line.y, strict=True)
        if isfinite(a) and isfinite(b)
    ]
    if not points:
        return ""
    path = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (_, before), (at_x, at_y) in pairwise(points):
        if line.step:
            path.append(f"L{at_x:.1f} {before:.1f}")
        path.append(f"L{at_x:.1f} {at_y:.1f}")
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    parts = [
        f'<path d="{"".join(path)}" fill="none" stroke="{line.colour}" stroke-width="{line.width}" '
        f'stroke-linejoin="round"{dash}><title>{escape(line.name)}</title></path>'
    ]
    for a, low, high in zip(line.x, line.low, line.high, strict=False):
        if isfinite(low) and isfinite(high):
            at = horizontal.at(a)
            parts.append(
                f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{vertical.at(low):.1f}" '
                f'y2="{vertical.at(high):.1f}" stroke="{line.colour}" stroke-width="1" opacity=".55"/>'
            )
    if line.markers:
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{line.colour}"/>' for a, b in points]
    return "".join(parts)


def legend(series: Sequence[Series]) -> str:
    """Names with a piece of each line; HTML."""
    items = []
    for line in series:
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        items.append(
            f'<span class="key"><svg width="22" height="8"><line x1="0" x2="22" y1="4" y2="4" '
            f'stroke="{line.colour}" stroke-width="{max(2.0, line.width)}"{dash}/></svg>'
            f"{escape(line.name)}</span>"
        )
    return f'<div class="legend">{"".join(items)}</div>'
