"""Dead letters in memory: their bounds, and what is logged of them."""

from __future__ import annotations

from structlog.testing import capture_logs

from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.memory import LETTER_OVERHEAD, RECEIPT_SHARE, MemoryDeadLetters
from forwarder.telemetry.labels import lane_label

LANE = Lane("phc_deaddeaddead1234")
COST = 1000


def letter(size: int = COST, reason: Reason = Reason.REFUSED, lane: Lane | None = LANE) -> DeadLetter:
    """A letter that costs `size` bytes."""
    return DeadLetter(reason, lane, b"x" * (size - LETTER_OVERHEAD), 0.0)


def test_it_keeps_original_bytes() -> None:
    """A letter is kept as it was handed in."""
    store, buried = MemoryDeadLetters(10 * COST), [letter(), letter()]
    assert store.bury(buried)
    assert store.letters == buried
    assert (store.statistics().letters, store.statistics().bytes, store.statistics().limit_bytes) == (2, 2 * COST, 10 * COST)


def test_all_or_none() -> None:
    """Letters that don't all fit change nothing, so that their events stay where they are."""
    store = MemoryDeadLetters(3 * COST)
    assert store.bury([letter(), letter()])
    assert not store.bury([letter(), letter()])
    assert store.statistics().letters == 2
    assert store.bury([letter()])
    assert not store.bury([letter(LETTER_OVERHEAD)])


def test_words_count_too() -> None:
    """What the upstream said is kept with the event, and costs."""
    store = MemoryDeadLetters(10 * COST)
    store.bury([DeadLetter(Reason.REFUSED, LANE, b"{}", 0.0, why="w" * 50)])
    assert store.statistics().bytes == 2 + 50 + LETTER_OVERHEAD


def test_rubbish_has_a_tenth_at_most() -> None:
    """Of what is refused at receipt the first letters are kept that fit the share; the upstream's refusals have the rest."""
    store = MemoryDeadLetters(RECEIPT_SHARE * 3 * COST)
    assert store.bury_at_receipt([letter(), letter()]) == 2
    assert store.bury_at_receipt([letter(), letter()]) == 1
    assert store.bury_at_receipt([letter()]) == 0
    assert store.bury([letter() for _ in range(27)])
    assert not store.bury([letter()])


def test_rubbish_takes_no_room_that_is_not_there() -> None:
    """When all is used by the upstream's refusals, nothing is kept at receipt."""
    store = MemoryDeadLetters(10 * COST)
    assert store.bury([letter() for _ in range(10)])
    assert store.bury_at_receipt([letter(LETTER_OVERHEAD)]) == 0


def test_the_end_knows_no_limit() -> None:
    """What is left at exit is kept whatever the limit: the memory is the buffer's, which is free with it."""
    store = MemoryDeadLetters(COST)
    store.bury_at_exit([letter() for _ in range(5)])
    assert store.statistics().letters == 5


def test_receipt_is_logged_once_a_lane_and_reason() -> None:
    """A request of a thousand bad events is a line, not a thousand; it names the lane by its label and never shows the event."""
    store = MemoryDeadLetters(1000 * COST)
    bad = [letter(reason=Reason.MISSING_EVENT) for _ in range(3)]
    with capture_logs() as logs:
        store.bury_at_receipt([*bad, letter(reason=Reason.TOO_LARGE), letter(reason=Reason.INVALID_EVENT, lane=None)])
    assert [(line["lane"], line["reason"], line["events"]) for line in logs] == [
        (lane_label(LANE), "missing_event", 3),
        (lane_label(LANE), "too_large", 1),
        ("none", "invalid_event", 1),
    ]
    assert LANE.api_key not in str(logs)
    assert "xxx" not in str(logs)


def test_what_is_dropped_is_said() -> None:
    """Past the share there is a line with how many events are gone."""
    with capture_logs() as logs:
        assert MemoryDeadLetters(RECEIPT_SHARE * COST).bury_at_receipt([letter(), letter(), letter()]) == 1
    assert logs[-1]["events"] == 2
    assert "dropped" in logs[-1]["event"]
