"""Refused records of an import, repaired and replayed, all the way: the format's, the service's,
and those that are refused again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from structlog.testing import capture_logs

from forwarder.config.load import load_settings
from forwarder.core.clock import SystemClock
from forwarder.daemon.imports import ImportRun
from forwarder.sources.imports.format import ChosenFormat, FormatContext, NoOptions
from forwarder.sources.imports.formats.catalog import BY_NAME
from forwarder.sources.imports.import_books import digest_hex, uuid_hash
from forwarder.sources.imports.job import ImportRequest
from forwarder.sources.imports.report import ImportManifest
from forwarder.storage.directory import DEAD_LETTERS
from tests.daemon.lettered import mark, rows
from tests.support.upstream import OK, Answer, Request, Upstream, plain

KEY = "phc_imports12345678"
DAYS = ("2024-01-01", "2024-01-02")


def record(number: int, **changes: object) -> bytes:
    """A record that is good unless it is changed."""
    day = DAYS[number % len(DAYS)]
    fields = {
        "event": "seen",
        "distinct_id": f"u{number}",
        "timestamp": f"{day}T00:00:{number:02}Z",
        "properties": {},
        **changes,
    }
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def refusing(request: Request) -> Answer:
    """A service that takes no event of the name `bad`."""
    return plain(400, "bad events are refused") if "bad" in request.names else OK


def delivered_by_number(upstream: Upstream) -> dict[str, bytes]:
    """The events of the requests that were answered with 200, by uuid."""
    events = [
        event
        for request in upstream.requests
        if refusing(request) is OK
        for event in request.events
    ]
    by_uuid = {str(event["uuid"]): msgspec.json.encode(event) for event in events}
    assert len(by_uuid) == len(events)
    return by_uuid


def opened(source: Path, state: Path, upstream: Upstream) -> ImportRun:
    """The import, opened."""
    settings = load_settings(None, {"FORWARDER_UPSTREAM__URL": upstream.url}).settings
    form = BY_NAME["native"]
    chosen = ChosenFormat("native", {}, lambda _: form.make(NoOptions(), FormatContext()))
    return ImportRun(
        ImportRequest(chosen, (str(source),), settings, KEY, state=state, rate=None), SystemClock()
    )


async def run(source: Path, state: Path, upstream: Upstream) -> ImportManifest:
    """One run of an import that has something to do."""
    with contextlib.closing(opened(source, state, upstream)) as job, capture_logs():
        assert not job.is_complete
        return await job.run(lambda _: None)


def figures(manifest: ImportManifest) -> tuple[int, Mapping[str, int], int]:
    """Records delivered, refused by reason, and repaired."""
    return manifest.books.delivered, manifest.books.refused, manifest.books.repaired


def digests(events: Mapping[str, bytes]) -> dict[str, tuple[int, str]]:
    """What the service holds, as a manifest says it: by day how many, and their digest."""
    by_day: dict[str, tuple[int, int]] = {}
    for uuid, data in events.items():
        day = msgspec.json.decode(data)["timestamp"][:10]
        count, total = by_day.get(day, (0, 0))
        by_day[day] = count + 1, total + uuid_hash(uuid)
    return {day: (count, digest_hex(total)) for day, (count, total) in sorted(by_day.items())}


def numbers(state: Path) -> Sequence[tuple[int, str]]:
    """The letters that are there, by the lines of their records."""
    return [
        (number, where.rpartition(":")[2]) for number, where in rows(state, "number, coordinates")
    ]


def edited(state: Path, number: int, **changes: object) -> bytes:
    """A letter's event with other members."""
    with contextlib.closing(sqlite3.connect(state / DEAD_LETTERS)) as connection:
        (data,) = connection.execute(
            "SELECT data FROM letters WHERE number = ?", (number,)
        ).fetchone()
    return msgspec.json.encode({**msgspec.json.decode(data), **changes})


async def test_repaired_records_arrive(tmp_path: Path) -> None:
    """Each run sends what is marked, and counts it; what is refused again stays. In the end all is
    there once, as the manifest says.
    """
    records = [record(number) for number in range(20)]
    records[3] = records[3][:30]
    records[5] = record(5, timestamp=None)
    records[7] = record(7, event="bad")
    records[9] = b'{"batch":[%b,%b,%b]}' % (
        record(9),
        record(30, distinct_id=None),
        record(31, event="bad"),
    )
    source = tmp_path / "a.jsonl"
    state = tmp_path / "state"
    source.write_bytes(b"\n".join(records))
    async with Upstream(refusing) as upstream:
        first = await run(source, state, upstream)
        assert first.complete
        assert figures(first)[::2] == (16, 0)
        assert sum(first.books.refused.values()) == 4
        assert sorted(line for _, line in numbers(state)) == ["10", "10", "4", "6", "8"]
        letter = {line: number for number, line in numbers(state) if line != "10"}
        mark(
            state, {letter["4"]: record(3), letter["6"]: record(5, event="bad"), letter["8"]: None}
        )
        second = await run(source, state, upstream)
        assert figures(second) == (16, first.books.refused, 1)
        assert (
            dict(rows(state, "number, note"))[letter["8"]]
            == "the service refused it again: HTTP 400: bad events are refused"
        )
        letters = numbers(state)
        assert sorted(line for _, line in letters) == ["10", "10", "6", "8"]
        good = {
            number: edited(state, number, event="seen", distinct_id="somebody")
            for number, _ in letters
        }
        mark(state, good)
        third = await run(source, state, upstream)
        there = delivered_by_number(upstream)
        with contextlib.closing(opened(source, state, upstream)) as job:
            assert job.is_complete
    assert figures(third) == (16, first.books.refused, 4)
    assert (third.books.unrepaired, rows(state)) == (0, [])
    assert len(there) == third.events == 22
    assert {day: (counts.delivered, counts.uuids) for day, counts in third.days.items()} == digests(
        there
    )
    assert all(day.source == day.delivered for day in third.days.values())
    assert third.names == {"seen": 22}
