"""Batches: neighbouring records of one partition, as the intake accepts them
(`core.record_intake.RecordBatch`).

Nothing is made of a record but its value, as long as its events are complete: its position, key
and headers are rendered when they are needed.

A position isn't one record's for ever: offsets begin again in a topic that is created again, and in
a cluster that is rebuilt, and can be given twice after an unclean election. So uuids are derived
from the position and the record's own time, which belongs to the record: the log keeps it, also
through compaction (apache/kafka, `clients/…/common/record/DefaultRecordBatch.java` at a9014ff), and
mirrors copy it. Brokers of all versions have it, where topic ids are of some.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

import msgspec

from forwarder.core.ports import Reason
from forwarder.core.record_intake import RecordFacts, RejectedRecord
from forwarder.mapping import NotJson, Unmappable
from forwarder.sources.hand_over import MAX_BYTES, MAX_RECORDS
from forwarder.sources.kafka.policy import KafkaPolicy

PartitionKey: TypeAlias = tuple[str, int]
"""Topic and number."""

TIMED_SINCE: Final = 1_795_737_600_000
"""2026-11-27T00:00:00Z in milliseconds: uuids of records with an earlier time, or none, are derived
from their position alone, as by versions before; so they stay what they were.
"""

KEPT: Final = 800
"""Bytes that a record costs beside its value as long as all of it is kept:
until its batch is accepted.
"""


class KafkaRecord(Protocol):
    """A record as the client hands it over."""

    offset: int
    timestamp: int | None
    """Milliseconds since 1970; negative or None if it has none."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class _RecordValues(NamedTuple):
    """The values of some records, their bytes together, and whether none of them is a tombstone."""

    values: list[bytes | None]
    size: int
    whole: bool


class KafkaBatch:
    """Some neighbouring records; from `first` to before `end` are the offsets it stands for, those
    of records that are skipped too.
    """

    __slots__ = (
        "_all",
        "_key",
        "_policy",
        "_records",
        "api_key",
        "end",
        "filtered",
        "first",
        "foreign",
        "rejected",
        "size",
        "tombstones",
        "values",
    )

    def __init__(
        self,
        policy: KafkaPolicy,
        key: PartitionKey,
        records: Sequence[KafkaRecord],
        read: _RecordValues,
    ) -> None:
        """`read`: the values of the records, which are at least one, of the partition `key`."""
        self._policy = policy
        self._key = key
        self._all = self._records = records
        self.api_key = None if policy.api_key_header else policy.api_key
        self.foreign = policy.mapping is not None
        self.first = records[0].offset
        self.end = records[-1].offset + 1
        self.size = read.size
        self.tombstones = self.filtered = 0
        self.rejected: Sequence[RejectedRecord] = ()
        # Some values may be None; `_sift` leaves these out.
        self.values: Sequence[bytes] = read.values  # type: ignore[assignment]
        if policy.mapping is not None or not read.whole:
            self._sift()

    @property
    def count(self) -> int:
        """Records that it stands for."""
        return len(self.values) + len(self.rejected) + self.tombstones + self.filtered

    @property
    def cost(self) -> int:
        """Bytes that it costs until it is accepted."""
        return self.size + KEPT * len(self._all)

    def facts(self, index: int) -> RecordFacts:
        return self._facts(self._records[index])

    def names(self, indexes: Sequence[int]) -> list[str]:
        records = self._records
        begin = self._name_of_partition()
        chosen = [records[index] for index in indexes]
        return [
            f"{begin}{record.offset}@{record.timestamp}"
            if (record.timestamp or 0) >= TIMED_SINCE
            else f"{begin}{record.offset}"
            for record in chosen
        ]

    def times(self, indexes: Sequence[int]) -> list[float | None]:
        records = self._records
        stamps = [records[index].timestamp for index in indexes]
        # `_seconds`, without its calls
        return [None if stamp is None or stamp < 0 else stamp / 1000 for stamp in stamps]

    def attributes(self, index: int) -> str:
        return self._attributes(self._records[index])

    def halves(self) -> tuple[KafkaBatch, KafkaBatch]:
        """It in two, for one that is too large as it is; it must hold several records."""
        middle = len(self._all) // 2
        parts = self._all[:middle], self._all[middle:]
        first, second = (KafkaBatch(self._policy, self._key, part, _read(part)) for part in parts)
        return first, second

    def forget(self) -> None:
        """Free the records: the intake has its own copy of what it needs."""
        self._all = self._records = ()
        self.values = self.rejected = ()

    def _sift(self) -> None:
        """Leave out tombstones, and map foreign records."""
        mapping = self._policy.mapping
        unsettled: list[KafkaRecord] = []
        values: list[bytes] = []
        rejected: list[RejectedRecord] = []
        for record in self._all:
            data = record.value
            if data is None:
                self.tombstones += 1
                continue
            try:
                value = (
                    data
                    if mapping is None
                    else mapping.map_record(data, _seconds(record.timestamp))
                )
            except (NotJson, Unmappable) as error:
                reason = Reason.UNMAPPABLE if isinstance(error, Unmappable) else Reason.UNDECODABLE
                rejected.append(
                    RejectedRecord(
                        self._facts(record), reason, data, error.message, self._attributes(record)
                    )
                )
                continue
            if value is None:
                self.filtered += 1
            else:
                unsettled.append(record)
                values.append(value)
        self._records = unsettled
        self.values = values
        self.rejected = rejected

    def _facts(self, record: KafkaRecord) -> RecordFacts:
        policy = self._policy
        name = f"{self._name_of_partition()}{record.offset}"
        timed = (record.timestamp or 0) >= TIMED_SINCE
        return RecordFacts(
            name,
            _seconds(record.timestamp),
            policy.api_key if policy.api_key_header is None else _api_key(policy, record),
            _text(record.key) if policy.key_is_distinct_id and record.key is not None else None,
            f"{name}@{record.timestamp}" if timed else "",
        )

    def _name_of_partition(self) -> str:
        topic, partition = self._key
        return f"{self._policy.name}/{topic}/{partition}/"

    def _attributes(self, record: KafkaRecord) -> str:
        topic, partition = self._key
        attributes = {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "key": _shown(record.key),
            "headers": [[name, _shown(value)] for name, value in record.headers],
        }
        return msgspec.json.encode(attributes).decode()


