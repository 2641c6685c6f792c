"""Records of several kinds in one source, each with rules of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forwarder.mapping.mapping import Mapping
from forwarder.mapping.problems import Unmappable


class EventMapping(Protocol):
    """Makes events of records."""

    def map_record(self, data: bytes, time: float | None = None, /) -> bytes | None:
        """The event of a record, or an array of events; None if it is left out. Raises
        `Unmappable`.
        """


class MappingCases:
    """Mappings of which each record meets the first whose `where` holds."""

    def __init__(self, cases: Sequence[Mapping]) -> None:
        self._cases = cases

    def map_record(self, data: bytes, time: float | None = None) -> bytes | None:
        """An array is `Unmappable`, as its objects may be of several kinds."""
        if len(self._cases) > 1 and data.lstrip()[:1] == b"[":
            raise Unmappable("the record is an array; the cases need an object")
        for mapping in self._cases:
            event = mapping.map_record(data, time)
            if event is not None:
                return event
        return None
