"""Entrances that requests come in at: over HTTP, and by what sends or repeats such requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from tests.promises.agreed import MAX_BODY
from tests.promises.entrance import MAPPING, ODD_TIME, Entrance
from tests.promises.promises import Topic
from tests.promises.seen import PromisedEvent
from tests.promises.world import DrainedWorld, KilledWorld, PromiseWorld, SendWorld, WorkersWorld
from tests.support.commands import Running, running
from tests.support.listening import post
from tests.support.otlp import export
from tests.support.otlp import record as log_record

if TYPE_CHECKING:
    from tests.promises.seen import CellEvidence

PATHS: Final = tuple(
    f"/{path}{slash}"
    for path in ("batch", "capture", "e", "i/v0/e", "track", "engage")
    for slash in ("", "/")
)
"""Every path of the classic protocol."""
FILLING: Final = 150
"""Events that make a body large; a rule drops them."""


class Classic(Entrance):
    """`POST /batch/` and the other paths of the classic protocol."""

    name = "HTTP classic"
    covers = frozenset({"sources.http"} | {f"path {path}" for path in PATHS})
    _level: ClassVar[str] = "delivered"

    def __init__(self) -> None:
        super().__init__()
        self._requests = 0

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """One request, each time at another path."""
        reply = await world.ask(self._request(events))
        assert reply.status == 200, reply.body

    def _request(self, events: Sequence[PromisedEvent], *headers: str) -> bytes:
        path = PATHS[self._requests % len(PATHS)]
        self._requests += 1
        return post(path, self._body(events), *headers)

    def _body(self, events: Sequence[PromisedEvent]) -> bytes:
        batch = ",".join(self._text(event) for event in events)
        return f'{{"api_key":"{self.key}","batch":[{batch}]}}'.encode()

    def _text(self, event: PromisedEvent) -> str:
        return event.json()

    async def request_confirmation(
        self, world: PromiseWorld, events: Sequence[PromisedEvent]
    ) -> None:
        """A request that asks for a level."""
        request = self._request(events, f"Forwarder-Ack: {self._level}")
        self._asked = asyncio.ensure_future(world.ask(request))
        if self.acknowledges_at_once:
            await self._asked

    async def exceed(self, world: PromiseWorld) -> None:
        """A body over `max_body`, of good events."""
        event = PromisedEvent(
            f"{self.name}/a body that is too large",
            {"event": "noise", "distinct_id": "ann", "properties": {"x": "x" * 10_000}},
            "",
            self.spread,
        )
        reply = await world.ask(self._request([event] * (MAX_BODY // 10_000 + 1)))
        self.exceeded = reply.status, 413


class V1(Classic):
    """The v1 protocol."""

    name = "v1"
    covers = frozenset({f"path /i/v1/analytics/events{slash}" for slash in ("", "/")})

    def _request(self, events: Sequence[PromisedEvent], *headers: str) -> bytes:
        own = (f"Authorization: Bearer {self.key}", "Content-Type: application/json")
        batch = ",".join(event.json() for event in events)
        body = f'{{"created_at":"2024-05-04T00:00:00Z","batch":[{batch}]}}'.encode()
        self._requests += 1
        return post(f"/i/v1/analytics/events{'/' * (self._requests % 2)}", body, *own, *headers)


class Otlp(Classic):
    """Log records of OpenTelemetry, as JSON and as protobuf."""

    name = "OTLP"
    covers = frozenset({"sources.http.otlp", "path /v1/logs", "path /v1/logs/"})
    source = "otlp"
    inapplicable: ClassVar[Mapping[str, str]] = {
        "bytes stay": "attributes are typed values, not JSON text",
        "the text of a time": ODD_TIME,
    }

    def settings(self, world: PromiseWorld) -> Mapping[str, Any]:
        """The path is served where it has a mapping."""
        mapping = {name: f".attributes{path}" for name, path in MAPPING.items()}
        return {"sources": {"http": {"otlp": {"mapping": mapping, "api_key": self.key}}}}

    def _request(self, events: Sequence[PromisedEvent], *headers: str) -> bytes:
        self._requests += 1
        protobuf = bool(self._requests % 2)
        records = []
        for event in events:
            attributes = json.loads(event.json())
            records.append(log_record(attributes=attributes, time_unix_nano=0))
        kind = "application/x-protobuf" if protobuf else "application/json"
        body = export(*records, protobuf=protobuf)
        path = f"/v1/logs{'/' * (self._requests // 2 % 2)}"
        return post(path, body, f"Content-Type: {kind}", *headers)


class Large(Classic):
    """A body that the decoder process reads."""

    name = "large body"
    covers = frozenset[str]()

    async def enter(self, world: PromiseWorld) -> None:
        """All in one request: each of its events is accepted, or none."""
        everything: list[PromisedEvent] = []
        for promise, events in world.events_of(self):
            if promise.topic is Topic.ACKNOWLEDGEMENT:
                await self.request_confirmation(world, events)
            everything += events
        everything = [event for event in everything if not event.cell.endswith("/acknowledgement")]
        await self.carry(world, [*everything, *self._filling(world)])
        await self.exceed(world)

    def _filling(self, world: PromiseWorld) -> list[PromisedEvent]:
        data = {"event": "noise", "distinct_id": "ann", "properties": {"x": "x" * 8_000}}
        filling = [PromisedEvent(f"{self.name}/filling", data, "", frozenset({"us"}))] * FILLING
        world.evidence.sent[self.name] += filling
        return filling

    async def request_confirmation(
        self, world: PromiseWorld, events: Sequence[PromisedEvent]
    ) -> None:
        """It is large, too."""
        await super().request_confirmation(world, [*events, *self._filling(world)])


class TwoWorkers(Classic):
    """Two workers that share the address."""

    name = "two workers"
    covers = frozenset({"workers"})
    kind = WorkersWorld

    def settings(self, world: PromiseWorld) -> Mapping[str, Any]:
        """Two of them."""
        return {"workers": 2}


class SecondDestination(Classic):
    """Two destinations; what arrives is looked for at the second one."""

    name = "two destinations"
    covers = frozenset({"upstreams"})
    view = "eu"
    spread = frozenset({"us", "eu"})


class Archive(Classic):
    """A service and an archive; what arrives is looked for in the archive's files."""

    name = "archive"
    covers = frozenset({"upstreams.archive"})
    view = "own"
    spread = frozenset({"us", "own"})
    inapplicable: ClassVar[Mapping[str, str]] = {
        "explain: buffered": "an archive isn't down with the services: it has the event by then",
    }


