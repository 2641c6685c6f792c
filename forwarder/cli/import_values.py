"""How single values are typed: times, offsets, rates, and names with a text. Each reader raises `ConfigurationError` in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.format import RecordRefused
from forwarder.sources.imports.times import parse_time

UNLIMITED: Final = "unlimited"
_OFFSET: Final = re.compile(r"([+-])(\d{1,2}):?(\d{2})", re.ASCII)
_UTC: Final = frozenset({"0", "z", "utc", "+0", "-0"})
_FASTEST: Final = 1_000_000


def moment(option: str, text: str) -> int:
    """Microseconds since 1970 of a date or a time; without a zone it is UTC."""
    try:
        return parse_time(text)
    except RecordRefused:
        hint = "Write a date, 2024-01-31, or a time, 2024-01-31T12:00:00Z: fixed ones, so that the same command means the same tomorrow."
        raise ConfigurationError(f"{option}: {text!r} is no time", hint=hint) from None


def time_offset(text: str) -> int:
    """Minutes ahead of UTC."""
    if text.strip().lower() in _UTC:
        return 0
    found = _OFFSET.fullmatch(text.strip())
    hours, minutes = (int(found[2]), int(found[3])) if found else (99, 0)
    if found is None or minutes > 59 or hours > 14:
        hint = "Write +02:00 for two hours ahead of UTC, -08:00 for eight behind, 0 for UTC."
        raise ConfigurationError(f"--time-offset: {text!r} is no offset", hint=hint)
    return (hours * 60 + minutes) * (-1 if found[1] == "-" else 1)


def rate(text: str) -> float | None:
    """Events a second; None for no limit."""
    if text.strip().lower() == UNLIMITED:
        return None
    try:
        found = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        found = math.nan
    if not 0 < found <= _FASTEST:
        raise ConfigurationError(f"--rate: {text!r} is no rate", hint="Write how many events a second, such as 2000, or `unlimited`.")
    return found


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Names with a text each. Nothing of a text is repeated: it may be a secret."""
    found = [text.partition("=") for text in texts]
    if any(not (name.strip() and equals) for name, equals, _ in found):
        raise ConfigurationError(f"{option}: it has no name and text with = between", hint=f"Write {option} region=eu-central-1.")
    return {name.strip(): value for name, _, value in found}


def character(option: str, text: str) -> str:
    """One character; a tab may be written as \\t."""
    found = "\t" if text in (r"\t", "tab") else text
    if len(found) != 1:
        raise ConfigurationError(f"{option}: {text!r} isn't one character", hint=f"Write {option} ';', or {option} '\\t' for a tab.")
    return found
