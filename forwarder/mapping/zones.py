"""Zones of times that name none."""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Final

from forwarder.mapping.problems import misconfigured

_OFFSET: Final = re.compile(r"([+-])(\d{2}):?(\d{2})", re.ASCII)


def zone_of(key: str, name: str) -> tzinfo:
    """The zone of a name such as Europe/Berlin, or of an offset such as +02:00. Raises `ConfigurationError`; `key` is its setting."""
    if name.upper() in ("UTC", "Z"):
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        sign, hours, minutes = offset.groups()
        distance = timedelta(hours=int(hours), minutes=int(minutes))
        if distance < timedelta(hours=24) and int(minutes) < 60:
            return timezone(-distance if sign == "-" else distance)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:  # OSError: the name of a folder
        if not zoneinfo.available_timezones():
            hint = "Install the system's tzdata (or Python's package tzdata), or write an offset such as +02:00."
            raise misconfigured(key, f"{name!r} can't be looked up: this machine has no data of zones", hint) from error
        hint = "Write a name such as Europe/Berlin, or an offset such as +02:00."
        raise misconfigured(key, f"{name!r} is no zone", hint) from error
