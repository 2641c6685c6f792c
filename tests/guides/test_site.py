"""The documents as a site: its navigation has every page, pages are short, and no link leaves
docs/. `make docs` builds it strictly.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.cases import cases
from tests.support.documents import DOCS, anchors, links, text_of
from tests.support.repository import ROOT, name

PAGES = sorted(DOCS.rglob("*.md"))
LONGEST = 1500
"""Words of a page that is read from its beginning to its end."""
LOOKED_UP = (
    "reference/",
    "explanation/what-happens-when.md",
    "maintainers/benchmark-cases.md",
    "maintainers/figures.md",
    "maintainers/interface.md",
    "maintainers/sandbox-sources.md",
    "maintainers/wire.md",
)
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def _pages(navigation: list[Any]) -> Iterator[str]:
    """The pages of a navigation and of its sections, in order."""
    for entry in navigation:
        for value in [entry] if isinstance(entry, str) else entry.values():
            yield from [value] if isinstance(value, str) else _pages(value)


def test_every_page_is_in_the_navigation() -> None:
    """Each page is there once, and each that is there exists."""
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    assert sorted(_pages(navigation)) == sorted(path.relative_to(DOCS).as_posix() for path in PAGES)


@cases("file", PAGES, ids=name)
def test_links_lead_somewhere(file: Path) -> None:
    """Each relative link names a file in docs/, which the site has, and a heading of it."""
    page_links = list(links(file))
    assert [
        str(target)
        for target, _ in page_links
        if not (target.exists() and target.is_relative_to(DOCS))
    ] == []
    assert [
        (target.name, anchor)
        for target, anchor in page_links
        if anchor and anchor not in anchors(target)
    ] == []


def test_pages_are_short() -> None:
    """A page that isn't a reference can be read in one go."""
    words = {
        path.relative_to(DOCS).as_posix(): len(text_of(path).removeprefix(NOT_SEARCHED).split())
        for path in PAGES
    }
    assert {
        page: count
        for page, count in words.items()
        if count > LONGEST and not page.startswith(LOOKED_UP)
    } == {}


def test_the_sites_search_has_the_users_pages_alone() -> None:
    """Pages for those who change forwarder are excluded, and no other is."""
    excluded = {path for path in PAGES if text_of(path).startswith(NOT_SEARCHED)}
    folders = {DOCS / "decisions", DOCS / "maintainers"}
    code = {DOCS / "explanation" / "architecture.md", DOCS / "explanation" / "simulation.md"}
    assert excluded == code | {path for path in PAGES if path.parent in folders}
