"""Lines over an axis as SVG, for light and dark pages: no script, nothing loaded from elsewhere.
It has panels, one below another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log10
from typing import Final

WIDTH: Final = 760
LEFT: Final = 64
"""Of the lines: the axis' words stand there."""
RIGHT: Final = 156
"""Beside the lines: their names stand there."""
HEAD: Final = 44
"""Above the first panel: the picture's title."""
PANEL: Final = 176
"""Height of a panel, with its title and the words of its axis."""
_TOP = 26
_BOTTOM = 34
_LABEL: Final = 15
"""Least distance of two names of lines."""
COLOURS: Final = {
    "#0969da": "#58a6ff",
    "#bc4c00": "#f0883e",
    "#1a7f37": "#3fb950",
    "#8250df": "#bc8cff",
    "#9a6700": "#d29922",
    "#bf3989": "#f778ba",
}
"""Of the lines of a panel, on light and on dark pages."""


def _colours(values: Iterable[str]) -> str:
    return " ".join(
        f".c{number} {{ stroke: {value}; }} .n{number} {{ fill: {value}; }}"
        for number, value in enumerate(values)
    )


STYLE: Final = f"""text {{ font: 12px system-ui, sans-serif; fill: #1f2328; }}
.title {{ font-size: 14px; font-weight: 600; }} .panel {{ font-weight: 600; }}
.tick {{ fill: #59636e; font-variant-numeric: tabular-nums; }}
.page {{ fill: #ffffff; }} .grid {{ stroke: #d1d9e0; }} .span {{ fill: #cf222e; fill-opacity: \
0.12; }}
.line {{ fill: none; stroke-width: 1.75; stroke-linejoin: round; }}
{_colours(COLOURS)}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3; }} .tick {{ fill: #9198a1; }}
.page {{ fill: #0d1117; }} .grid {{ stroke: #30363d; }} .span {{ fill: #f85149; fill-opacity: \
0.22; }}
{_colours(COLOURS.values())}
}}
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, with words at some values. Logarithmic: both are above 0."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """Where a value is, from 0 at `low` to 1 at `high`; values beyond are there."""
        value = min(self.high, max(self.low, value))
        if self.logarithmic:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points, in order of x. A y of None interrupts it."""

    name: str
    points: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over the same axes; `spans` of x are shaded."""

    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    spans: Sequence[tuple[float, float]] = ()


def picture(title: str, panels: Sequence[Panel]) -> str:
    """The panels as SVG."""
    height = HEAD + PANEL * len(panels)
    drawn = "".join(_panel(panel, HEAD + number * PANEL) for number, panel in enumerate(panels))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">\n'
        f'<style>\n{STYLE}</style>\n<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n'
        f'<text class="title" x="16" y="28">{escape(title)}</text>\n{drawn}</svg>\n'
    )


def upper_axis(highest: float, unit: str, steps: int = 4) -> Axis:
    """An axis from 0 to a round value that is `highest` or above it."""
    step = _round_up(highest / steps)
    high = step * steps
    return Axis(
        0.0, high, [(step * number, f"{step * number:,.10g}{unit}") for number in range(steps + 1)]
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 10.0 ** -len(f"{int(1 / value)}")
    return next(
        factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value * 0.999999
    )


def _panel(panel: Panel, top: float) -> str:
    low = top + PANEL - _BOTTOM
    high = top + _TOP
    right = WIDTH - RIGHT

    def x(value: float) -> float:
        return LEFT + panel.x.share(value) * (right - LEFT)

    def y(value: float) -> float:
        return low - panel.y.share(value) * (low - high)

    parts = [f'<text class="panel" x="16" y="{top + 12:.0f}">{escape(panel.title)}</text>']
    for begin, end in panel.spans:
        parts.append(
            f'<rect class="span" x="{x(begin):.1f}" y="{high}" '
            f'width="{max(1.0, x(end) - x(begin)):.1f}" height="{low - high}"/>'
        )
    for value, word in panel.y.ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{right}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end">{escape(word)}</text>'
        )
    for value, word in panel.x.ticks:
        parts.append(
            f'<text class="tick" x="{x(value):.1f}" y="{low + 16:.0f}" '
            f'text-anchor="middle">{escape(word)}</text>'
        )
    ends = [
        (y(last), number)
        for number, line in enumerate(panel.lines)
        if (last := _last(line)) is not None
    ]
    for number, line in enumerate(panel.lines):
        shape = "".join(
            f"{command}{x(at):.1f} {y(value):.1f}" for command, at, value in _strokes(line.points)
        )
        parts.append(f'<path class="line c{number}" d="{shape}"/>')
    for place, number in _apart(ends, low):
        parts.append(
            f'<text class="n{number}" x="{right + 8}" '
            f'y="{place + 4:.1f}">{escape(panel.lines[number].name)}</text>'
        )
    return "".join(f"{part}\n" for part in parts)


def _strokes(points: Sequence[tuple[float, float | None]]) -> Iterator[tuple[str, float, float]]:
    drawing = False
    for at, value in points:
        if value is not None:
            yield "L" if drawing else "M", at, value
        drawing = value is not None


def _last(line: Line) -> float | None:
    return next((value for _, value in reversed(line.points) if value is not None), None)


def _apart(ends: Sequence[tuple[float, int]], bottom: float) -> list[tuple[float, int]]:
    """The places of names, moved down where they would touch, and up where they
    would be below the panel.
    """
    places: list[tuple[float, int]] = []
    for place, number in sorted(ends):
        places.append((max(place, places[-1][0] + _LABEL) if places else place, number))
    limit = bottom
    for index in range(len(places) - 1, -1, -1):
        places[index] = min(places[index][0], limit), places[index][1]
        limit = places[index][0] - _LABEL
    return places
