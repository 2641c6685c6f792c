"""Exports that end before their end, in whole files: the import stops before anything is sent,
whatever format reads them and whatever packs them.
"""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from tests.end_to_end.importing import RunningSandbox, imported, manifest_of
from tests.support.cases import cases

_AT: Final = "2024-05-01T00:00:00Z"
_PLAIN: Final = {"event": "e", "distinct_id": "u1", "timestamp": _AT}
RECORDS: Final[dict[str, dict[str, Any]]] = {
    "native": _PLAIN,
    "posthog": {**_PLAIN, "team_id": 1},
    "mixpanel": {"event": "e", "properties": {"time": 1_714_521_600, "distinct_id": "u1"}},
    "mixpanel-profiles": {"$distinct_id": "u1", "$properties": {"$last_seen": _AT}},
    "amplitude": {"event_type": "e", "user_id": "u1", "event_time": "2024-05-01 00:00:00"},
    "segment": {"type": "track", "event": "e", "userId": "u1", "timestamp": _AT},
}
PACKED: Final[dict[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".br": brotli.compress,
}


def content_line(form: str) -> int:
    """Where the fifty-first record stands: a table has a header."""
    return 52 if form == "csv" else 51


def _check(service: RunningSandbox, path: Path, form: str, content: bytes, why: str) -> None:
    """It stops, names the code, and sends nothing; accepted, the whole records arrive."""
    key = f"phc_cut_{form.replace('-', '_')}_{path.name.replace('.', '_')}"
    folder = path.parent
    path.write_bytes(content)
    zone = ("--time-offset", "0") if form in ("csv", "mixpanel", "mixpanel-profiles") else ()
    command = (form, path, *zone, "--accept", "many-refused", "--person-properties", "none")
    stopped = imported(service, folder / "state", *command, key=key)
    assert stopped.code == 1
    shown = " ".join((stopped.out + stopped.err).split())
    assert f"isn't whole, line {content_line(form)}: {why}" in shown
    assert "--accept cut-off-files" in shown
    assert service.ask(f"events?api_key={key}")["count"] == 0
    done = imported(service, folder / "state", *command, "--accept", "cut-off-files", key=key)
    assert done.code == 1
    assert manifest_of(folder / "state").books.refused == {"undecodable": 1}
    assert service.ask(f"events?api_key={key}")["count"] == 50


def _numbered(form: str, number: int) -> bytes:
    record = json.loads(json.dumps(RECORDS[form]))
    inner = record.get("properties", record)
    inner["n"] = number
    for name in ("distinct_id", "$distinct_id", "user_id", "userId"):
        for where in (record, inner):
            if name in where:
                where[name] = f"u{number}"
    return json.dumps(record).encode()


@pytest.mark.parametrize("form", RECORDS)
@cases("end", PACKED)
def test_half_a_record_at_the_end_stops_it(
    service: RunningSandbox, tmp_path: Path, form: str, end: str
) -> None:
    """Also in a compressed file that is whole itself."""
    lines = [_numbered(form, number) for number in range(51)]
    content = b"\n".join([*lines[:50], lines[50][:31]])
    name = f"{form}.jsonl{end}"
    _check(service, tmp_path / name, form, PACKED[end](content), "its last record is cut off")


@cases("words", [b"\nterminated early", b'\n"terminated early"\n'])
def test_the_words_of_an_export_that_ended_early_stop_it(
    service: RunningSandbox, tmp_path: Path, words: bytes
) -> None:
    """As Mixpanel writes them below the last record."""
    content = b"\n".join([_numbered("mixpanel", number) for number in range(50)]) + words
    name = f"words{len(words)}.jsonl.gz"
    why = "it ends with the words 'terminated early'"
    _check(service, tmp_path / name, "mixpanel", gzip.compress(content), why)


@cases("last", ["e,u", 'e,u51,"2024-05'])
def test_half_a_row_at_the_end_stops_it(service: RunningSandbox, tmp_path: Path, last: str) -> None:
    """One with too few cells, or an open quote."""
    rows = "".join(f"e,u{number},{_AT}\n" for number in range(49))
    content = f"event,distinct_id,timestamp\n{rows}e,u50,{_AT}\n{last}".encode()
    why = "its last row is cut off"
    _check(service, tmp_path / f"rows{len(last)}.csv", "csv", content, why)


def test_a_whole_file_says_nothing(service: RunningSandbox, tmp_path: Path) -> None:
    """With or without a line end at its end, and with a bad record before the last."""
    lines = [_numbered("native", number) for number in range(300)]
    path = tmp_path / "whole.jsonl"
    path.write_bytes(b"\n".join([lines[0][:20], *lines]))
    done = imported(service, tmp_path / "state", "native", path, key="phc_whole_files_1")
    assert done.code == 1  # a record is refused
    assert "cut-off-files" not in done.out + done.err