def cut(policy: KafkaPolicy, key: PartitionKey, records: Sequence[KafkaRecord]) -> list[KafkaBatch]:
    """Records of the partition `key`, in order, as batches."""
    if len(records) <= MAX_RECORDS:
        return _small(policy, key, records)
    return [
        batch
        for at in range(0, len(records), MAX_RECORDS)
        for batch in _small(policy, key, records[at : at + MAX_RECORDS])
    ]


def _small(
    policy: KafkaPolicy, key: PartitionKey, records: Sequence[KafkaRecord]
) -> list[KafkaBatch]:
    """Not too many records, in parts of which none is too large."""
    read = _read(records)
    if read.size <= MAX_BYTES or len(records) == 1:
        return [KafkaBatch(policy, key, records, read)]
    middle = len(records) // 2
    return [*_small(policy, key, records[:middle]), *_small(policy, key, records[middle:])]


def _read(records: Sequence[KafkaRecord]) -> _RecordValues:
    values = [record.value for record in records]
    try:
        # A value that is None has no length, so it is noticed without a check of each value.
        return _RecordValues(values, sum(map(len, values)), whole=True)  # type: ignore[arg-type]
    except TypeError:
        return _RecordValues(
            values, sum(len(value) for value in values if value is not None), whole=False
        )


def _seconds(milliseconds: int | None) -> float | None:
    """A record's time as seconds; None if it has none."""
    return None if milliseconds is None or milliseconds < 0 else milliseconds / 1000


def _api_key(policy: KafkaPolicy, record: KafkaRecord) -> str | None:
    """The project key in the record's header, the last one if there are several; else the
    configured one.
    """
    for name, value in reversed(record.headers):
        if name == policy.api_key_header and value is not None:
            return value.decode("utf-8", "replace")
    return policy.api_key


def _text(data: bytes) -> str | None:
    """Bytes as text; None for those that are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _shown(data: bytes | None) -> object:
    """Bytes as JSON has them: text where they are text."""
    if data is None:
        return None
    text = _text(data)
    return {"base64": base64.b64encode(data).decode()} if text is None else text
