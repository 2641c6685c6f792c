"""Batches: neighbouring records of one file as the intake accepts them
(`core.record_intake.RecordBatch`): parsed, mapped, complete.

Each event gets its uuid and its timestamp here, where the mapping gives none. The uuid follows
from the record's position and its bytes; the timestamp is the record's own time, or else the time
at which it was first read. So a record that is read again makes the same event, and the intake has
nothing to add to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha1
from typing import Final

import msgspec

from forwarder.core.ports import Reason
from forwarder.core.record_intake import RecordFacts, RejectedRecord
from forwarder.core.stamps import as_uuid5, utc_text
from forwarder.mapping import NotJson, Unmappable
from forwarder.sources.hand_over import MAX_BYTES, MAX_RECORDS
from forwarder.sources.logs.followed import Block
from forwarder.sources.logs.formats import replace_undecodable
from forwarder.sources.logs.policy import LogPolicy
from forwarder.telemetry.readable import size

NAMESPACE: Final = bytes.fromhex("b1c5d5a8f0e14d0e9a3c5d0e7b9b6f4d")
"""The namespace of the uuids of log records. It never changes: a record that is read again has to
give the same one.
"""


class LogBatch:
    """Some neighbouring records of a block, which are at least one."""

    __slots__ = (
        "_block",
        "_kept",
        "_lines",
        "_offsets",
        "_overlong",
        "_policy",
        "api_key",
        "filtered",
        "foreign",
        "rejected",
        "replaced",
        "unmatched",
        "values",
    )

    def __init__(
        self,
        policy: LogPolicy,
        block: Block,
        lines: Sequence[bytes],
        offsets: Sequence[int],
        overlong: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """`lines`: records of the block, and where each begins; `overlong`: records that are too
        long, as far as they are kept.
        """
        self._policy = policy
        self._block = block
        self._lines = lines
        self._offsets = offsets
        self._overlong = overlong
        self._kept: list[int] = []
        self.api_key = policy.api_key
        self.foreign = True
        self.filtered = self.unmatched = self.replaced = 0
        rejected: list[RejectedRecord] = []
        self.values: Sequence[bytes] = self._events(rejected) if lines else ()
        self.rejected: Sequence[RejectedRecord] = rejected
        if overlong:
            why = (
                f"the record is longer than {size(policy.max_line)} (max_line); its beginning "
                "is kept"
            )
            rejected += [
                self._rejected(offset, line, Reason.TOO_LARGE, why, block.at)
                for offset, line in overlong
            ]

    @property
    def count(self) -> int:
        """Records that it stands for."""
        return len(self._lines) + len(self._overlong)

    @property
    def overlong(self) -> int:
        """Records of it that are too long."""
        return len(self._overlong)

    def facts(self, index: int) -> RecordFacts:
        return self._facts(self._kept[index], self._block.at)

    def names(self, indexes: Sequence[int]) -> list[str]:
        return [self.facts(index).name for index in indexes]

    def times(self, indexes: Sequence[int]) -> list[float | None]:
        return [self.facts(index).at for index in indexes]

    def attributes(self, index: int) -> str:
        return self._attributes(self._kept[index])

    def halves(self) -> tuple[LogBatch, LogBatch]:
        """It in two, for one that is too large as it is; it must hold several records."""
        policy = self._policy
        block = self._block
        lines = self._lines
        offsets = self._offsets
        overlong = self._overlong
        if len(lines) > 1:
            middle = len(lines) // 2
            first = LogBatch(policy, block, lines[:middle], offsets[:middle])
            return first, LogBatch(policy, block, lines[middle:], offsets[middle:], overlong)
        middle = 0 if lines else len(overlong) // 2
        first = LogBatch(policy, block, lines, offsets, overlong[:middle])
        return first, LogBatch(policy, block, (), (), overlong[middle:])

    def _events(self, rejected: list[RejectedRecord]) -> list[bytes]:
        """The events of the lines. This is the hot loop: it runs for every line that is read."""
        policy = self._policy
        block = self._block
        offsets = self._kept
        line_format = policy.line_format.for_file(block.file.path)
        map_record = policy.mapping.parts
        parse = line_format.parse
        reference = block.reference if line_format.has_time else block.at
        prefix = b"%b%b/%d/" % (
            NAMESPACE,
            f"{policy.host}/{policy.name}/{block.identity}".encode(),
            block.generation,
        )
        first_read = b'"%b"' % utc_text(block.at, "milliseconds").encode()
        values: list[bytes] = []
        texts, self.replaced = replace_undecodable(self._lines)
        for line, text, offset in zip(self._lines, texts, self._offsets, strict=True):
            parsed = parse(text, reference)
            if parsed is None:
                self.unmatched += 1
                continue
            record, own_time, seconds = parsed
            try:
                parts = map_record(record, seconds)
            except (NotJson, Unmappable) as error:
                rejected.append(
                    self._rejected(offset, line, Reason.UNMAPPABLE, error.message, seconds)
                )
                continue
            if parts is None:
                self.filtered += 1
                continue
            event, distinct_id, timestamp, uuid, properties = parts
            offsets.append(offset)
            if not uuid:
                uuid = b'"%b"' % as_uuid5(
                    sha1(b"%b%d/%b" % (prefix, offset, line), usedforsecurity=False).digest()
                )
            who = b',"distinct_id":' + distinct_id if distinct_id else b""
            when = timestamp or own_time or first_read
            members = (
                b'{"event":',
                event,
                who,
                b',"uuid":',
                uuid,
                b',"timestamp":',
                when,
                b',"properties":',
                properties,
                b"}",
            )
            values.append(b"".join(members))  # in half the time that `%` takes
        return values

    def _rejected(
        self, offset: int, line: bytes, reason: Reason, why: str, at: float
    ) -> RejectedRecord:
        return RejectedRecord(self._facts(offset, at), reason, line, why, self._attributes(offset))

    def _facts(self, offset: int, at: float) -> RecordFacts:
        return RecordFacts(f"{self._block.file.path}:{offset}", at)

    def _attributes(self, offset: int) -> str:
        block = self._block
        attributes = {
            "source": self._policy.name,
            "host": self._policy.host,
            "path": block.file.path,
            "offset": offset,
            "identity": block.identity,
            "generation": block.generation,
        }
        return msgspec.json.encode(attributes).decode()


def cut(policy: LogPolicy, block: Block) -> Iterator[LogBatch]:
    """A block as batches, each made when it is asked for."""
    lines = block.records.values
    offsets = block.records.offsets
    overlong = block.records.overlong
    begin = 0
    # blocks of one read are small enough
    for end in (
        range(MAX_RECORDS, len(lines), MAX_RECORDS) if block.size <= MAX_BYTES else _ends(lines)
    ):
        yield LogBatch(policy, block, lines[begin:end], offsets[begin:end])
        begin = end
    if begin < len(lines) or overlong:
        yield LogBatch(policy, block, lines[begin:], offsets[begin:], overlong)


def _ends(lines: Sequence[bytes]) -> Iterator[int]:
    """Where a batch ends before the last line, since one more line would be too much."""
    begin = total = 0
    for index, line in enumerate(lines):
        if index > begin and (index - begin == MAX_RECORDS or total + len(line) > MAX_BYTES):
            yield index
            begin = index
            total = 0
        total += len(line)
