"""The processes behind a column: two services and an archive as destinations, a daemon in front of
them, a tap on it; and the order in which everything happens.

The services refuse events at first (503), so that what an entrance accepts is seen while it is
buffered; then they accept them. In between the worlds differ: the daemon continues, is killed and
started again, or is stopped and its buffer drained. Each entrance has project keys of its own, and
each event names its cell: columns of one world don't disturb each other.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen
from uuid import NAMESPACE_URL, uuid5

from benchmarks.processes import free_ports
from forwarder.testing.daemon import ForwarderDaemon, merged
from forwarder.testing.sandbox import AnalyticsSandbox
from tests.archive.rig import lines_of
from tests.promises.agreed import FORGOTTEN, MAX_BODY, MAX_EVENT, REPAIR, SALT, SALTED, TOO_BIG
from tests.promises.promises import PROMISES, PromiseRow, rules_of
from tests.promises.seen import Arrival, PromisedEvent, WorldEvidence, read_audit
from tests.support.commands import LIMIT, Finished, Running, forwarder, invoked, running
from tests.support.listening import RawConnection, RawReply, post
from tests.support.waiting import eventually, in_thread, pause
from tests.support.whole import batch

if TYPE_CHECKING:
    from tests.promises.entrance import Entrance

PROBE: Final = "phc_promises_of_the_probe"
"""The project key of events that only show that a tap is open."""
OUTAGE: Final = 600.0
"""Seconds after which the services accept events even if nobody says so."""
DWELL: Final = 1.0
"""Seconds for which nothing may be confirmed that isn't delivered."""
LIST: Final = ("dead-letters", "ls", "--output", "json", "--limit", "10000")


async def command(*words: str) -> Finished:
    """Run a command that ends by itself: in this process, of which that it is one is no promise;
    without a guard (see `guards.py`) in one of its own, for guards are taken out of those alone.
    """
    return await (forwarder if "PROMISES_WITHOUT" in os.environ else invoked)(*words)


