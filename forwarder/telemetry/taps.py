"""Taps: samples of the events that pass, for `forwarder tap`.

A tap looks at the events that pass, as far as its filter, its rate and its share of the time allow, and queues what it chose as lines of
JSON, which are fetched by `poll`. What decides whether a chunk is looked at is in the chunk already (outcome, source, lane), or found in
its bytes (a name); only chunks that may hold a wanted event are decoded, and only chosen events become Python objects.

Invariants: a tap costs at most `SHARE` of the time beyond the calls themselves, whatever passes and whatever is asked for; its queue holds
`QUEUE_BYTES` and one event at most, and what finds no room is counted; one that isn't polled for `FORGOTTEN_AFTER` is closed. No line
holds a secret (`core.secrets.redact`); project keys are shown as labels.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from fnmatch import translate
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from forwarder.core.clock import Clock
from forwarder.core.event import Chunk, Lane, split_events
from forwarder.core.ports import DeadLetter
from forwarder.core.secrets import mask_secrets, redact
from forwarder.core.taps import TapOutcome, TapPoint
from forwarder.telemetry.labels import UNDECODABLE, key_label, lane_label
from forwarder.telemetry.readable import line_excerpt, plain

RATE: Final = 20.0
"""Events a second, if nothing else was asked for."""
MAX_RATE: Final = 1000.0

SHARE: Final = 0.005
"""Of the time of one core: what a tap may take."""
BURST: Final = 0.02
"""Seconds that it may take at once, after a pause."""

QUEUE_BYTES: Final = 1 << 20
FORGOTTEN_AFTER: Final = 60.0
"""Seconds."""

_WILDCARD: Final = re.compile(r"[*?\[]")
_ESCAPE: Final = b"\\u"


class TapFilter(Struct, frozen=True):
    """Which events a tap wants: of each kind any of those named, or all if none is."""

    events: tuple[str, ...] = ()
    """Names, or patterns with `*`, `?` and `[…]`."""
    keys: tuple[str, ...] = ()
    """Labels of project keys, or how they end."""
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
    """Events with a wanted outcome, source and key that weren't looked at, or not chosen: rate and time are limited."""
    lost: int = 0
    """Chosen events that found no room, because nothing was fetched for too long."""


def merged(batches: Iterable[TapBatch]) -> TapBatch:
    """Several as one."""
    all_of = list(batches)
    events = [event for batch in all_of for event in batch.events]
    return TapBatch(events, sum(batch.skipped for batch in all_of), sum(batch.lost for batch in all_of))


class Taps:
    """All taps of a pipeline (`core.taps.Tap`)."""

    def __init__(self, point: TapPoint, clock: Clock) -> None:
        """They are connected to `point` as long as there are any."""
        self._point = point
        self._clock = clock
        self._open: dict[str, EventTap] = {}

    def poll(self, request: TapRequest) -> TapBatch:
        """See `TapRequest`."""
        now = self._clock.monotonic()
        if request.wanted is None:
            self._close([request.tap])
            return TapBatch()
        tap = self._open.get(request.tap)
        if tap is None:
            tap = self._open[request.tap] = EventTap(request.wanted, self._clock.monotonic, self._clock.now)
            self._point.tap = self
        return tap.fetch(now)

    def chunks(self, outcome: TapOutcome, chunks: Sequence[Chunk], reason: str = "") -> None:
        """See `core.taps.Tap`."""
        for tap in self._fresh():
            tap.chunks(outcome, chunks, reason)

    def letters(self, outcome: TapOutcome, letters: Sequence[DeadLetter], reason: str = "") -> None:
        """See `core.taps.Tap`."""
        for tap in self._fresh():
            tap.letters(outcome, letters, reason)

    def _fresh(self) -> Iterable[EventTap]:
        now = self._clock.monotonic()
        self._close([name for name, tap in self._open.items() if now - tap.polled > FORGOTTEN_AFTER])
        return self._open.values()

    def _close(self, names: Iterable[str]) -> None:
        for name in names:
            self._open.pop(name, None)
        if not self._open:
            self._point.tap = None


