"""Flags through forwarder's pass-through: definitions from its cache, answers about persons never,
and where a client is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from forwarder.core.clock import SystemClock
from forwarder.sandbox import Sandbox, SandboxOptions
from tests.support.flag_answers import DECIDE, FLAGS, SECRET, ask, python_sdk, set_flag
from tests.support.places import PLACES, write_places
from tests.support.waiting import in_thread
from tests.support.whole import KEY, Whole

DEFINITIONS: Final = f"/flags/definitions?token={KEY}&send_cohorts"


def switch(*, active: bool) -> dict[str, Any]:
    """A flag for everyone, or for no one."""
    return {
        "key": "switch",
        "active": active,
        "filters": {"groups": [{"properties": [], "rollout_percentage": 100}]},
    }


class Behind:
    """A sandbox, and a forwarder before it."""

    def __init__(self, sandbox: Sandbox, whole: Whole, session: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self.session = session
        self.url = f"http://{whole.address}"

    async def set(self, flag: dict[str, Any]) -> None:
        """Set a flag, directly."""
        await set_flag(self.session, self.sandbox.url, KEY, flag)

    async def value(self, key: str, path: str = FLAGS, **headers: str) -> bool | str | None:
        """What a flag is for someone, through forwarder; None if it isn't answered."""
        answers = await ask(self.session, self.url, KEY, path, {"distinct_id": "ann"}, **headers)
        assert not answers.failed
        return answers.values.get(key)

    async def definitions(self, etag: str | None = None) -> tuple[int, str, Any]:
        """Poll the definitions through forwarder: status, tag, and which flags are active."""
        headers = {"Authorization": f"Bearer {SECRET}", **({"If-None-Match": etag} if etag else {})}
        async with self.session.get(self.url + DEFINITIONS, headers=headers) as response:
            body = await response.json() if response.status == 200 else {"flags": []}
            return (
                response.status,
                response.headers["ETag"],
                {flag["key"]: flag["active"] for flag in body["flags"]},
            )

    async def polls(self) -> list[int]:
        """The statuses of the polls that reached the sandbox."""
        return [
            request.status
            for request in await self.sandbox.requests()
            if request.path.startswith("/flags/definitions")
        ]


@asynccontextmanager
async def behind(
    options: SandboxOptions | None = None, **passthrough: str
) -> AsyncIterator[Behind]:
    """A sandbox behind a forwarder, both in this process."""
    slow = {"connect_timeout": "10s", "flags_timeout": "20s", **passthrough}
    async with (
        Sandbox(options) as sandbox,
        Whole(sandbox.url, SystemClock(), passthrough=slow) as whole,
        aiohttp.ClientSession() as session,
    ):
        yield Behind(sandbox, whole, session)


async def test_definitions_are_confirmed_by_their_tag() -> None:
    """A poll asks the sandbox, which says that nothing changed; once a flag did, both bring the
    new ones.
    """
    async with behind(definitions_max_age="0s") as forwarder:
        await forwarder.set(switch(active=False))
        status, tag, flags = await forwarder.definitions()
        assert (status, flags) == (200, {"switch": False})
        assert await forwarder.definitions() == (200, tag, {"switch": False})
        assert (await forwarder.definitions(tag))[:2] == (304, tag)
        assert (await forwarder.polls())[1:] == [304, 304]
        await forwarder.set(switch(active=True))
        status, new, flags = await forwarder.definitions(tag)
        assert (status, flags) == (200, {"switch": True})
        assert new != tag


async def test_definitions_are_cached_and_flags_are_not() -> None:
    """Definitions may be as old as `definitions_max_age`, and what the SDK decides by them;
    `/flags` and `/decide` know changes at once.
    """
    async with behind(definitions_max_age="1h") as forwarder:
        await forwarder.set(switch(active=False))
        assert [await forwarder.value("switch", path) for path in (FLAGS, DECIDE)] == [None, None]
        assert (await forwarder.definitions())[2] == {"switch": False}
        await forwarder.set(switch(active=True))
        assert [await forwarder.value("switch", path) for path in (FLAGS, DECIDE)] == [True, True]
        assert (await forwarder.definitions())[2] == {"switch": False}
        assert await forwarder.polls() == [200]

        def decided() -> object:
            with python_sdk(forwarder.url, KEY) as client:
                return client.get_all_flags("ann", only_evaluate_locally=True)

        assert await in_thread(decided) == {"switch": False}


@pytest.mark.parametrize(
    ("headers", "country"),
    [
        ({}, None),
        ({"X-Forwarded-For": "203.0.113.7"}, "DE"),
        ({"X-Forwarded-For": "2001:db8::7, 198.51.100.1"}, "JP"),
        ({"X-Forwarded-For": "10.0.0.7, 203.0.113.7"}, None),
        ({"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}, None),
        ({"HTTP_X_FORWARDED_FOR": "203.0.113.7"}, "DE"),
        ({"HTTP_X_FORWARDED_FOR": "2001:db8::7", "X-Forwarded-For": "203.0.113.7"}, "JP"),
    ],
    ids=["nowhere", "ipv4", "ipv6", "inside", "unknown", "literal", "literal before usual"],
)
@pytest.mark.parametrize("path", [FLAGS, DECIDE])
async def test_the_clients_address_decides_geoip(
    path: str, headers: dict[str, str], country: str | None, tmp_path: Path
) -> None:
    """The address that the sender says, to which forwarder appends the sender's own, decides a
    flag by place; its own alone is nowhere.
    """
    async with behind(SandboxOptions(geoip=write_places(tmp_path / "places.mmdb"))) as forwarder:
        for place in PLACES.values():
            conditions = {
                "$geoip_country_code": place.code,
                "$geoip_country_name": place.country,
                "$geoip_city_name": place.city,
            }
            properties = [
                {"key": key, "value": [value], "operator": "exact", "type": "person"}
                for key, value in conditions.items()
            ]
            filters = {"groups": [{"properties": properties, "rollout_percentage": 100}]}
            await forwarder.set({"key": place.code, "active": True, "filters": filters})
        values = {
            place.code: await forwarder.value(place.code, path, **headers)
            for place in PLACES.values()
        }
        assert values == {place.code: place.code == country for place in PLACES.values()}
        received = (await forwarder.sandbox.requests())[-1].headers["x-forwarded-for"]
        assert received == ", ".join(
            [*([headers["X-Forwarded-For"]] if "X-Forwarded-For" in headers else []), "127.0.0.1"]
        )
