"""Lanes that share one limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LanePool:
    """How many lanes of the pool the buffer holds, and what they count for against its limit, in bytes."""

    bytes: int = 0
    lanes: int = 0
