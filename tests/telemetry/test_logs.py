"""The daemon's log."""

from __future__ import annotations

import json
import logging
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import structlog

from forwarder.core.event import Lane
from forwarder.telemetry.labels import LaneNames, lane_label
from forwarder.telemetry.logs import LogFormat, StandardErrorHandler, configure_logging, fold
from tests.support.cases import cases

KEY = "phc_0123456789hunter2last"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What was written, line by line."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_lines_are_json_with_time_level_and_logger(capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line, times in UTC."""
    configure_logging("json")
    structlog.get_logger("forwarder.test").info(
        "started", addresses=["127.0.0.1:1"], size=3, label="phc_…last#0"
    )
    (line,) = lines(capsys)
    assert list(line)[:3] == ["level", "timestamp", "event"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", line.pop("timestamp"))
    assert line == {
        "event": "started",
        "level": "info",
        "logger": "forwarder.test",
        "addresses": ["127.0.0.1:1"],
        "size": 3,
        "label": "phc_…last#0",
    }


def test_the_standard_librarys_loggers_write_the_same_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What aiohttp, asyncio and warnings say is not lost, nor in another form."""
    configure_logging("json")
    logging.getLogger("asyncio").error("task %d failed", 7)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    first, second = lines(capsys)
    assert list(first)[:3] == list(second)[:3] == ["level", "timestamp", "event"]
    assert (first["event"], first["level"], first["logger"]) == (
        "task 7 failed",
        "error",
        "asyncio",
    )
    assert (second["level"], second["logger"]) == ("warning", "py.warnings")
    assert "timestamp" in second


def test_only_lines_of_the_level_and_above_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """For forwarder's own lines and for those of libraries."""
    configure_logging("json", "warning")
    log = structlog.get_logger()
    log.info("no")
    logging.getLogger("aiohttp").info("no")
    log.warning("yes")
    logging.getLogger("aiohttp").warning("yes")
    assert [line["event"] for line in lines(capsys)] == ["yes", "yes"]


def test_requests_to_the_admin_server_are_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    """Scrapes would fill the log; debug shows them."""
    configure_logging("json", "info")
    logging.getLogger("aiohttp.access").info("GET /metrics")
    assert lines(capsys) == []
    configure_logging("json", "debug")
    logging.getLogger("aiohttp.access").info("GET /metrics")
    assert len(lines(capsys)) == 1


def test_logging_can_be_configured_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A new level holds for loggers that are in use, and no line is written twice."""
    log = structlog.get_logger("forwarder.test")
    configure_logging("json", "error")
    log.info("no")
    configure_logging("json", "info")
    log.info("yes")
    assert [line["event"] for line in lines(capsys)] == ["yes"]
    assert (
        sum(isinstance(handler, StandardErrorHandler) for handler in logging.getLogger().handlers)
        == 1
    )


def test_without_a_terminal_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The default suits a container."""
    configure_logging()
    structlog.get_logger().info("hello")
    assert lines(capsys)[0]["event"] == "hello"


def test_on_a_terminal_lines_are_for_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default suits a person too."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    configure_logging()
    structlog.get_logger().info("hello")
    written = capsys.readouterr().err
    assert "hello" in written
    assert "\x1b[" in written
    assert not written.startswith("{")


def test_a_terminal_shows_sentences_below(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day, the fields, then what a line means and what to do; nothing is wider than
    the terminal, and a traceback stays as it is.
    """
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2)
    monkeypatch.setattr("os.get_terminal_size", lambda _: os.terminal_size((60, 24)))
    configure_logging()
    log = structlog.get_logger("forwarder.test")
    log.warning("events wait", n=1, meaning="They " + "wait " * 20, hint="Do it.")
    written = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().err).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d \[warning  \] events wait +n=1", written[0])
    assert (written[1].startswith("    They wait"), written[-1]) == (True, "    Do it.")
    assert max(map(len, written)) <= 60
    try:
        int("x " * 60)
    except ValueError:
        log.exception("failed")
    assert "\nValueError: invalid literal" in capsys.readouterr().err


@cases(
    ("line", "folded"),
    [
        ("short", "short"),
        ("one two three", "one two\n    three"),
        ("    one two three", "    one\n    two\n    three"),
        ("\x1b[31mone\x1b[0m two three", "\x1b[31mone\x1b[0m two\n    three"),
        ("a-very-long-word b", "a-very-long-word\n    b"),
    ],
)
def test_folded_lines(line: str, folded: str) -> None:
    """At words, by what is seen."""
    assert fold(line, 10) == folded


def test_a_lane_with_a_name_is_shown_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    """To people in place of the label, to programs beside it; other lanes have no such field."""
    lanes = lane_label(Lane(KEY, historical=True)), lane_label(Lane("phc_another_project"))
    for form in ("json", "console"):
        configure_logging(form, names=LaneNames({KEY: "shop"}))
        for lane in lanes:
            structlog.get_logger().warning("lane halted", lane=lane)
    named, other, *shown = capsys.readouterr().err.splitlines()
    assert [json.loads(named)[field] for field in ("lane", "lane_name")] == [
        lanes[0],
        "shop/historical",
    ]
    assert "lane_name" not in json.loads(other)
    assert ["lane=shop/historical" in shown[0], f"lane={lanes[1]}" in shown[1]] == [True, True]
    assert lanes[0] not in shown[0]


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_is_written(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages, values, nested values, bytes, arguments and tracebacks are masked."""
    configure_logging(form, "debug")
    log = structlog.get_logger("forwarder.test")
    log.info(
        f"key {KEY}",
        key=KEY,
        nested={"keys": [KEY, {KEY: 1}]},
        raw=KEY.encode(),
        proxy="http://u:hunter2@proxy:1/",
        text=f"line\n{KEY}",
    )
    logging.getLogger("aiohttp").warning("got %s", KEY)
    try:
        int(f"bad\n{KEY}")
    except ValueError:
        log.exception("failed")
        logging.getLogger("asyncio").exception("failed")
    written = capsys.readouterr().err
    assert "hunter2" not in written
    assert written.count("phc_…last") >= 8
    assert written.count("Traceback") == 2


def test_an_unwritable_line_is_reported_without_its_arguments(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library's mistake in a log call stops nothing, and shows nothing."""
    configure_logging("json")
    library = logging.getLogger("library")
    monkeypatch.setattr(library, "handlers", [StandardErrorHandler()])
    monkeypatch.setattr(library, "propagate", False)
    library.warning("%d", KEY)
    assert capsys.readouterr().err == "a log line of library could not be written\n"


def test_bound_values_go_with_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Context variables are part of the lines."""
    configure_logging("json")
    with structlog.contextvars.bound_contextvars(source="http"):
        structlog.get_logger().warning("odd", value=object)
    (line,) = lines(capsys)
    assert line["source"] == "http"
    assert line["value"] == "<class 'object'>"


VALUES: dict[str, tuple[object, object, str]] = {
    "truth": (True, True, "yes"),
    "nothing": (None, None, "none"),
    "a path": (Path("/var/lib/x"), "/var/lib/x", "/var/lib/x"),
    "a list": (["a", "b"], ["a", "b"], "'a, b'"),
    "a tuple": (("127.0.0.1", 8320), ["127.0.0.1", 8320], "'127.0.0.1, 8320'"),
    "a mapping": ({"kind": "memory"}, {"kind": "memory"}, "'kind: memory'"),
    "a set": ({"b", "a"}, ["a", "b"], "'a, b'"),
    "bytes": (b"ab", "ab", "ab"),
    "an error": (
        ConnectionRefusedError(111, "Connect call failed ('::1', 1)"),
        "Connection refused",
        "'Connection refused'",
    ),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_not_written_as_python_does(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON has its own forms; the console's are for people."""
    value, in_json, on_console = VALUES[kind]
    configure_logging("json")
    structlog.get_logger().info("seen", value=value)
    assert lines(capsys)[0]["value"] == in_json
    configure_logging("console")
    structlog.get_logger().info("seen", value=value)
    assert capsys.readouterr().err.rstrip().endswith(f"value={on_console}")
