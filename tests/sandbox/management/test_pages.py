"""Pages of a list."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.contract.errors import Envelope
from forwarder.sandbox.management.call import Bounds, Listing
from forwarder.sandbox.management.pages import bounds_of, enveloped

URL = "http://sandbox.example/api/things/"


@pytest.mark.parametrize(
    ("limit", "offset", "expected"),
    [
        (None, None, Bounds(100, 0)),
        ("1", "2", Bounds(1, 2)),
        ("0", "0", Bounds(100, 0)),
        ("-1", "-1", Bounds(100, 0)),
        ("x", "x", Bounds(100, 0)),
        ("", "", Bounds(100, 0)),
        ("1.5", "1e3", Bounds(100, 0)),
        ("+1", " 1", Bounds(100, 0)),
        ("٣", "²", Bounds(100, 0)),
        ("10000", "10000", Bounds(10_000, 10_000)),
        ("10001", "007", Bounds(10_000, 7)),
        ("9" * 5000, "9" * 5000, Bounds(10_000, 10**18)),
    ],
)
def test_which_page(limit: str | None, offset: str | None, expected: Bounds) -> None:
    """A limit is 100 unless it is a number above 0, and 10,000 at most; an offset is 0 unless it is a number."""
    query = {name: value for name, value in (("limit", limit), ("offset", offset)) if value is not None}
    assert bounds_of(query) == expected


def page(items: list[int], bounds: Bounds, query: list[tuple[str, str]]) -> Envelope[dict[str, int]]:
    """A page as it is answered."""
    shown = [{"n": item} for item in items[bounds.offset : bounds.offset + bounds.limit]]
    return enveloped(Listing(len(items), shown), bounds, URL, query)  # type: ignore[return-value]  # each item is one of those above


def followed(link: str | None) -> list[tuple[str, str]] | None:
    """The query of a link, which leads to the same list."""
    if link is None:
        return None
    assert link.startswith(URL + "?")
    return parse_qsl(urlsplit(link).query, keep_blank_values=True)


@given(
    st.integers(0, 30), st.integers(1, 12), st.lists(st.tuples(st.sampled_from(["x", "y", "limit", "ü&="]), st.text("aä&=+ %", max_size=3)))
)
def test_following_the_links(count: int, limit: int, query: list[tuple[str, str]]) -> None:
    """`next` leads by every item once, in order, and `previous` all the way back; the rest of the query stays."""
    items = list(range(count))
    others = [(name, value) for name, value in query if name != "limit"]
    asked: list[tuple[str, str]] | None = [*others, ("limit", str(limit))]
    seen: list[int] = []
    offsets: list[int] = []
    while asked is not None:
        bounds = bounds_of(dict(asked))
        envelope = page(items, bounds, asked)
        assert envelope["count"] == count
        assert [each for each in asked if each[0] not in ("limit", "offset")] == others
        seen += [item["n"] for item in envelope["results"]]
        offsets.append(bounds.offset)
        asked = followed(envelope["next"])
    assert seen == items
    while (back := followed(envelope["previous"])) is not None:
        bounds = bounds_of(dict(back))
        offsets.pop()
        assert bounds.offset == offsets[-1]
        envelope = page(items, bounds, back)
    assert offsets == [0]


def test_beyond_the_end() -> None:
    """A page beyond the last item is empty, has no next one, and a previous one."""
    envelope = page([1, 2, 3], Bounds(2, 50), [])
    assert (envelope["count"], envelope["results"], envelope["next"]) == (3, [], None)
    assert envelope["previous"] == f"{URL}?limit=2&offset=48"
    assert page([1, 2, 3], Bounds(2, 1), [])["previous"] == f"{URL}?limit=2&offset=0"
