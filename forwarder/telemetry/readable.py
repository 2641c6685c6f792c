"""Figures as a person reads them: sizes and durations, in pages, tables and log lines; and lines
of other programs.
"""

from __future__ import annotations

import re
from typing import Final

from forwarder.core.secrets import mask_secrets
from forwarder.telemetry.snapshot import LaneSnapshot

_EXCERPT: Final = 200
_CUT_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s\"'<>]+$")
"""What may be a user and a password of which the end is missing."""


def size(count: float) -> str:
    """Bytes, for a person: `12.3 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def duration(seconds: float) -> str:
    """Seconds, for a person: `1d 2h`, `3m 4s`."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        amount, left = divmod(left, length)
        if amount or (unit == "s" and not parts):
            parts.append(f"{amount}{unit}")
    return " ".join(parts[:2])


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun: `1 record`, `2,000 records`; `many` where the
    plural isn't made by an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def relative(moment: float, now: float) -> str:
    """A moment as seen from now, both in seconds since 1970, in one unit: `now`, `12s ago`,
    `in 3h`, `5 months ago`.

    `pages/ago.js` says the same in a browser.
    """
    seconds = abs(int(now - moment))
    if not seconds:
        return "now"
    unit, length = next(entry for entry in _UNITS if seconds >= entry[1])
    amount = seconds // length
    words = f"{amount}{unit}" if len(unit) == 1 else plural(amount, unit)
    return f"{words} ago" if now > moment else f"in {words}"


_UNITS: Final = (
    ("year", 31_557_600),
    ("month", 2_629_800),
    ("d", 86400),
    ("h", 3600),
    ("m", 60),
    ("s", 1),
)


def halt_times(lane: LaneSnapshot, now: float) -> str:
    """How long the lane is halted and when it is probed next, for a person:
    `, for 1h 5m, next probe in 12s`; empty if not known.
    """
    if lane.halted_since is None or lane.next_probe is None:
        return ""
    return (
        f", for {duration(now - lane.halted_since)}, next probe in "
        f"{duration(lane.next_probe - now)}"
    )


def plain(text: str) -> str:
    """A text from outside without what a terminal would obey, and without what can't be encoded."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text
    )


def line_excerpt(line: bytes, key: str = "") -> str:
    """At most 200 bytes of a line of another program, as they may be shown anywhere: without
    secrets, this key among them, and what a terminal obeys.

    A longer one ends with `…`. A line that was cut before may end within a secret, so it isn't
    shorter than 200 bytes then.
    """
    text = line[:_EXCERPT].decode(errors="replace").replace("\t", " ")
    if len(line) >= _EXCERPT:
        text = _CUT_CREDENTIALS.sub("…", text.rstrip("\N{REPLACEMENT CHARACTER}"))
    shown = mask_secrets(plain(text), key)
    encoded = shown.encode()
    whole = len(encoded) <= _EXCERPT and len(line) <= _EXCERPT
    return shown if whole else encoded[: _EXCERPT - 3].decode(errors="ignore") + "…"
