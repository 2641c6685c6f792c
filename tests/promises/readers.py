"""Entrances that records come in at: logs, topics, exports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

from forwarder.sources.imports.report import MANIFEST
from tests.promises.agreed import MAX_LINE
from tests.promises.entrance import MAPPING, ODD_TIME, Entrance
from tests.promises.seen import PromisedEvent, WorldEvidence
from tests.promises.world import ImportWorld, KafkaPromiseWorld, PipedWorld, PromiseWorld
from tests.support.commands import Running, running
from tests.support.kafka import create_topic, unique
from tests.support.streams import GroupTopic
from tests.support.waiting import eventually


class FollowedLog(Entrance):
    """A file that is followed."""

    name = "log file"
    covers = frozenset({"sources.logs"})
    source = "logs"
    has_coordinates = True
    inapplicable: ClassVar[Mapping[str, str]] = {"the text of a time": ODD_TIME}

    def _file(self, world: PromiseWorld) -> Path:
        return world.folder / f"{self.slug}.log"

    def _source(self, world: PromiseWorld) -> dict[str, Any]:
        return {
            "name": self.slug,
            "mapping": MAPPING,
            "api_key": self.key,
            "max_line": MAX_LINE,
        }

    def settings(self, world: PromiseWorld) -> Mapping[str, Any]:
        """The source."""
        more = {"path": str(self._file(world)), "poll_interval": "50ms", "commit_interval": "100ms"}
        return {"sources": {"logs": [{**self._source(world), **more}]}}

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """A line each."""
        with self._file(world).open("a") as file:
            file.write("".join(f"{event.json()}\n" for event in events))

    async def exceed(self, world: PromiseWorld) -> None:
        """A line over `max_line`."""
        long = PromisedEvent(
            "", {"event": "long", "properties": {"x": "x" * MAX_LINE}}, "", self.spread
        )
        await self.carry(world, [long])

    async def observe(self, world: PromiseWorld) -> None:
        """What it reads is in the buffer soon."""
        await self.received(world)
        await super().observe(world)

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """By the position that is stored: the file is settled to its end."""
        return self._is_settled(world)

    def _is_settled(self, world: PromiseWorld) -> bool:
        [source] = [log for log in world.status()["logs"] if log["name"] == self.slug]
        [file] = source["files"]
        return bool(file["position"] == self._file(world).stat().st_size)

    async def finish(self, world: PromiseWorld) -> None:
        """Wait until it is settled."""
        await eventually(lambda: self._is_settled(world), explain=world.status)

    async def end(self, world: PromiseWorld) -> None:
        """What became of the line that is too long."""
        reasons = [
            letter["reason"]
            for letter in world.evidence.listed
            if (letter["attributes"] or {}).get("source") == self.slug
            and "max_line" in letter["why"]
        ]
        self.exceeded = reasons, ["too_large"]


class Stdin(FollowedLog):
    """Standard input."""

    name = "stdin"
    covers = frozenset({"sources.logs.stdin"})
    kind = PipedWorld
    acknowledges_at_once = False

    def settings(self, world: PromiseWorld) -> Mapping[str, Any]:
        """The source."""
        return {"sources": {"logs": [{**self._source(world), "stdin": True}]}}

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """A line each."""
        piped = cast("PipedWorld", world).piped
        assert piped is not None
        assert piped.process.stdin is not None
        piped.process.stdin.write("".join(f"{event.json()}\n" for event in events).encode())
        await piped.process.stdin.drain()

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """By the exit code after the end of the input."""
        return self._code == 0

    _code = -1

    async def finish(self, world: PromiseWorld) -> None:
        """It is confirmed at the very end."""

    async def end(self, world: PromiseWorld) -> None:
        """End the input."""
        await super().end(world)
        self._code = await cast("PipedWorld", world).end_input()


class Topics(Entrance):
    """A Kafka topic."""

    name = "Kafka"
    covers = frozenset({"sources.kafka"})
    source = "kafka"
    kind = KafkaPromiseWorld
    has_coordinates = True
    needs_kafka = True
    inapplicable: ClassVar[Mapping[str, str]] = {
        "a body that is too large": "the broker limits records before they are read",
    }

    def __init__(self) -> None:
        super().__init__()
        self._topic = unique("promises")

    def settings(self, world: PromiseWorld) -> Mapping[str, Any]:
        """The cluster."""
        cluster = {**self._stream(world).settings, "api_key": self.key}
        return {"sources": {"kafka": [cluster]}}

    def _stream(self, world: PromiseWorld) -> GroupTopic:
        return GroupTopic(world.kafka, self._topic)

    async def prepare(self, world: PromiseWorld) -> None:
        """Create the topic."""
        await create_topic(world.kafka, self._topic)

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """A record each."""
        await self._stream(world).write(event.json().encode() for event in events)

    async def observe(self, world: PromiseWorld) -> None:
        """What it reads is in the buffer soon."""
        await self.received(world)
        await super().observe(world)

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """By the committed offset."""
        stream = self._stream(world)
        return await stream.committed() == await stream.ends()

    async def finish(self, world: PromiseWorld) -> None:
        """Wait until all of it is committed."""
        await self._stream(world).settled()


class Import(Entrance):
    """`forwarder import`, which delivers by itself."""

    name = "import"
    covers = frozenset({"command import"})
    source = "import"
    kind: ClassVar[type[PromiseWorld]] = ImportWorld
    is_routed = False
    suffix = "/historical"
    has_coordinates = True
    inapplicable: ClassVar[Mapping[str, str]] = {
        "routes": "“`forwarder import` delivers to the first destination”",
        "routes by share": "“`forwarder import` delivers to the first destination”",
        "missing timestamp": "a record without a time is refused: no export is of now",
        "the text of a time": "a format reads times, and writes those of other forms as RFC 3339",
        "a body that is too large": "files have no limit; a record has that of an event",
        "tap": "it has no admin address",
        "tap of drops": "it has no admin address",
        "tap of dead letters": "it has no admin address",
        "secrets in a tap": "it has no admin address",
        "explain: buffered": "it has no admin address",
    }
    _via: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._running: Running | None = None
        self._lines: list[PromisedEvent] = []
        self._codes: list[int] = []
        self._record_books: dict[str, Any] = {}

    def _state(self, world: PromiseWorld) -> Path:
        return world.folder / f"{self.slug}-state"

    def wheres(self, world: PromiseWorld) -> tuple[tuple[str, ...], ...]:
        """Its state folder."""
        return (("--path", str(self._state(world))),)

    def is_own(self, letter: Mapping[str, Any]) -> bool:
        """All of its folder are."""
        return "/" not in letter["number"] or super().is_own(letter)

    def says_why(self, letter: Mapping[str, Any], reason: str, words: str) -> bool:
        """In words of its own."""
        return bool(letter["reason"] == reason)

    async def carry(self, world: PromiseWorld, events: Sequence[PromisedEvent]) -> None:
        """A line each."""
        self._lines += events

    async def enter(self, world: PromiseWorld) -> None:
        """Write the file and start the import, which waits for the service."""
        await super().enter(world)
        (world.folder / f"{self.slug}.jsonl").write_text(
            "".join(f"{event.json()}\n" for event in self._lines)
        )
        self._running = await world.stack.enter_async_context(self._command(world))

    def _command(self, world: PromiseWorld) -> Any:
        via = ("--via", world.url) if self._via else ()
        source = str(world.folder / f"{self.slug}.jsonl")
        return running(
            *("import", "native", source, "--api-key", self.key, "--rate", "unlimited", "--yes"),
            *("--accept", "many-refused"),
            *("--state", str(self._state(world)), *world.files, *via),
        )

    async def is_acknowledged(self, world: PromiseWorld) -> bool:
        """By its end, with records refused as they should be, and nothing left."""
        running = self._running
        if running is None or running.process.returncode is None:
            return False
        return bool(self._manifest(world)["complete"])

    async def observe(self, world: PromiseWorld) -> None:
        """The service has refused it by then."""
        service = world.services["us"]
        await eventually(lambda: any(service.requests(api_key=key) for key in self.keys))
        await super().observe(world)

    async def finish(self, world: PromiseWorld) -> None:
        """Wait for its end."""
        assert self._running is not None
        self._codes.append(await self._running.ended())
        world.evidence.texts["import"] = "\n".join(self._running.lines)
        assert self._codes == [1], world.evidence.texts["import"]

    async def replayed(self, world: PromiseWorld) -> None:
        """Run the command again: it sends what was marked."""
        async with self._command(world) as again:
            self._codes.append(await again.ended())
            world.evidence.texts["import again"] = "\n".join(again.lines)
        assert self._codes == [1, 1], world.evidence.texts["import again"]

    async def end(self, world: PromiseWorld) -> None:
        """Note what its manifest says."""
        self._record_books = self._manifest(world)["books"]

    def _manifest(self, world: PromiseWorld) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self._state(world) / MANIFEST).read_text())
        return manifest

    def reasons(self, evidence: WorldEvidence) -> Counter[str]:
        """By its manifest."""
        books = self._record_books
        return Counter(books["refused"]) + Counter(books["left_out"])

    def check_books(self, evidence: WorldEvidence) -> None:
        """By its manifest, which must say what is at the service."""
        books = self._record_books
        there = [
            arrival
            for arrival in evidence.arrivals
            if arrival.properties["cell"].startswith(f"{self.name}/")
        ]
        settled = books["delivered"] + sum(books["refused"].values())
        settled += sum(books["left_out"].values()) + books["repeats"]
        assert books["read"] == settled == len(self._lines), books
        assert books["delivered"] + books["mended"] == len(there), (books, len(there))


class Via(Import):
    """`forwarder import --via` a daemon."""

    name = "import via"
    covers = frozenset({"import --via"})
    kind = PromiseWorld
    is_routed = True
    _via = True
    inapplicable: ClassVar[Mapping[str, str]] = {
        "missing timestamp": Import.inapplicable["missing timestamp"],
        "the text of a time": Import.inapplicable["the text of a time"],
        "a body that is too large": Import.inapplicable["a body that is too large"],
        "tap of dead letters": "what the format refuses never gets to the daemon",
        "where a letter of a failed rule came from": "the daemon gets requests, not records",
    }

    @property
    def sources_of_rules(self) -> frozenset[str]:
        """“With `--via`, the rules are those of the daemon”, which gets requests."""
        return frozenset({"http"})

    @property
    def tapped_source(self) -> str:
        """A daemon gets requests."""
        return "http"

    def wheres(self, world: PromiseWorld) -> tuple[tuple[str, ...], ...]:
        """What the format refuses is in its own folder, what the rules refuse is the daemon's."""
        return (*super().wheres(world), world.files)

    def reasons(self, evidence: WorldEvidence) -> Counter[str]:
        """By its manifest, and by the daemon's books."""
        return super().reasons(evidence) + self._books(evidence, "us").reasons

    def check_books(self, evidence: WorldEvidence) -> None:
        """What its manifest says that the daemon accepted is at a service, or in its books."""
        evidence.check_audit()
        books = self._record_books
        cell = f"{self.name}/"
        there = [
            arrival for arrival in evidence.arrivals if arrival.properties["cell"].startswith(cell)
        ]
        settled = len({arrival.event["uuid"] for arrival in there})
        settled += self._books(evidence, "us").reasons.total()
        assert books["delivered"] + books["mended"] == settled, (books, settled)
