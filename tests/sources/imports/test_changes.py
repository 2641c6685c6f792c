"""Whether the files of a source are those that an import began with."""

from __future__ import annotations

import pytest

from forwarder.sources.imports.changes import ChangeKind, SourceContent, compare

THEN, LATER = 1_700_000_000_000_000_000, 1_700_000_060_000_000_000
LOCAL = SourceContent("a.json", 1000, "aa", THEN)
STORED = SourceContent("s3://b/a.json", 1000, "aa")
TIMES = "it was written at 2023-11-14T22:14:20.000Z, before at 2023-11-14T22:13:20.000Z"


def test_the_same_files_have_not_changed() -> None:
    """In whatever order they are found."""
    assert compare([LOCAL, STORED], [STORED, LOCAL]) == []


@pytest.mark.parametrize(
    ("now", "what", "words"),
    [
        (SourceContent("a.json", 1300, "bb", LATER), ChangeKind.CONTENT, f"a.json grew by 300 bytes, from 1,000 to 1,300; {TIMES}"),
        (SourceContent("a.json", 0, "bb", THEN), ChangeKind.CONTENT, "a.json shrank by 1,000 bytes, from 1,000 to 0"),
        (
            SourceContent("a.json", 1000, "bb", THEN),
            ChangeKind.CONTENT,
            "a.json has another beginning or end than before, and the same size",
        ),
        (SourceContent("a.json", 1000, "aa", LATER), ChangeKind.TOUCHED, f"a.json has the same size, beginning and end; {TIMES}"),
    ],
)
def test_a_local_file_that_changed_is_told_with_how(now: SourceContent, what: ChangeKind, words: str) -> None:
    """Size, beginning and end come before the time, which alone may be nothing."""
    [change] = compare([LOCAL], [now])
    assert (change.name, change.what, change.words) == ("a.json", what, words)


def test_a_stored_object_is_told_by_its_etag_and_size() -> None:
    """Where both changed, the size says more."""
    [change] = compare([STORED], [SourceContent("s3://b/a.json", 1000, "bb")])
    assert change.words == "s3://b/a.json has another content (of an object: another ETag) than before, and the same size"
    [change] = compare([STORED], [SourceContent("s3://b/a.json", 1001, "bb")])
    assert change.words == "s3://b/a.json grew by 1 byte, from 1,000 to 1,001"


def test_files_that_come_and_go_are_told() -> None:
    """A new one would have been read between others."""
    changes = compare([LOCAL], [SourceContent("b.json", 1, "cc")])
    assert [(change.name, change.what) for change in changes] == [("a.json", ChangeKind.GONE), ("b.json", ChangeKind.NEW)]
    assert "wasn't there when this import began" in changes[1].words
