"""Pages of a list: which one is asked for, and the envelope that it comes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from forwarder.contract.errors import LARGEST_PAGE, PAGE_SIZE, Envelope
from forwarder.sandbox.management.call import Bounds, Listing

_FARTHEST: Final = 10**18
"""Beyond any item, and still a number that the database takes."""


def bounds_of(query: Mapping[str, str]) -> Bounds:
    """Limit and offset of a query; what isn't a number that makes sense counts as if it weren't there."""
    limit, offset = _number(query.get("limit")), _number(query.get("offset"))
    return Bounds(min(limit or PAGE_SIZE, LARGEST_PAGE), offset or 0)


def enveloped(listing: Listing, page: Bounds, url: str, query: Iterable[tuple[str, str]]) -> Envelope[Mapping[str, Any]]:
    """A page as it is answered. `url` is what was asked, without `query`, whose other parameters the links keep."""
    others = [(name, value) for name, value in query if name not in ("limit", "offset")]

    def link(offset: int) -> str:
        return f"{url}?{urlencode([*others, ('limit', page.limit), ('offset', offset)], errors='replace')}"

    after, before = page.offset + page.limit, max(0, page.offset - page.limit)
    return Envelope(
        count=listing.count,
        next=link(after) if after < listing.count else None,
        previous=link(before) if page.offset > 0 else None,
        results=list(listing.items),
    )


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdecimal()):
        return None
    return int(text) if len(text) <= len(str(_FARTHEST)) - 1 else _FARTHEST
