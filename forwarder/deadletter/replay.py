"""Replays dead letters that an operator has marked: through the intake, at the requested rate.

Invariants: a dead letter stays in the store until its event is in the buffer as safely as the
buffer can hold it, and its record in the log names the dead letter, so that a crash in between
leaves no second copy. While it is replayed it can't be dropped (`DeadLetterStore.busy`). Marks are
read every second. With a buffer in memory a dead letter is removed when its event is in memory, as
safe as any event there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec
import structlog

from forwarder.core.clock import Clock, Timer
from forwarder.core.error_text import error_text
from forwarder.core.errors import Backpressure, ForwarderError
from forwarder.core.event import Lane, split_events
from forwarder.core.ports import Incoming, Reason, ReplayedDeadLetter, RequestIntake
from forwarder.deadletter.store import DeadLetterStore
from forwarder.deadletter.table import MarkedDeadLetter
from forwarder.storage import failpoints

SOURCE: Final = "replay"
RATE: Final = 100.0
"""Events a second by default."""

POLL_SECONDS: Final = 1.0
QUEUE_SIZE: Final = 200
"""Most dead letters that are queued for replay."""

_UNSENDABLE: Final = {
    Reason.UNDECODABLE: "it can't be decoded as an event. Send its content again from its source",
    Reason.INVALID_TOKEN: "it has no valid project key, so its project is unknown",
    Reason.UNMAPPABLE: "its source's mapping makes no event of it. Send it again from its source",
}
"""Why a dead letter without a lane can't be sent."""

_TICK: Final = 0.05
"""Seconds between two rounds; a round may catch up with as many."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReplayStatistics:
    """Counted since the start."""

    replayed: int
    refused: int
    """Dead letters that stay, because they can't be replayed as they are."""


class Replayer:
    """Replays marked dead letters, from `start` to `stop`. Used on the loop."""

    def __init__(
        self,
        store: DeadLetterStore,
        intake: RequestIntake,
        clock: Clock,
        api_keys: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`api_keys`: the project keys that stand for those of senders at the destination."""
        self._api_keys = api_keys
        self._store = store
        self._intake = intake
        self._clock = clock
        self._queue: deque[MarkedDeadLetter] = deque()
        self._unremoved: list[int] = []
        """Dead letters whose events are in the buffer, and that could not be removed."""
        self._due = 0.0
        """When the next one may be sent, monotonic seconds."""
        self._timer: Timer | None = None
        self._polling = False
        self._stopped = True
        self._logged = 0
        self._replayed = 0
        self._refused = 0

    def start(self) -> None:
        """Read the marks: at once, then every second."""
        self._stopped = False
        self._poll()

    def stop(self) -> None:
        """Replay no more. What the buffer accepts afterwards is still removed, if the store is
        open by then.
        """
        self._stopped = True
        self._store.busy.difference_update(marked.number for marked in self._queue)
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def statistics(self) -> ReplayStatistics:
        """Figures for tests."""
        return ReplayStatistics(self._replayed, self._refused)

    def _poll_again(self) -> None:
        self._timer = None
        unremoved = self._unremoved
        self._unremoved = []
        for number in unremoved:
            self._held(number)
        self._poll()

    def _poll(self) -> None:
        if not self._polling:
            self._polling = True
            self._store.poll(QUEUE_SIZE, self._marked)

    def _marked(self, marked: Sequence[MarkedDeadLetter]) -> None:
        """Queue what the store found marked."""
        self._polling = False
        if self._stopped:
            return
        self._store.busy.update(dead_letter.number for dead_letter in marked)
        self._queue.extend(marked)
        if self._queue:
            self._work()
        else:
            self._log_progress()
            self._later(POLL_SECONDS, self._poll_again)

    def _work(self) -> None:
        """Replay what is due now."""
        self._timer = None
        now = self._clock.monotonic()
        while self._queue and self._due <= now:
            wait = self._replay(self._queue[0])
            if wait is not None:
                self._later(wait, self._work)
                return
            rate = self._queue.popleft().rate or RATE
            self._due = max(self._due, now - _TICK) + 1 / rate
        if self._queue:
            self._later(max(self._due - now, _TICK), self._work)
        else:
            self._poll()

    def _replay(self, marked: MarkedDeadLetter) -> float | None:
        """Send one event through the intake; return the seconds to wait if it has no room now."""
        why = _unfit(marked)
        if why or marked.lane is None:
            self._refuse(marked.number, why)
            return None
        key = msgspec.json.encode(marked.lane.api_key)
        historical = b"true" if marked.lane.historical else b"false"
        body = b'{"api_key":%b,"historical_migration":%b,"batch":[%b]}' % (
            key,
            historical,
            marked.data,
        )
        replayed = ReplayedDeadLetter(
            marked.number,
            marked.reason,
            marked.at,
            marked.uuid,
            marked.ruled,
            self._sender_key(marked, marked.lane),
            marked.source,
        )
        incoming = Incoming(body, source=SOURCE, replayed=replayed)
        try:
            held = self._intake.accept(incoming, partial(self._acknowledged, marked.number))
        except Backpressure as error:
            return max(error.retry_after, _TICK)
        except ForwarderError as error:
            self._refuse(marked.number, error.message)
            return None
        if held:
            self._held(marked.number)
        return None

    def _sender_key(self, marked: MarkedDeadLetter, lane: Lane) -> str:
        """The project key that rules match; empty if it isn't known."""
        if marked.sender_key is not None:
            return marked.sender_key or lane.api_key
        known = [sender for sender, own in self._api_keys.items() if own == lane.api_key]
        if not known:
            return lane.api_key
        return known[0] if len(known) == 1 else ""

    def _acknowledged(self, number: int, error: Backpressure | None) -> None:
        if error is None:
            self._held(number)
        else:
            self._returned(number, error)

    def _held(self, number: int) -> None:
        """The buffer holds the event."""
        try:
            if failpoints.ARMED:
                failpoints.hit("replay.held")
        except OSError:
            self._unremoved.append(number)
            return
        self._replayed += 1
        self._store.remove([number])

    def _returned(self, number: int, error: Backpressure) -> None:
        """The buffer couldn't hold the event: the dead letter stays, and stays marked."""
        self._store.busy.discard(number)
        self._due = self._clock.monotonic() + max(error.retry_after, _TICK)

    def _refuse(self, number: int, why: str) -> None:
        self._refused += 1
        self._store.unmark(number, why)
        _log.warning(
            "a dead letter can't be replayed as it is; it stays, unmarked", number=number, why=why
        )

    def _log_progress(self) -> None:
        if self._replayed > self._logged:
            _log.info("dead letters were replayed", events=self._replayed - self._logged)
            self._logged = self._replayed

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        if not self._stopped:
            self._timer = self._clock.call_later(seconds, what)


def _unfit(marked: MarkedDeadLetter) -> str:
    """Why a dead letter can't be replayed; empty if it can."""
    if marked.lane is None:
        return _UNSENDABLE.get(marked.reason, "its project key is unknown")
    if not marked.intact:
        return "its checksum is wrong: the disk has changed its bytes"
    try:
        events = len(split_events(b"[%b]" % marked.data))
    except (msgspec.DecodeError, RecursionError) as error:
        return f"it can't be sent as it is: {error_text(error)}"
    return "" if events == 1 else "it is not one event"
