"""Whether the events of an import are there: a manifest compared per UTC day with what a sandbox
or an export of the service holds.

A sandbox is asked page by page over one connection (docs/reference/sandbox.md). An export is files
of events, one object per row. Counts say how many events are missing or extra, digests whether
those that are there are the same. Only uuids are compared: they follow from the source's records,
and the service keeps them. Memory doesn't grow with the number of events: what was seen goes to a
file (`repeats`).
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct, field

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.proposals import proposed
from forwarder.core.secrets import mask_secrets
from forwarder.core.tls import https_context
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.import_books import DayTally, digest_hex, uuid_hash
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.report import ImportManifest
from forwarder.sources.imports.shards import ShardGaps
from forwarder.telemetry.readable import plural

JOB_PROPERTY: Final = "$import_job_id"
PAGE: Final = 10_000
"""Events per answer: the sandbox's maximum."""
TIMEOUT: Final = 120.0
"""Seconds for each answer: a sandbox may be busy with an import."""
_NONE: Final = msgspec.Raw(b"null")
_BYTES: Final = 16
"""Of a uuid's hash."""
_SANDBOX_HINT: Final = (
    "The service itself can't be asked for its events: export them, and name the files with "
    "`--export`."
)
_EXPORT_HINT: Final = (
    "Each row requires `uuid`, `timestamp` (ISO 8601) and `properties` (an object, or one as "
    "text), as in the service's batch "
    "exports of events: JSON lines or Parquet, compressed or not."
)
Body = TypeVar("Body")


class Unreachable(ForwarderError):
    """No sandbox answers."""

    code = "unreachable"


class StoredRow(Struct, frozen=True):
    """An event as the service has it."""

    uuid: str
    timestamp: str
    """ISO 8601; UTC where it names no zone."""
    properties: msgspec.Raw = _NONE
    """An object, or one as text, as exports of the service's tables have it."""

    def job(self) -> str | None:
        """The import that it says it is from."""
        raw = bytes(self.properties)
        raw = msgspec.json.decode(raw, type=str).encode() if raw.startswith(b'"') else raw
        properties = msgspec.json.decode(raw, type=_RowProperties | None)
        return None if properties is None else properties.job_id


class _RowProperties(Struct, frozen=True):
    job_id: str | None = field(default=None, name=JOB_PROPERTY)


class _StoredPage(Struct, frozen=True):
    """A page of the sandbox's `/sandbox/import-events`."""

    results: list[StoredRow]
    next: str | None
    """What the next page comes after; None: this is the last."""


class _Arrived(Struct, frozen=True):
    """What the sandbox counts of an import in one project."""

    api_key: str
    conflicts: int


class _ArrivedPage(Struct, frozen=True):
    """What the sandbox's `/sandbox/imports` says, by project."""

    results: list[_Arrived]


class StoredDays:
    """What the service holds of an import, by day.

    Each uuid counts once a day: the service removes repeats some time after it has accepted them,
    and shows them until then.
    """

    def __init__(self, seen: Repeats | None = None) -> None:
        """`seen` tells repeats; None: rows are known to be of different events, and
        only counted.
        """
        self.conflicts = 0
        """Events that came with the uuid of another one, as far as that is known."""
        self._seen = seen
        self._sums: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    @property
    def repeats(self) -> int:
        """Rows with a uuid that had been there on that day."""
        return 0 if self._seen is None else self._seen.repeats

    def add(self, uuid: str, timestamp: str) -> None:
        """Count an event. Raises ValueError if either isn't what it should be, and
        ConfigurationError if the file can't be written.
        """
        time = datetime.fromisoformat(timestamp)
        number = uuid_hash(uuid)
        try:
            at = (time if time.tzinfo in (None, UTC) else time.astimezone(UTC)).date()
        except OverflowError as error:
            raise ValueError(f"{timestamp} is outside the calendar") from error
        if self._seen is not None and self._seen.is_repeat(at.toordinal(), number.to_bytes(_BYTES)):
            return
        day = at.isoformat()
        self._sums[day] = self._sums.get(day, 0) + number
        self._counts[day] = self._counts.get(day, 0) + 1

    def days(self) -> dict[str, DayTally]:
        """Counts and digests by day."""
        return {
            day: DayTally(0, count, digest_hex(self._sums[day]))
            for day, count in sorted(self._counts.items())
        }


