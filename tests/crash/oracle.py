"""The checker of the crash test: says what is wrong with what is left, given what was sent and what
was promised.

It shares no code with the daemon: an event's bytes follow from its number, and where it may be
follows from its kind. Every event is sent once, so that each has one place at the end: delivered,
among the dead letters, or dropped for a reason that someone gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forwarder.core.event import Lane
from tests.crash.arrivals import Arrivals, digest
from tests.crash.journal import PROMISED, Entry
from tests.crash.load_plan import MAX_EVENTS, EventKind, LoadPlan


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter, as it lies in the files."""

    data: bytes
    place: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the files of a daemon hold."""

    buffered: Sequence[bytes] = ()
    letters: Sequence[StoredLetter] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """A lane's books."""

    received: int = 0
    delivered: int = 0
    buffered: int = 0
    dead: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def difference(self) -> int:
        """0 if they balance."""
        return (
            self.received - self.delivered - self.buffered - self.dead - sum(self.dropped.values())
        )


REASONS: Final = frozenset({"withdrawn", "operator"})
"""Why events may be dropped in the crash test."""


class _Uuid(msgspec.Struct):
    uuid: str


_uuids = msgspec.json.Decoder(_Uuid)


class Oracle:
    """Knows what was sent, and remembers what has proven to be delivered."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._sent: dict[int, int] = {}
        """The status of each request."""
        self._unproven: dict[int, bool] = {}
        """The events that haven't come yet, and whether they were promised."""
        self._answered: Counter[Lane] = Counter()
        self._arrived = 0
        self.promised: Counter[Lane] = Counter()
        self.possible: Counter[Lane] = Counter()
        """Events that were sent, promised or not."""

    def hear(self, entries: Iterable[Entry]) -> None:
        """Learn of requests that have ended."""
        for number, status in entries:
            request = self._plan.request(number)
            self._sent[number] = status
            self._unproven.update(dict.fromkeys(request.events, status == PROMISED))
            self.possible[request.lane] += request.count
            self.promised[request.lane] += request.count if status == PROMISED else 0

    def judge(self, arrivals: Arrivals, holdings: Holdings) -> list[str]:
        """What is wrong. To be asked while nothing is in progress and no daemon runs."""
        problems = [
            *arrivals.conflicts,
            *(f"came and was never sent: {event}" for event in arrivals.strangers),
        ]
        problems += self._judge_arrivals(arrivals)
        buffered, wrong = self._numbers("the buffer", holdings.buffered)
        dead, wrong_too = self._numbers(
            "the dead letters", [letter.data for letter in holdings.letters]
        )
        problems += [*wrong, *wrong_too, *_twice(holdings.letters)]
        problems += [
            f"event {number} is a dead letter, and nobody refused it"
            for number in dead
            if self._plan.kind(number) is EventKind.CLEAN
        ]
        problems += self._judge_promises(buffered | dead)
        return problems

    def _judge_arrivals(self, arrivals: Arrivals) -> list[str]:
        problems = []
        for number in [unproven for unproven in self._unproven if arrivals.digest_of(unproven)]:
            kind = self._plan.kind(number)
            if arrivals.digest_of(number) != digest(self._plan.event(number)):
                problems.append(f"event {number} was changed on its way")
            if kind is not EventKind.CLEAN:
                problems.append(f"event {number} came although it is {kind.value}")
            if arrivals.was_answered(number):
                del self._unproven[number]
                self._answered[self._lane(number)] += 1
                self._arrived += 1
        seen = self._arrived + sum(1 for number in self._unproven if arrivals.digest_of(number))
        came = len(arrivals.digests) - arrivals.digests.count(0)
        if came != seen:
            problems.append(f"{came - seen} events came that were never sent")
        return problems

    def _numbers(self, where: str, events: Iterable[bytes]) -> tuple[set[int], list[str]]:
        """The numbers of held events, and what is wrong with them."""
        numbers: set[int] = set()
        problems = []
        for event in events:
            number = self._number(event)
            if number is None or number // MAX_EVENTS not in self._sent:
                problems.append(f"{where} hold what was never sent: {event[:300]!r}")
            elif event != self._plan.event(number):
                problems.append(f"{where} hold event {number} changed: {event[:300]!r}")
            elif number in numbers:
                problems.append(f"{where} hold event {number} twice")
            else:
                numbers.add(number)
        return numbers, problems

    def _number(self, event: bytes) -> int | None:
        try:
            return self._plan.number(_uuids.decode(event).uuid)
        except msgspec.DecodeError:
            return None

    def _judge_promises(self, held: set[int]) -> list[str]:
        """Every promised event is somewhere; one that an operator may drop needn't be."""
        missing = [
            number for number, promised in self._unproven.items() if promised and number not in held
        ]
        return [
            self._lost(number)
            for number in missing
            if self._plan.kind(number) is not EventKind.DISPOSABLE
        ]

    def _lost(self, number: int) -> str:
        kind = self._plan.kind(number)
        request = self._plan.request(number // MAX_EVENTS)
        return f"event {number} ({kind.value}) of request {request} was promised, and is lost"

    def _lane(self, number: int) -> Lane:
        return self._plan.request(number // MAX_EVENTS).lane

    def judge_books(self, books: Mapping[Lane, Account], *, quiet: bool) -> list[str]:
        """What is wrong with the books of a daemon that runs, or ran. `quiet`: no request has been
        in progress since the last `hear`.
        """
        problems = [
            f"the books of {lane} are off by {account.difference}: {account}"
            for lane, account in books.items()
            if account.difference
        ]
        for lane, promised in self.promised.items():
            received = books.get(lane, Account()).received
            if received < promised:
                problems.append(f"{lane}: {received} events received, but {promised} were promised")
            if quiet and received > self.possible[lane]:
                problems.append(
                    f"{lane}: {received} events received, but only {self.possible[lane]} were sent"
                )
        return problems

    def judge_end(
        self, books: Mapping[Lane, Account], letters: Sequence[StoredLetter]
    ) -> list[str]:
        """What is wrong with the books once the buffer is empty, beside what `judge` and
        `judge_books` say. To be asked after `judge`.
        """
        dead = Counter(
            self._lane(number)
            for letter in letters
            if (number := self._number(letter.data)) is not None
        )
        problems = []
        for lane, account in books.items():
            withdrawn = account.dropped.get("withdrawn", 0)
            unknown = set(account.dropped) - REASONS
            if account.buffered or unknown:
                problems.append(
                    f"{lane}: it isn't over, or events were dropped for no good reason: {account}"
                )
            if not account.delivered <= self._answered[lane] <= account.delivered + withdrawn:
                problems.append(
                    f"{lane}: {self._answered[lane]} events came, but the books have {account}"
                )
            if account.dead != dead[lane]:
                problems.append(
                    f"{lane}: {dead[lane]} dead letters are in the files, but the books have "
                    f"{account.dead}"
                )
            problems += self._judge_drops(lane, account.dropped.get("operator", 0), letters)
        return problems

    def _judge_drops(self, lane: Lane, dropped: int, letters: Sequence[StoredLetter]) -> list[str]:
        letter_numbers = {self._number(letter.data) for letter in letters}
        gone = [
            promised
            for number, promised in self._unproven.items()
            if self._is_disposable(number, lane) and number not in letter_numbers
        ]
        if gone.count(True) <= dropped <= len(gone):
            return []
        return [
            (
                f"{lane}: {dropped} dropped by hand, but {gone.count(True)} promised ones are "
                f"gone, {len(gone)} at most"
            )
        ]

    def _is_disposable(self, number: int, lane: Lane) -> bool:
        return self._plan.kind(number) is EventKind.DISPOSABLE and self._lane(number) == lane


def _twice(letters: Sequence[StoredLetter]) -> list[str]:
    """Places that more than one dead letter has."""
    places = Counter(letter.place for letter in letters if letter.place is not None)
    return [
        f"{count} dead letters have the place {place}"
        for place, count in places.items()
        if count > 1
    ]
