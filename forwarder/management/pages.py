"""Lists, page by page. Of the address of the next page only the numbers are used.

Invariants: a page is always requested at the client's own address; the offsets of pages increase,
or the list is invalid; items are identified by their ids, and none is returned twice. If a list
gets shorter while it is read, the items after the gap have moved up: the iteration goes back by as
many, so that deleting listed items skips nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qs, urlsplit

from forwarder.contract.resources import PageEnvelope
from forwarder.management.errors import ApiError, InvalidCall

T = TypeVar("T")

Fetch = Callable[[Mapping[str, int]], Awaitable[PageEnvelope[T]]]
"""Requests a page with these query parameters."""

_DIGITS: Final = 15


class Pages(Generic[T]):
    """A list of the service. Nothing is requested before the iteration, and
    each iteration starts again.
    """

    def __init__(self, name: str, fetch: Fetch[T], page_size: int | None = None) -> None:
        self._name = name
        self._fetch = fetch
        self._size = _check_number(name, "page_size", page_size, 1)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._name}>"

    async def page(self, limit: int | None = None, offset: int | None = None) -> PageEnvelope[T]:
        """One page. Raises `ApiError`. Cancellation drops the connection."""
        wanted = {
            "limit": _check_number(self._name, "limit", limit, 1) or self._size,
            "offset": _check_number(self._name, "offset", offset, 0),
        }
        return await self._fetch(
            {name: number for name, number in wanted.items() if number is not None}
        )

    async def count(self) -> int:
        """How many items there are. Raises `ApiError`. Cancellation drops the connection."""
        return (await self.page(limit=1))["count"]

    async def pages(self) -> AsyncIterator[PageEnvelope[T]]:
        """The pages as they are: if the list changes meanwhile, an item can be on two. Each has
        its own time limit. Cancellation drops the connection.
        """
        place = PagePosition(self._size)
        while True:
            envelope = await self.page(place.limit, place.offset)
            if place.moved_up(envelope):
                continue
            yield envelope
            if not place.advance(self._name, envelope):
                return

    async def __aiter__(self) -> AsyncIterator[T]:
        """The items of all pages, none twice."""
        new = NewItems()
        async for envelope in self.pages():
            for item in new.of(envelope["results"]):
                yield item


class PagePosition:
    """The position of an iteration in a list."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.offset: int | None = None
        self._count: int | None = None

    def moved_up(self, envelope: PageEnvelope[Any]) -> bool:
        """Whether the list got shorter since the previous page, so that items can be missed. The
        position is then moved back to them.
        """
        before = self._count
        self._count = envelope["count"]
        if before is None or not self.offset or envelope["count"] >= before:
            return False
        self.offset = max(0, self.offset - (before - envelope["count"]))
        return True

    def advance(self, name: str, envelope: PageEnvelope[Any]) -> bool:
        """Advance to the next page, if there is one. Raises `ApiError` if the address of the next
        page is invalid or a loop.
        """
        if envelope["next"] is None:
            return False
        offset = _number(envelope["next"], "offset")
        limit = _number(envelope["next"], "limit")
        if offset is None or offset <= (self.offset or 0):
            raise _invalid_next(name, self.offset or 0, offset)
        if not envelope["results"] and offset >= envelope["count"]:
            return False
        self.offset = offset
        self.limit = limit or self.limit
        return True


class NewItems:
    """Filters out items that were returned before, by their ids."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()

    def of(self, items: list[T]) -> Iterator[T]:
        """The new ones of these items."""
        for item in items:
            identity = item.get("id") if isinstance(item, dict) else None
            if not isinstance(identity, str | int):
                yield item
            elif identity not in self._seen:
                self._seen.add(identity)
                yield item


def _number(url: str, name: str) -> int | None:
    """A number in the query of an address; None if it isn't there, or is none."""
    try:
        texts = parse_qs(urlsplit(url).query).get(name, [])
    except ValueError:
        return None
    text = texts[0] if len(texts) == 1 else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _invalid_next(name: str, offset: int, following: int | None) -> ApiError:
    where = "nowhere" if following is None else f"to {following}"
    words = f"the page at offset {offset} has a next page, which leads {where}"
    hint = "The service's pages can't be followed; ask for them one by one, by limit and offset."
    return ApiError(
        f"{name}: {words}", hint=hint, status=200, type="answer_error", code="pages", detail=words
    )


def _check_number(name: str, what: str, number: Any, least: int) -> int | None:
    if number is not None and (
        isinstance(number, bool) or not isinstance(number, int) or number < least
    ):
        raise InvalidCall(
            f"{name}: {what} must be a whole number from {least} on, not {number!r}", field=what
        )
    return number