_decode_row: Final = msgspec.json.Decoder(StoredRow).decode


def read_exports(
    paths: Sequence[str],
    jobs: Collection[str] | None,
    options: ReadOptions,
    folder: Path,
    count_events: Callable[[int], None],
) -> StoredDays:
    """The events of these jobs, or with None of any, in these files; `folder` is for what memory
    can't hold.

    `count_events` is called with the number of its events, block by block. Raises
    `ConfigurationError` and `BrokenSource`: files that can't be read to their end prove nothing.
    """
    with Repeats(folder) as seen, open_source(paths, options) as source:
        stored = StoredDays(seen)
        for file in source.files():
            with source.blocks(file) as blocks:
                for block in blocks:
                    count = 0
                    for line, record in zip(block.lines, block.records, strict=False):
                        try:
                            row = _decode_row(record)
                            if jobs is None or row.job() in jobs:
                                stored.add(row.uuid, row.timestamp)
                                count += 1
                        except ValueError as error:  # msgspec's errors are, too
                            message = (
                                f"{blocks.name}:{line} is not an exported event: "
                                f"{error_text(error)}"
                            )
                            raise ConfigurationError(message, hint=_EXPORT_HINT) from error
                    count_events(count)
    return stored


def ask_sandbox(
    url: str, jobs: Collection[str], api_key: str, count_events: Callable[[int], None]
) -> StoredDays:
    """The events of these jobs in one project of a running sandbox; `count_events` is called with
    the number of events of each page.

    Raises `Unreachable`, and `ConfigurationError` if it is no sandbox, or has an import in several
    projects and none was named.
    """
    stored = StoredDays()
    with closing(_SandboxClient(url)) as client:
        for job in jobs:
            query = {"import": job, **({"api_key": api_key} if api_key else {})}
            projects = client.get(_ArrivedPage, "imports", query).results
            if len(projects) > 1:
                keys = ", ".join(project.api_key for project in projects)
                message = f"{client.url} has this import in several projects: {keys}"
                raise ConfigurationError(message, hint="Choose one by its key: `--api-key KEY`.")
            after = "" if projects else None
            stored.conflicts += sum(project.conflicts for project in projects)
            while after is not None:
                page = client.get(
                    _StoredPage, "import-events", {**query, "limit": str(PAGE), "after": after}
                )
                for row in page.results:
                    stored.add(row.uuid, row.timestamp)
                count_events(len(page.results))
                after = page.next
    return stored


class _SandboxClient:
    """One connection to a sandbox. To be closed."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        try:
            host = parts.hostname
            port = parts.port
        except ValueError:
            host = port = None
        if parts.scheme not in ("http", "https") or not host:
            raise ConfigurationError(
                f"{mask_secrets(url)!r} is not the address of a sandbox",
                hint="Write it as http://127.0.0.1:8322.",
            )
        self._connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=https_context())
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=TIMEOUT)
        )
        self._base = parts.path

    def get(self, kind: type[Body], name: str, query: Mapping[str, str]) -> Body:
        try:
            self._connection.request(
                "GET",
                f"{self._base}/sandbox/{name}?{urlencode(query)}",
                headers={"Accept": "application/json"},
            )
            with closing(self._connection.getresponse()) as response:
                status = response.status
                body = response.read()
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = error_text(error)
            raise Unreachable(
                f"no sandbox answers at {self.url}: {mask_secrets(why)}",
                hint=(
                    f"Start it with `{proposed('sandbox --database FILE')}`, or name its "
                    "address with `--sandbox URL`."
                ),
            ) from error
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Unreachable(f"{self.url} answers {status}", hint="Check its log, and try again.")
        if status == HTTPStatus.MISDIRECTED_REQUEST:
            why = body.decode(errors="replace").strip()
            raise ConfigurationError(
                f"{self.url} answers {status}: {why}", hint="Or name its address."
            )
        why = f"it answers {status}"
        try:
            if status == HTTPStatus.OK:
                return msgspec.json.decode(body, type=kind)
        except ValueError as error:  # msgspec's errors are, too
            why = f"its answer can't be read: {error_text(error)}"
        raise ConfigurationError(
            f"{self.url} is not a sandbox of this version: {why}", hint=_SANDBOX_HINT
        )

    def close(self) -> None:
        self._connection.close()


class DayComparison(Struct, frozen=True):
    """One day on both sides."""

    day: str
    expected: int
    found: int
    same: bool
    """As many, and the same uuids."""
    missing: int
    """At least so many aren't there."""
    extra: int
    """At least so many are there that the import didn't bring."""


