"""Log sources in the runtime: from settings to policies, in one worker, with one place for
positions; and warnings about them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.core.ack import AckLevel
from forwarder.core.clock import SystemClock
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.logs import LogSources, log_warnings, policy_of
from forwarder.daemon.pipeline import build
from forwarder.daemon.policies import changed_keys
from forwarder.daemon.roles import ALONE, Role
from forwarder.telemetry.snapshot import LogSourceState
from tests.support.record_intakes import FakeRecordIntake

KEY = "phc_" + "a" * 28
SOURCE: dict[str, Any] = {
    "name": "app",
    "path": ("/var/log/app/*.log",),
    "mapping": {"event": ".e", "distinct_id": ".u"},
    "api_key": KEY,
}


def settings(source: dict[str, Any], **others: Any) -> Settings:
    """Settings with one source."""
    sources = {"logs": ({**SOURCE, **source},), "http": {"listen": "127.0.0.1:0"}}
    return Settings.parse({"upstream": {"url": "http://127.0.0.1:2"}, **others, "sources": sources})


def test_each_setting_comes_to_the_source() -> None:
    """Paths, times, sizes and levels as they are set; what is derived from other settings too."""
    policy = policy_of(
        settings(
            {
                "exclude": ("*.gz",),
                "read_from": "end",
                "commit": "disk",
                "commit_interval": "2s",
                "host": "web-1",
                "max_line": "10kB",
                "max_open_files": 7,
                "max_in_flight": "2MB",
                "poll_interval": "3s",
                "rotate_wait": "4s",
            }
        ),
        0,
    )
    assert (policy.name, policy.key, policy.paths, policy.exclude) == (
        "app",
        "sources.logs[0]",
        ("/var/log/app/*.log",),
        ("*.gz",),
    )
    assert (policy.from_end, policy.level, policy.commit_interval, policy.host) == (
        True,
        AckLevel.DISK,
        2.0,
        "web-1",
    )
    assert (policy.max_line, policy.max_open_files, policy.max_in_flight) == (10_000, 7, 2_000_000)
    assert (policy.poll_interval, policy.rotate_wait, policy.stdin) == (3.0, 4.0, False)
    assert b'"event":"seen"' in (policy.mapping.map(b'{"e":"seen","u":"1"}') or b"")
    assert KEY not in repr(policy)
    assert policy_of(settings({}), 0).host != ""


def test_records_are_found_as_they_are_written() -> None:
    """Lines, several lines from a start on, and parts of CRI, no longer than the limit."""
    split = policy_of(settings({"multiline": {"start": r"^\["}, "max_line": "1kB"}), 0).split
    records = split(0).feed(b"[1] a\n  b\n[2] c\n[3" + b"x" * 1200 + b"\n[4] d\n", 0.0)
    assert (list(records.values), len(records.overlong)) == ([b"[1] a\n  b", b"[2] c"], 1)
    cri = policy_of(settings({"format": "cri"}), 0).split(0)
    assert (
        cri.feed(b"2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00Z stdout F b\n", 0.0)
        .values[0]
        .endswith(b"F ab")
    )


def test_times_are_stored_where_a_line_may_have_none() -> None:
    """Also where the mapping reads one, which may be null, and of syslog, where it may be `-`."""
    at = {"mapping": {**SOURCE["mapping"], "timestamp": {"from": ".at"}}}
    stored = [
        policy_of(settings(source), 0).stores_times
        for source in ({}, at, {"format": "syslog"}, {"format": "combined"}, {"format": "cri"})
    ]
    assert stored == [True, True, True, False, False]


def test_the_zone_is_that_of_times_without_one() -> None:
    """It may stand alone, for a format whose times have none."""
    source = {"format": "syslog", "mapping": {**SOURCE["mapping"], "timestamp": {"zone": "+02:00"}}}
    parsed = policy_of(settings(source), 0).line_format.parse(
        b"<13>Oct 11 22:14:15 web app: hello", 1_792_000_000.0
    )
    assert parsed is not None
    assert parsed[1].startswith(b'"2026-10-11T20:14:15')


def test_an_invalid_mapping_of_logs_is_an_error() -> None:
    """Which names the key."""
    source = {"mapping": {"event": "| |", "distinct_id": ".u"}}
    with pytest.raises(ConfigurationError, match=re.escape("sources.logs[0].mapping.event: ")):
        policy_of(settings(source), 0)


def test_its_keys_need_a_restart() -> None:
    """A reload says so."""
    assert changed_keys(settings({}), settings({"host": "other"})) == ["sources.logs"]


async def test_one_worker_reads_logs(tmp_path: Path) -> None:
    """The others deliver what it reads; so does one that only empties a directory."""
    configured = settings({}, dead_letters={"path": str(tmp_path)}, workers=2)
    for role, reads in (
        (Role(0, 2), True),
        (Role(1, 2), False),
        (Role(0, 2, listens=False), False),
    ):
        pipeline = build(configured, SystemClock(), role)
        assert bool(pipeline.snapshot().logs) is reads
        await pipeline.close()


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_positions_are_beside_the_workers_and_have_one_owner(
    tmp_path: Path, kind: str
) -> None:
    """In the state directory, whatever the number of workers."""
    buffer = {"kind": kind, "path": str(tmp_path)}
    configured = settings(
        {}, buffer=buffer, dead_letters={"path": str(tmp_path)} if kind == "memory" else {}
    )
    pipeline = build(configured, SystemClock(), ALONE)
    assert (tmp_path / "logs" / "logs.db").is_file()
    with pytest.raises(ConfigurationError, match=r"logs is in use by another forwarder"):
        LogSources.of(configured, FakeRecordIntake(), SystemClock(), tmp_path)
    await pipeline.close()
    again = LogSources.of(configured, FakeRecordIntake(), SystemClock(), tmp_path)
    await again.close()


async def test_without_a_place_for_positions_nothing_is_followed() -> None:
    """Lines would be delivered again at each start; standard input needs none."""
    with pytest.raises(
        ConfigurationError, match="no directory could be used for the positions"
    ) as raised:
        LogSources.of(settings({}), FakeRecordIntake(), SystemClock(), None)
    assert "dead_letters.path" in raised.value.hint
    sources = LogSources.of(
        settings({"path": (), "stdin": True}), FakeRecordIntake(), SystemClock(), None
    )
    assert [state.state for state in sources.observe()[0]] == ["reading"]
    await sources.close()


def test_warnings_say_why_a_source_isnt_read() -> None:
    """And what to do; one that is read has none, unless something else is wrong."""
    state = LogSourceState("app", state="reading")
    assert [
        *log_warnings(
            [state, replace(state, state="ended"), replace(state, state="stopping", why="x")]
        )
    ] == []
    down = replace(
        state, state="down", why="positions can't be stored: disk full", hint="Make room."
    )
    failed = replace(state, state="failed", why="standard input can't be read: gone")
    waiting = replace(state, state="waiting", why="no file matches a")
    assert [*log_warnings([down, failed, waiting, replace(state, why="the buffer is full")])] == [
        "logs app: positions can't be stored: disk full (Make room); retried continuously",
        (
            "logs app: standard input can't be read: gone; nothing is read from it until this "
            "process is restarted"
        ),
        "logs app: no file matches a",
        "logs app: the buffer is full",
    ]
