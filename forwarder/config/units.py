"""Sizes, times and numbers as people write them: `20MB`, `16MiB`, `500ms`, `1h`, `10k`. Formatting
and parsing of sizes and times are each other's inverse.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

SIZES: Final = {
    "TiB": 1024**4,
    "TB": 1000**4,
    "GiB": 1024**3,
    "GB": 1000**3,
    "MiB": 1024**2,
    "MB": 1000**2,
    "KiB": 1024,
    "kB": 1000,
    "B": 1,
}
"""Bytes in a unit. Powers of 1000 without the i, of 1024 with it."""

TIMES: Final = {
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
"""Seconds in a unit."""

_TIME_WORDS: Final = {
    **dict.fromkeys(("msec", "msecs", "millis", "millisecond", "milliseconds"), "ms"),
    **dict.fromkeys(("sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("day", "days"), "d"),
}
"""Units of time that aren't known, and the known ones that they mean."""

NEVER: Final = "never"

_COMMA: Final = ", as it holds a comma"

_NUMBER: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,40})?)\s*([A-Za-z]*)\s*", re.ASCII)
_FOLDED_SIZES: Final = {unit.lower(): factor for unit, factor in SIZES.items()}
_SHORT_SIZES: Final = {
    unit.lower().removesuffix("b"): factor for unit, factor in SIZES.items() if "i" in unit
}
"""Units that are known without their B: `64Mi`, as Kubernetes writes it. `64M` is ambiguous."""
_MANY: Final = re.compile(
    r"\s*(\d[\d_]{0,17}(?:\.\d{1,40})?(?:[eE]\d{1,2})?)\s*([kKM]?)(\s*/\s*s)?\s*", re.ASCII
)
_FACTORS: Final = {"": 1, "k": 1000, "K": 1000, "M": 1_000_000}


def _parts(text: str) -> tuple[Decimal, str] | None:
    match = _NUMBER.fullmatch(text)
    return (Decimal(match[1]), match[2].lower()) if match else None


def parse_size(text: str | int) -> int:
    """Bytes. A plain number is bytes already; only the i distinguishes the units, in either case
    (`20mb` is `20MB`).

    Raises `ValueError`, saying how to write it.
    """
    parts = _parts(str(text))
    if isinstance(text, bool) or parts is None:
        raise ValueError(
            f"{text!r} is not a size{_COMMA if ',' in str(text) else ''}: write it as 20MB, 16MiB "
            "or a number of bytes"
        )
    number, unit = parts
    factor = _FOLDED_SIZES.get(unit or "b") or _SHORT_SIZES.get(unit)
    if factor is None:
        raise ValueError(
            f"{text!r} has no unit of size that is known: {_suggest_size(number, unit)}"
        )
    size = number * factor
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_number(text: str, *, per_second: bool = False) -> Decimal | None:
    """A number such as `20000`, `20_000`, `20e3`, `20k` or `1.5M`, and `20k/s` of what is counted
    `per_second`; None if it is none.
    """
    match = _MANY.fullmatch(text)
    if match is None or (match[3] and not per_second):
        return None
    return Decimal(match[1].strip("_").replace("_", "")) * _FACTORS[match[2]]


def _suggest_size(number: Decimal, unit: str) -> str:
    """How to write a size whose unit isn't known."""
    letter = unit[0]
    if letter == "b":
        return f"write {number} for bytes"
    if letter not in "kmgt":
        return "use one of B, kB, KiB, MB, MiB, GB, GiB, TB, TiB"
    return (
        f"write {number}{'k' if letter == 'k' else letter.upper()}B (powers of 1000) or "
        f"{number}{letter.upper()}iB (of 1024)"
    )


def format_size(size: int) -> str:
    """The size in the largest unit that divides it: `20MB`, `64MiB`, else plain bytes."""
    for unit, factor in SIZES.items():
        if factor > 1 and size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def parse_duration(text: str | float) -> float:
    """Seconds. A unit is needed, except for 0, so that no one mistakes milliseconds for seconds.

    Raises `ValueError`, saying how to write it.
    """
    parts = _parts(str(text))
    if isinstance(text, bool) or parts is None:
        raise ValueError(
            f"{text!r} is not a time{_COMMA if ',' in str(text) else ''}: write one number with "
            "its unit, as 30s or 5m"
        )
    number, unit = parts
    if not unit and number:
        raise ValueError(
            f"{text!r} has no unit of time: write {text}s for seconds or {text}ms for milliseconds"
        )
    factor = TIMES.get(unit or "s")
    if factor is None:
        raise ValueError(
            f"{text!r} has no unit of time that is known: {_suggest_time(number, unit)}"
        )
    return float(number * factor)


def _suggest_time(number: Decimal, unit: str) -> str:
    """How to write a time whose unit isn't known."""
    if unit in _TIME_WORDS:
        return f"write {number}{_TIME_WORDS[unit]}"
    return f"write {number * 7}d" if unit in {"w", "week", "weeks"} else "use one of ms, s, m, h, d"


def format_duration(seconds: float | None) -> str:
    """The time in the largest unit that divides it: `30s`, `5m`, `500ms`; None is `never`."""
    if seconds is None:
        return NEVER
    exact = Decimal(repr(seconds))
    if not exact:
        return "0s"
    for unit, factor in TIMES.items():
        if exact % factor == 0:
            return f"{int(exact / factor)}{unit}"
    return f"{exact:f}s"
