"""Whether the events of an import are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.format import ImportedEvent
from forwarder.sources.imports.import_books import DayTally, uuid_hash
from forwarder.sources.imports.report import ImportManifest
from forwarder.sources.imports.times import day_of, when
from forwarder.sources.imports.verification import StoredDays, read_exports, verify
from tests.sources.imports.samples.manifests import JOB, REJECTED, events, manifest
from tests.support.cases import cases

Event = ImportedEvent | FinishedEvent
DAYS = 4
MANIFEST = manifest(DAYS)


def delivered() -> list[Event]:
    """The events that the sample's manifest counts as delivered."""
    some = events(DAYS)
    return [event for event in some if event is not some[2]]  # the one that the service refused


def holding(some: Sequence[Event]) -> StoredDays:
    """A service that has these."""
    held = StoredDays()
    for event in some:
        held.add(event.uuid, when(event.time))
    return held


def held_of(lines: list[bytes], job: str | None, folder: Path) -> StoredDays:
    """What an export of these lines holds."""
    path = folder / "export.jsonl"
    path.write_bytes(b"\n".join(lines))
    return read_exports(
        [str(path)], None if job is None else [job], ReadOptions(), folder, lambda _: None
    )


def line(event: Event, **more: Any) -> bytes:
    """An event in an export of the service."""
    return json.dumps(
        {"uuid": event.uuid, "event": event.event, "timestamp": when(event.time), **more}
    ).encode()


def test_the_sample_refuses_one() -> None:
    """What this module's tests take as delivered is what the manifest says."""
    assert len(delivered()) == MANIFEST.events
    assert REJECTED.reason in MANIFEST.books.refused


def test_what_is_all_there_is_the_same() -> None:
    """By count and by digest, each day; what the service refused isn't missed."""
    verdict = verify(MANIFEST, holding(delivered()[::-1]))
    assert verdict.same
    assert [*verdict.words()] == [
        f"All {MANIFEST.events} events of 4 days are there, by count and by digest of their uuids"
    ]
    assert msgspec.json.encode(verdict).startswith(
        b'{"job":"11111111-2222-5333-8444-555555555555","same":true,'
    )


def test_missing_events_are_reported_by_day() -> None:
    """With how many of how many."""
    some = delivered()
    verdict = verify(MANIFEST, holding(some[:-2]))
    [day] = [comparison for comparison in verdict.days if not comparison.same]
    assert (day.day, day.missing, day.extra) == ("2024-01-04", 2, 0)
    total = MANIFEST.days["2024-01-04"].delivered
    assert [*verdict.words()] == [
        f"1 of 4 days differs: {len(some)} events were delivered, {len(some) - 2} are there",
        f"2024-01-04: 2 of {total} events are missing",
    ]


def test_extra_events_are_reported_by_day() -> None:
    """Also on a day that the import has nothing of."""
    more = ImportedEvent("x", "y", events(6)[-1].time, "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", {})
    verdict = verify(MANIFEST, holding([*delivered(), more]))
    assert not verdict.same
    assert [*verdict.words()][1:] == ["2024-01-06: 1 event more than the 0 that were delivered"]


def test_as_many_others_are_not_the_same() -> None:
    """That is what digests are for."""
    some = delivered()
    some[-1] = ImportedEvent("x", "y", some[-1].time, "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", {})
    verdict = verify(MANIFEST, holding(some))
    assert [
        (comparison.missing, comparison.extra) for comparison in verdict.days if not comparison.same
    ] == [(0, 0)]
    assert [*verdict.words()][1].endswith("as many as were delivered, but not the same ones")


def test_an_event_on_another_day_is_missing_here_and_too_many_there() -> None:
    """A wrong zone shows as a shift from day to day."""
    some = [
        ImportedEvent(event.event, event.distinct_id, event.time - 3_600_000_000, event.uuid, {})
        for event in delivered()
    ]
    verdict = verify(MANIFEST, holding(some))
    assert (verdict.days[0].day, verdict.days[0].expected) == ("2023-12-31", 0)
    assert verdict.days[-1].found == 0


def test_repeats_that_the_service_still_shows_are_not_too_many(tmp_path: Path) -> None:
    """They are counted apart, and said."""
    lines = [line(event) for event in delivered()]
    lines += [line(event, uuid=event.uuid.upper()) for event in delivered()[:3]]
    verdict = verify(MANIFEST, held_of(lines, None, tmp_path))
    assert verdict.same
    assert verdict.repeats == 3
    assert "3 rows repeat a uuid" in [*verdict.words()][1]


