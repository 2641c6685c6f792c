"""Manifests as imports of some days leave them, with something of everything."""

from __future__ import annotations

from uuid import UUID

from forwarder.sources.imports.checkpoint import (
    FileCheckpoint,
    ImportCheckpoint,
    ImportJob,
    SourceContent,
)
from forwarder.sources.imports.columns import FinishedEvent
from forwarder.sources.imports.import_books import (
    FateKind,
    ImportTotals,
    RecordBooks,
    RecordFate,
    RefusalExample,
    count_kind,
    uuid_hash,
)
from forwarder.sources.imports.report import ImportManifest, manifest_of

NAMES = ["$pageview", "sign up", "<script>alert(1)</script>", "Ünïcode 名前", "$identify"]
BEGINNING = 1_704_067_200_000_000
"""2024-01-01, in microseconds."""
STARTED = 1_750_000_000.0
JOB = ImportJob(
    "11111111-2222-5333-8444-555555555555",
    "mixpanel",
    "export/*.json.gz",
    {"until": "2025-06-13", "person-properties": "oldest"},
)
REJECTED = RecordFate(
    FateKind.REFUSED,
    "rejected_400",
    RefusalExample("export/0.json.gz", 3, 'the service said "no" & more'),
)


def events(days: int) -> list[FinishedEvent]:
    """Some of each day, more of them in the middle of each week, one of them
    the service's to refuse.
    """
    made = []
    for day in range(days):
        for place in range(3 + (day * 7919 % 5 if day % 7 < 5 else 0)):
            number = day * 100 + place
            time = BEGINNING + day * 86_400_000_000 + place * 1_000_000
            made.append(
                FinishedEvent(
                    time,
                    f"u{number}",
                    NAMES[number * 31 % len(NAMES)],
                    str(UUID(int=number * 7919)),
                    b"",
                    0,
                    1,
                    number,
                )
            )
    return made


def manifest(days: int, *, ended: bool = True) -> ImportManifest:
    """Of an import of two files, with refusals, what was left out, and repeats."""
    return manifest_of(checkpoint(days, ended=ended), STARTED + 3 * 3600)


def checkpoint(days: int, *, ended: bool = True) -> ImportCheckpoint:
    """The last one of that import."""
    totals = ImportTotals()
    files = []
    some = events(days)
    for index in range(2):
        name = f"export/{index}.json.gz"
        mine = [event for place, event in enumerate(some) if place % 2 == index]
        books = RecordBooks(read=len(mine) + 4, delivered=len(mine))
        fates = [
            RecordFate(
                FateKind.REFUSED,
                "missing_timestamp",
                RefusalExample(name, 17, "there is no `time`"),
            ),
            RecordFate(
                FateKind.REFUSED,
                "illegal_distinct_id",
                RefusalExample(name, 18, "the id is 'null'"),
            ),
            RecordFate(FateKind.LEFT_OUT, "--exclude-event"),
            RecordFate(FateKind.REPEAT),
        ]
        if index == 0 and mine:
            refused = mine.pop(1)
            totals.day(refused.day).source += 1
            books.delivered -= 1
            fates.insert(0, REJECTED)
        for event in mine:
            totals.day(event.day).add(1, 1, uuid_hash(event.uuid))
            totals.named({event.event: 1})
            totals.spans(event.time, event.time)
        for fate in fates:
            count_kind(books, fate)
            if fate.example is not None:
                totals.example(fate.reason, fate.example)
        assert not books.difference
        files.append(
            FileCheckpoint(name, "ab" * 16, books, books.read, books.read, "00ff" * 16, ended)
        )
    prints = [
        SourceContent("export/0.json.gz", 123456, "5eed"),
        SourceContent("export/1.json.gz", 234567, "5eed"),
    ]
    return ImportCheckpoint(JOB, STARTED, STARTED, prints, files, totals, exhausted=True)
