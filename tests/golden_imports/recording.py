"""One import by the command, against a service that remembers every event, and all that it leaves:
what a golden file holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from forwarder.cli.main import main
from tests.golden_imports.exports import EXPORTS
from tests.support.commands import Finished
from tests.support.upstream import OK, Answer, Request, Upstream, plain

KEY: Final = "phc_golden_imports_0001"
GOLDEN: Final = Path(__file__).parent / "golden"
ACCEPTED: Final = (
    "many-refused",
    "illegal-ids",
    "january-1970",
    "mixed-epochs",
    "overwrites-persons",
    "no-zone",
)
UNTIL: Final = "2024-06-01"
"""Unless a case says otherwise: by default it would be another moment in each run."""
REFUSED: Final = "refused"
"""The reason of what the service refuses."""
_SHORT: Final = 12
SOON: Final = {
    "FORWARDER_DELIVERY__RETRY__INITIAL": "10ms",
    "FORWARDER_DELIVERY__RETRY__MAX": "50ms",
}
"""A service that refuses everything at first is asked again."""
_UNSTABLE: Final = {"forwarder", "started", "ended", "seconds", "modified", "upstream"}
"""What depends on the moment, the machine or the version."""
_MESSAGES: Final = {"why", "detail"}
_WORDS: Final = {
    "sentence",
    "advice",
    "requests",
    "now",
    "format",
    "files",
    "unfit",
    "unfit_files",
    "unfit_records",
    "unchecked",
}
"""Of the analysis: words, how batches will be cut, and the moment."""


def short(data: bytes) -> str:
    """A digest of bytes, long enough to tell some thousand from each other."""
    return hashlib.sha256(data).hexdigest()[:_SHORT]


@dataclass(frozen=True, slots=True)
class SentEvent:
    """What is compared of an event beside its bytes."""

    uuid: str
    distinct_id: str
    timestamp: str

    @classmethod
    def read(cls, data: msgspec.Raw) -> SentEvent:
        """Of its JSON; native events keep their distinct_id where they have it."""
        event = msgspec.json.decode(data)
        who = next(
            distinct_id
            for distinct_id in (
                event.get("distinct_id"),
                event.get("$distinct_id"),
                event["properties"].get("distinct_id"),
            )
            if distinct_id
        )
        return cls(event["uuid"], str(who), str(event["timestamp"]))


class _Body(msgspec.Struct):
    api_key: str
    historical_migration: bool
    batch: list[msgspec.Raw]


_body: Final = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class RecordedBatch:
    """A request, and whether the service accepted it."""

    accepted: bool
    events: list[bytes]
    facts: list[SentEvent]

    @property
    def days(self) -> set[str]:
        """The UTC days of its events."""
        return {day_of(fact.timestamp) for fact in self.facts}


def day_of(timestamp: str) -> str:
    """The UTC day of a time as native events may have it."""
    if timestamp.isdigit():
        return datetime.fromtimestamp(int(timestamp) / 1000, UTC).date().isoformat()
    time = (
        parsedate_to_datetime(timestamp) if "," in timestamp else datetime.fromisoformat(timestamp)
    )
    return (time if time.tzinfo is None else time.astimezone(UTC)).date().isoformat()


def refuses(event: SentEvent) -> bool:
    """Whether the service refuses an event: about one of a hundred, whichever import sends it."""
    return int(event.uuid[-6:], 16) % 97 == 0


@dataclass(slots=True)
class RecordingService:
    """A service that refuses each request with an event that it `refuses`, and remembers all."""

    refuses: Callable[[SentEvent], bool] = refuses
    batches: list[RecordedBatch] = field(default_factory=list)
    url: str = ""
    failures: list[Exception] = field(default_factory=list)

    def answer(self, request: Request) -> Answer:
        """Accept or refuse a request as a whole. What it can't read is accepted, for the import to
        end, and raised then.
        """
        try:
            return self._answer(request)
        except Exception as error:
            self.failures.append(error)
            return OK

    def _answer(self, request: Request) -> Answer:
        body = _body(request.body)
        assert (body.api_key, body.historical_migration) == (KEY, True)
        facts = [SentEvent.read(raw) for raw in body.batch]
        accepted = not any(map(self.refuses, facts))
        self.batches.append(RecordedBatch(accepted, [bytes(raw) for raw in body.batch], facts))
        return OK if accepted else plain(400, "this event is refused here")

    @property
    def delivered(self) -> list[tuple[SentEvent, bytes]]:
        """The events of accepted requests, in the order of their arrival."""
        return [
            pair
            for batch in self.batches
            if batch.accepted
            for pair in zip(batch.facts, batch.events, strict=True)
        ]

    @property
    def by_id(self) -> dict[str, list[list[str]]]:
        """Of each distinct_id uuid, time and digest of its events in their order. An accepted
        event that is sent once more, the same, to find out whether the service refuses everything,
        counts once.
        """
        events: dict[str, dict[tuple[str, str, str], None]] = {}
        for fact, data in self.delivered:
            events.setdefault(fact.distinct_id, {})[fact.uuid, fact.timestamp, short(data)] = None
        return {who: [list(event) for event in sent] for who, sent in sorted(events.items())}

    @property
    def repeats(self) -> int:
        """How many events were accepted more than once."""
        return len(self.delivered) - sum(map(len, self.by_id.values()))


@contextlib.contextmanager
def recording(judge: Callable[[SentEvent], bool] = refuses) -> Iterator[RecordingService]:
    """A service on a loop and thread of its own: the command has this one, for its signals."""
    service = RecordingService(judge)
    loop = asyncio.new_event_loop()
    up = threading.Event()
    over = asyncio.Event()

    async def serve() -> None:
        async with Upstream(service.answer, keeps=False) as upstream:
            service.url = upstream.url
            up.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert up.wait(10.0)
        yield service
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10.0)
        loop.close()
    if service.failures:
        raise service.failures[0]


def command(*words: str | Path, env: Mapping[str, str] | None = None) -> Finished:
    """`forwarder` with these words, in this process."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("FORWARDER_")
    }
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = 0
    with (
        mock.patch.dict(os.environ, {**inherited, "COLUMNS": "200", **(env or {})}, clear=True),
        mock.patch.object(sys, "argv", ["forwarder", *map(str, words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as error:
            code = error.code
    return Finished(
        code if isinstance(code, int) else int(code is not None),
        *(stream.buffer.getvalue().decode() for stream in (out, err)),
    )


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """An import that is compared with its golden file."""

    export: str
    count: int
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its file."""
        return "_".join(
            [
                self.export,
                *(
                    option.strip("-").replace(":", "").replace(" ", "-").replace("$", "")
                    for option in self.options
                ),
            ]
        )


def _cases() -> Iterator[GoldenCase]:
    for export in EXPORTS:
        count = 300 if export in {"mapping-csv", "mixpanel-profiles"} else 620
        yield GoldenCase(export, count)
        if export != "mixpanel-profiles":  # always sorted
            yield GoldenCase(export, count, ("--sort",))
    small = 180
    for options in (
        ("--since", "2024-05-02"),
        ("--since", "2024-05-01T12:00:00Z", "--until", "2024-05-03", "--sort"),
        ("--event", "signed up", "--event", "$pageview"),
        ("--exclude-event", "$identify", "--exclude-event", "e"),
        ("--limit", "70"),
        ("--limit", "70", "--sort"),
        ("--person-properties", "none"),
        ("--person-properties", "history", "--sort"),
        ("--geoip",),
    ):
        yield GoldenCase("native", small, options)
    for export in ("amplitude", "mixpanel", "segment", "csv", "mapping"):
        yield GoldenCase(export, small, ("--person-properties", "none", "--geoip"))
        yield GoldenCase(
            export, small, ("--person-properties", "history", "--since", "2024-05-02", "--sort")
        )
        yield GoldenCase(export, small, ("--person-properties", "newest"))
        yield GoldenCase(export, small, ("--until", "2024-05-03T06:30:00Z", "--limit", "90"))


_OLDEST: Final = ("--person-properties", "oldest")
CASES: Final[Sequence[GoldenCase]] = tuple(_cases())


def run_case(case: GoldenCase, folder: Path) -> dict[str, Any]:
    """Import an export in a folder; all that a golden file has of it."""
    export = EXPORTS[case.export](case.count)
    export.write(folder)
    state = folder / "state"
    with recording() as service, contextlib.chdir(folder):
        done = command(
            "import",
            *export.words,
            "--until",
            UNTIL,
            *case.options,
            *(() if "--person-properties" in case.options else _OLDEST),
            *target(service, state),
            "--output",
            "json",
            env=SOON,
        )
    assert done.code in {0, 1}, done.err
    assert all(len(batch.days) == 1 for batch in service.batches), (
        "a batch has events of several days"
    )
    assert service.repeats <= sum(not batch.accepted for batch in service.batches), (
        "events were sent again"
    )
    report = json.loads(done.out)
    assert report == json.loads((state / "report.json").read_text())
    return {
        "sources": {name: short(content) for name, content in sorted(export.files.items())},
        "code": done.code,
        "events": service.by_id,
        "manifest": stable(json.loads((state / "manifest.json").read_text()), folder),
        "report": stable(report, folder),
        "preflight": stable(json.loads((state / "preflight.json").read_text()), folder, _WORDS),
        "letters": letters(state, folder),
    }


def without_messages(value: Any) -> Any:
    """The same without the words of why a record is refused; its reason stays."""
    if isinstance(value, dict):
        return {
            name: without_messages(part) for name, part in value.items() if name not in _MESSAGES
        }
    return [without_messages(part) for part in value] if isinstance(value, list) else value


def target(service: RecordingService, state: Path) -> tuple[str | Path, ...]:
    """Options of every import here."""
    accepted = [word for code in ACCEPTED for word in ("--accept", code)]
    return (
        "--upstream",
        service.url,
        "--api-key",
        KEY,
        "--state",
        state,
        "--rate",
        "unlimited",
        "--yes",
        *accepted,
    )


def stable(value: Any, folder: Path, unstable: set[str] | None = None) -> Any:
    """A document without what differs from run to run: times, versions, the service's address and
    the folder.

    Examples of what the service refuses are in the order in which it did; only how many there are
    is kept of them.
    """
    if isinstance(value, dict):
        members = {
            name: part
            for name, part in value.items()
            if name not in _UNSTABLE and name not in (unstable or ())
        }
        if isinstance(members.get("examples"), dict):
            examples = members["examples"]
            members["examples"] = {
                why: len(samples) if why == REFUSED else samples
                for why, samples in sorted(examples.items())
            }
        return {name: stable(part, folder, unstable) for name, part in members.items()}
    if isinstance(value, list):
        return [stable(part, folder, unstable) for part in value]
    return value.replace(f"{folder}/", "") if isinstance(value, str) else value


def letters(state: Path, folder: Path) -> list[dict[str, Any]]:
    """The dead letters of an import by their places."""
    with contextlib.closing(sqlite3.connect(state / "dead-letters.db")) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT * FROM letters ORDER BY sequence, idx").fetchall()
    names = (
        "sequence",
        "idx",
        "reason",
        "historical",
        "why",
        "source",
        "coordinates",
        "event",
        "distinct_id",
        "uuid",
        "mark",
        "note",
    )
    return [
        {name: stable(row[name], folder) for name in names}
        | {"attributes": stable(json.loads(row["attributes"]), folder), "data": short(row["data"])}
        for row in rows
    ]


def save(case: GoldenCase, recorded: dict[str, Any]) -> None:
    """Write a golden file: the same bytes each time."""
    text = json.dumps(recorded, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    (GOLDEN / f"{case.name}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def load(case: GoldenCase) -> dict[str, Any]:
    """Read it."""
    recorded: dict[str, Any] = json.loads(
        gzip.decompress((GOLDEN / f"{case.name}.json.gz").read_bytes())
    )
    return recorded