class PromiseWorld:
    """A daemon that continues while the services are down; see the module."""

    name = "daemon"
    """Entrances whose worlds have one name share it."""
    has_daemon = True

    def __init__(
        self,
        folder: Path,
        services: Mapping[str, AnalyticsSandbox],
        entrances: Sequence[Entrance],
        kafka: str = "",
    ) -> None:
        self.folder = folder
        self.services = services
        self.entrances = entrances
        self.kafka = kafka
        """The address of a broker; empty if there is none."""
        self.config = folder / "forwarder.yaml"
        self.evidence = WorldEvidence()
        self.stack = AsyncExitStack()
        self._tap: Running | None = None
        self._ports = free_ports(2)
        self.daemon = ForwarderDaemon(self.settings(), folder)

    @property
    def url(self) -> str:
        """Where the daemon accepts events."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def files(self) -> tuple[str, ...]:
        """What names the configuration to commands."""
        return ("--config", str(self.config))

    @property
    def admin(self) -> str:
        """Its admin address."""
        return f"127.0.0.1:{self._ports[1]}"

    def settings(self) -> dict[str, Any]:
        """The configuration: of all promises and of the entrances."""
        upstreams: dict[str, Any] = {
            name: {
                "url": service.url,
                "max_event": MAX_EVENT,
                "api_keys": {entrance.key: entrance.key_at(name) for entrance in self.entrances},
            }
            for name, service in self.services.items()
        }
        upstreams["own"] = {
            "archive": {"url": (self.folder / "archive").as_uri(), "max_age": "1s"},
            "max_event": MAX_EVENT,
            "api_keys": {entrance.key: entrance.key_at("own") for entrance in self.entrances},
        }
        routes = [route for promise in PROMISES for route in promise.routes]
        routes += [
            {
                "match": {"api_key": entrance.key},
                "to": sorted(entrance.spread, key=list(upstreams).index),
            }
            for entrance in self.entrances
            if entrance.spread != {"us"}
        ]
        settings: dict[str, Any] = {
            "upstreams": upstreams,
            "routes": routes,
            "rules": [dict(rule) for rule in rules_of(PROMISES)],
            "sources": {
                "http": {"listen": f"127.0.0.1:{self._ports[0]}", "max_body": MAX_BODY},
            },
            "admin": {"listen": self.admin},
            "buffer": {"kind": "disk", "path": str(self.folder / "buffer"), "ack_timeout": "1m"},
            "log": {"format": "json"},
        }
        for entrance in self.entrances:
            settings = merged(settings, entrance.settings(self))
        text = json.dumps(settings).replace("{folder}", str(self.folder))
        configuration: dict[str, Any] = json.loads(
            text.replace('"{keys}"', json.dumps([entrance.key for entrance in self.entrances]))
        )
        return configuration

    async def run(self) -> None:
        """Everything up to the evidence. Cancellation ends all processes."""
        self._write_files()
        self.evidence.began = datetime.now(UTC)
        for service in self.services.values():
            service.clear_faults()
            service.fail_next(503, seconds=OUTAGE)
        try:
            await self._each("prepare")
            await self.start()
            await self._each("enter")
            await self._each("observe")
            self.evidence.sent_by = datetime.now(UTC)
            await pause(DWELL)
            self.evidence.early = await self._confirmed()
            await self.leave()
            for service in self.services.values():
                service.clear_faults()
            await self.come_back()
            await self._each("finish")
            await self.settle()
            await self._replay()
            await self.settle()
            await self._look()
            await self._each("end")
            self.evidence.late = await self._confirmed()
        finally:
            for service in self.services.values():
                service.clear_faults()
            await self.close()

    async def _confirmed(self) -> dict[str, bool]:
        """Which of the entrances have confirmed the event whose confirmation is looked at."""
        working = [
            entrance for entrance in self.entrances if entrance.name not in self.evidence.failures
        ]
        return {entrance.name: await entrance.is_acknowledged(self) for entrance in working}

    async def _each(self, step: str) -> None:
        """Take a step of all entrances that work so far: one that fails is no reason for another
        not to be looked at.
        """
        working = [
            entrance for entrance in self.entrances if entrance.name not in self.evidence.failures
        ]
        done = await asyncio.gather(
            *(getattr(entrance, step)(self) for entrance in working), return_exceptions=True
        )
        for entrance, result in zip(working, done, strict=True):
            if isinstance(result, Exception):
                result.add_note(f"while {entrance.name} was at `{step}`")
                self.evidence.failures[entrance.name] = result
            elif result is not None:
                raise result

    def events_of(self, entrance: Entrance) -> Iterator[tuple[PromiseRow, list[PromisedEvent]]]:
        """What an entrance has to carry, promise by promise; it counts as sent."""
        for promise in PROMISES:
            if entrance.why_not(promise):
                continue
            made = [_event(entrance, promise, number) for number in range(len(promise.samples))]
            self.evidence.sent[entrance.name] += made
            yield promise, made

    async def start(self) -> None:
        """Start the daemon and a tap on it."""
        await in_thread(self.daemon.start)
        await self.open_tap()

    async def open_tap(self) -> None:
        """Have a tap print what passes, and see it do so."""
        options = ("--event", "tap *", "--rate", "1000", "--output", "json")
        self._tap = await self.stack.enter_async_context(
            running("tap", *options, "--admin", self.admin)
        )
        await self._until_tapped("tap is open")

    async def _until_tapped(self, name: str) -> None:
        """Send events of a name until the tap shows one: then it has shown all before it."""
        assert self._tap is not None

        async def send() -> None:
            event = json.dumps({"event": name, "distinct_id": "ann", "properties": {}}).encode()
            while True:
                await self.ask(post("/batch/", batch([event], PROBE)))
                await pause(0.05)

        sending = asyncio.ensure_future(send())
        try:
            await self._tap.line(f'"event": "{name}"')
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def ask(self, request: bytes) -> RawReply:
        """The answer to a request, on a connection of its own."""
        client = RawConnection(*await asyncio.open_connection("127.0.0.1", self._ports[0]))
        try:
            return await client.ask(request)
        finally:
            await client.close()

    async def end_tap(self) -> None:
        """End the tap and read what it printed."""
        if self._tap is None:
            return
        await self._until_tapped("tap is closed")
        self._tap.send(signal.SIGKILL)
        await self._tap.ended()
        self.evidence.texts["tap"] = "\n".join(self._tap.lines)
        self.evidence.tapped += [
            json.loads(line) for line in self._tap.lines if line.startswith("{")
        ]
        self._tap = None

    async def leave(self) -> None:
        """What becomes of the daemon while the services are down."""

    async def come_back(self) -> None:
        """What becomes of it when they are up again."""

    async def settle(self) -> None:
        """Wait until nothing is buffered any more."""
        await eventually(lambda: self.buffered() == 0, explain=self.status)

    async def close(self) -> None:
        """End all processes."""
        await self.stack.aclose()
        await in_thread(self.daemon.stop)

    def status(self) -> dict[str, Any]:
        """What `/status` says."""
        status: dict[str, Any] = json.loads(self.get("/status"))
        return status

    def buffered(self) -> int:
        """How many events are in buffers of the daemon."""
        return sum(lane["buffered"] for lane in self.status()["lanes"])

    def get(self, path: str) -> str:
        """What the admin address answers."""
        with urlopen(f"http://{self.admin}{path}", timeout=LIMIT) as answer:
            text: str = answer.read().decode()
            return text

    async def explain_live(self, uuid: str) -> str:
        """Where an event is, while the daemon runs."""
        explanation = await in_thread(lambda: self.get(f"/explain?uuid={uuid}"))
        return explanation.lower()

    def _write_files(self) -> None:
        salted = hmac.new(SALT.encode(), SALTED.encode(), hashlib.sha256).hexdigest()
        for name, text in {
            "salt": SALT,
            "forgotten": f"{FORGOTTEN}\n",
            "forgotten-salted": f"{salted}\n",
        }.items():
            (self.folder / name).write_text(text)
        self.config.write_text(json.dumps(self.settings()))

    async def _replay(self) -> None:
        """Look at all dead letters, then repair and replay those that promise it."""
        await self._list_letters(self.evidence.letters_before)
        await self._explain_letters()
        replay = ("dead-letters", "replay", "--event", TOO_BIG, "--edit", REPAIR, "--yes")
        for where in self._wheres():
            done = await self.replayed(*replay, *where)
            self.evidence.texts[f"dead-letters replay {' '.join(where[:1])}"] = done.out + done.err
        await self._each("replayed")

    async def replayed(self, *words: str) -> Finished:
        """Run a command that replays dead letters."""
        return await command(*words)

    async def _explain_letters(self) -> None:
        """Ask for one dead letter of each entrance."""
        for entrance in self.entrances:
            for letter in self.evidence.letters_before.get(entrance.name, []):
                if letter["event"] == "explained" and letter["uuid"]:
                    done = await command("explain", letter["uuid"], *entrance.wheres(self)[0])
                    self.evidence.explained_letters[entrance.name] = done.out

    async def _list_letters(self, into: dict[str, list[dict[str, Any]]]) -> None:
        self.evidence.listed = []
        for where in self._wheres():
            done = await forwarder(*LIST, *where)
            assert done.code == 0, done.err
            self.evidence.texts["dead-letters ls"] = (
                self.evidence.texts.get("dead-letters ls", "") + done.out
            )
            letters = json.loads(done.out)["results"]
            self.evidence.listed += letters
            for entrance in self.entrances:
                if where in entrance.wheres(self):
                    own = [letter for letter in letters if entrance.is_own(letter)]
                    into[entrance.name] = into.get(entrance.name, []) + own

    def _wheres(self) -> list[tuple[str, ...]]:
        """What names all files with dead letters to commands."""
        return sorted({where for entrance in self.entrances for where in entrance.wheres(self)})

    async def _look(self) -> None:
        """Gather the evidence."""
        await self._list_letters(self.evidence.letters)
        for entrance in self.entrances:
            self.evidence.arrivals += await in_thread(partial(self._arrived, entrance))
        self.evidence.conflicts = [
            conflict
            for service in self.services.values()
            for conflict in service.call("GET", "/sandbox/conflicts")["results"]
            if any(
                f'"{entrance.name}/' in json.dumps(conflict).replace("\\", "")
                for entrance in self.entrances
            )
        ]
        if self.has_daemon:
            audited = self.evidence.audited = await command("audit", *self.files)
            self.evidence.books = dict(read_audit(audited.out))
            self.evidence.texts["audit"] = audited.out
        await self.look_live()

    async def look_live(self) -> None:
        """Gather what only a daemon that runs can show: it must show no key."""
        self.note_texts()
        await self.end_tap()
        self.evidence.texts["the log"] = self.daemon.log

    def note_texts(self) -> None:
        """Note what must show no key, of the daemon that runs."""
        for path in ("/status", "/metrics"):
            self.evidence.texts[path] = self.get(path)

    def _arrived(self, entrance: Entrance) -> list[Arrival]:
        """What is at the services and in the archive of an entrance's events."""
        return [*self._at_services(entrance), *self._in_archive(entrance)]

    def _at_services(self, entrance: Entrance) -> Iterator[Arrival]:
        mine = f"{entrance.name}/"
        for name, service in self.services.items():
            key = entrance.key_at(name)
            keyed = {event["arrival"] for event in service.events(api_key=key)}
            for event in service.events(q=f'"{mine}'):
                if str(event["properties"].get("cell", "")).startswith(mine):
                    known = key if event["arrival"] in keyed else ""
                    yield Arrival(name, event["raw"], json.loads(event["raw"]), known)

    def _in_archive(self, entrance: Entrance) -> Iterator[Arrival]:
        mine = f"{entrance.name}/"
        key = entrance.key_at("own")
        for path in (self.folder / "archive").rglob("*.jsonl.zst"):
            for line in lines_of(path):
                event = json.loads(line)
                if str(event["properties"].get("cell", "")).startswith(mine):
                    known = key if path.name.startswith(key) else ""
                    yield Arrival("own", line.decode(), event, known)


