"""Sends dead letters that somebody has marked the same way again: through the intake, no faster than asked.

Invariants: a letter stays in the file until its event is in the buffer as safely as that can hold it, and its record in the log names the
letter, so that a crash in between leaves no second copy; while it is on its way nobody can drop it (`DeadLetterStore.busy`); at the latest
a second after it has been marked its turn begins. With a buffer in memory a letter leaves the file when its event is in memory: it is as
safe as every other event there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from forwarder.core.clock import Clock, Timer
from forwarder.core.errors import Backpressure, ForwarderError
from forwarder.core.event import split_events
from forwarder.core.ports import Incoming, Intake, Reason, Revived
from forwarder.deadletter.writing import Marked
from forwarder.storage import failpoints

SOURCE: Final = "replay"
RATE: Final = 100.0
"""Events a second, unless somebody asked for another rate."""

LOOK_SECONDS: Final = 1.0
AT_ONCE: Final = 200
"""Letters in hand."""

_UNSENDABLE: Final = {
    Reason.UNDECODABLE: "it is no event: it could not be decoded. What it holds has to be written anew, where it came from",
    Reason.INVALID_TOKEN: "it has no project key, or one that can't be one; nobody can tell whose it is",
    Reason.UNMAPPABLE: "its source's mapping made no event of it. It has to be written anew, where it came from",
}
"""Why a letter without a lane can't be sent."""

_TICK: Final = 0.05
"""Seconds between two turns; each may catch up with as many."""

_log = structlog.get_logger()


class Letters(Protocol):
    """What replaying needs of the store."""

    busy: set[int]

    def poll(self, wanted: int, told: Callable[[Sequence[Marked]], None]) -> None:
        """Ask which letters are marked; see `DeadLetterStore.poll`."""

    def remove(self, numbers: Iterable[int]) -> None:
        """Letters were replayed."""

    def unmark(self, number: int, note: str) -> None:
        """A letter's replay came to nothing."""


@dataclass(frozen=True, slots=True)
class ReplayStatistics:
    """Counted since the start."""

    replayed: int
    refused: int
    """Letters that stay, because they can't be taken as they are."""


class Replayer:
    """Replays what is marked, from `start` to `stop`. Used on the loop."""

    def __init__(self, letters: Letters, intake: Intake, clock: Clock) -> None:
        self._letters = letters
        self._intake = intake
        self._clock = clock
        self._queue: deque[Marked] = deque()
        self._unremoved: list[int] = []
        """Letters that are in the buffer, and that could not be removed."""
        self._due = 0.0
        """When the next one may go, monotonic."""
        self._timer: Timer | None = None
        self._asked = False
        self._stopped = True
        self._told = 0
        self._replayed = 0
        self._refused = 0

    def start(self) -> None:
        """Begin to look for marked letters: at once, then every second."""
        self._stopped = False
        self._look()

    def stop(self) -> None:
        """Take no more. What is on its way is still removed once the buffer has it, if the store is there by then."""
        self._stopped = True
        self._letters.busy.difference_update(marked.number for marked in self._queue)
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def statistics(self) -> ReplayStatistics:
        """Figures for tests."""
        return ReplayStatistics(self._replayed, self._refused)

    def _look_again(self) -> None:
        self._timer = None
        unremoved, self._unremoved = self._unremoved, []
        for number in unremoved:
            self._held(number)
        self._look()

    def _look(self) -> None:
        if not self._asked:
            self._asked = True
            self._letters.poll(AT_ONCE, self._marked)

    def _marked(self, marked: Sequence[Marked]) -> None:
        """The store has looked."""
        self._asked = False
        if self._stopped:
            return
        self._letters.busy.update(each.number for each in marked)
        self._queue.extend(marked)
        if self._queue:
            self._work()
        else:
            self._tell()
            self._later(LOOK_SECONDS, self._look_again)

    def _work(self) -> None:
        """Replay what is due."""
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
            self._look()

    def _replay(self, marked: Marked) -> float | None:
        """Send one letter's event the same way again; how many seconds to wait if there is no room for it now."""
        why = _unfit(marked)
        if why or marked.lane is None:
            self._refuse(marked.number, why)
            return None
        key, historical = msgspec.json.encode(marked.lane.api_key), b"true" if marked.lane.historical else b"false"
        body = b'{"api_key":%b,"historical_migration":%b,"batch":[%b]}' % (key, historical, marked.data)
        incoming = Incoming(body, source=SOURCE, revived=Revived(marked.number, marked.reason, marked.at))
        try:
            held = self._intake.take(incoming, _OnItsWay(marked.number, self._held, self._returned))
        except Backpressure as error:
            return max(error.retry_after, _TICK)
        except ForwarderError as error:
            self._refuse(marked.number, error.message)
            return None
        if held:
            self._held(marked.number)
        return None

    def _held(self, number: int) -> None:
        """The buffer has the event."""
        try:
            if failpoints.ARMED:
                failpoints.hit("replay.held")
        except OSError:
            self._unremoved.append(number)
            return
        self._replayed += 1
        self._letters.remove([number])

    def _returned(self, number: int, error: Backpressure) -> None:
        """The buffer couldn't keep the event: it is still a letter, and still marked."""
        self._letters.busy.discard(number)
        self._due = self._clock.monotonic() + max(error.retry_after, _TICK)

    def _refuse(self, number: int, why: str) -> None:
        self._refused += 1
        self._letters.unmark(number, why)
        _log.warning("a dead letter can't be replayed as it is; it stays", number=number, why=why)

    def _tell(self) -> None:
        if self._replayed > self._told:
            _log.info("dead letters were replayed", events=self._replayed - self._told)
            self._told = self._replayed

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        if not self._stopped:
            self._timer = self._clock.call_later(seconds, what)


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """Called by the buffer (`core.ack.AckCallback`)."""

    number: int
    held: Callable[[int], None]
    returned: Callable[[int, Backpressure], None]

    def __call__(self, error: Backpressure | None) -> None:
        """See `core.ack.AckCallback`."""
        if error is None:
            self.held(self.number)
        else:
            self.returned(self.number, error)


def _unfit(marked: Marked) -> str:
    """Why a letter can't be replayed; empty if it can."""
    if marked.lane is None:
        return _UNSENDABLE.get(marked.reason, "its project key could not be told")
    if not marked.intact:
        return "its bytes are not those that were written: the disk has changed them"
    try:
        events = len(split_events(b"[%b]" % marked.data))
    except (msgspec.DecodeError, RecursionError) as error:
        return f"it can't be sent as it is: {error}"
    return "" if events == 1 else "it is not one event"
