"""The clock of a Mixpanel project: UTC, or for projects from before 2023 that of the project's zone, in epoch seconds too."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Raw

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.events import RecordRefused, RefusalReason
from forwarder.sources.imports.format import FormatContext, option
from forwarder.sources.imports.times import AFTER_LAST, MINUTE, parse_time

_EPOCH: Final = datetime(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ProjectClock:
    """How far a project's clock is ahead of UTC: always alike, or as in a zone with summer time."""

    time_offset: int = 0
    """Minutes."""
    zone: ZoneInfo | None = None
    """Instead of an offset. Of an hour that comes twice in autumn the first is meant: the export doesn't tell them apart."""

    def utc(self, value: Raw | bytes) -> int:
        """The microseconds since 1970, UTC, of a JSON value on this clock; texts with a zone of their own have no need of it.

        Raises `RecordRefused` (`NO_TIME`).
        """
        micros = parse_time(value)
        if not self.time_offset and self.zone is None:
            return micros
        if _says_zone(bytes(value), micros):
            return micros
        ahead = self.time_offset * MINUTE if self.zone is None else _ahead(self.zone, micros // MINUTE)
        if not 0 <= micros - ahead < AFTER_LAST:
            raise RecordRefused(RefusalReason.NO_TIME, "the time isn't of the years 1970 to 9999, once it is UTC")
        return micros - ahead


def _says_zone(value: bytes, micros: int) -> bool:
    """Whether a time is a text (and not an epoch's digits) that no offset moves."""
    if value[:1] != b'"' or value.strip(b'" ').replace(b".", b"", 1).isdigit():
        return False
    return parse_time(value, 1) == micros


@lru_cache(maxsize=4096)
def _ahead(zone: ZoneInfo, minute: int) -> int:
    """How many microseconds ahead of UTC a zone's clock is when it shows this minute."""
    shown = (_EPOCH + timedelta(minutes=minute)).replace(tzinfo=zone)
    return (shown.utcoffset() or timedelta()) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class ProjectZone:
    """What a user may say about a project's clock."""

    zone: str = option(
        "", "The project's zone, such as America/Los_Angeles, if its export is from before 2023 or has times of that zone.", metavar="ZONE"
    )

    def is_said(self, given: FormatContext) -> bool:
        """Whether it is known what a time without a zone means."""
        return bool(self.zone) or given.time_offset is not None

    def clock(self, given: FormatContext) -> ProjectClock:
        """The clock. Raises `ConfigurationError` for a zone that there isn't, and for one beside an offset."""
        if not self.zone:
            return ProjectClock(given.minutes)
        if given.time_offset is not None:
            message = "--zone can't be beside --time-offset: both say how far the project's clock is ahead"
            raise ConfigurationError(message, hint="Keep one of the two.")
        try:
            return ProjectClock(zone=ZoneInfo(self.zone))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            hint = "Write it as in the time zone database: America/Los_Angeles."
            raise ConfigurationError(f"--zone: there is no zone {self.zone!r}", hint=hint) from None
