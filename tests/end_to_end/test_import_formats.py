"""Each vendor's export, by the command alone: all of it is there once, and what can't be is a dead
letter with file and line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.exports import EXPORTS, VendorExport
from tests.end_to_end.importing import RunningSandbox, forwarder_import, imported, manifest_of

ACCEPTED = [
    argument
    for code in ("many-refused", "illegal-merges", "january-1970", "mixed-epochs")
    for argument in ("--accept", code)
] + ["--person-properties", "oldest"]


@pytest.mark.parametrize("written", EXPORTS, ids=lambda writer: writer.__name__)
def test_an_export_is_imported_once_however_often(
    written: Callable[[Path], VendorExport], service: RunningSandbox, tmp_path: Path
) -> None:
    """What the sandbox has is what the manifest says; the same command does nothing more; another
    job sends the same bytes. The project key is in no output, and in no file
    but that of the dead letters.
    """
    export = written(tmp_path)
    key = f"phc_{written.__name__}_000001"
    command: tuple[str | Path, ...] = (export.form, *export.paths, *export.options, *ACCEPTED)
    done = imported(service, tmp_path / "state", *command, key=key)
    assert done.code == (1 if export.refused else 0), done.err
    manifest = manifest_of(tmp_path / "state")
    books = manifest.books
    assert manifest.complete
    assert not books.difference
    assert books.read > 500
    assert books.refused == export.refused
    assert manifest.events >= books.delivered > 400
    assert service.counts(manifest.job.id) == (manifest.events, 0, 0)
    requests = service.ask("requests?limit=1")["count"]

    again = imported(service, tmp_path / "state", *command, key=key)
    assert again.code == done.code
    assert "This import is complete" in again.err
    assert ": balanced" in done.out
    assert ": balanced" in again.out
    assert service.ask("requests?limit=1")["count"] == requests

    other = imported(service, tmp_path / "other", *command, key=key)
    assert other.code == done.code
    assert manifest_of(tmp_path / "other").books == books
    assert service.counts(manifest.job.id) == (manifest.events, manifest.events, 0)

    verified = forwarder_import("verify", "--state", tmp_path / "state", "--sandbox", service.url)
    assert verified.code == 0, verified.out

    assert key not in done.out + done.err + again.out + again.err
    files = {file.name: file.read_bytes() for file in (tmp_path / "state").iterdir()}
    assert files.keys() >= {"manifest.json", "report.html", "report.json", "preflight.json"}
    with_key = {name for name, content in files.items() if key.encode() in content}
    assert with_key <= {"dead-letters.db"}  # a dead letter is replayed with its key
