"""What came of an SDK's thousand events: what its program says that it sent, and what the sandbox
holds.

Each variant is run once a process. A run is over when forwarder has nothing left: then forwarder
is asked to stop, and the sandbox is asked through a sandbox of its own on the same file.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import msgspec

from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.store.stored_records import SandboxSummary, StoredEvent, StoredRequest
from forwarder.telemetry.snapshot import Snapshot
from tests.sdks import browsing
from tests.sdks.rig import KEY, Chain, asked, chain, program
from tests.sdks.variants import Variant

COUNT: Final = 1000
AI_LANE: Final = "$ai_trace"
"""What programs send by the SDK's call for events of language models. They have an address of
their own: passed on, not buffered.
"""


@dataclass(frozen=True, slots=True)
class SdkOutcome:
    """A finished run."""

    journal: list[dict[str, Any]]
    """What the program says that it sent."""
    snapshot: Snapshot
    """Forwarder's, when it had nothing left."""
    exit_code: int
    database: Path
    events: list[StoredEvent]
    requests: list[StoredRequest]
    summary: SandboxSummary
    notes: dict[str, Any]
    """What only this SDK shows: of a browser what its console said, and whom it asked."""

    @property
    def passed_on(self) -> int:
        """Events that forwarder passed on without buffering them."""
        return sum(line["event"] == AI_LANE for line in self.journal)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[Asking]:
        """The sandbox again, to be asked."""
        async with (
            Sandbox(SandboxOptions(database=self.database)) as sandbox,
            aiohttp.ClientSession() as client,
        ):
            yield Asking(sandbox.url, client)

    def received(self, route: str) -> Counter[int]:
        """How forwarder answered on a route, and how often."""
        return Counter(
            {
                code: count
                for (path, code), count in self.snapshot.http_requests.items()
                if path == route
            }
        )


class Asking:
    """Questions to a sandbox."""

    def __init__(self, url: str, client: aiohttp.ClientSession) -> None:
        self._url = url
        self._client = client

    async def person(self, distinct_id: str) -> dict[str, Any] | None:
        """Whose id that is; None if no one's."""
        people = (await self._ask(f"persons?api_key={KEY}&distinct_id={distinct_id}"))["results"]
        assert len(people) <= 1, f"{distinct_id} is {len(people)} people"
        return people[0] if people else None

    async def groups(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Every group's properties, by type and key."""
        groups = (await self._ask(f"groups?api_key={KEY}"))["results"]
        return {(group["group_type"], group["group_key"]): group["properties"] for group in groups}

    async def events(self, name: str) -> list[dict[str, Any]]:
        """The events of a name, oldest first."""
        events: list[dict[str, Any]] = (
            await self._ask(f"events?{urlencode({'api_key': KEY, 'event': name})}")
        )["results"]
        return events

    async def event(self, name: str) -> dict[str, Any]:
        """The one event of a name."""
        (event,) = await self.events(name)
        return event

    async def _ask(self, query: str) -> Any:
        return await asked(self._client, self._url, query)


_outcomes: Final[dict[Variant, SdkOutcome | Exception]] = {}


def outcome_of(variant: Variant, place: Path) -> SdkOutcome:
    """What came of a variant, which is run now if it wasn't yet, with its files in a folder.
    Raises what its run raised.
    """
    if variant not in _outcomes:
        _outcomes[variant] = _attempt(variant, place)
    outcome = _outcomes[variant]
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _attempt(variant: Variant, place: Path) -> SdkOutcome | Exception:
    try:
        return asyncio.run(_run(variant, place / f"{variant.name}.sqlite"))
    except Exception as error:
        return error


async def _run(variant: Variant, database: Path) -> SdkOutcome:
    ordering = "per_distinct_id"  # what comes first of two `$set_once` is asked for
    async with chain(database, FORWARDER_DELIVERY__ORDERING=ordering) as tried:
        journal, notes = await _send(variant, tried, database.with_suffix(".jsonl"))
        snapshot = await tried.emptied()
        tried.command.send(signal.SIGTERM)
        exit_code = await tried.command.ended()
        sandbox = tried.service.sandbox
        recorded = await sandbox.events(), await sandbox.requests(), await sandbox.summary()
    return SdkOutcome(journal, snapshot, exit_code, database, *recorded, notes)


async def _send(
    variant: Variant, tried: Chain, journal: Path
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    if variant.sdk == "js":
        return await browsing.visit_shop(tried, KEY, COUNT, variant.mode)
    async with program(
        variant.sdk, tried.host, journal, *variant.options, count=COUNT, **variant.env
    ) as sender:
        return await tried.finish(sender, COUNT), {"errors": sender.errors}


def identity(line: dict[str, Any]) -> tuple[object, ...]:
    """What tells one event of a journal from the others: its uuid, or where the SDK gives none its
    name, person and number.
    """
    if line.get("uuid"):
        return line["uuid"], line["event"], line["distinct_id"]
    return line["event"], line["distinct_id"], line.get("n")


def held_as(
    journal: list[dict[str, Any]], events: list[StoredEvent]
) -> Counter[tuple[object, ...]]:
    """The sandbox's events, distinguished as those of the journal are."""
    named = {line["uuid"] for line in journal if line.get("uuid")}
    return Counter(identity(_line(event, event.uuid in named)) for event in events)


def _line(event: StoredEvent, is_named: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"event": event.event, "distinct_id": event.distinct_id}
    return (
        {**line, "uuid": event.uuid}
        if is_named
        else {**line, "n": msgspec.json.decode(event.properties).get("n")}
    )
