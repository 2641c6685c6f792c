"""A source with everything that can be wrong with one, and one that is as it should be."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import RecordLocation
from forwarder.sources.imports.format import RecordRefused
from tests.sources.imports.preflights import (
    DAY,
    NOW,
    OLD,
    SECOND,
    PreflightRecord,
    event,
    refused,
    seen,
)

ZONE = b'{"timestamp":"2023-11-14T22:13:20Z"}'


def good() -> Iterator[PreflightRecord]:
    """Two hundred events of nine days, in order."""
    for number in range(200):
        one = event(number, event="bought" if number % 5 == 0 else "seen")
        yield seen(one, line=number + 1, record=ZONE)


def odd() -> Iterator[PreflightRecord]:
    """Every finding that doesn't depend on the terms."""
    yield from good()
    yield seen(
        event(1, event="[red]odd[/red]\x1b[2J", time=OLD),
        line=201,
        record=b'{"timestamp":"2023-11-14 22:13:20","k":"phc_0123456789"}',
    )
    yield seen(event(300, time=NOW + DAY), line=202, record=b'{"timestamp":1780086400}')
    yield seen(event(301, time=NOW - DAY), line=203, record=b'{"timestamp":1779913600000}')
    yield seen(event(302, time=20 * DAY), line=204, record=b'{"timestamp":1728000}')
    yield seen(
        event(303, keyed=True, time=OLD), event(303, keyed=True, time=OLD), line=205, record=ZONE
    )
    yield seen(
        event(
            304,
            time=OLD + 9 * DAY,
            properties={"$set": Raw(b"{}"), "$anon_distinct_id": Raw(b'"a"')},
        ),
        line=206,
        record=ZONE,
    )
    changing = {"$unset": Raw(b"[]"), "$group_set": Raw(b"{}")}
    yield seen(
        event(305, time=OLD + 9 * DAY, properties=changing), line=1, file="b.json", record=ZONE
    )
    yield seen(line=2, file="b.json", record=ZONE)
    yield PreflightRecord(RecordLocation("b.json", 3), ZONE, (event(306),), (b"x" * 1_000_001,))
    for line, (why, detail) in enumerate(REFUSALS, 4):
        yield PreflightRecord(RecordLocation("b.json", line), b"{", RecordRefused(why, detail))


REFUSALS = (
    (
        Reason.ILLEGAL_DISTINCT_ID,
        "the id 'nil' is one that many share: a merge by it can't be undone",
    ),
    (
        Reason.ILLEGAL_DISTINCT_ID,
        "the id 'nil' is one that many share: a merge by it can't be undone",
    ),
    (
        Reason.ILLEGAL_DISTINCT_ID,
        "the id 'Blank' is one that many share: a merge by it can't be undone",
    ),
    (Reason.MISSING_DISTINCT_ID, "there is no id"),
    (Reason.MISSING_TIMESTAMP, "'soon' can't be read as a time"),
    (Reason.UNDECODABLE, "the record isn't a JSON object: truncated"),
)


def few_refused() -> Iterator[PreflightRecord]:
    """One bad record in two hundred and one."""
    yield from good()
    yield refused(Reason.UNDECODABLE, "cut off", 201)


def two_files(first: int = 5, second: int = 1) -> Iterator[PreflightRecord]:
    """Two files, each in order, of days in this order."""
    for file, day in (("b.json", first), ("a.json", second)):
        for number in range(3):
            yield seen(
                event(number, time=OLD + day * DAY + number * SECOND, uuid=f"{file}{number}"),
                file=file,
                record=ZONE,
            )