def test_an_export_of_the_service_is_read_row_by_row(tmp_path: Path) -> None:
    """Properties as an object or as text; rows of other imports, and live ones, aren't counted."""
    mine: list[Any] = [{"$import_job_id": JOB.id, "a": 1}, json.dumps({"$import_job_id": JOB.id})]
    lines = [
        line(event, properties=mine[place % 2], extra=[1])
        for place, event in enumerate(delivered())
    ]
    lines += [
        line(delivered()[0], properties={"$import_job_id": "another"}),
        line(delivered()[0], properties=None),
    ]
    lines += [line(delivered()[0]), line(delivered()[0], properties="null")]
    assert verify(MANIFEST, held_of(lines, JOB.id, tmp_path)).same
    assert held_of(lines, JOB.id, tmp_path).repeats == 0
    assert held_of(lines, None, tmp_path).repeats == 4


def test_a_conflict_is_a_difference() -> None:
    """The service would keep both, so it isn't the same, though every event is there."""
    held = holding(delivered())
    held.conflicts = 2
    verdict = verify(MANIFEST, held)
    assert not verdict.same
    assert [*verdict.words()][1].startswith("2 conflicts: ")
    assert json.loads(msgspec.json.encode(verdict))["conflicts"] == 2


def test_an_import_that_is_not_complete_says_so() -> None:
    """What was in flight when it ended may be there."""
    verdict = verify(manifest(DAYS, ended=False), holding(delivered()))
    assert verdict.same
    assert "isn't complete" in [*verdict.words()][-1]
    assert json.loads(msgspec.json.encode(verdict))["complete"] is False


@cases(
    "wrong",
    [
        b'{"uuid": "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"}',
        b'{"uuid": 5, "timestamp": "2024-01-01T00:00:00Z"}',
        b'{"uuid": "no uuid", "timestamp": "2024-01-01T00:00:00Z"}',
        b'{"uuid": "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "timestamp": "yesterday"}',
        (
            b'{"uuid": "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "timestamp": '
            b'"9999-12-31T23:59:59-12:00"}'
        ),
        b'{"uuid": "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "timest',
        b"\xff\xfe",
    ],
)
def test_a_row_that_is_none_is_an_error(tmp_path: Path, wrong: bytes) -> None:
    """An export that can't be read verifies nothing."""
    with pytest.raises(ConfigurationError, match=r"export\.jsonl:2 is not an exported event: ."):
        held_of([line(delivered()[0]), wrong], None, tmp_path)


@cases(
    ("timestamp", "day"),
    [
        ("2024-01-01 23:59:59.999999", "2024-01-01"),
        ("2024-01-01T23:59:59.999Z", "2024-01-01"),
        ("2024-01-01T23:59:59.999-01:00", "2024-01-02"),
        ("2024-01-01T00:30:00+01:00", "2023-12-31"),
    ],
)
def test_days_are_those_of_utc(timestamp: str, day: str) -> None:
    """In whatever zone a row was written; without one it is UTC."""
    held = StoredDays()
    held.add("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", timestamp)
    assert list(held.days()) == [day]


def of(some: Sequence[Event]) -> ImportManifest:
    """The sample's manifest, with these delivered instead."""
    days: dict[str, DayTally] = {}
    for event in some:
        days.setdefault(day_of(event.time), DayTally()).add(1, 1, uuid_hash(event.uuid))
    return ImportManifest(
        **{
            **{name: getattr(MANIFEST, name) for name in MANIFEST.__struct_fields__},
            "days": days,
            "events": len(some),
        }
    )


@settings(deadline=None, max_examples=40)
@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_the_same_is_said_only_of_the_same(sent: set[int], there: set[int]) -> None:
    """Whatever is missing or too many, the verdict is that of the two sets, and each day's that of
    its part.
    """

    def made(numbers: set[int]) -> list[ImportedEvent]:
        return [
            ImportedEvent("x", "y", number * 21_600_000_000, f"{number:032x}", {})
            for number in sorted(numbers)
        ]

    verdict = verify(of(made(sent)), holding(made(there)))
    assert verdict.same == (sent == there)
    for comparison in verdict.days:
        date = datetime.fromisoformat(comparison.day).replace(tzinfo=UTC)
        first = (date - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(hours=6)
        mine = [
            {number for number in side if first <= number < first + 4} for side in (sent, there)
        ]
        assert comparison.same == (mine[0] == mine[1])
        assert comparison.missing <= len(mine[0] - mine[1])
        assert comparison.extra <= len(mine[1] - mine[0])
