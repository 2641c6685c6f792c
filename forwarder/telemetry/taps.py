"""Taps: samples of the events that pass, for `forwarder tap`.

A tap looks at the events that pass, as far as its filter, its rate and its share of the time
allow, and queues what it chose as lines of JSON, which are fetched by `poll`. What decides whether
a chunk is looked at is in the chunk already (outcome, source, lane), or found in its bytes (a
name); only chunks that may hold a wanted event are decoded, and only chosen events become Python
objects.

Invariants: a tap costs at most `SHARE` of the time beyond the calls themselves, whatever passes
and whatever is asked for; its queue holds `QUEUE_BYTES` and one event at most, and what finds no
room is counted; one that isn't polled for `FORGOTTEN_AFTER` is closed. No line holds a secret
(`core.secrets.redact`); project keys are shown as labels.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from typing import Any, Final

import msgspec
import structlog
from msgspec import Raw, Struct

from forwarder.core.clock import Clock
from forwarder.core.event import Chunk, Lane, split_events
from forwarder.core.ports import DeadLetter
from forwarder.core.secrets import mask_secrets, redact
from forwarder.core.stamps import utc_text
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.telemetry.labels import UNDECODABLE, LaneNames, key_label, lane_label
from forwarder.telemetry.readable import line_excerpt, plain

RATE: Final = 20.0
"""Events a second, if nothing else was asked for."""
MAX_RATE: Final = 1000.0

SHARE: Final = 0.002
"""Of the time of one core: what a tap may take."""
BURST: Final = 0.05
"""Seconds that it may take at once, after a pause."""

QUEUE_BYTES: Final = 1 << 20
LARGE: Final = 1 << 18
"""Bytes of a chunk beyond which only its beginning is looked at."""
BEGINNING: Final = 1 << 16
"""Bytes of that."""
LARGEST_EVENT: Final = 1 << 20
"""Bytes up to which an event is shown whole."""
FORGOTTEN_AFTER: Final = 60.0
"""Seconds."""

_WILDCARD: Final = re.compile(r"[*?\[]")
_HEXADECIMAL: Final = re.compile(r"(?<=\\u)[0-9a-f]{4}")
_CHECK_SECONDS: Final = 10.0
"""Between two looks for taps that are forgotten."""


_log = structlog.get_logger(__name__)


class TapFilter(Struct, frozen=True):
    """Which events a tap wants: of each kind any of those named, or all if none is."""

    events: tuple[str, ...] = ()
    """Names, or patterns with `*`, `?` and `[…]`."""
    keys: tuple[str, ...] = ()
    """Labels of project keys, or how they end; names, or the labels that these would have as keys.
    """
    sources: tuple[str, ...] = ()
    outcomes: tuple[TapOutcome, ...] = ()
    rate: float = RATE
    """Events a second at most, of each outcome: many of one don't hide the few of another."""


class TapRequest(Struct, frozen=True):
    """Asks for what a tap has collected; it is opened by the first such request."""

    tap: str
    """Its name, unique among all."""
    wanted: TapFilter | None = None
    """None closes it."""


class TapBatch(Struct, frozen=True):
    """What a tap has collected since the last request."""

    events: list[Raw] = []
    skipped: int = 0
    """Events with a wanted outcome, source and key that weren't looked at, or not chosen: rate and
    time are limited.
    """
    lost: int = 0
    """Chosen events that found no room, because nothing was fetched for too long."""


def merged(batches: Iterable[TapBatch]) -> TapBatch:
    """Several as one."""
    all_of = list(batches)
    events = [event for batch in all_of for event in batch.events]
    return TapBatch(
        events, sum(batch.skipped for batch in all_of), sum(batch.lost for batch in all_of)
    )


