"""What was measured, as far as capacity is planned with it: the same figures as in
docs/maintainers/figures.md ("For planning").

Events per CPU-second are those of one core at full load, without any reserve.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from forwarder.config.section import MB
from forwarder.daemon import memory

BODY_EVENTS: Final = (1, 50, 1000)
"""Events in the bodies that were measured."""


class WorkKind(StrEnum):
    """What is done with an event. Each case but the first has one difference from the first."""

    PLAIN = "memory buffer, no compression"
    GZIP = "gzip towards the service"
    DISK = "disk buffer"
    ORDERED = "order by distinct_id"
    ADDRESSED = "`$ip` added"
    UNSTAMPED = "uuid and timestamp added"


class MeasuredQuantity(StrEnum):
    """Other figures."""

    EVENT_BYTES = "bytes of an event over HTTP"
    RECORD_BYTES = "bytes of a record in Kafka"
    DRAINED = "events per CPU-second when a backlog on disk is delivered, no compression"
    IMPORTED = "events per CPU-second of the whole import `native`, gzip"
    LOOKED_AT = "records per CPU-second of an import's preflight"
    GZIP_PERCENT = "percent of a body that gzip leaves"
    MEMORY = "MB of memory of a process beside its buffer, at most"
    KAFKA_MEMORY = "MB of memory more with a Kafka source"
    SUPERVISOR_MEMORY = "MB of memory of the supervisor of several workers"
    IMPORT_MEMORY = "MB of memory of an import, at most"


HTTP: Final[Mapping[WorkKind, tuple[int, int, int]]] = {
    WorkKind.PLAIN: (63_800, 481_000, 709_000),
    WorkKind.GZIP: (61_700, 350_000, 525_000),
    WorkKind.DISK: (39_600, 381_000, 626_000),
    WorkKind.ORDERED: (62_200, 387_000, 552_000),
    WorkKind.ADDRESSED: (24_200, 321_000, 416_000),
    WorkKind.UNSTAMPED: (43_900, 289_000, 405_000),
}
"""Events per CPU-second over HTTP, by the bodies of `BODY_EVENTS`."""

KAFKA: Final[Mapping[WorkKind, int]] = {
    WorkKind.PLAIN: 316_000,
    WorkKind.GZIP: 288_000,
    WorkKind.DISK: 296_000,
    WorkKind.ORDERED: 297_000,
    WorkKind.UNSTAMPED: 217_000,
}
"""Events per CPU-second from Kafka, one event in a record."""

IMPORTS: Final[Mapping[str, int]] = {
    "native": 197_000,
    "posthog": 76_000,
    "amplitude": 66_400,
    "mixpanel": 67_100,
    "segment": 81_600,
    "csv": 69_900,
    "mapping": 53_700,
}
"""Events per CPU-second of an import by its format, from the file to the batch."""

OTHER: Final[Mapping[MeasuredQuantity, int]] = {
    MeasuredQuantity.EVENT_BYTES: 600,
    MeasuredQuantity.RECORD_BYTES: 510,
    MeasuredQuantity.DRAINED: 564_000,
    MeasuredQuantity.IMPORTED: 132_000,
    MeasuredQuantity.LOOKED_AT: 60_400,
    MeasuredQuantity.GZIP_PERCENT: 20,
    MeasuredQuantity.MEMORY: memory.PROCESS // MB,
    MeasuredQuantity.KAFKA_MEMORY: memory.KAFKA // MB,
    MeasuredQuantity.SUPERVISOR_MEMORY: memory.SUPERVISOR // MB,
    MeasuredQuantity.IMPORT_MEMORY: 200,
}