class Verification(Struct, frozen=True):
    """How an import compares with what is there; as JSON, it is what machines get."""

    job: str
    same: bool
    """Whether every event is there, once, and no other."""
    complete: bool
    """Whether the import has come to its end."""
    repeats: int
    conflicts: int
    days: list[DayComparison]
    shards: ShardGaps | None = None
    """Of an import in shards."""

    def words(self) -> Iterator[str]:
        """The verdict, and a line for each day that isn't the same."""
        expected = sum(day.expected for day in self.days)
        present = sum(day.found for day in self.days)
        days = plural(len(self.days), "day")
        different = [day for day in self.days if not day.same]
        if different:
            differ = "differs" if len(different) == 1 else "differ"
            yield (
                f"{len(different):,} of {days} {differ}: {expected:,} events were delivered, "
                f"{present:,} are there"
            )
        else:
            yield (
                f"All {expected:,} events of {days} are there, by count and by digest of "
                "their uuids"
            )
        for day in different:
            if day.missing:
                yield f"{day.day}: {day.missing:,} of {day.expected:,} events are missing"
            elif day.extra:
                yield (
                    f"{day.day}: {plural(day.extra, 'event')} more than the "
                    f"{day.expected:,} that were delivered"
                )
            else:
                yield (
                    f"{day.day}: {plural(day.expected, 'event')}, as many as were "
                    "delivered, but not the same ones"
                )
        if self.conflicts:
            number = plural(self.conflicts, "conflict")
            yield (
                f"{number}: an event came with the uuid of another, so the service has both, "
                "or one instead of the other"
            )
        if self.repeats:
            yield (
                f"{self.repeats:,} rows repeat a uuid of their day: the service removes them "
                "some time later"
            )
        if self.shards is not None and any(day.missing for day in different):
            yield (
                "An event in the files of two shards is delivered by both, and is there once: "
                "here it counts as missing"
            )
        if not self.complete:
            yield (
                "The import isn't complete: what it had in flight when it ended may be there "
                "and isn't counted as delivered"
            )


def verify(
    manifest: ImportManifest, stored: StoredDays, shards: ShardGaps | None = None
) -> Verification:
    """Compare what was delivered with what is there, by day; `manifest` is that
    of all `shards` together.
    """
    there = stored.days()
    empty = DayTally()
    days = []
    for day in sorted(manifest.days.keys() | there.keys()):
        sent = manifest.days.get(day, empty)
        in_service = there.get(day, empty)
        if sent.delivered or in_service.delivered:
            same = (sent.delivered, sent.uuids) == (in_service.delivered, in_service.uuids)
            more = in_service.delivered - sent.delivered
            days.append(
                DayComparison(
                    day, sent.delivered, in_service.delivered, same, max(0, -more), max(0, more)
                )
            )
    same = not stored.conflicts and all(compared.same for compared in days)
    return Verification(
        manifest.job.id, same, manifest.complete, stored.repeats, stored.conflicts, days, shards
    )