class Taps:
    """All taps of a pipeline."""

    def __init__(
        self,
        points: Mapping[str, TapPoint],
        clock: Clock,
        spent: Callable[[], float] = time.thread_time,
        *,
        names: LaneNames | None = None,
    ) -> None:
        """They are connected to the points, by the names of their destinations, as long as there
        are any. `spent`: seconds of CPU that this thread has had; a busy machine that runs others
        meanwhile doesn't make a tap blind. `names`: shown beside the labels of lanes.
        """
        self._points = points
        self._clock = clock
        self._spent = spent
        self.names = names or LaneNames()
        self._open: dict[str, EventTap] = {}
        self._next_check = 0.0

    def poll(self, request: TapRequest) -> TapBatch:
        now = self._clock.monotonic()
        if request.wanted is None:
            self._close([request.tap])
            return TapBatch()
        tap = self._open.get(request.tap)
        if tap is None:
            tap = self._open[request.tap] = EventTap(
                request.wanted,
                self._clock.monotonic,
                self._clock.now,
                self._spent,
                lambda: self.names,
            )
            for destination, point in self._points.items():
                point.tap = _DestinationTap(self, destination)
        return tap.fetch(now)

    def chunks(
        self, destination: str, outcome: TapOutcome, chunks: Sequence[Chunk], reason: str
    ) -> None:
        """Chunks of a destination had this outcome."""
        now = self._clock.monotonic()
        try:
            for tap in self._open.values():
                tap.chunks(destination, outcome, chunks, reason, now)
        except Exception:
            self._fail()
        if now >= self._next_check:
            self._forget(now)

    def dead_letters(
        self, destination: str, outcome: TapOutcome, dead_letters: Sequence[DeadLetter], reason: str
    ) -> None:
        """Events of a destination that are, or would have become, dead letters had this
        outcome.
        """
        now = self._clock.monotonic()
        try:
            for tap in self._open.values():
                tap.dead_letters(destination, outcome, dead_letters, reason, now)
        except Exception:
            self._fail()
        if now >= self._next_check:
            self._forget(now)

    def _fail(self) -> None:
        """Close all: watching must not stop what is watched."""
        _log.exception("a tap failed unexpectedly, and all are closed")
        self._close(list(self._open))

    def _forget(self, now: float) -> None:
        self._next_check = now + _CHECK_SECONDS
        self._close(
            [name for name, tap in self._open.items() if now - tap.polled > FORGOTTEN_AFTER]
        )

    def _close(self, names: Iterable[str]) -> None:
        for name in names:
            self._open.pop(name, None)
        if not self._open:
            for point in self._points.values():
                point.tap = None


class _DestinationTap:
    """What all taps see of one destination (`core.taps.Tap`)."""

    def __init__(self, taps: Taps, destination: str) -> None:
        self._taps = taps
        self._destination = destination

    def chunks(self, outcome: TapOutcome, chunks: Sequence[Chunk], reason: str = "") -> None:
        self._taps.chunks(self._destination, outcome, chunks, reason)

    def dead_letters(
        self, outcome: TapOutcome, dead_letters: Sequence[DeadLetter], reason: str = ""
    ) -> None:
        self._taps.dead_letters(self._destination, outcome, dead_letters, reason)


