"""Batches of records as a source hands them over, and an intake that accepts them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forwarder.core.event import Ack, Chunk, Lane
from forwarder.core.record_intake import RecordFacts, RejectedRecord
from forwarder.intake.fan_out import Branch
from forwarder.intake.source_intake import SourceIntake
from tests.support.intakes import KEY, IntakeRig

PLACE = "kafka/events/0"
AT = 1_767_225_600.123
"""When the records were written: 2026-01-01T00:00:00.123Z."""


@dataclass
class RecordList:
    """Neighbouring records of one partition, from `offset` on."""

    values: Sequence[bytes]
    api_key: str | None = KEY
    rejected: Sequence[RejectedRecord] = ()
    offset: int = 0
    at: float | None = AT
    distinct_id: str | None = None
    header_key: str | None = None
    """The project key that each record's header names."""
    foreign: bool = False
    facts_read: list[int] = field(default_factory=list)
    """The indexes of the records whose facts were read."""

    def facts(self, index: int) -> RecordFacts:
        self.facts_read.append(index)
        return RecordFacts(
            f"{PLACE}/{self.offset + index}", self.at, self.header_key, self.distinct_id
        )

    def names(self, indexes: Sequence[int]) -> list[str]:
        return [self.facts(index).name for index in indexes]

    def times(self, indexes: Sequence[int]) -> list[float | None]:
        return [self.facts(index).at for index in indexes]

    def attributes(self, index: int) -> str:
        return json.dumps(
            {
                "topic": "events",
                "partition": 0,
                "offset": self.offset + index,
                "key": None,
                "headers": [],
            }
        )


class IdleDelivery:
    """A delivery that has no events, and its halts: those of `halted_lanes`."""

    def __init__(self) -> None:
        self.halted_lanes: dict[Lane, float] = {}
        """When each was halted, wall-clock seconds."""

    def withdraw(self, acks: Collection[Ack], lane: Lane | None = None) -> list[Chunk]:
        return []

    def halted_since(self) -> Mapping[Lane, float]:
        return self.halted_lanes


@dataclass
class RecordsRig(IntakeRig):
    """An intake for records beside one for requests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delivery = IdleDelivery()
        branch = Branch(self.admission, self.delivery, self.delivery)
        self.records = SourceIntake(self.gate, [branch], source="kafka")


def record_list(*records: Any, **more: Any) -> RecordList:
    """Neighbouring records: bytes as they are, anything else as JSON."""
    return RecordList(
        [
            record if isinstance(record, bytes) else json.dumps(record).encode()
            for record in records
        ],
        **more,
    )