class KilledAfterAccept(Classic):
    """What was accepted before a `kill -9`, delivered by the next start."""

    name = "restart"
    covers = frozenset({"restart"})
    kind = KilledWorld
    acknowledges_at_once = True
    _level = "disk"


class Drain(Classic):
    """What was accepted by a daemon that was stopped, delivered by `buffer drain`."""

    name = "drain"
    covers = frozenset({"command buffer"})
    kind = DrainedWorld
    tapped_as = ("received",)
    acknowledges_at_once = True
    _level = "disk"


class Replay(Classic):
    """Events that come back from the dead letters, where they were for want of an id."""

    name = "replay"
    covers = frozenset({"command dead-letters"})
    tapped_as = ("replayed", "delivered")
    is_routed = False
    _repair: ClassVar[str] = ".distinct_id = .properties.who | del(.properties.who)"
    inapplicable: ClassVar[Mapping[str, str]] = {
        "routes": "“a replayed letter goes back to that destination alone”",
        "routes by share": "“a replayed letter goes back to that destination alone”",
        "a body that is too large": "one event is replayed at a time",
        "an event without an id": "none of its events has one, until it is repaired",
        "bytes stay": "the letters are edited, which may change the notation of numbers",
        "tap of drops": "what a rule would drop stays a dead letter",
        "tap of dead letters": "what can't be accepted stays a dead letter",
    }

    @property
    def tapped_source(self) -> str:
        """They come from no source."""
        return "replay"

    @property
    def sources_of_rules(self) -> frozenset[str]:
        """“by the source and the project key of their senders”: requests."""
        return frozenset({"http"})

    def _text(self, event: PromisedEvent) -> str:
        properties = {**event.data["properties"], "who": event.data["distinct_id"]}
        return event.json(distinct_id=None, properties=properties)

    async def request_confirmation(
        self, world: PromiseWorld, events: Sequence[PromisedEvent]
    ) -> None:
        """It is confirmed by the command that replays it."""
        await self.carry(world, events)

    async def enter(self, world: PromiseWorld) -> None:
        """Have all of them rejected, and replay them."""
        await super().enter(world)
        command = ("dead-letters", "replay", "--lane", self._label("us"), "--edit", self._repair)
        async with running(*command, "--yes", *world.files) as replay:
            assert await replay.ended() == 1, replay.lines  # rules keep some of them
        self._done = True

    _done = False

    def check_dropped(self, seen: CellEvidence, rule: str, count: int) -> None:
        """“If a rule would drop a replayed letter, it stays a dead letter.”"""
        (name,) = {event.data["event"] for event in seen.sent}
        notes = [str(letter["note"]) for letter in seen.letters(name)]
        assert len([note for note in notes if f"{rule} drops it" in note]) == count, notes

    def says_why(self, letter: Mapping[str, Any], reason: str, words: str) -> bool:
        """“An event that can't be accepted remains a dead letter, with a note that says why.”"""
        return words in str(letter["note"])

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """“A dead letter is removed once its event is in the buffer”: the command ends then."""
        return self._done

    acknowledges_at_once = True


