"""`forwarder send`: one test event, followed to where it is.

What the daemon answers to `/explain` covers its memory. An event that isn't there was
settled, or is in files alone: the counts of its lane before and after decide, and where
they can't, the files do. Where there are several destinations, each has a copy of its own, if its
lane has received anything since.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Admin, Config, TextOrJson, TextOutput
from forwarder.cli.target import ProjectKey, To, choose_target
from forwarder.core.clock import retry_after
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.nesting import check_nesting
from forwarder.core.proposals import proposed
from forwarder.core.tls import https_context

if TYPE_CHECKING:
    from forwarder.admin.event_lookup import WantedUuid
    from forwarder.cli.target import EventTarget
    from forwarder.inspect.explain import Trace
    from forwarder.telemetry.snapshot import DestinationSnapshot, LaneSnapshot, Snapshot

    LettersInFiles: TypeAlias = Callable[["LaneSearch", LaneSnapshot], Sequence[Trace] | None]

PERSON: Final = "forwarder-send"
"""The distinct_id of test events, so that they all belong to one person."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0
SURE_AFTER: Final = 0.2
"""Seconds after which an event that became a dead letter is counted and written as one."""
RETRY_AFTER: Final = 1.0
"""Seconds before a request is repeated after a 503 that names no time."""
_GONE: Final = "the daemon's admin address doesn't answer any more"
_LONGEST_ANSWER: Final = 300
_REJECTED: Final = {
    401: "Name a key that is accepted there with --api-key KEY.",
    404: "Name the base address of a forwarder or of the service with --to URL.",
    503: "The daemon's status shows why it accepts no events.",
}
"""What to do about a status."""


class EventPlace(StrEnum):
    """Where an event is."""

    DELIVERED = "delivered"
    BUFFERED = "buffered"
    DEAD_LETTER = "dead letter"
    DROPPED = "dropped"
    UNKNOWN = "unknown"
    """Settled; how, can't be seen from here."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where an event's copy for a destination is, and what a person should know of that."""

    place: EventPlace
    why: str = ""
    hint: str = ""
    destination: str = ""
    """Empty if there is only one."""
    halted: bool = False
    """Whether it stays where it is until a person does something."""


@dataclass(frozen=True, slots=True)
class TestEvent:
    """The event that is sent."""

    __test__ = False

    event: str
    distinct_id: str
    properties: dict[str, Any]
    uuid: str
    timestamp: str

    def body(self, api_key: str) -> bytes:
        """The request's body, as the official SDKs send it."""
        # `asdict` copies values, and ends at deep ones
        event = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(
            {"api_key": api_key, "batch": [event], "sent_at": _now()}, ensure_ascii=False
        ).encode()


