"""docs/reference/stability.md: the versions of file formats are those of the program."""

from __future__ import annotations

import re

from forwarder.buffer.disk import format as segments
from forwarder.deadletter import schema as letters
from forwarder.sandbox.store import schema as sandbox
from forwarder.sources.imports import checkpoint, report
from forwarder.sources.logs import positions
from forwarder.storage import key_file
from tests.support.documents import sections, text_of


def test_the_page_has_the_version_of_each_format() -> None:
    """A new version of a format is a new row on the page, with what becomes of earlier files."""
    table = sections(text_of("stability"))["File formats"]
    assert [
        int(version) for version in re.findall(r"^\|[^|]+\| (\d+) \|", table, re.MULTILINE)
    ] == [
        segments.VERSION,
        letters.VERSION,
        key_file._VERSION,
        positions.VERSION,
        checkpoint.VERSION,
        report.VERSION,
        sandbox.VERSION,
    ]