class SendCommand(Entrance):
    """`forwarder send`."""

    name = "send"
    covers = frozenset({"command send"})
    kind = SendWorld
    carries_uuids = False

    def __init__(self) -> None:
        super().__init__()
        self._runs: list[tuple[PromisedEvent, Running]] = []
        self._uuids: dict[str, str] = {}

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """A command each, which waits until the event is delivered."""
        for event in events:
            properties = {"cell": event.cell, **event.data["properties"]}
            given = [f"{name}={json.dumps(value)}" for name, value in properties.items()]
            command = await world.stack.enter_async_context(
                running(
                    *("send", event.data["event"], "--distinct-id", event.data["distinct_id"]),
                    *("--api-key", self.key, *world.files, "--timeout", "30s"),
                    *(part for assignment in given for part in ("--property", assignment)),
                )
            )
            self._runs.append((event, command))

    async def observe(self, world: PromiseWorld) -> None:
        """Wait until each has said what it sent and that it was received."""
        for event, command in self._runs:
            line = await command.line("sent ")
            self._uuids[event.cell] = line.partition(" as ")[2].split()[0]
            await command.line("received ")
        await super().observe(world)

    def uuid_of(self, event: PromisedEvent) -> str:
        """The one that the command gave it."""
        return self._uuids[event.cell]

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """By the exit code."""
        for event, command in self._runs:
            if event.data["event"] == "asked for":
                return command.process.returncode == 0
        return False

    async def finish(self, world: PromiseWorld) -> None:
        """Wait for the end of all."""
        for _, command in self._runs:
            await command.ended()
            world.evidence.texts["send"] = "\n".join(
                [world.evidence.texts.get("send", ""), *command.lines]
            )

    inapplicable: ClassVar[Mapping[str, str]] = {
        "own uuid": "the command makes the uuid",
        "an event without an id": "the command demands one",
        "own timestamp": "the event happens now",
        "the text of a time": "the event happens now",
        "a body that is too large": "arguments of a command have a limit far below",
        "bytes stay": "the command writes the event",
    }
    untested: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            *("rename", "rename_event", "rules see what those before left", "match by source"),
            *("match by condition", "people to forget", "people to forget, as hashes", "hash"),
            *("a rule that redacts fails closed", "sample", "routes by share", "rules on replay"),
            *("match by key", "rules by key on replay"),
            *("another rule that fails", "a rule that says what fails"),
            *(
                "where a dead letter came from",
                "secrets in a tap",
                "tap of drops",
                "tap of dead letters",
            ),
            *("where a letter of a failed rule came from", "each event once"),
        ),
        "an event costs a process, and its request is that of HTTP classic",
    )