class EventTap:
    """One tap."""

    def __init__(
        self,
        wanted: TapFilter,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        spent: Callable[[], float],
        names: Callable[[], LaneNames],
    ) -> None:
        self._spent = spent
        self._lane_names = names
        self._wall = wall
        self._rate = wanted.rate
        self._outcomes = frozenset(wanted.outcomes or TapOutcome)
        self._sources = frozenset(wanted.sources)
        self._keys = wanted.keys
        self._names = NameFilter(wanted.events) if wanted.events else None
        self._selective = bool(wanted.sources or wanted.keys)
        self._tokens = dict.fromkeys(TapOutcome, max(1.0, wanted.rate))
        """Events of each outcome that may be chosen now."""
        self._granted = dict.fromkeys(TapOutcome, monotonic())
        """When each of them was brought up to date."""
        self._blind_until = dict.fromkeys(TapOutcome, 0.0)
        """When an event of each may be looked at next: until then there is one
        comparison for a request.
        """
        self._seconds = BURST
        """Time that may be taken now; negative after a chunk that took more."""
        self._refilled = self.polled = monotonic()
        self._queue: list[Raw] = []
        self._bytes = 0
        self._skipped = self._lost = 0

    def fetch(self, now: float) -> TapBatch:
        """What has been collected since the last time."""
        batch = TapBatch(self._queue, self._skipped, self._lost)
        self._queue = []
        self._bytes = 0
        self._skipped = 0
        self._lost = 0
        self.polled = now
        return batch

    def chunks(
        self,
        destination: str,
        outcome: TapOutcome,
        chunks: Sequence[Chunk],
        reason: str,
        now: float,
    ) -> None:
        """Look at chunks that had this outcome, as far as they are wanted and there is time."""
        if outcome not in self._outcomes:
            return
        if self._selective:
            chunks = self._selected(chunks)
        if now < self._blind_until[outcome] or not self._may_look(outcome, now):
            self._skipped += sum([chunk.count for chunk in chunks])
            return
        for chunk in chunks:
            if self._tokens[outcome] < 1 or self._seconds <= 0:
                self._skipped += chunk.count
                continue
            began = self._spent()
            self._look_at(destination, outcome, chunk, reason)
            self._seconds -= self._spent() - began

    def dead_letters(
        self,
        destination: str,
        outcome: TapOutcome,
        dead_letters: Sequence[DeadLetter],
        reason: str,
        now: float,
    ) -> None:
        """Look at events that are, or would have become, dead letters."""
        if outcome not in self._outcomes:
            return
        self._may_look(outcome, now)
        for dead_letter in dead_letters:
            if self._selective and not self._wants(dead_letter.source, dead_letter.lane):
                continue
            if self._tokens[outcome] < 1 or self._seconds <= 0:
                self._skipped += 1
                continue
            began = self._spent()
            if self._names is None or self._names.is_of(dead_letter.data):
                why = {
                    "reason": reason or dead_letter.reason.value,
                    "why": mask_secrets(plain(dead_letter.why), _key_of(dead_letter.lane)),
                }
                self._choose(
                    outcome,
                    dead_letter.lane,
                    dead_letter.source,
                    dead_letter.data,
                    _named(destination) | why,
                )
            self._seconds -= self._spent() - began

    def _may_look(self, outcome: TapOutcome, now: float) -> bool:
        """Whether an event with this outcome may be looked at now."""
        self._seconds = min(self._seconds + (now - self._refilled) * SHARE, BURST)
        self._refilled = now
        tokens = self._tokens[outcome] + (now - self._granted[outcome]) * self._rate
        self._tokens[outcome] = min(tokens, max(1.0, self._rate))
        self._granted[outcome] = now
        if tokens >= 1 and self._seconds > 0:
            return True
        self._blind_until[outcome] = now + max((1 - tokens) / self._rate, -self._seconds / SHARE)
        return False

    def _selected(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks from wanted sources and lanes; most neighbours are of the same."""
        selected = []
        source = ""
        lane = None
        wanted = False
        for chunk in chunks:
            if chunk.lane is not lane or chunk.source is not source:
                source = chunk.source
                lane = chunk.lane
                wanted = self._wants(source, lane)
            if wanted:
                selected.append(chunk)
        return selected

    def _wants(self, source: str, lane: Lane | None) -> bool:
        if self._sources and source not in self._sources:
            return False
        if not self._keys:
            return True
        label = key_label(lane.api_key) if lane else UNDECODABLE
        name = self._lane_names().name(label)
        # what is typed for a key comes as a label, also where it is a name
        return label.endswith(self._keys) or (
            bool(name) and (name in self._keys or key_label(name).endswith(self._keys))
        )

    def _look_at(self, destination: str, outcome: TapOutcome, chunk: Chunk, reason: str) -> None:
        """Choose from a chunk as many of the wanted events as the rate allows,
        beginning anywhere.
        """
        try:
            if chunk.count > 1 and len(chunk.data) > LARGE:
                events: Sequence[bytes | Raw] = first_events(chunk.data)
                self._skipped += chunk.count - len(events)
                wanted: Sequence[int] = [
                    at
                    for at, event in enumerate(events)
                    if self._names is None or self._names.indices(bytes(event))
                ]
            else:
                wanted = (
                    range(chunk.count) if self._names is None else self._names.indices(chunk.data)
                )
                events = (
                    [chunk.data]
                    if chunk.count == 1 or not wanted
                    else split_events(b"[%b]" % chunk.data)
                )
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._skipped += chunk.count
            return
        if not wanted:
            return
        number = min(len(wanted), int(self._tokens[outcome]))
        start = random.randrange(len(wanted) - number + 1)  # noqa: S311 - a sample, no secret
        self._skipped += len(wanted) - number
        # that of a rule's drop is no plain text
        more = _named(destination) | ({"reason": str(reason)} if reason else {})
        for index in wanted[start : start + number]:
            self._choose(outcome, chunk.lane, chunk.source, bytes(events[index]), more)

    def _choose(
        self,
        outcome: TapOutcome,
        lane: Lane | None,
        source: str,
        event: bytes,
        more: dict[str, str],
    ) -> None:
        self._tokens[outcome] -= 1
        if self._bytes >= QUEUE_BYTES:
            self._lost += 1
            return
        label = lane_label(lane) if lane else UNDECODABLE
        shown = {
            "time": utc_text(self._wall(), "milliseconds"),
            "outcome": outcome.value,
            "lane": label,
            **self._lane_names().beside(label),
            "source": source,
            **more,
            **_shown(event, _key_of(lane)),
        }
        try:
            line = msgspec.json.encode(shown)
        except (msgspec.EncodeError, UnicodeEncodeError, RecursionError):
            self._skipped += 1
            return
        self._queue.append(Raw(line))
        self._bytes += len(line)


def _named(destination: str) -> dict[str, str]:
    """Which one it is, if there are several."""
    return {"destination": destination} if destination else {}


def _key_of(lane: Lane | None) -> str:
    return "" if lane is None else lane.api_key


def _shown(event: bytes, key: str) -> dict[str, Any]:
    """Name, id and all of an event without its secrets and its project key; of what isn't one, an
    excerpt.
    """
    try:
        data = redact(msgspec.json.decode(event), key) if len(event) <= LARGEST_EVENT else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return {"data": line_excerpt(event, key)}
    return {"event": data.get("event"), "distinct_id": data.get("distinct_id"), "data": data}


class _Named(Struct, gc=False):
    """The name of an event, of any kind."""

    event: Any = None


_decode_first: Final = json.JSONDecoder().raw_decode
_SEPARATOR: Final = re.compile(r"[\s,]*")
_decode_names: Final = msgspec.json.Decoder(list[_Named]).decode


class NameFilter:
    """Finds the events of these names in a chunk; one that holds none is recognized by its bytes.

    A name is found in each form that encoders write it in; one whose plain letters are escaped, as
    none does, is not.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(translate, patterns)))
        self._needles = sorted({needle for pattern in patterns for needle in _needles(pattern)})

    def indices(self, data: bytes) -> list[int]:
        """The indices of the events, in a text of events joined by commas. Raises msgspec's errors
        if it is something else.
        """
        if not any(needle in data for needle in self._needles):
            return []
        names = [named.event for named in _decode_names(b"[%b]" % data)]
        return [
            index
            for index, name in enumerate(names)
            if isinstance(name, str) and self._pattern.match(name)
        ]

    def is_of(self, event: bytes) -> bool:
        """Whether it is the name of what may be one event, or anything else."""
        try:
            return bool(self.indices(event)) if len(event) <= LARGEST_EVENT else False
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False


def first_events(data: bytes) -> list[bytes]:
    """The events that lie whole in the beginning of a text of events joined by commas."""
    text = data[:BEGINNING].decode(errors="ignore")
    at = 0
    events: list[bytes] = []
    while True:
        try:
            _, end = _decode_first(text, at)
        except (ValueError, RecursionError):
            return events
        events.append(text[at:end].encode())
        at = _SEPARATOR.match(text, end).end()  # type: ignore[union-attr]


def _needles(pattern: str) -> Iterator[bytes]:
    """What a text holds that has an event of such a name: the pattern's beginning, as JSON has it
    with and without escapes.
    """
    literal = _WILDCARD.split(pattern, maxsplit=1)[0]
    escaped = json.dumps(literal)
    for text in (
        msgspec.json.encode(literal).decode(),
        escaped,
        _HEXADECIMAL.sub(lambda match: match[0].upper(), escaped),
    ):
        for form in (text, text.replace("/", "\\/")):
            yield (form if literal == pattern else form[:-1]).encode()
