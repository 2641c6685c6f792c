"""Figures as a person reads them: sizes and durations, in pages, tables and log lines."""

from __future__ import annotations


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
