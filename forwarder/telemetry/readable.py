"""Figures as a person reads them: sizes and durations, in pages, tables and log lines."""

from __future__ import annotations

from forwarder.telemetry.snapshot import LaneSnapshot


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


def halt_times(lane: LaneSnapshot, now: float) -> str:
    """How long the lane is halted and when it is probed next, for a person: `, for 1h 5m, next probe in 12s`; empty if not known."""
    if lane.halted_since is None or lane.next_probe is None:
        return ""
    return f", for {duration(now - lane.halted_since)}, next probe in {duration(lane.next_probe - now)}"
