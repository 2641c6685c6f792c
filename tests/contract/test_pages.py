"""Every list of the table of endpoints, page by page: where pages begin and end, and what leads
from one to the next.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contract.calls import ROWS, CalledSandbox, path_of, serving
from tests.contract.tables import EndpointRow, misfits, rows
from tests.support import management as seed

LISTS: Final = [row for row in ROWS.values() if row.pages]
EVERY: Final = pytest.mark.parametrize("row", LISTS, ids=[row.call for row in LISTS])
MORE: Final[dict[str, list[dict[str, Any]]]] = {
    "domains": [{"domain": f"{name}.example.net"} for name in "abc"],
    "invites": [{"target_email": f"{name}@example.net"} for name in "abcd"],
    "projects": [{"name": name} for name in "abc"],
}
"""What is made so that each list has at least three items."""


async def _filled(service: CalledSandbox, row: EndpointRow) -> list[dict[str, Any]]:
    for body in MORE.get(row.resource, []):
        assert (await service.call(row.resource + " create", body)).status == 201
    return await service.items(row.call)


def test_all_lists_are_read() -> None:
    """The interface has five."""
    assert [row.call for row in LISTS] == [
        f"{name} list" for name in ("domains", "invites", "members", "projects", "dashboards")
    ]


@EVERY
async def test_from_page_to_page(row: EndpointRow, tmp_path: Path) -> None:
    """The first page has no previous one, the last no next one; what is between is reached from
    both ends, each item once, in one order.
    """
    async with serving(tmp_path) as service:
        whole = await _filled(service, row)
        assert len(whole) >= 3
        forwards, last = await _walk(
            service, service.client.sandbox.url + path_of(row) + "?limit=1", "next"
        )
        assert [page["results"] for page in forwards] == [[item] for item in whole]
        assert [page["previous"] is None for page in forwards] == [True] + [False] * (
            len(whole) - 1
        )
        backwards, _ = await _walk(service, last, "previous")
        assert [page["results"] for page in backwards] == [[item] for item in reversed(whole)]
        assert {page["count"] for page in (*forwards, *backwards)} == {len(whole)}
        assert {misfits(page, "Envelope") for page in forwards} == {""}


async def _walk(
    service: CalledSandbox, url: str, direction: str
) -> tuple[list[dict[str, Any]], str]:
    """All pages from an address on, and the address of the last. Links have to be whole, and to
    the host that was asked.
    """
    pages: list[dict[str, Any]] = []
    while True:
        assert url.startswith(service.client.sandbox.url + "/api/")
        pages.append((await service.ask("GET", url.removeprefix(service.client.sandbox.url))).json)
        if pages[-1][direction] is None:
            return pages, url
        url = pages[-1][direction]


@EVERY
async def test_sizes_of_pages(row: EndpointRow, tmp_path: Path) -> None:
    """A page has as many items as asked for, wherever it begins; behind the end there are none,
    and from there one comes back.
    """
    async with serving(tmp_path) as service:
        whole = await _filled(service, row)
        size = len(whole)
        for limit, offset in (
            (2, 0),
            (2, 1),
            (size, 0),
            (size + 1, 0),
            (1, size - 1),
            (2, size),
            (7, size + 5),
        ):
            page = (await service.call(row.call, query=f"?limit={limit}&offset={offset}")).json
            assert page["results"] == whole[offset : offset + limit]
            assert (page["next"] is None) == (offset + limit >= size)
            assert (page["previous"] is None) == (offset == 0)
            assert page["count"] == size


@EVERY
async def test_bad_limits_and_offsets(row: EndpointRow, tmp_path: Path) -> None:
    """A limit or an offset that makes no sense counts as not given, however
    large, odd or often it is.
    """
    async with serving(tmp_path) as service:
        whole = await _filled(service, row)
        for query in (
            "?limit=x",
            "?limit=0",
            "?limit=-1",
            "?limit=",
            "?limit=1.5",
            "?limit=%00",
            "?offset=x",
            "?offset=-1",
            "?offset=&limit=",
        ):
            page = (await service.call(row.call, query=query)).json
            assert (page["results"], page["next"], page["previous"]) == (whole, None, None), query
        assert (await service.call(row.call, query=f"?limit={'9' * 50}")).json["results"] == whole
        assert (await service.call(row.call, query=f"?offset={'9' * 50}")).json["results"] == []


@EVERY
async def test_what_else_is_in_the_query(row: EndpointRow, tmp_path: Path) -> None:
    """Links keep the rest of the query, and say limit and offset."""
    async with serving(tmp_path) as service:
        await _filled(service, row)
        page = (await service.call(row.call, query="?search=a%26b&limit=1&offset=1")).json
        for link, offset in ((page["next"], 2), (page["previous"], 0)):
            assert link.partition("?")[0] == service.client.sandbox.url + path_of(row)
            assert set(link.partition("?")[2].split("&")) == {
                "search=a%26b",
                "limit=1",
                f"offset={offset}",
            }


async def test_the_documented_sizes(tmp_path: Path) -> None:
    """Without a limit a page has as many items as documented, and no page has more
    than documented.
    """
    limit = next(row for row in rows("Pages") if row["parameter"] == "`limit`")
    size = int(limit["default"])
    async with serving(tmp_path) as service:
        for start in range(0, size, 20):
            await service.call(
                "invites bulk",
                [{"target_email": f"{number}@example.net"} for number in range(start, start + 20)],
            )
        page = (await service.call("invites list")).json
        assert (page["count"], len(page["results"])) == (size + 1, size)
        assert f"limit={size}" in page["next"]
        answer = await service.call(
            "invites list", query=f"?limit={int(limit['at most']) + 1}&offset=1"
        )
        most = answer.json
        assert f"limit={limit['at most']}&" in most["previous"] + "&"


async def test_each_organization_has_its_own_lists(tmp_path: Path) -> None:
    """Nothing of one organization is in a list of the other."""
    async with serving(tmp_path) as service:
        for row in LISTS:
            own = json.dumps(await service.items(row.call))
            answer = await service.call(
                row.call,
                key=seed.STRANGER_KEY,
                organization_id=seed.OTHER,
                project_id=seed.OTHER_PROJECT,
            )
            theirs = answer.text
            assert "example.org" not in own + ("" if row.resource != "members" else "steve")
            assert "olga" not in theirs