class WorkersWorld(PromiseWorld):
    """A daemon of two workers."""

    name = "two workers"


class SendWorld(PromiseWorld):
    """A daemon of its own for the events that each take a process."""

    name = "send"


class KafkaPromiseWorld(PromiseWorld):
    """A daemon that reads a topic."""

    name = "Kafka"


class KilledWorld(PromiseWorld):
    """The daemon is killed while the services are down, and started again."""

    name = "restart"

    async def leave(self) -> None:
        """Kill it, and start it."""
        await self.end_tap()
        await in_thread(self.daemon.kill)
        await self.start()


class DrainedWorld(PromiseWorld):
    """The daemon is stopped while the services are down; `buffer drain` delivers."""

    name = "drain"

    async def leave(self) -> None:
        """Stop it; a disk buffer keeps what it has."""
        await self.end_tap()
        self.note_texts()
        self.evidence.texts["the log"] = self.daemon.log
        assert await in_thread(self.daemon.stop) == 0

    async def come_back(self) -> None:
        """Drain the buffer."""
        await self._drain()

    async def _drain(self) -> None:
        done = await forwarder("buffer", "drain", *self.files)
        assert done.code == 0, done.out + done.err
        self.evidence.texts["buffer drain"] = done.out + done.err

    async def settle(self) -> None:
        """A drain that ended with 0 has left nothing."""

    async def replayed(self, *words: str) -> Finished:
        """Mark the letters; the next drain delivers them."""
        done = await command(*words, "--no-wait")
        await self._drain()
        return done

    async def look_live(self) -> None:
        """It was looked at before it was stopped."""


