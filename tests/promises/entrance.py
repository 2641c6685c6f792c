"""A way in: what every entrance can say of itself, and how its events are followed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from forwarder.telemetry.labels import key_label
from tests.promises.agreed import FOUND
from tests.promises.promises import PromiseRow, Topic
from tests.promises.seen import LaneBooks, PromisedEvent, WorldEvidence
from tests.promises.world import PromiseWorld
from tests.support.listening import RawReply
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from tests.promises.seen import CellEvidence

MAPPING: Final = {
    "event": ".event",
    "distinct_id": ".distinct_id",
    "uuid": ".uuid",
    "timestamp": ".timestamp",
    "properties": ".properties",
}
"""Of records that hold an event's members as they are."""
SOON: Final = 30.0
"""Seconds within which what was read is in the buffer, far more than it takes."""
ODD_TIME: Final = "a mapping reads times, and writes them as RFC 3339"


class Entrance:
    """A way in. Steps, in their order: `prepare` before anything runs, `enter` with all events
    while the services are down, `observe` before they are up again, `finish` after that,
    `replayed` once dead letters were replayed, `end` when all was looked at.
    """

    name: ClassVar[str]
    covers: ClassVar[frozenset[str]]
    """What of the program the column stands for: sources, commands and options that bring events,
    as `test_promises.py` enumerates them.
    """
    source: ClassVar[str] = "http"
    """Where its events come from, in books and taps."""
    kind: ClassVar[type[PromiseWorld]] = PromiseWorld
    view: ClassVar[str] = "us"
    """The destination where events are looked for."""
    spread: ClassVar[frozenset[str]] = frozenset({"us"})
    """The destinations that its events go to, where no promise has a route."""
    suffix: ClassVar[str] = ""
    """What is behind its key in the label of its lane."""
    acknowledges_at_once: ClassVar[bool] = False
    """Whether it confirms what is on disk, not what is delivered."""
    carries_uuids: ClassVar[bool] = True
    has_coordinates: ClassVar[bool] = False
    """Whether its records have positions."""
    tapped_as: ClassVar[tuple[str, ...]] = ("received", "delivered")
    """The outcomes with which a tap shows an event that gets through."""
    is_routed: ClassVar[bool] = True
    """Whether routes apply to its events."""
    needs_kafka: ClassVar[bool] = False
    """Whether it takes a broker."""
    inapplicable: ClassVar[Mapping[str, str]] = {}
    """Promises that can't apply, and why."""
    untested: ClassVar[Mapping[str, str]] = {}
    """Promises that aren't tested here, and why."""

    def __init__(self) -> None:
        self.exceeded: tuple[object, object] = (None, "something")
        self._asked: asyncio.Future[RawReply] | None = None

    @property
    def slug(self) -> str:
        """Its name in keys and names of files."""
        return self.name.replace(" ", "_").replace("-", "_")

    @property
    def key(self) -> str:
        """The project key that its senders use."""
        return f"phc_promises_{self.slug}"

    def key_at(self, destination: str) -> str:
        """What stands for it at a destination."""
        return f"phc_at_{destination}_{self.slug}"

    @property
    def keys(self) -> Sequence[str]:
        """All of these."""
        return [self.key, *map(self.key_at, ("us", "eu", "own"))]

    @property
    def sources_of_rules(self) -> frozenset[str]:
        """What its events match as a `source` of rules."""
        return frozenset({self.source})

    @property
    def source_of_letters(self) -> str:
        """The source that its dead letters name."""
        return self.source

    @property
    def tapped_source(self) -> str:
        """The source that taps name."""
        return self.source

    def why_not(self, promise: PromiseRow) -> str:
        """Why a promise doesn't apply or isn't tested; empty if it is."""
        return {**self.untested, **self.inapplicable}.get(promise.name, "")

    def settings(self, world: PromiseWorld) -> Mapping[str, Any]:
        """What of the configuration it needs."""
        return {}

    def wheres(self, world: PromiseWorld) -> tuple[tuple[str, ...], ...]:
        """What names the files with its dead letters to commands."""
        return (world.files,)

    def is_own(self, letter: Mapping[str, Any]) -> bool:
        """Whether a dead letter is of this entrance, at the destination where it is looked at."""
        destination = letter["number"].partition("/")[0].rpartition("-")[2]
        return bool((destination, letter["lane"]) == (self.view, self._label(self.view)))

    def _label(self, destination: str) -> str:
        return f"{key_label(self.key_at(destination))}{self.suffix}"

    async def prepare(self, world: PromiseWorld) -> None:
        pass

    async def enter(self, world: PromiseWorld) -> None:
        for promise, events in world.events_of(self):
            if promise.topic is Topic.ACKNOWLEDGEMENT:
                await self.request_confirmation(world, events)
            elif events:
                await self.carry(world, events)
        if "a body that is too large" not in self.inapplicable:
            await self.exceed(world)

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """Bring in the events of one promise. Raises `AssertionError` if they aren't accepted."""
        raise NotImplementedError

    async def request_confirmation(
        self, world: PromiseWorld, events: Sequence[PromisedEvent]
    ) -> None:
        """Bring in events whose confirmation is looked at."""
        await self.carry(world, events)

    async def exceed(self, world: PromiseWorld) -> None:
        """Bring in something beyond the limit; see `exceeded`."""

    async def observe(self, world: PromiseWorld) -> None:
        sought = [
            event for event in world.evidence.sent[self.name] if event.data["event"] == "sought"
        ]
        loop = asyncio.get_running_loop()
        for event in sought:
            until = loop.time() + SOON
            said = ""
            while FOUND not in said and loop.time() < until:
                said = await world.explain_live(self.uuid_of(event))
            world.evidence.explained[self.name] = said

    async def received(self, world: PromiseWorld) -> None:
        """Wait until the daemon has received all that is for the first destination."""
        expected = sum("us" in event.to for event in world.evidence.sent[self.name])

        def are_there() -> bool:
            lanes = [lane for lane in world.status()["lanes"] if lane["label"].endswith("@us")]
            received: int = sum(lane["received"].get(self.source, 0) for lane in lanes)
            return received >= expected

        await eventually(are_there, explain=world.status)

    def uuid_of(self, event: PromisedEvent) -> str:
        """The uuid that an event has."""
        return str(event.data["uuid"])

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """Whether that was confirmed by now."""
        asked = self._asked
        if asked is None or not asked.done() or asked.exception():
            return False
        return asked.result().status == 200

    async def finish(self, world: PromiseWorld) -> None:
        if self._asked is not None:
            await self._asked

    async def replayed(self, world: PromiseWorld) -> None:
        pass

    async def end(self, world: PromiseWorld) -> None:
        pass

    def reasons(self, evidence: WorldEvidence) -> Counter[str]:
        """Dead letters and drops, by reason."""
        return self._books(evidence, self.view).reasons | self._books(evidence, "us").reasons

    def check_dropped(self, seen: CellEvidence, rule: str, count: int) -> None:
        """Raise `AssertionError` unless a rule has dropped so many events, and is in the books."""
        assert seen.reasons[f"rule:{rule}"] == count, seen.reasons

    def says_why(self, letter: Mapping[str, Any], reason: str, words: str) -> bool:
        """Whether a dead letter is one for this reason, in these words."""
        return bool(letter["reason"] == reason and words in letter["why"])

    def _books(self, evidence: WorldEvidence, destination: str) -> LaneBooks:
        return evidence.books[self._label(destination), destination]

    def check_books(self, evidence: WorldEvidence) -> None:
        evidence.check_audit()
        for destination in ("us", "eu", "own"):
            sent = [event for event in evidence.sent[self.name] if destination in event.to]
            if not sent:
                continue
            books = self._books(evidence, destination)
            there = [
                arrival
                for arrival in evidence.arrivals
                if arrival.destination == destination
                and arrival.properties["cell"].startswith(f"{self.name}/")
            ]
            undelivered = books.reasons.total()
            figures = f"{destination}: {books}, {len(sent)} sent, {len(there)} arrived"
            assert books.received == len(sent), figures
            assert books.delivered == len(there), figures
            assert books.buffered == 0, figures
            assert books.received == books.delivered + undelivered, figures
