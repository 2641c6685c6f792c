"""Hours in which an import rests, by the clock on somebody's wall: `22:00-06:00`, or `08:30-18:00 Europe/Berlin`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forwarder.core.errors import ConfigurationError

_FORM: Final = re.compile(r"\s*(\d\d?):(\d\d)\s*-\s*(\d\d?):(\d\d)(?:\s+(\S+))?\s*", re.ASCII)
_MINUTE: Final = 60


@dataclass(frozen=True, slots=True)
class QuietHours:
    """From a time of the day until another; over midnight if that one is earlier."""

    start: time
    end: time
    zone: tzinfo | None = None
    """None: the machine's."""

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """As people write them. Raises `ConfigurationError`."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise _unusable(text, "it isn't of that form")
        try:
            start, end = time(int(found[1]), int(found[2])), time(int(found[3]) % 24, int(found[4]))
        except ValueError as error:
            raise _unusable(text, "there is no such time") from error
        if start == end or int(found[3]) > 24 or (int(found[3]) == 24 and end.minute):
            raise _unusable(text, "it begins where it ends" if start == end else "there is no such time")
        return cls(start, end, _zone(text, found[5]))

    def quiet(self, moment: float) -> bool:
        """Whether the wall shows a time within them, at a moment in seconds since 1970."""
        shown = datetime.fromtimestamp(moment, self.zone).time()
        if self.start < self.end:
            return self.start <= shown < self.end
        return shown >= self.start or shown < self.end

    def next_allowed(self, moment: float) -> float:
        """This moment if it isn't quiet, else the next minute that isn't.

        Minute by minute, because no arithmetic survives the nights in which clocks are changed; a day has only 1,440 of them.
        """
        if not self.quiet(moment):
            return moment
        minute = (moment // _MINUTE + 1) * _MINUTE
        while self.quiet(minute):
            minute += _MINUTE
        return minute


def _zone(text: str, name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise _unusable(text, f"there is no zone {name!r}") from error


def _unusable(text: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"--quiet-hours: {text!r} can't be used: {why}",
        hint="Write them as 22:00-06:00, of this machine's zone, or as 22:00-06:00 Europe/Berlin.",
    )