class PipedWorld(PromiseWorld):
    """The daemon reads its standard input, whose end ends it."""

    name = "stdin"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.piped: Running | None = None

    async def start(self) -> None:
        """Start it with a pipe."""
        self.piped = await self.stack.enter_async_context(
            running("run", *self.files, stdin=asyncio.subprocess.PIPE)
        )
        await self.piped.line('"event": "listening"')
        await self.open_tap()

    async def look_live(self) -> None:
        """The log is read when it has ended."""
        self.note_texts()
        await self.end_tap()

    async def end_input(self) -> int:
        """End its input; its exit code."""
        assert self.piped is not None
        assert self.piped.process.stdin is not None
        self.piped.process.stdin.close()
        code = await self.piped.ended()
        self.evidence.texts["the log"] = "\n".join(self.piped.lines)
        return code


class ImportWorld(PromiseWorld):
    """No daemon: an import delivers by itself."""

    name = "import"
    has_daemon = False

    async def start(self) -> None:
        """Nothing is to be started."""

    async def settle(self) -> None:
        """The import has ended when it has settled all."""

    async def replayed(self, *words: str) -> Finished:
        """Mark the letters: the import's own command sends them."""
        return await command(*words)

    async def look_live(self) -> None:
        """Nothing runs."""


def _event(entrance: Entrance, promise: PromiseRow, number: int) -> PromisedEvent:
    sample = promise.samples[number]
    cell = f"{entrance.name}/{promise.name}"
    data: dict[str, Any] = {"event": sample.event, "distinct_id": sample.distinct_id}
    if sample.has_uuid:
        data["uuid"] = str(uuid5(NAMESPACE_URL, f"{cell}/{number}"))
    if sample.timestamp is not None:
        data["timestamp"] = sample.timestamp
    data["properties"] = sample.properties
    routed = sample.to if entrance.is_routed else None
    to = frozenset({"us"}) if sample.is_dropped else routed or entrance.spread
    return PromisedEvent(cell, data, sample.verbatim, to)
