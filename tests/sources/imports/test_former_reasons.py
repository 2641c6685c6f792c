"""Reasons as earlier versions wrote them: what they have saved is read with today's words."""

from __future__ import annotations

from pathlib import Path

import msgspec

from forwarder.core.ports import Reason
from forwarder.sources.imports.checkpoint import (
    FILE,
    VERSION,
    FileCheckpoint,
    ImportCheckpoint,
    StateFolder,
    read_checkpoint,
    seal,
)
from forwarder.sources.imports.import_books import RecordBooks, RefusalExample
from forwarder.sources.imports.report import MANIFEST, manifest_of, read_manifest, write_reports
from tests.sources.imports.samples.manifests import JOB

FORMER = {
    "not_json": Reason.UNDECODABLE,
    "wrong_type": Reason.INVALID_EVENT,
    "no_event": Reason.MISSING_EVENT,
    "no_id": Reason.MISSING_DISTINCT_ID,
    "no_time": Reason.MISSING_TIMESTAMP,
    "illegal_id": Reason.ILLEGAL_DISTINCT_ID,
    "too_large": Reason.TOO_LARGE,
    "refused": Reason.REFUSED,
}


def saved(folder: Path) -> None:
    """A checkpoint of an interrupted import, as an earlier version wrote it."""
    books = RecordBooks(read=20, delivered=12)
    checkpoint = ImportCheckpoint(
        JOB, 1_700_000_000.0, 1_700_000_100.0, [], [FileCheckpoint("a", "5eed", books, 20)]
    )
    books.refused = dict.fromkeys(FORMER, 1)
    checkpoint.totals.examples = {reason: [RefusalExample("a", 1, "why")] for reason in FORMER}
    (folder / FILE).write_bytes(seal(VERSION, "checkpoint", checkpoint))
    assert b"not_json" in (folder / FILE).read_bytes()


def test_checkpoint_of_an_earlier_version_resumes_with_the_reasons_of_today(tmp_path: Path) -> None:
    """Its counts are those of the reasons that dead letters have, and so is what is saved next."""
    saved(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint.books.refused == dict.fromkeys(FORMER.values(), 1)
    assert set(checkpoint.totals.examples) == set(FORMER.values())
    checkpoint.files[0].books.add(RecordBooks(read=1, refused={"undecodable": 1}))
    assert checkpoint.books.refused["undecodable"] == 2
    folder = StateFolder(tmp_path)
    try:
        folder.save(checkpoint)
    finally:
        folder.close()
    assert not any(
        name.encode() in (tmp_path / FILE).read_bytes() for name in ("not_json", "no_id")
    )


def test_manifest_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Its books still balance."""
    saved(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint is not None
    write_reports(manifest_of(checkpoint), tmp_path)
    path = tmp_path / MANIFEST
    text = path.read_text()
    for former, today in FORMER.items():
        text = text.replace(f'"{today}"', f'"{former}"')
    path.write_text(text)
    assert read_manifest(path).books.refused == dict.fromkeys(FORMER.values(), 1)
    assert set(msgspec.json.decode(text)["examples"]) == set(FORMER)
