"""`forwarder buffer`: what a user sees of a disk buffer's files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from forwarder.core.event import Lane
from forwarder.telemetry.labels import lane_label
from tests.support.cases import cases
from tests.support.commands import invoked
from tests.support.disk_logs import LogWriter, in_use

pytestmark = pytest.mark.slow

KEY = "phc_commandscommands1234"
OTHER = "phc_anotheranother5678"
LIVE = Lane(KEY)
PAST = Lane(OTHER, historical=True)
EVENTS = [b'{"event":"a"}', b'{ "event" : "b" }', b'{"event":"\xc3\xa9"}']


def write(root: Path) -> LogWriter:
    """A buffer with three live events and two historical ones, and some that are settled."""
    log = LogWriter(root)
    log.events(LIVE, EVENTS, received_at=1_767_225_600.0)
    log.events(LIVE, EVENTS[:2])
    log.settle(LIVE, 2, 2)
    log.events(PAST, EVENTS[:2], received_at=1_767_225_700.5)
    return log


async def test_ls_shows_lanes_by_their_labels(tmp_path: Path) -> None:
    """Events, bytes and age of what waits; no project key."""
    write(tmp_path)
    done = await invoked("buffer", "ls", str(tmp_path))
    assert (done.code, done.err) == (0, "")
    rows = {line.split()[0]: line.split() for line in done.out.splitlines() if "phc_" in line}
    assert set(rows) == {lane_label(LIVE), lane_label(PAST)}
    assert rows[lane_label(LIVE)][1] == "3"
    assert rows[lane_label(PAST)][-1] == "historical"
    assert "5 events in total" in done.out
    assert KEY not in done.out


async def test_ls_tells_programs_the_same(tmp_path: Path) -> None:
    """JSON, with times as ISO 8601; a directory of one worker can be named too, and one that is in
    use says so.
    """
    log = write(tmp_path)
    (log.directory / "aside").mkdir()
    (log.directory / "aside" / "00000009.segment").write_bytes(b"xyz")
    with in_use(log.directory):
        done = await invoked("buffer", "ls", str(log.directory), "--output", "json")
    reported = json.loads(done.out)
    (worker,) = reported["directories"]
    assert (reported["events"], worker["events"], worker["in_use"], worker["damage"]) == (
        5,
        5,
        True,
        [],
    )
    assert isinstance(worker["process"], int)
    assert [
        (lane["lane"], lane["historical"], lane["events"], lane["oldest"])
        for lane in worker["lanes"]
    ] == [
        (lane_label(LIVE), False, 3, "2026-01-01T00:00:00+00:00"),
        (lane_label(PAST), True, 2, "2026-01-01T00:01:40+00:00"),
    ]
    assert [(Path(file["file"]).name, file["size"]) for file in worker["aside"]] == [
        ("00000009.segment", 3)
    ]


async def test_without_a_path_the_configured_buffer_is_meant(tmp_path: Path) -> None:
    """The configuration names it, by file or by environment; one in memory has no files."""
    LogWriter(tmp_path / "state", worker=0).events(LIVE, EVENTS)
    LogWriter(tmp_path / "state", worker=3).events(LIVE, EVENTS)
    config = tmp_path / "forwarder.yaml"
    config.write_text(f"buffer: {{kind: disk, path: {tmp_path}/state}}\n")
    done = await invoked("buffer", "ls", "--config", str(config))
    assert "6 events in total" in done.out
    environment = {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(tmp_path / "state"),
    }
    ages = re.compile(r"\d+d \d+m")  # a minute may pass between the two
    assert ages.sub("", (await invoked("buffer", "ls", env=environment)).out) == ages.sub(
        "", done.out
    )
    memory = await invoked("buffer", "ls", env={"FORWARDER_BUFFER__KIND": "memory"})
    assert memory.code == 2
    assert "buffer.kind: memory" in memory.err


@cases("command", ["ls", "verify", "export", "drain"])
async def test_a_directory_without_a_buffer_is_an_error(tmp_path: Path, command: str) -> None:
    """Exit code 2, with what was wrong and what to name."""
    done = await invoked("buffer", command, str(tmp_path / "none"))
    assert (done.code, done.out) == (2, "")
    assert f"{tmp_path}/none isn't a disk buffer: it doesn't exist" in done.err
    assert "buffer.path" in done.err
    assert "holds no worker-<n> directory" in (await invoked("buffer", command, str(tmp_path))).err


async def test_verify_says_that_all_is_whole(tmp_path: Path) -> None:
    """Exit code 0, with what there is; what was quarantined before is mentioned."""
    log = write(tmp_path)
    done = await invoked("buffer", "verify", str(tmp_path))
    assert (done.code, done.out) == (0, f"{log.directory}: undamaged, 5 events\n")
    (log.directory / "aside").mkdir()
    (log.directory / "aside" / "00000009.segment").write_bytes(b"xyz")
    done = await invoked("buffer", "verify", str(tmp_path))
    assert done.code == 0
    assert "aside/00000009.segment, 3 B" in done.out


async def test_verify_names_the_damaged_place(tmp_path: Path) -> None:
    """File, offset, size, and how many events were in it; exit code 1."""
    log = write(tmp_path)
    at = log.events(LIVE, EVENTS)
    log.events(LIVE, EVENTS)
    log.flip(at + 120)
    done = await invoked("buffer", "verify", str(tmp_path))
    assert done.code == 1
    assert f"{log.directory}: damaged, 8 events readable" in done.out
    assert f"! {log.path} at offset {at}, " in done.out
    assert "a record's body (3 events)" in done.out


async def test_verify_as_json(tmp_path: Path) -> None:
    """What is damaged, and where; quietly only damage is printed."""
    log = write(tmp_path)
    done = await invoked("buffer", "verify", str(tmp_path), "--output", "json")
    assert (done.code, json.loads(done.out)["damaged"]) == (0, False)
    done = await invoked("buffer", "verify", str(tmp_path), "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    at = log.events(LIVE, EVENTS)
    log.events(LIVE, EVENTS)
    log.flip(at + 120)
    done = await invoked("buffer", "verify", str(tmp_path), "--output", "json")
    report = json.loads(done.out)
    assert (done.code, report["damaged"], report["events"]) == (1, True, 8)
    (damage,) = report["directories"][0]["damage"]
    assert (damage["file"], damage["offset"]) == (str(log.path), at)
    done = await invoked("buffer", "verify", str(tmp_path), "--quiet")
    assert (done.code, done.out) == (1, "")
    assert f"! {log.path} at offset {at}, " in done.err


async def test_damage_that_a_daemon_has_dealt_with_is_only_mentioned(tmp_path: Path) -> None:
    """It was copied aside, with a note; its place in the segment stays until that is used again.
    Exit code 0.
    """
    log = write(tmp_path)
    at = log.events(LIVE, EVENTS)
    log.events(LIVE, EVENTS)
    log.flip(at + 120)
    aside = log.directory / "aside"
    aside.mkdir()
    (aside / f"20260101T000000.000000Z-segment-1-at-{at}.bytes").write_bytes(b"x")
    (aside / "README").write_text(
        f"20260101T000000.000000Z-segment-1-at-{at}.bytes: a record's body: 1 bytes\n"
    )
    done = await invoked("buffer", "verify", str(tmp_path))
    assert done.code == 0
    assert "(3 events), already quarantined" in done.out
    assert ".bytes, 1 B, " in done.out
    assert ": a record's body: 1 bytes" in done.out
    assert "README" not in done.out


async def test_verify_names_another_version(tmp_path: Path) -> None:
    """A file that this version can't read is not whole."""
    log = LogWriter(tmp_path, version=99)
    done = await invoked("buffer", "verify", str(tmp_path))
    assert done.code == 1
    assert f"{log.path}: it is of version 99" in done.out


