"""What differs between two configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forwarder.config.settings import Settings


def changed_keys(old: Settings, new: Settings) -> list[str]:
    """The dotted names of the keys whose values differ."""
    before, after = dict(_leaves(old.model_dump())), dict(_leaves(new.model_dump()))
    return [key for key, value in after.items() if before[key] != value]


def _leaves(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
