"""Pictures of lines: what they show is where the axes say, and forges show them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from benchmarks.charts import Axis, Line, Panel, picture, upper_axis
from tests.support.cases import cases

MINUTES = Axis(0, 10, [(0, "0"), (10, "10 min")])


def places(drawn: str) -> list[list[tuple[float, float]]]:
    """The points of each line."""
    paths = re.findall(r'<path class="line c\d" d="([^"]*)"', drawn)
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
        for path in paths
    ]


def test_a_forge_shows_it() -> None:
    """It is well-formed, runs nothing, loads nothing, and is for light and
    dark pages; text is escaped.
    """
    drawn = picture(
        "A & B",
        [
            Panel(
                "<faults>",
                MINUTES,
                upper_axis(3, " ms"),
                [Line("p99", [(0, 1), (10, 2)])],
                [(2, 4)],
            )
        ],
    )
    ElementTree.fromstring(drawn)
    assert re.findall(r"<script|\bon\w+=|href|url\(|@import|<foreignObject", drawn) == []
    assert "prefers-color-scheme: dark" in drawn
    assert "A &amp; B" in drawn


def test_points_are_where_the_axes_say() -> None:
    """Ends of the axes are the panel's corners; a logarithmic axis has its decades at equal
    distances; what is beyond is at the edge.
    """
    rising = Line("rising", [(0, 1), (5, 10), (10, 100), (20, 1000)])
    [line] = places(picture("", [Panel("", MINUTES, Axis(1, 100, [], logarithmic=True), [rising])]))
    (left, bottom), (middle, half), (right, top), beyond = line
    assert middle == pytest.approx((left + right) / 2, abs=0.1)
    assert half == pytest.approx((bottom + top) / 2, abs=0.1)
    assert top < bottom
    assert beyond == (right, top)


def test_what_is_not_known_interrupts_a_line() -> None:
    """Between the points around it nothing is drawn."""
    drawn = picture(
        "",
        [Panel("", MINUTES, upper_axis(1, ""), [Line("gap", [(0, 1), (1, 1), (2, None), (3, 1)])])],
    )
    [shape] = re.findall(r'class="line c0" d="([^"]*)"', drawn)
    assert re.sub(r"[\d. ]", "", shape) == "MLM"


@cases(
    ("highest", "last"),
    [
        (0.0, "4"),
        (0.031, "0.04"),
        (7.0, "8"),
        (1234.0, "2,000"),
        (100.0, "100"),
        (64.5e6, "80,000,000"),
    ],
)
def test_an_axis_ends_at_a_round_value(highest: float, last: str) -> None:
    """At least the highest value, with steps that people count in."""
    axis = upper_axis(highest, "")
    assert (axis.high >= highest, axis.ticks[-1][1], len(axis.ticks)) == (True, last, 5)
