"""The README's own pictures: they move by CSS alone, and show the figures of the page. No browser
is needed for this.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.browser.bars import bars, figures
from tests.browser.moving_picture import ShownLine, lines_over_time, moving_picture
from tests.support.repository import ROOT

PICTURES = ROOT / "docs" / "pictures"
FRAMES = [
    (0.0, ["$ a"]),
    (1.0, ["$ a", "one  \x1b[32mgreen\x1b[0m"]),
    (2.0, ["$ a", "two & three"]),
]


@pytest.mark.parametrize("name", ["demo.svg", "throughput.svg"])
def test_a_forge_shows_them(name: str) -> None:
    """They are well-formed, run nothing, and load nothing from elsewhere."""
    text = (PICTURES / name).read_text()
    ElementTree.fromstring(text)
    assert re.findall(r"<script|\bon\w+=|href|url\(|@import|<foreignObject", text) == []


def test_the_bars_are_the_pages_figures() -> None:
    """The picture is what the script makes of docs/maintainers/figures.md now, for light and dark
    pages; the README says the same.
    """
    assert (PICTURES / "throughput.svg").read_text() == bars()
    assert "prefers-color-scheme: dark" in bars()
    readme = (ROOT / "README.md").read_text()
    assert [
        value
        for value in figures().values()
        if f"{value:,}" not in readme or f"{value // 1000}k" not in readme
    ] == []


def test_the_demo_is_still_for_who_wants_it_still() -> None:
    """With reduced motion nothing moves, and the end is shown: a demo whose books balance."""
    text = (PICTURES / "demo.svg").read_text()
    assert "@media (prefers-reduced-motion: reduce) { .s { animation: none !important; } }" in text
    assert "the books balance." in text
    assert re.search(r'<text class="s e"[^>]*>(?:(?!</text>).)*the books balance\.', text)


def test_a_line_is_there_once_for_each_span_in_which_it_is_shown() -> None:
    """The one that doesn't change stands from beginning to end; the last ones have no end."""
    assert list(lines_over_time(FRAMES)) == [
        ShownLine(0, "$ a", 0.0, None),
        ShownLine(1, "one  \x1b[32mgreen\x1b[0m", 1.0, 2.0),
        ShownLine(1, "two & three", 2.0, None),
    ]


def test_colours_and_signs_are_kept() -> None:
    """A colour of the terminal is one of the picture, and what XML would read is escaped."""
    picture = moving_picture(FRAMES)
    ElementTree.fromstring(picture)
    assert re.search(r'fill="#98a84b">green<', picture)
    assert "two &amp; three" in picture
