"""The checker itself: it is content with a run in which nothing is wrong, and
says so when anything is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from forwarder.core.event import Lane
from tests.crash.arrivals import Arrivals
from tests.crash.journal import ENTRIES, PROMISED, UNKNOWN, Entry, JournalReader, JournalWriter
from tests.crash.load_plan import MAX_EVENTS, EventKind, LoadPlan, PlannedRequest
from tests.crash.oracle import Account, Holdings, Oracle, StoredLetter

PLAN = LoadPlan(1)
REQUESTS = 150


class FaultlessRun:
    """A run in which nothing is wrong, until a test spoils it: all was promised, the last tenth
    still waits, the poison is dead.
    """

    def __init__(self) -> None:
        self.oracle = Oracle(PLAN)
        self.oracle.hear(Entry(number, PROMISED) for number in range(REQUESTS))
        self.arrivals = Arrivals()
        self.buffered: dict[int, bytes] = {}
        self.letters: dict[int, StoredLetter] = {}
        for request in map(PLAN.request, range(REQUESTS)):
            self._settle(request)

    def _settle(self, request: PlannedRequest) -> None:
        for index, number in enumerate(request.events):
            event = PLAN.event(number)
            if PLAN.kind(number) is not EventKind.CLEAN:
                self.letters[number] = StoredLetter(event, (request.number, index))
            elif request.number < REQUESTS * 9 // 10:
                self.arrivals.note(number, event, answered=True)
            else:
                self.buffered[number] = event

    def judged(self) -> list[str]:
        """What the oracle says."""
        return self.oracle.judge(
            self.arrivals, Holdings(list(self.buffered.values()), list(self.letters.values()))
        )

    def delivered(self) -> None:
        """Let all that waits arrive."""
        for number, event in self.buffered.items():
            self.arrivals.note(number, event, answered=True)
        self.buffered.clear()

    def books(self) -> dict[Lane, Account]:
        """The books that belong to it."""
        books: dict[Lane, Account] = {}
        for request in map(PLAN.request, range(REQUESTS)):
            known = books.get(request.lane, Account())
            dead = sum(number in self.letters for number in request.events)
            waiting = sum(number in self.buffered for number in request.events)
            delivered = known.delivered + request.count - dead - waiting
            books[request.lane] = Account(
                known.received + request.count,
                delivered,
                known.buffered + waiting,
                known.dead + dead,
            )
        return books

    def some(self, kind: EventKind) -> int:
        """The number of a dead letter of a kind."""
        return next(number for number in self.letters if PLAN.kind(number) is kind)


@pytest.fixture
def run() -> FaultlessRun:
    """A run in which nothing is wrong."""
    return FaultlessRun()


def test_nothing_is_wrong_with_a_good_run(run: FaultlessRun) -> None:
    """Each event is where it should be: there is nothing to say, and the kinds that matter are all
    among them.
    """
    assert run.judged() == []
    assert run.oracle.judge_books(run.books(), quiet=True) == []
    run.delivered()
    assert run.judged() == []
    assert run.oracle.judge_end(run.books(), list(run.letters.values())) == []
    assert {PLAN.kind(number) for number in run.letters} == set(EventKind) - {EventKind.CLEAN}


def test_an_event_that_waited_may_arrive_later_and_not_be_lost(run: FaultlessRun) -> None:
    """What was in the buffer at one look is lost if it has neither arrived
    nor is there at the next.
    """
    assert run.judged() == []
    number, _ = run.buffered.popitem()
    assert any(f"event {number} " in line and "lost" in line for line in run.judged())


def test_what_has_arrived_is_not_asked_for_again(run: FaultlessRun) -> None:
    """An event that was delivered stays delivered, and what arrived is counted
    once over several looks.
    """
    assert run.judged() == []
    run.delivered()
    assert run.judged() == []
    assert run.judged() == []


@pytest.mark.parametrize("kind", [EventKind.POISON, EventKind.NAMELESS])
def test_a_lost_dead_letter_is_found(run: FaultlessRun, kind: EventKind) -> None:
    """An event that was refused is kept, and so is one that had no name."""
    number = run.some(kind)
    del run.letters[number]
    assert [f"event {number} " in line and "lost" in line for line in run.judged()] == [True]


def test_an_event_that_came_with_an_unfinished_answer_is_not_delivered(run: FaultlessRun) -> None:
    """Arriving is not enough: until an answer said 200, the daemon must hold the event."""
    number, event = run.buffered.popitem()
    run.arrivals.note(number, event, answered=False)
    assert [f"event {number} " in line and "lost" in line for line in run.judged()] == [True]
    run.arrivals.note(number, event, answered=True)
    assert run.judged() == []


def test_a_changed_event_is_found_wherever_it_is(run: FaultlessRun) -> None:
    """One byte is enough: in flight, in the buffer, among the dead letters."""
    number, event = run.buffered.popitem()
    run.arrivals.note(number, event.replace(b"person", b"persom"), answered=True)
    other, event = run.buffered.popitem()
    run.buffered[other] = event + b" "
    poison = run.some(EventKind.POISON)
    run.letters[poison] = replace(
        run.letters[poison], data=run.letters[poison].data.replace(b', "big"', b',"big"')
    )
    said = run.judged()
    assert any(f"event {number} was changed" in line for line in said)
    assert any(f"the buffer hold event {other} changed" in line for line in said)
    assert any(f"the dead letters hold event {poison} changed" in line for line in said)


def test_a_second_arrival_with_other_bytes_is_a_conflict(run: FaultlessRun) -> None:
    """The same bytes may come again; others may not."""
    number = PLAN.request(0).events[0]
    run.arrivals.note(number, PLAN.event(number), answered=True)
    assert run.judged() == []
    run.arrivals.note(number, PLAN.event(number) + b" ", answered=True)
    assert any("other bytes" in line for line in run.judged())


def test_a_dead_letter_that_is_there_twice_is_found(run: FaultlessRun) -> None:
    """By its uuid, whatever its place; and two that have one place."""
    number = run.some(EventKind.POISON)
    other = run.some(EventKind.NAMELESS)
    run.letters[-1] = replace(run.letters[number], place=(9999, 0))
    run.letters[other] = replace(run.letters[other], place=run.letters[number].place)
    said = run.judged()
    assert f"the dead letters hold event {number} twice" in said
    assert any("have the place" in line for line in said)


def test_an_event_that_is_twice_in_the_buffer_is_found(run: FaultlessRun) -> None:
    """It was sent once."""
    number, event = next(iter(run.buffered.items()))
    run.buffered[-1] = event
    assert f"the buffer hold event {number} twice" in run.judged()


def test_a_clean_event_among_the_dead_letters_is_found(run: FaultlessRun) -> None:
    """No one refused it, so it must not be there."""
    number, event = run.buffered.popitem()
    run.letters[number] = StoredLetter(event)
    assert f"event {number} is a dead letter, and nobody refused it" in run.judged()


def test_events_that_were_never_sent_are_found(run: FaultlessRun) -> None:
    """In the buffer, among the dead letters, and at the upstream."""
    stray = PLAN.request(REQUESTS + 5).events[0]
    run.buffered[stray] = PLAN.event(stray)
    run.letters[stray] = StoredLetter(b"rubbish")
    run.arrivals.note(stray, PLAN.event(stray), answered=True)
    run.arrivals.strangers.append("something")
    said = run.judged()
    assert any("the buffer hold what was never sent" in line for line in said)
    assert any("the dead letters hold what was never sent" in line for line in said)
    assert "1 events came that were never sent" in said
    assert any("something" in line for line in said)


def test_poison_that_came_is_found(run: FaultlessRun) -> None:
    """The upstream refuses it: it can't have been delivered."""
    number = run.some(EventKind.POISON)
    run.arrivals.note(number, PLAN.event(number), answered=True)
    assert any(f"event {number} came although" in line for line in run.judged())


