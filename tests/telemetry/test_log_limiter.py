"""Lines of one kind are written a few times, then counted."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from forwarder.telemetry.log_limiter import BURST, INTERVAL, MAX_MESSAGES, MESSAGE_BURST, LogLimiter
from forwarder.telemetry.logs import StandardErrorHandler, ThreadClock, configure_logging
from tests.support.cases import cases
from tests.support.clock import FakeClock


def record(
    event: str = "events became dead letters", level: int = logging.WARNING, **fields: Any
) -> logging.LogRecord:
    """A line as structlog hands it to the standard library."""
    return logging.LogRecord("forwarder.test", level, "", 0, {"event": event, **fields}, None, None)


def fields(line: logging.LogRecord) -> dict[str, Any]:
    """What a line says."""
    assert isinstance(line.msg, dict)
    return line.msg


def test_the_first_lines_are_written_and_the_others_counted() -> None:
    """610 warnings become ten, and one with the number of the rest: the last of them."""
    limiter = LogLimiter()
    written = [
        number for number in range(610) if limiter.admit(record(lane="a", events=number), 0.0)
    ]
    assert written == list(range(BURST))
    assert limiter.due() == INTERVAL
    assert limiter.reports(INTERVAL - 0.1) == []
    (line,) = limiter.reports(INTERVAL)
    assert fields(line) == {
        "event": "events became dead letters",
        "lane": "a",
        "events": 609,
        "suppressed": 599,
    }


def test_while_they_keep_coming_there_is_one_line_an_interval() -> None:
    """A flood that lasts is reported each minute; when it is over, lines are
    written as they come again.
    """
    limiter = LogLimiter()
    for _ in range(BURST + 1):
        limiter.admit(record(), 0.0)
    assert [fields(line).get("suppressed") for line in limiter.reports(INTERVAL)] == [None]
    assert not any(limiter.admit(record(), INTERVAL + 1) for _ in range(5))
    assert [fields(line)["suppressed"] for line in limiter.reports(2 * INTERVAL)] == [4]
    assert limiter.reports(3 * INTERVAL) == []
    assert limiter.due() is None
    assert limiter.admit(record(), 3 * INTERVAL)


@cases(
    "other",
    [
        record("lane halted"),
        record(level=logging.ERROR),
        record(lane="b"),
        record(reason="refused"),
        record(exc_info=ValueError("x")),
        logging.LogRecord("asyncio", logging.WARNING, "", 0, "of a library: %s", ("x",), None),
    ],
    ids=["message", "level", "lane", "reason", "error", "library"],
)
def test_a_flood_hides_nothing_of_another_kind(other: logging.LogRecord) -> None:
    """Another message, level, lane, reason or error is written at once, and what goes with each
    line makes no kind.
    """
    limiter = LogLimiter()
    for number in range(1000):
        limiter.admit(record(events=number, why=f"why {number}"), 0.0)
    assert not limiter.admit(record(events=1001, why="another"), 1.0)
    assert limiter.admit(other, 1.0)


def test_ever_new_lanes_are_bounded_too() -> None:
    """One message about 5,000 made-up lanes is written for the first, then counted."""
    limiter = LogLimiter()
    written = [
        limiter.admit(record("lane halted", lane=str(number)), 0.0) for number in range(5000)
    ]
    assert sum(written) == MESSAGE_BURST
    (line,) = limiter.reports(INTERVAL)
    assert (fields(line)["lane"], fields(line)["suppressed"]) == ("4999", 5000 - MESSAGE_BURST - 1)


def test_ever_new_messages_are_bounded_too() -> None:
    """A library that puts addresses into its messages can't fill the memory."""
    limiter = LogLimiter()
    lines = [
        logging.LogRecord("lib", logging.ERROR, "", 0, f"at {number}", None, None)
        for number in range(MAX_MESSAGES + 500)
    ]
    assert sum([limiter.admit(line, 0.0) for line in lines]) == MAX_MESSAGES + BURST


@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.floats(0, 30)), max_size=300
    )
)
def test_every_line_is_written_or_counted(steps: list[tuple[str, str, float]]) -> None:
    """Written lines and `suppressed` add up to what was logged."""
    limiter = LogLimiter()
    now = 0.0
    written = 0
    suppressed = 0
    reports: list[logging.LogRecord] = []
    for event, lane, seconds in steps:
        now += seconds
        reports += limiter.reports(now)
        written += limiter.admit(record(event, lane=lane), now)
    reports += limiter.drain()
    suppressed = sum([fields(line).get("suppressed", 0) for line in reports])
    assert written + len(reports) + suppressed == len(steps)
    assert limiter.drain() == []


# The handler


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written, line by line."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def limited() -> FakeClock:
    """Let the configured handler's time be a fake clock's."""
    root = logging.getLogger()
    clock = FakeClock()
    (configured,) = [
        handler for handler in root.handlers if isinstance(handler, StandardErrorHandler)
    ]
    handler = StandardErrorHandler(LogLimiter(), clock)
    handler.setFormatter(configured.formatter)
    root.handlers[root.handlers.index(configured)] = handler
    return clock


async def test_the_count_is_written_when_the_interval_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also if nothing else is logged; forwarder's own lines and those of libraries."""
    configure_logging("json")
    clock = limited()
    for number in range(610):
        structlog.get_logger("forwarder.test").warning("poison", lane="a", events=number)
        logging.getLogger("asyncio").error("accept failed: %d", number)
    assert len(lines(capsys)) == 2 * BURST
    await clock.advance(INTERVAL)
    suppressed = {line["event"]: line["suppressed"] for line in lines(capsys)}
    assert suppressed == {"poison": 599, "accept failed: 609": 599}
    await clock.advance(10 * INTERVAL)
    assert lines(capsys) == []
    assert clock.pending == 0


def test_the_count_is_written_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that ends, or configures its log again, doesn't keep it to itself; no
    thread stays.
    """
    configure_logging("json")
    for _ in range(BURST + 5):
        structlog.get_logger().error("poison", exc_info=ValueError("x"))
    assert len(lines(capsys)) == BURST
    configure_logging("json")
    (line,) = lines(capsys)
    assert (line["event"], line["suppressed"]) == ("poison", 4)
    assert "exception" not in line


def test_at_level_debug_every_line_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Anyone who asks for everything gets it."""
    configure_logging("json", "debug")
    for _ in range(50):
        structlog.get_logger().info("again")
    assert len(lines(capsys)) == 50


def test_the_real_clock_calls() -> None:
    """The timer of the daemon's log runs on its own thread."""
    called = threading.Event()
    ThreadClock().call_later(0.001, called.set)
    assert called.wait(10)