class EventTap:
    """One tap."""

    def __init__(self, wanted: TapFilter, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._monotonic = monotonic
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
        self._seconds = BURST
        """Time that may be taken now; negative after a chunk that took more."""
        self._refilled = self.polled = monotonic()
        self._queue: list[Raw] = []
        self._bytes = 0
        self._skipped = self._lost = 0

    def fetch(self, now: float) -> TapBatch:
        """What has been collected since the last time."""
        batch = TapBatch(self._queue, self._skipped, self._lost)
        self._queue, self._bytes, self._skipped, self._lost, self.polled = [], 0, 0, 0, now
        return batch

    def chunks(self, outcome: TapOutcome, chunks: Sequence[Chunk], reason: str) -> None:
        """Look at chunks that had this outcome, as far as they are wanted and there is time."""
        if outcome not in self._outcomes:
            return
        if not self._may_look(outcome) and not self._selective:
            self._skipped += sum([chunk.count for chunk in chunks])
            return
        for chunk in chunks:
            if self._selective and not self._wants(chunk.source, chunk.lane):
                continue
            if self._tokens[outcome] < 1 or self._seconds <= 0:
                self._skipped += chunk.count
                continue
            began = self._monotonic()
            self._look_at(outcome, chunk, reason)
            self._seconds -= self._monotonic() - began

    def letters(self, outcome: TapOutcome, letters: Sequence[DeadLetter], reason: str) -> None:
        """Look at events that are, or would have become, dead letters."""
        if outcome not in self._outcomes:
            return
        self._may_look(outcome)
        for letter in letters:
            if self._selective and not self._wants(letter.source, letter.lane):
                continue
            if self._tokens[outcome] < 1 or self._seconds <= 0:
                self._skipped += 1
                continue
            began = self._monotonic()
            if self._names is None or self._names.indices(letter.data):
                why = {"reason": reason or letter.reason.value, "why": mask_secrets(plain(letter.why))}
                self._choose(outcome, letter.lane, letter.source, letter.data, why)
            self._seconds -= self._monotonic() - began

    def _may_look(self, outcome: TapOutcome) -> bool:
        """Whether an event with this outcome may be looked at now."""
        now = self._monotonic()
        self._seconds = min(self._seconds + (now - self._refilled) * SHARE, BURST)
        self._refilled = now
        tokens = self._tokens[outcome] + (now - self._granted[outcome]) * self._rate
        self._tokens[outcome], self._granted[outcome] = min(tokens, max(1.0, self._rate)), now
        return tokens >= 1 and self._seconds > 0

    def _wants(self, source: str, lane: Lane | None) -> bool:
        if self._sources and source not in self._sources:
            return False
        label = key_label(lane.api_key) if lane else UNDECODABLE
        return not self._keys or label.endswith(self._keys)

    def _look_at(self, outcome: TapOutcome, chunk: Chunk, reason: str) -> None:
        """Choose from a chunk as many of the wanted events as the rate allows, beginning anywhere."""
        try:
            wanted = range(chunk.count) if self._names is None else self._names.indices(chunk.data)
            if not wanted:
                return
            events = [chunk.data] if chunk.count == 1 else split_events(b"[%b]" % chunk.data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._skipped += chunk.count
            return
        number = min(len(wanted), int(self._tokens[outcome]))
        start = random.randrange(len(wanted) - number + 1)  # noqa: S311 - a sample, no secret
        self._skipped += len(wanted) - number
        for index in wanted[start : start + number]:
            self._choose(outcome, chunk.lane, chunk.source, bytes(events[index]), {"reason": reason} if reason else {})

    def _choose(self, outcome: TapOutcome, lane: Lane | None, source: str, event: bytes, why: dict[str, str]) -> None:
        self._tokens[outcome] -= 1
        if self._bytes >= QUEUE_BYTES:
            self._lost += 1
            return
        time = datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        label = lane_label(lane) if lane else UNDECODABLE
        shown = {"time": time, "outcome": outcome.value, "lane": label, "source": source, **_shown(event), **why}
        try:
            line = msgspec.json.encode(shown)
        except (msgspec.EncodeError, UnicodeEncodeError, RecursionError):
            self._skipped += 1
            return
        self._queue.append(Raw(line))
        self._bytes += len(line)


def _shown(event: bytes) -> dict[str, Any]:
    """Name, id and all of an event without its secrets; of what isn't one, an excerpt."""
    try:
        data = redact(msgspec.json.decode(event))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return {"data": line_excerpt(event)}
    return {"event": data.get("event"), "distinct_id": data.get("distinct_id"), "data": data}


class _Named(Struct, gc=False):
    """The name of an event, of any kind."""

    event: Any = None


_decode_names: Final = msgspec.json.Decoder(list[_Named]).decode


class NameFilter:
    """Finds the events of these names in a chunk; what can't hold one is recognized by its bytes."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(translate, patterns)))
        self._needles = list(map(_needle, patterns))

    def indices(self, data: bytes) -> list[int]:
        """The indices of the events, in a text of events joined by commas. Raises msgspec's errors if it is something else."""
        if not any(needle in data for needle in self._needles) and _ESCAPE not in data:
            return []
        names = [named.event for named in _decode_names(b"[%b]" % data)]
        return [index for index, name in enumerate(names) if isinstance(name, str) and self._pattern.match(name)]


def _needle(pattern: str) -> bytes:
    """What a text holds that has an event of such a name, unless characters of the name are escaped."""
    literal = _WILDCARD.split(pattern, maxsplit=1)[0]
    encoded = msgspec.json.encode(literal)
    return encoded if literal == pattern else encoded[:-1]