def test_an_unanswered_request_may_arrive_or_not(run: FaultlessRun) -> None:
    """Its events may have arrived or not; if they did, then unchanged."""
    unanswered = PLAN.request(REQUESTS)
    gone = PLAN.request(REQUESTS + 1)
    run.oracle.hear([Entry(unanswered.number, UNKNOWN), Entry(gone.number, 503)])
    assert run.judged() == []
    number = unanswered.events[0]
    run.arrivals.note(number, PLAN.event(number), answered=True)
    assert run.judged() == []
    run.arrivals.note(
        unanswered.events[-1] if unanswered.count > 1 else gone.events[0], b"other", answered=True
    )
    assert len(run.judged()) == 1


def test_a_disposable_letter_may_be_gone_if_it_was_dropped_by_hand(run: FaultlessRun) -> None:
    """The promise ends where an operator drops it, and the books say so."""
    run.delivered()
    number = run.some(EventKind.DISPOSABLE)
    lane = PLAN.request(number // MAX_EVENTS).lane
    del run.letters[number]
    assert run.judged() == []
    books = run.books()
    account = books[lane]
    books[lane] = replace(account, delivered=account.delivered - 1)
    assert any(
        "dropped by hand" in line
        for line in run.oracle.judge_end(books, list(run.letters.values()))
    )
    books[lane] = replace(account, delivered=account.delivered - 1, dropped={"operator": 1})
    assert run.oracle.judge_end(books, list(run.letters.values())) == []


def test_books_that_are_off_are_found(run: FaultlessRun) -> None:
    """They don't balance, they know of fewer events than were promised, or of more
    than were sent.
    """
    books = run.books()
    lane, account = next(iter(books.items()))
    for wrong in (
        replace(account, delivered=account.delivered + 1),
        replace(account, received=account.received - 1, delivered=account.delivered - 1),
        replace(account, received=account.received + 1, delivered=account.delivered + 1),
    ):
        assert len(run.oracle.judge_books({**books, lane: wrong}, quiet=True)) == 1
    assert len(run.oracle.judge_books({}, quiet=True)) == len(books)


def test_an_end_that_is_none_is_found(run: FaultlessRun) -> None:
    """Events wait, were dropped for another reason, or aren't in the books; or the letters are
    other than the books say.
    """
    run.delivered()
    assert run.judged() == []
    books = run.books()
    letters = list(run.letters.values())
    lane, lane_account = next((lane, account) for lane, account in books.items() if account.dead)
    for wrong in (
        replace(lane_account, delivered=lane_account.delivered - 1, dropped={"damaged": 1}),
        replace(lane_account, delivered=lane_account.delivered - 1, buffered=1),
        replace(lane_account, delivered=lane_account.delivered + 1),
        replace(lane_account, dead=lane_account.dead - 1),
    ):
        assert run.oracle.judge_end({**books, lane: wrong}, letters)


def test_arrivals_are_the_same_after_a_file(tmp_path: Path, run: FaultlessRun) -> None:
    """What the upstream saves is what the oracle reads."""
    run.arrivals.save(tmp_path / "arrivals")
    run.arrivals = Arrivals.load(tmp_path / "arrivals")
    assert run.judged() == []
    run.buffered.popitem()
    assert len(run.judged()) == 1


def test_a_journal_is_read_as_it_grows(tmp_path: Path) -> None:
    """Each entry is read once, and half an entry not at all."""
    path = tmp_path / "journal"
    reader = JournalReader(path, ENTRIES)
    assert reader.more() == []
    writer = JournalWriter(path, ENTRIES)
    writer.note(7, PROMISED)
    assert reader.more() == [Entry(7, PROMISED)]
    writer.note(8, UNKNOWN)
    writer.close()
    with path.open("ab") as file:
        file.write(b"half")
    assert reader.more() == [Entry(8, UNKNOWN)]
    assert reader.more() == []


def test_events_follow_from_seed_and_number() -> None:
    """The same bytes each time, others for another seed; every uuid leads back to its number,
    under its own seed alone.
    """
    request = next(request for request in map(PLAN.request, range(99)) if request.count == 200)
    for number in request.events:
        event = PLAN.event(number)
        assert event == LoadPlan(1).event(number) != LoadPlan(4712).event(number)
        uuid = event[9:45].decode()
        assert PLAN.number(uuid) == number
        assert LoadPlan(4712).number(uuid) is None
        assert 200 <= len(event) <= 3000
    assert PLAN.number("rubbish") is None