def send(
    event: Annotated[str, typer.Argument(metavar="EVENT", help="Name of the event.")],
    *,
    properties: Annotated[
        list[str] | None,
        typer.Option(
            "--property",
            metavar="NAME=VALUE",
            help="A property; JSON where the value is that; repeatable.",
        ),
    ] = None,
    distinct_id: Annotated[
        str, typer.Option("--distinct-id", metavar="ID", help="Person of the event.")
    ] = PERSON,
    api_key: ProjectKey = None,
    to: To = None,
    admin: Admin = None,
    config: Config = None,
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="TIME", help="How long to wait until it is delivered."),
    ] = "30s",
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Send one test event, wait until it is delivered, and report where it is.

    Follows the event by the daemon's admin address. An address without a known daemon, such as that
    of the service, can only say that it accepted the event.

    Exit codes: 0 delivered, or accepted by an address without a known daemon; 1 rejected,
    dead-lettered, dropped, in a halted lane, or not delivered in time; 3 unreachable.

    Example: forwarder send "signed up" --property plan=team --property seats=5
    """
    from forwarder.cli.target import checked
    from forwarder.config.values import Duration

    seconds = checked("--timeout", Duration("100ms", "1h").read, timeout) or 0.0
    made = TestEvent(
        _named(event),
        _text(distinct_id, "--distinct-id"),
        dict(map(_property, properties or ())),
        str(uuid4()),
        _now(),
    )
    journey = Journey(
        choose_target(to, api_key, admin, config),
        made,
        config if admin is None else None,
        seconds,
        output,
    )
    raise typer.Exit(journey.run(by_files=admin is None))


class Journey:
    """The event's way, which is printed as it goes."""

    def __init__(
        self,
        target: EventTarget,
        event: TestEvent,
        config: Path | None,
        seconds: float,
        output: TextOutput,
    ) -> None:
        self._target = target
        self._event = event
        self._config = config
        self._output = output
        self._seconds = seconds
        self._began = time.monotonic()
        self._facts: dict[str, Any] = {
            "uuid": event.uuid,
            "event": event.event,
            "distinct_id": event.distinct_id,
            "to": target.address,
        }

    def run(self, *, by_files: bool) -> ExitCode:
        """Send it and follow it. Returns the exit code; raises `typer.Exit` if it can't be sent."""
        from forwarder.admin.event_lookup import WantedUuid
        from forwarder.cli.output import as_json
        from forwarder.core.secrets import mask_key

        event = self._event
        target = self._target
        where = f"{target.address}, key {mask_key(target.api_key)}"
        self._say(
            "sent",
            f"{as_json(event.event)} of {as_json(event.distinct_id)} as {event.uuid} to {where}",
        )
        search = (
            EventSearch.begin(WantedUuid.parse(event.uuid), target, self._config, by_files=by_files)
            if target.admin
            else None
        )
        self._deliver()
        if search is None:
            self._say("accepted", f"after {self._took()}")
            self._note(
                f"Whether a forwarder or the service answers at {target.address} isn't known, so "
                "the event can't be followed."
            )
            self._note("Name a forwarder's admin address with --admin ADDRESS to follow it.")
            return self._end("accepted", ExitCode.DONE)
        self._say(
            "received", f"by the forwarder at admin address {target.admin} after {self._took()}"
        )
        return self._follow(search)

    def _deliver(self) -> None:
        """Post the event, again while the answer is 503. Raises `typer.Exit`."""
        self._began = time.monotonic()
        while True:
            try:
                status, text, pause = post(
                    self._target, self._event.body(self._target.api_key), self._left()
                )
            except (OSError, http.client.HTTPException) as error:
                self._unreachable(error)
            if status == 200:
                return
            pause = max(pause, FIRST_PAUSE)
            if status != 503 or pause > self._left():
                self._rejected(status, text)
            self._say("waiting", f"{status} {text}, retried in {pause:g} s")
            time.sleep(pause)

    def _follow(self, search: EventSearch) -> ExitCode:
        shown: dict[str, Whereabouts] = {}
        pause = FIRST_PAUSE
        while True:
            traces = search.look()
            for trace in traces:
                if trace != shown.get(trace.destination):
                    self._say_where(trace)
                shown[trace.destination] = trace
            places = {trace.place for trace in traces}
            if traces[0].destination:
                self._facts["destinations"] = {trace.destination: trace.place for trace in traces}
            if places == {EventPlace.DELIVERED}:
                return self._end(EventPlace.DELIVERED, ExitCode.DONE)
            moving = any(
                trace.place is EventPlace.BUFFERED and not trace.halted for trace in traces
            )
            if not moving or self._left() <= 0:
                return self._not_delivered(
                    [trace for trace in traces if trace.place is not EventPlace.DELIVERED]
                )
            time.sleep(min(pause, max(0.0, self._left())))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _say_where(self, trace: Whereabouts) -> None:
        """Print that it is delivered or buffered; all else is an error at the end."""
        if trace.place is EventPlace.BUFFERED:
            self._say(trace.place, f"{trace.why}; {self._took()} after it was sent")
        elif trace.place is EventPlace.DELIVERED:
            to = f"to {trace.destination} " if trace.destination else ""
            self._say(trace.place, f"{to}after {self._took()}")

    def _not_delivered(self, left: Sequence[Whereabouts]) -> ExitCode:
        """Report each copy that isn't delivered."""
        for trace in left:
            self._error(*self._trouble(trace))
        settled = [trace for trace in left if trace.place is not EventPlace.BUFFERED]
        worst = (settled or left)[0]
        return self._end(worst.place, ExitCode.NO, why=worst.why)

    def _trouble(self, trace: Whereabouts) -> tuple[str, str]:
        """What happened to a copy, and what to do."""
        if trace.place is EventPlace.BUFFERED:
            to = f" to {trace.destination}" if trace.destination else ""
            message = (
                f"the event isn't delivered{to} while its lane is halted; it stays buffered"
                if trace.halted
                else f"the event wasn't delivered{to} within {self._seconds:g} s; "
                f"{_GONE if trace.why == _GONE else 'it stays buffered'}"
            )
            hint = f"{trace.hint[:1].upper()}{trace.hint[1:]}. " if trace.hint else ""
            return message, f"{hint}`{proposed('explain', self._event.uuid)}` finds it later."
        of = f" for {trace.destination}" if trace.destination else ""
        message = {
            EventPlace.DEAD_LETTER: f"the event is a dead letter{of}",
            EventPlace.DROPPED: f"the event was dropped{of}",
            EventPlace.UNKNOWN: f"the event was settled{of}, and how can't be seen from here",
        }[trace.place]
        return f"{message}: {trace.why}", trace.hint

    def _rejected(self, status: int, text: str) -> NoReturn:
        reason = f"{status} {text}".rstrip()
        self._error(
            f"{self._target.address} rejected the event: {reason}", _REJECTED.get(status, "")
        )
        code = ExitCode.UNREACHABLE if status >= 500 and not self._target.admin else ExitCode.NO
        raise typer.Exit(self._end("rejected", code, why=reason))

    def _unreachable(self, error: Exception) -> NoReturn:
        why = error_text(error)
        hint = f"Start a daemon with `{proposed('run')}`, or name another address with `--to URL`."
        self._error(f"nothing accepts events at {self._target.address}: {why}", hint)
        raise typer.Exit(self._end("unreachable", ExitCode.UNREACHABLE, why=why)) from error

    def _end(self, place: str, code: ExitCode, *, why: str = "") -> ExitCode:
        if self._output is TextOutput.JSON:
            from forwarder.cli.output import as_json

            self._facts |= {
                "where": place,
                "why": why,
                "seconds": round(time.monotonic() - self._began, 3),
            }
            sys.stdout.write(f"{as_json(self._facts)}\n")
        return code

    def _say(self, word: str, rest: str) -> None:
        if self._output is TextOutput.TEXT:
            sys.stdout.write(f"{word:<10} {rest}\n")
            sys.stdout.flush()

    def _note(self, text: str) -> None:
        if self._output is TextOutput.TEXT:
            sys.stderr.write(f"{text}\n")

    @staticmethod
    def _error(message: str, hint: str) -> None:
        from forwarder.cli.output import report_visible

        report_visible(ForwarderError(message, hint=hint))

    def _took(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"

    def _left(self) -> float:
        return self._seconds - (time.monotonic() - self._began)


class EventSearch:
    """Finds an event's copies: that of each destination which has received anything since."""

    def __init__(
        self,
        lanes: Sequence[LaneSearch],
        *,
        live: Callable[[], Snapshot | None],
        traces: Callable[[], Sequence[Trace]],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`lanes`: where it may be, one of each destination."""
        self._lanes = lanes
        self._live = live
        self._traces = traces
        self._pause = pause
        self._receiving: list[LaneSearch] = []

    @classmethod
    def begin(
        cls, wanted: WantedUuid, target: EventTarget, config: Path | None, *, by_files: bool
    ) -> EventSearch:
        """The search for an event that is about to be sent; `by_files`: whether the configured
        files are those of the target's daemon.
        """
        from forwarder.cli.admin_client import live_traces
        from forwarder.cli.target import snapshot_of
        from forwarder.inspect.audit import books_of
        from forwarder.inspect.explain import search_files
        from forwarder.inspect.state_files import WorkerFiles, configured_files

        def in_files(lane: LaneSearch, now: LaneSnapshot) -> Sequence[Trace] | None:
            try:
                files = configured_files(config) if by_files else []
                traces = list(search_files(wanted, files))
                dead_letters = books_of(WorkerFiles(None, worker.dead_letters) for worker in files)
            except ConfigurationError:
                return None
            written = sum(
                dead_letter.total_dead
                for dead_letter in dead_letters
                if lane.is_named(dead_letter.label)
            )
            return traces if traces or (files and written >= now.total_dead) else None

        return cls(
            lane_searches(target.api_key, snapshot_of(target.admin), in_files),
            live=lambda: snapshot_of(target.admin),
            traces=lambda: live_traces(wanted.text, target.admin, config)[0],
        )

    def look(self) -> Sequence[Whereabouts]:
        """Where the copies are now, at least one. That one is settled has to be seen twice: an
        event that becomes a dead letter is shortly nowhere.
        """
        traces = self._look()
        if any(trace.place is not EventPlace.BUFFERED for trace in traces):
            self._pause(SURE_AFTER)
            return self._look()
        return traces

    def _look(self) -> Sequence[Whereabouts]:
        traces = self._traces()
        snapshot = self._live()
        if snapshot is None:
            return [Whereabouts(EventPlace.BUFFERED, _GONE)]
        if not self._receiving:
            self._receiving = [lane for lane in self._lanes if lane.has_received(snapshot)]
        return [lane.find(traces, snapshot) for lane in self._receiving or self._lanes]


def lane_searches(
    api_key: str, before: Snapshot | None, in_files: LettersInFiles
) -> list[LaneSearch]:
    """The lane of a sender's key at each destination of a daemon that had this state before."""
    from forwarder.telemetry.labels import key_label

    label = key_label(api_key)
    if before is None or not before.destinations:
        return [LaneSearch(label, "", _lane_of(before, label), in_files)]
    return [
        LaneSearch(own, destination.name, _lane_of(destination, own), in_files)
        for destination in before.destinations
        for own in [destination.key_labels.get(label, label)]
    ]


class LaneSearch:
    """Finds the event in a destination's lane by the daemon's memory, the counts of the lane, and
    if those can't decide, by the configured files.
    """

    def __init__(
        self, label: str, destination: str, before: LaneSnapshot, in_files: LettersInFiles
    ) -> None:
        """`in_files`, given this and the lane's figures, returns None where there are no files
        that can be read, or only those of another daemon.
        """
        self._label = label
        self._destination = destination
        self.name = f"{label}@{destination}" if destination else label
        """Its label among those of all destinations."""
        self._before = before
        self._in_files = in_files
        self._received_by: float | None = None
        """A time of the daemon's clock at which it had the event."""

    def is_named(self, label: str) -> bool:
        """Whether files have it by this label: they name the destination also where there is one
        alone.
        """
        return label == self.name or (
            not self._destination and label.partition("@")[0] == self.name
        )

    def has_received(self, snapshot: Snapshot) -> bool:
        """Whether the lane has received events since before."""
        return self._now(snapshot).total_received > self._before.total_received

    def find(self, traces: Sequence[Trace], snapshot: Snapshot) -> Whereabouts:
        """Where this destination's copy is; `traces` are those of all in the daemon's memory."""
        whereabouts = self._find(self._own(traces), snapshot)
        return replace(whereabouts, destination=self._destination)

    def _now(self, snapshot: Snapshot) -> LaneSnapshot:
        return _lane_of(self._part(snapshot), self._label)

    def _part(self, snapshot: Snapshot) -> Snapshot | DestinationSnapshot:
        """What the snapshot has of this destination."""
        own = [
            destination
            for destination in snapshot.destinations
            if destination.name == self._destination
        ]
        return own[0] if own else snapshot

    def _own(self, traces: Sequence[Trace]) -> list[Trace]:
        return [trace for trace in traces if self._destination in ("", trace.destination)]

    def _find(self, traces: Sequence[Trace], snapshot: Snapshot) -> Whereabouts:
        now = self._now(snapshot)
        if self._received_by is None:
            self._received_by = snapshot.now
        may_wait = now.oldest_age is not None and snapshot.now - now.oldest_age <= self._received_by
        if not traces:
            if (
                now.total_dead == self._before.total_dead
                and now.total_dropped == self._before.total_dropped
            ):
                # nothing of its lane came to another end; what becomes a dead letter is counted
                # once that is written
                sure = (
                    not may_wait and now.delivered > self._before.delivered and not now.difference
                )
                return Whereabouts(EventPlace.DELIVERED) if sure else self._buffered(now, snapshot)
            in_files = self._in_files(self, now)
            if in_files is None:
                return self._undecided(now, may_wait=may_wait)
            traces = self._own(in_files)
        for trace in traces:
            if trace.where.startswith("dead letter"):
                return Whereabouts(
                    EventPlace.DEAD_LETTER,
                    ": ".join(filter(None, (trace.reason, trace.why))),
                    trace.note,
                )
        if traces:
            return self._buffered(now, snapshot)
        if (
            now.delivered == self._before.delivered
            or now.total_dropped > self._before.total_dropped
        ):
            return self._undecided(now, may_wait=may_wait)
        return Whereabouts(EventPlace.DELIVERED)

    def _shown(self, now: LaneSnapshot) -> str:
        """What a person sees of the lane: its name, or else its label."""
        if self._destination and now.name:
            return now.at_destination(self._destination).shown
        return now.name or self.name

    def _undecided(self, now: LaneSnapshot, *, may_wait: bool) -> Whereabouts:
        """What counts alone say, of a lane in which other events are settled meanwhile
        or pending.
        """
        if now.delivered == self._before.delivered:
            if now.total_dead > self._before.total_dead:
                return Whereabouts(
                    EventPlace.DEAD_LETTER,
                    ", ".join(_grown(self._before.dead_lettered, now.dead_lettered)),
                )
            if dropped := self._dropped(now):
                return dropped
        if may_wait:
            return Whereabouts(
                EventPlace.BUFFERED,
                f"or settled: lane {self._shown(now)} has {now.buffered:,} buffered events",
            )
        words = ", ".join(
            [
                *_grown(self._before.dead_lettered, now.dead_lettered),
                *_grown(self._before.dropped, now.dropped),
            ]
        )
        hint = (
            "Run this as the user that forwarder runs as, with its --config FILE: then dead "
            "letters are searched."
        )
        return Whereabouts(
            EventPlace.UNKNOWN,
            f"meanwhile lane {self._shown(now)} had new dead letters or dropped events ({words})",
            hint,
        )

    def _dropped(self, now: LaneSnapshot) -> Whereabouts | None:
        if (
            now.total_dropped > self._before.total_dropped
            and now.delivered == self._before.delivered
        ):
            return Whereabouts(
                EventPlace.DROPPED, ", ".join(_grown(self._before.dropped, now.dropped))
            )
        return None

    def _buffered(self, now: LaneSnapshot, snapshot: Snapshot) -> Whereabouts:
        from forwarder.telemetry.snapshot import UpstreamState

        upstream = self._part(snapshot).upstream
        if now.halted:
            return Whereabouts(
                EventPlace.BUFFERED,
                f"lane {self._shown(now)} is halted: {now.halted}: {now.why}",
                now.hint,
                halted=True,
            )
        if upstream.state is UpstreamState.DOWN:
            return Whereabouts(
                EventPlace.BUFFERED,
                f"the upstream {upstream.url} is down: {upstream.last_error}",
            )
        return Whereabouts(EventPlace.BUFFERED, f"in lane {self._shown(now)}")


def post(target: EventTarget, body: bytes, seconds: float) -> tuple[int, str, float]:
    """Status, text and the seconds of Retry-After of the answer. Raises
    `OSError` or `HTTPException`.
    """
    from forwarder.cli.admin_client import UnixConnection

    seconds = max(0.1, seconds)
    parts = urlsplit(target.url)
    connection: http.client.HTTPConnection
    if target.socket:
        connection = UnixConnection(target.socket, seconds)
    elif parts.scheme == "https":
        connection = http.client.HTTPSConnection(
            parts.netloc, timeout=seconds, context=target.context or https_context()
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=seconds)
    try:
        connection.request(
            "POST", f"{parts.path}/batch/", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = " ".join(answer.read(_LONGEST_ANSWER).decode(errors="replace").split())
        pause = retry_after(answer.headers.get("Retry-After"), time.time())
        return answer.status, text, RETRY_AFTER if pause is None else pause
    finally:
        connection.close()


def _lane_of(snapshot: Snapshot | DestinationSnapshot | None, label: str) -> LaneSnapshot:
    """The lane's figures, or those of lanes without a label of their own; of a lane that isn't
    there yet none.
    """
    from forwarder.telemetry.labels import OTHER
    from forwarder.telemetry.snapshot import LaneSnapshot

    lanes = {lane.label: lane for lane in (snapshot.lanes if snapshot else ())}
    return lanes.get(label) or lanes.get(OTHER) or LaneSnapshot(label)


def _grown(before: Any, after: Any) -> list[str]:
    """The reasons of which there are more than before."""
    return [reason for reason, count in after.items() if count > before.get(reason, 0)]


def _named(event: str) -> str:
    if not event.strip():
        raise typer.BadParameter("the event needs a name", param_hint="EVENT")
    return _text(event, "EVENT")


def _property(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE`; a value that isn't JSON is text."""
    name, equals, value = _text(text, "--property").partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    try:
        check_nesting(value.encode())
        given = json.loads(value)
        # NaN, infinities and half a surrogate pair aren't JSON
        json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return name, value
    return name, given


def _text(given: str, hint: str) -> str:
    """What was typed, which must be text."""
    try:
        given.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("it isn't UTF-8", param_hint=hint) from None
    return given


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
