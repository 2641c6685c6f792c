"""Which import a request is: whether the source and the options are the
same, and the job's identity.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob, SourceContent
from forwarder.sources.imports.job import OtherJob, check_same, compare, job_id
from tests.support.cases import cases

JOB = ImportJob(
    "11111111-2222-5333-8444-555555555555", "mixpanel", "export/*.json", {"since": "2020-01-01"}
)
THEN = 1_700_000_000_000_000_000
LATER = 1_700_000_060_000_000_000
LOCAL = SourceContent("a.json", 1000, "aa", THEN)
STORED = SourceContent("s3://b/a.json", 1000, "aa")
TIMES = "it was written at 2023-11-14T22:14:20.000Z, before at 2023-11-14T22:13:20.000Z"


def test_the_same_files_have_not_changed() -> None:
    """In whatever order they are found."""
    assert compare([LOCAL, STORED], [STORED, LOCAL]) == []


@cases(
    ("now", "words"),
    [
        (
            SourceContent("a.json", 1300, "bb", LATER),
            f"a.json grew by 300 bytes, from 1,000 to 1,300; {TIMES}",
        ),
        (SourceContent("a.json", 0, "bb", THEN), "a.json shrank by 1,000 bytes, from 1,000 to 0"),
        (
            SourceContent("a.json", 1000, "bb", THEN),
            "a.json has another beginning or end than before, and the same size",
        ),
    ],
)
def test_a_changed_local_file_is_reported_with_its_change(now: SourceContent, words: str) -> None:
    """Where the size changed, it says more than the content."""
    assert compare([LOCAL], [now]) == [words]


def test_a_file_that_was_only_written_again_is_the_same() -> None:
    """Its time alone means nothing."""
    assert compare([LOCAL], [SourceContent("a.json", 1000, "aa", LATER)]) == []


def test_a_stored_object_is_identified_by_its_etag_and_size() -> None:
    """Where both changed, the size says more."""
    [change] = compare([STORED], [SourceContent("s3://b/a.json", 1000, "bb")])
    assert change == (
        "s3://b/a.json has another content (of an object: another ETag) than before, and "
        "the same size"
    )
    [change] = compare([STORED], [SourceContent("s3://b/a.json", 1001, "bb")])
    assert change == "s3://b/a.json grew by 1 byte, from 1,000 to 1,001"


def test_added_and_removed_files_are_reported() -> None:
    """A new one would have been read between others."""
    changes = compare([LOCAL], [SourceContent("b.json", 1, "cc")])
    assert changes == ["a.json is gone", "b.json is new: it wasn't there when this import began"]


@cases(
    ("job", "words"),
    [
        (
            msgspec.structs.replace(JOB, format="segment"),
            "its format is 'mixpanel', now it is 'segment'",
        ),
        (
            msgspec.structs.replace(JOB, source="other"),
            r"its source is 'export/\*.json', now it is 'other'",
        ),
        (
            msgspec.structs.replace(JOB, options={"since": "2021-01-01"}),
            "`--since` was '2020-01-01', now it is '2021-01-01'",
        ),
        (
            msgspec.structs.replace(JOB, options={"geoip": "on"}),
            "`--geoip` was not said, now it is 'on'; `--since` was",
        ),
        (
            msgspec.structs.replace(JOB, id="another"),
            "its id is 11111111-.*, now it is another: what the source holds",
        ),
    ],
)
def test_another_job_is_refused_with_what_differs(job: ImportJob, words: str) -> None:
    """Its records would be counted in the middle of these."""
    with pytest.raises(OtherJob, match=words) as caught:
        check_same(Path("state"), ImportCheckpoint(JOB, 1.5, 2.5, [LOCAL]), [LOCAL], job)
    assert "--state" in caught.value.hint


OPTIONS = {"person_properties": "set_once", "geoip": False, "since": None}
SOURCES = ["aa", "bb"]


def test_it_never_changes() -> None:
    """The same import has this id in every version and on every machine: it stands on events that
    can't be deleted.
    """
    assert job_id("mixpanel", OPTIONS, SOURCES) == "a1c2bfb2-4549-5ae9-95be-f9a4a9a3ecbe"
    assert UUID(job_id("mixpanel", OPTIONS, SOURCES)).version == 5


def test_order_and_options_that_arent_set_make_no_difference() -> None:
    """Neither the order of options nor that of files matters, and an option without a value is as
    good as absent.
    """
    expected = job_id("mixpanel", OPTIONS, SOURCES)
    assert (
        job_id("mixpanel", {"geoip": False, "person_properties": "set_once"}, ["bb", "aa"])
        == expected
    )
    assert job_id("mixpanel", dict(reversed(OPTIONS.items())), iter(SOURCES)) == expected


@cases(
    ("format_name", "options", "sources"),
    [
        ("amplitude", OPTIONS, SOURCES),
        ("mixpanel", {**OPTIONS, "geoip": True}, SOURCES),
        ("mixpanel", {**OPTIONS, "time_offset": 0}, SOURCES),
        ("mixpanel", OPTIONS, ["aa"]),
        ("mixpanel", OPTIONS, ["aa", "bb", "bb"]),
        ("mixpanel", OPTIONS, ["aabb"]),
    ],
)
def test_whatever_differs_makes_another_job(
    format_name: str, options: dict[str, object], sources: list[str]
) -> None:
    """Another format, option or file is another job."""
    assert job_id(format_name, options, sources) != job_id("mixpanel", OPTIONS, SOURCES)


def test_options_are_json() -> None:
    """What can't be written the same everywhere is no option."""
    with pytest.raises(TypeError):
        job_id("mixpanel", {"events": {"a", "b"}}, SOURCES)
    with pytest.raises(ValueError, match="JSON"):
        job_id("mixpanel", {"rate": float("nan")}, SOURCES)
