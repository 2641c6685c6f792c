"""Frees what was fetched and is thrown away: the answers of a broker for a partition that is paused, or that goes to another member.

The client's records of a partition and the generator that unpacks them refer to each other. Those that were not read to their end
would stay until a search for garbage finds them, and the daemon searches seldom: up to `max_partition_fetch_bytes` a partition and pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher

_Unpacking = fetcher.PartitionRecords


class Fetched:
    """Stands before the client's records of one partition (`aiokafka.consumer.fetcher.PartitionRecords`); they go when it goes."""

    __slots__ = ("_unpacking",)

    def __init__(self, *args: Any, **named: Any) -> None:
        self._unpacking = _Unpacking(*args, **named)

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._unpacking  # itself, for this is asked of each record
        return found

    def __next__(self) -> Any:
        return next(self._unpacking)

    def __del__(self) -> None:
        unpacking = getattr(self, "_unpacking", None)
        if unpacking is not None:
            unpacking._records_iterator = None

    @property
    def next_fetch_offset(self) -> int:
        """The offset after the last record that was handed over."""
        offset: int = self._unpacking.next_fetch_offset
        return offset


def free_what_is_thrown_away() -> None:
    """Let the client, in the whole process, put its records behind these. Any number of calls does it once."""
    fetcher.PartitionRecords = Fetched
