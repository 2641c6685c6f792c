"""The first mistakes of an import's user: each message says what happened, where, and what to do.
Nothing is sent, or left behind.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from forwarder.cli.imports import app
from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.source import open_source
from tests.golden_imports.exports import EXPORTS

KEY: Final = "phc_0123456789abcdefgh"
NATIVE: Final = b'{"event":"e","distinct_id":"u1","timestamp":"2024-01-01T00:00:00Z"}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an export, and what lies beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORWARDER_IMPORT__STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    for name, content in {
        "export/2024-01.jsonl": NATIVE,
        "export/2024-02.jsonl": NATIVE.replace(b"u1", b"u2"),
        "segment/calls.gz": EXPORTS["segment"](20).files["segment-logs/1714521600000/calls.1.gz"],
        "odd/notes.txt": b"read me\nplease\n",
        "hidden/.DS_Store": b"\0",
        "with space/notes.txt": b"read me\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def typed(*words: str) -> tuple[int, str]:
    """What the command answers: its exit code, and all that it shows."""
    result = CliRunner().invoke(app, [*words], env={"FORWARDER_UPSTREAM__URL": None})
    return result.exit_code, " ".join(result.output.split())


MISTAKES: Final[dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]]] = {
    "a path that is misspelled": (
        ("native", "exports", "--dry-run"),
        2,
        ("/exports: there is no such file or folder", "Did you mean", "/export?"),
    ),
    "a path that is misspelled, and no address": (
        ("native", "exports"),
        2,
        ("/exports: there is no such file or folder", "Did you mean", "/export?"),
    ),
    "a file that isn't there": (
        ("native", "export/may.gz", "--dry-run"),
        2,
        ("export/may.gz: there is no such file", "export has 2024-01.jsonl, 2024-02.jsonl."),
    ),
    "a folder that isn't there": (
        ("native", "a/b/c", "--dry-run"),
        2,
        ("a/b/c: there is no such file or folder", "has export, hidden"),
    ),
    "a pattern without a match": (
        ("native", "export/*.gz", "--dry-run"),
        2,
        ("export/*.gz: nothing matches", "export has 2024-01.jsonl, 2024-02.jsonl."),
    ),
    "a folder of hidden files": (
        ("native", "hidden", "--dry-run"),
        2,
        ("hidden: there is no file in it", "Hidden files are left out"),
    ),
    "a web address": (
        ("native", "https://example.com/export.zip", "--dry-run"),
        2,
        ("files aren't read over HTTP", "curl -sf ADDRESS | forwarder import FORMAT -"),
    ),
    "an unknown scheme": (
        ("native", "ftp://example.com/a", "--dry-run"),
        2,
        ("not the address of an object store", "Write s3://bucket/path"),
    ),
    "a format that is misspelled": (
        ("segmnt", "export"),
        2,
        ("Unknown format 'segmnt'", "Did you mean segment?", "mixpanel-profiles"),
    ),
    "no format": (
        ("segment/calls.gz", "--dry-run"),
        2,
        (
            "The format is missing before the path",
            "looks like Segment's logs",
            "Write: forwarder import segment segment/calls.gz --dry-run",
        ),
    ),
    "no format for a file of none": (
        ("odd", "--dry-run"),
        2,
        ("The format is missing", "Write: forwarder import FORMAT odd --dry-run"),
    ),
    "no format for a name with a space": (
        ("with space", "--dry-run"),
        2,
        ("Write: forwarder import FORMAT 'with space' --dry-run",),
    ),
    "another format": (
        ("mixpanel", "segment", "--dry-run"),
        1,
        (
            "No record of 1 file fits the format mixpanel: looks like Segment's logs.",
            "Try `forwarder import segment …`.",
            "nothing in these files",
        ),
    ),
    "other files beside the export": (
        ("native", "export", "odd", "--dry-run"),
        1,
        (
            "1 of 3 files is of another format than native",
            "text that is neither JSON nor a table",
            "--accept unfit-files",
        ),
    ),
    "no address": (
        ("native", "export", "--yes"),
        2,
        ("--upstream URL is missing", "`upstream.url` in the configuration"),
    ),
    "no key": (
        ("native", "export", "--upstream", "http://127.0.0.1:1", "--yes"),
        2,
        ("the project key is missing", "--api-key KEY"),
    ),
    "a key of a person": (
        (
            "native",
            "export",
            "--upstream",
            "http://127.0.0.1:1",
            "--api-key",
            "phx_0123456789abcdefgh",
        ),
        2,
        ("--api-key", "personal key", "project's key"),
    ),
    "an address without a scheme": (
        ("native", "export", "--upstream", "example.com"),
        2,
        ("--upstream", "write it as https://example.com"),
    ),
    "an address where nothing listens": (
        ("native", "export", "--upstream", "http://127.0.0.1:1", "--api-key", KEY, "--yes"),
        3,
        ("http://127.0.0.1:1 can't be reached", "Check the address, proxy and certificates."),
    ),
    "the same in a dry run": (
        ("native", "export", "--upstream", "http://127.0.0.1:1", "--api-key", KEY, "--dry-run"),
        0,
        (
            (
                "not checked: whether the service knows the project key: http://127.0.0.1:1 can't "
                "be reached"
            ),
            "Nothing was sent",
        ),
    ),
    "a relative time": (
        ("native", "export", "--since", "48h", "--dry-run"),
        2,
        ("--since: '48h' is not a time", "2024-01-31"),
    ),
    "a local date": (
        ("native", "export", "--until", "31/01/2024", "--dry-run"),
        2,
        ("--until: '31/01/2024' is not a time",),
    ),
    "times the wrong way around": (
        ("native", "export", "--since", "2024-02-01", "--until", "2024-01-01", "--dry-run"),
        2,
        ("--since 2024-02-01 is not before --until 2024-01-01",),
    ),
    "quiet hours without minutes": (
        ("native", "export", "--quiet-hours", "8-20", "--dry-run"),
        2,
        ("--quiet-hours: '8-20'", "22:00-06:00"),
    ),
    "a code that is misspelled": (
        ("native", "export", "--accept", "many_refused", "--dry-run"),
        2,
        ("Did you mean many-refused?",),
    ),
    "codes in one option": (
        ("native", "export", "--accept", "no-zone,illegal-ids", "--dry-run"),
        2,
        ("Write one each: --accept no-zone --accept illegal-ids.",),
    ),
    "state inside of the source": (
        ("native", "export", "--state", "export/state", "--dry-run"),
        2,
        ("the state folder export/state is in", "Give it a place elsewhere with `--state`."),
    ),
    "a mapping without rules": (
        ("mapping", "export", "--dry-run"),
        2,
        ("the format mapping has no rules", "--mapping FILE"),
    ),
    "one column for two things": (
        ("csv", "export", "--timestamp-column", "event", "--dry-run"),
        2,
        ("columns that are to be two things: event", "forwarder import csv --help"),
    ),
    "status without an import": (("status",), 1, ("there is no import in", "--state DIR")),
}


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_says_what_happened_where_and_what_to_do(
    words: tuple[str, ...], code: int, said: tuple[str, ...]
) -> None:
    """In one answer, with an exit code that tells wrong usage from a no."""
    exit_code, shown = typed(*words)
    assert [text for text in said if text not in shown] == [], shown
    assert exit_code == code
    assert "Traceback" not in shown


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(folder: Path) -> None:
    """Its name, and what to do."""
    (folder / "export/2024-01.jsonl").chmod(0)
    code, shown = typed("native", "export", "--dry-run")
    assert (
        code,
        "2024-01.jsonl: can't be read: Permission denied" in shown,
        "Make it readable" in shown,
    ) == (2, True, True)


def test_a_terminal_is_no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the command would wait in silence for someone to type one."""
    terminal: Any = io.BytesIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=terminal))
    with pytest.raises(
        ConfigurationError, match="-: standard input is a terminal, not an export"
    ) as raised:
        open_source(["-"])
    assert "Pipe the export into the command" in raised.value.hint