async def test_export_writes_a_line_for_each_event(tmp_path: Path) -> None:
    """Each with its key, its kind and its own bytes; the message says that there are keys in it."""
    write(tmp_path)
    done = await invoked("buffer", "export", str(tmp_path))
    assert done.code == 0
    head = f'{{"api_key":"{KEY}","historical_migration":false,"batch":['
    past = f'{{"api_key":"{OTHER}","historical_migration":true,"batch":['
    assert done.out.splitlines() == [
        *(f"{head}{event.decode()}]}}" for event in EVENTS),
        *(f"{past}{event.decode()}]}}" for event in EVENTS[:2]),
    ]
    assert "5 events exported. Events contain project keys" in done.err


async def test_export_of_one_lane_to_a_file(tmp_path: Path) -> None:
    """The file is written whole, and never replaced unasked; a lane that isn't there is reported
    with those that are.
    """
    write(tmp_path / "state")
    out = tmp_path / "out.jsonl"
    arguments = (
        "buffer",
        "export",
        str(tmp_path / "state"),
        "--lane",
        lane_label(PAST),
        "--output",
        str(out),
    )
    done = await invoked(*arguments)
    assert (done.code, done.out) == (0, "")
    assert [json.loads(line)["api_key"] for line in out.read_text().splitlines()] == [OTHER, OTHER]
    again = await invoked(*arguments)
    assert again.code == 2
    assert "already exists" in again.err
    assert (await invoked(*arguments, "--force")).code == 0
    missing = await invoked(
        "buffer", "export", str(tmp_path / "state"), "--lane", "phc_…none#000000"
    )
    assert missing.code == 2
    assert lane_label(LIVE) in missing.err


async def test_an_export_that_leaves_something_out_says_so(tmp_path: Path) -> None:
    """What can't be read isn't in it: exit code 1."""
    log = write(tmp_path)
    log.flip(log.events(LIVE, EVENTS) + 120)
    log.events(LIVE, EVENTS[:1])
    done = await invoked("buffer", "export", str(tmp_path))
    assert done.code == 1
    assert len(done.out.splitlines()) == 6
    assert "can't be read (at least 3 events)" in done.err


async def test_line_breaks_between_tokens_do_not_end_a_line(tmp_path: Path) -> None:
    """An event that was sent over several lines is still one line, of the same length."""
    LogWriter(tmp_path).events(LIVE, [b'{\r\n "event": "a"\n}'])
    done = await invoked("buffer", "export", str(tmp_path))
    (line,) = done.out.splitlines()
    assert line.endswith('[{   "event": "a" }]}')
