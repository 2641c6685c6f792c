"""`forwarder dead-letters` on the letters of an import: file and line, repairing what isn't JSON,
and when they go.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.sources.imports.checkpoint import FILE, VERSION, ImportCheckpoint, ImportJob, seal
from forwarder.sources.imports.preflight_report import PREFLIGHT
from forwarder.storage.directory import LockedDirectory
from tests.cli.test_dead_letters import invoke
from tests.daemon.lettered import bury, opened, refused
from tests.deadletter.rig import query
from tests.support.documents import text_of

CUT = b'{"event":"sign up","text":"\xff'
JOB = ImportJob("0190a0a0-0000-5000-8000-000000000000", "mixpanel", "/data/export")
DOCUMENT = text_of("repair-imports")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The state folder of an import with two refused records."""
    path = tmp_path / "mixpanel-0011aabb"
    path.mkdir()
    (path / FILE).write_bytes(seal(VERSION, "checkpoint", ImportCheckpoint(JOB, 1.0, 2.0, [])))

    async def fill() -> None:
        async with opened(path) as letters:
            await bury(
                letters,
                [
                    refused(16, CUT),
                    refused(20, b'{"event":"sign up","time":"x"}', why=Reason.MISSING_TIMESTAMP),
                ],
            )

    asyncio.run(fill())
    return path


def test_ls_has_file_and_line(state: Path) -> None:
    """Instead of the lane, which is the same for all; the end of a long
    path, which has the line.
    """
    query(
        state,
        "UPDATE letters SET coordinates = ? WHERE number = 2",
        ("/" + "long/" * 30 + "a.json:21",),
    )
    lines = invoke("ls", "--path", str(state)).output.splitlines()
    assert "where" in lines[0]
    assert "long/a.json:21" in lines[1]
    assert "missing_timestamp" in lines[1]
    assert "export/a.json.gz:17" in lines[2]


def test_show_has_the_record(state: Path, tmp_path: Path) -> None:
    """Bytes that are no text are shown as such; `--raw` has them as they were read, to
    be repaired.
    """
    output = invoke("show", "1", "--path", str(state)).output
    assert "export/a.json.gz:17" in output
    assert "16" in next(line for line in output.splitlines() if line.strip().startswith("record "))
    assert "\\xff" in output
    file = tmp_path / "raw"
    file.write_bytes(invoke("show", "1", "--path", str(state), "--raw").stdout_bytes)
    assert file.read_bytes() == CUT


def test_what_a_terminal_would_obey_is_shown(state: Path) -> None:
    """A record is anybody's bytes, and a file anybody's name."""
    query(
        state,
        "UPDATE letters SET data = ?, coordinates = ?, why = ?",
        (b'{"a":"\x1b[2J"}', "a\x1b.json:1", "no\x1b"),
    )
    for output in (
        invoke("show", "1", "--path", str(state)).output,
        invoke("ls", "--path", str(state)).output,
    ):
        assert "\x1b" not in output
        assert "\\u001b" in output


def test_what_jq_can_not_read(state: Path) -> None:
    """The message says what it isn't, and how to replace it by hand."""
    result = invoke("replay", "1", "2", "--edit", ".time = 1", "--yes", "--path", str(state))
    assert result.exit_code == 1
    assert "1: jq: it isn't text in UTF-8: byte 0xff" in result.output
    assert f"`forwarder dead-letters show --raw 1 --path {state} > FILE`" in result.output
    assert f"`forwarder dead-letters replay --with FILE 1 --path {state}`" in result.output
    assert query(state, "SELECT count(mark) FROM letters") == [(0,)]


def test_a_file_in_a_records_place(state: Path, tmp_path: Path) -> None:
    """It is kept beside the record, and sent by the next run, which is named."""
    mended = tmp_path / "mended.json"
    mended.write_text('{"event":"sign up"}\n')
    result = invoke("replay", "1", "--with", str(mended), "--yes", "--path", str(state))
    assert result.exit_code == 0
    assert query(state, "SELECT data, replacement, mark FROM letters WHERE number = 1") == [
        (CUT, b'{"event":"sign up"}', "replay")
    ]
    assert "1 dead letter marked; no import runs" in result.output
    assert "forwarder import mixpanel /data/export …" in result.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--all", "--with", "{file}"], "--with: 2 dead letters match"),
        (["1", "--with", "{file}", "--edit", "."], "--edit and --with exclude each other"),
        (["1", "--with", "{file}.not"], "can't be read"),
        (["1", "--rate", "5"], "at its own rate"),
    ],
)
def test_what_can_not_be_meant(state: Path, tmp_path: Path, args: list[str], words: str) -> None:
    """Nothing is changed."""
    file = tmp_path / "mended.json"
    file.write_text("{}")
    error = invoke(
        "replay", *[arg.format(file=file) for arg in args], "--yes", "--path", str(state)
    ).exception
    assert isinstance(error, ConfigurationError)
    assert words in error.message
    assert query(state, "SELECT count(mark) FROM letters") == [(0,)]


def test_while_the_import_runs(state: Path) -> None:
    """No one waits for it: it sends them at its end, which may be in days."""
    running = LockedDirectory.acquire(state, "--state")
    try:
        result = invoke("replay", "2", "--edit", ".time = 1", "--yes", "--path", str(state))
    finally:
        running.release()
    assert (result.exit_code, "the running import sends them" in result.output) == (0, True)


def test_a_checkpoint_that_can_not_be_read_hides_nothing_else(state: Path) -> None:
    """Which command it was isn't known then."""
    (state / FILE).write_text("{")
    result = invoke("replay", "2", "--yes", "--path", str(state))
    assert result.output.rstrip().endswith("they are sent when its command runs again")


def test_the_reasons_are_documented() -> None:
    """Those that a format gives are dead letters' reasons, each with what to repair."""
    section = DOCUMENT.partition("\n## What can be repaired\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| .+ \|$", section, re.MULTILINE)
    assert {Reason(row) for row in rows} == {
        Reason.UNDECODABLE,
        Reason.INVALID_EVENT,
        Reason.MISSING_EVENT,
        Reason.MISSING_DISTINCT_ID,
        Reason.MISSING_TIMESTAMP,
        Reason.ILLEGAL_DISTINCT_ID,
        Reason.TOO_LARGE,
        Reason.UNMAPPABLE,
        Reason.RULE_FAILED,
    }


def test_an_import_that_has_not_sent_anything(tmp_path: Path) -> None:
    """It has no letters; its folder is no mistake."""
    (tmp_path / PREFLIGHT).write_text("{}")
    result = invoke("ls", "--path", str(tmp_path))
    assert (result.exit_code, "No dead letters" in result.output) == (0, True)


def test_letters_for_programs(state: Path) -> None:
    """Where each was, as an object."""
    document = json.loads(invoke("ls", "--path", str(state), "--output", "json").output)
    attributes = document["results"][1]["attributes"]
    assert (attributes["holds"], attributes["record"], document["results"][1]["coordinates"]) == (
        "record",
        16,
        "export/a.json.gz:17",
    )
