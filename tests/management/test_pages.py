"""Lists, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.resources import PageEnvelope
from forwarder.management import ApiError, InvalidCall, Pages
from tests.support.cases import cases


class Listed:
    """A list as the service keeps it; `before` is called with each page's number, from 0, and may
    change it.
    """

    def __init__(self, *ids: int, size: int = 100) -> None:
        self.ids = [*ids]
        self.size = size
        self.asked: list[dict[str, int]] = []

    def before(self, number: int) -> None:
        """Does nothing."""

    async def __call__(self, query: Mapping[str, int]) -> PageEnvelope[Any]:
        """Answer a page."""
        self.before(len(self.asked))
        self.asked.append(dict(query))
        limit = query.get("limit", self.size)
        offset = query.get("offset", 0)
        more = offset + limit < len(self.ids)
        return {
            "count": len(self.ids),
            "next": f"https://elsewhere.example/api/?limit={limit}&offset={offset + limit}&search=x"
            if more
            else None,
            "previous": None,
            "results": [{"id": number} for number in self.ids[offset : offset + limit]],
        }


def pages(fetch: Any, page_size: int | None = None) -> Pages[Any]:
    """The list under test."""
    return Pages("things list", fetch, page_size)


async def ids(listed: Pages[Any]) -> list[int]:
    """What it gives."""
    return [item["id"] async for item in listed]


async def test_all_pages_are_read_in_order() -> None:
    """The items of all pages come, in the service's order, with the sizes that the
    service gives.
    """
    listed = Listed(*range(7), size=3)
    assert await ids(pages(listed)) == [*range(7)]
    assert listed.asked == [{}, {"limit": 3, "offset": 3}, {"limit": 3, "offset": 6}]


async def test_the_size_of_pages_can_be_chosen() -> None:
    """`page_size` is what each page is asked with."""
    listed = Listed(*range(5))
    assert [len(page["results"]) async for page in pages(listed, 2).pages()] == [2, 2, 1]
    assert listed.asked == [{"limit": 2}, {"limit": 2, "offset": 2}, {"limit": 2, "offset": 4}]


async def test_nothing_is_asked_for_until_it_is_needed() -> None:
    """A list that isn't iterated asks nothing; an iteration that stops early asks for no further
    page; a second one asks anew.
    """
    listed = Listed(*range(9), size=3)
    under_test = pages(listed)
    assert listed.asked == []
    iterator = aiter(under_test)
    assert [(await anext(iterator))["id"] for _ in range(3)] == [0, 1, 2]
    assert len(listed.asked) == 1
    assert await ids(under_test) == [*range(9)]


async def test_one_page_and_the_count() -> None:
    """A page can be asked for by its numbers, and how many items there are without reading them."""
    listed = Listed(*range(9))
    assert [item["id"] for item in (await pages(listed, 4).page(offset=6))["results"]] == [6, 7, 8]
    assert [item["id"] for item in (await pages(listed, 4).page(2, 1))["results"]] == [1, 2]
    assert await pages(listed).count() == 9
    assert listed.asked == [{"limit": 4, "offset": 6}, {"limit": 2, "offset": 1}, {"limit": 1}]


async def test_an_empty_list() -> None:
    """There may be nothing."""
    assert await ids(pages(Listed())) == []


@cases("number", [0, -1, True, 1.5, "3"])
async def test_sizes_that_are_none_are_refused(number: Any) -> None:
    """A page's size is a whole number from 1 on, an offset one from 0 on."""
    with pytest.raises(InvalidCall, match="page_size"):
        pages(Listed(), number)
    with pytest.raises(InvalidCall, match="limit"):
        await pages(Listed()).page(limit=number)
    if number != 0 or number is False:
        with pytest.raises(InvalidCall, match="offset"):
            await pages(Listed()).page(offset=number)


@cases(
    "following",
    [
        "https://h/api/?limit=2&offset=0",
        "https://h/api/?limit=2",
        "https://h/api/?offset=-2",
        "https://h/api/?offset=2&offset=4",
        "https://h/api/?offset=two",
        "https://h/api/?offset=²",
        "https://h/api/?offset=" + "9" * 30,
        "https://[h/api/?offset=2",
        "",
    ],
)
async def test_a_next_page_that_leads_nowhere_is_an_error(following: str) -> None:
    """A next page without an offset, or with one that doesn't grow, ends the pass with an error
    rather than never.
    """

    async def fetch(_: Mapping[str, int]) -> PageEnvelope[Any]:
        return {"count": 9, "next": following, "previous": None, "results": [{"id": 1}, {"id": 2}]}

    with pytest.raises(ApiError, match="next page, which leads") as caught:
        await ids(pages(fetch))
    assert (caught.value.type, caught.value.code) == ("answer_error", "pages")


async def test_pages_beyond_the_end_are_not_read() -> None:
    """A service that always knows a next page is followed no further than its own count."""
    asked: list[int] = []

    async def fetch(query: Mapping[str, int]) -> PageEnvelope[Any]:
        offset = query.get("offset", 0)
        asked.append(offset)
        items = [{"id": number} for number in range(offset, min(offset + 2, 4))]
        return {
            "count": 4,
            "next": f"https://h/?limit=2&offset={offset + 2}",
            "previous": None,
            "results": items,
        }

    assert await ids(pages(fetch)) == [0, 1, 2, 3]
    assert asked == [0, 2, 4]


async def test_deleting_what_is_listed_skips_nothing() -> None:
    """Who deletes each item that comes gets all of them, though the list moves up
    under the reader.
    """
    listed = Listed(*range(10), size=3)
    given_out = []
    async for item in pages(listed):
        given_out.append(item["id"])
        listed.ids.remove(item["id"])
    assert given_out == [*range(10)]
    assert listed.ids == []


async def test_what_is_added_before_the_place_is_not_given_twice() -> None:
    """Items that move to a later page because others came before them are given once."""
    listed = Listed(*range(6), size=3)
    given_out = []
    async for item in pages(listed):
        given_out.append(item["id"])
        if len(given_out) == 2:
            listed.ids[:0] = [100, 101]
    assert given_out == [0, 1, 2, 3, 4, 5]


async def test_items_without_an_id_are_all_given() -> None:
    """Only ids tell items apart."""

    async def fetch(_: Mapping[str, int]) -> PageEnvelope[Any]:
        return {
            "count": 3,
            "next": None,
            "previous": None,
            "results": [{"name": "a"}, {"name": "a"}, {"id": None}],
        }

    assert len([item async for item in pages(fetch)]) == 3


@settings(deadline=None)
@given(
    st.integers(0, 30),
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8),
    st.booleans(),
)
async def test_what_is_there_throughout_is_given_once(
    count: int, size: int, changes: list[tuple[int, int]], only_removed: bool
) -> None:
    """Whatever is removed between pages, or else added, each item that was there all the time is
    given, and none twice.
    """
    listed = Listed(*range(count), size=size)
    there = set(listed.ids)

    def before(number: int) -> None:
        if not 0 < number <= len(changes):
            return
        which, where = changes[number - 1]
        if only_removed:
            for identity in listed.ids[which % 7 : which % 7 + where % 4]:
                listed.ids.remove(identity)
                there.discard(identity)
        else:
            listed.ids.insert(where % (len(listed.ids) + 1), 1000 + number)

    listed.before = before  # type: ignore[method-assign]  # each example has its own
    given_out = await ids(pages(listed))
    assert len(given_out) == len(set(given_out))
    assert there <= set(given_out)


def test_a_list_is_named_in_its_repr() -> None:
    """A list tells whose it is, and nothing else."""
    assert repr(pages(Listed())) == "<Pages of things list>"
