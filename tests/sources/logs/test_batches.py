"""Batches of a log: lines parsed, mapped and completed; what is left out, and
what becomes a dead letter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid5

from forwarder.core.ports import Reason
from forwarder.core.stamps import uuid5 as fast_uuid5
from forwarder.mapping import MappingRules, TimestampRule
from forwarder.sources.hand_over import MAX_BYTES, MAX_RECORDS
from forwarder.sources.logs.batches import NAMESPACE, LogBatch, cut
from forwarder.sources.logs.policy import LogPolicy
from tests.support.clock import MIDNIGHT
from tests.support.log_blocks import KEY, PATH, LogInBlocks, log_line, log_policy

ACCESS = b'192.0.2.1 - - [10/Oct/2025:13:55:36 +0200] "GET /a HTTP/1.1" 200 5 "-" "curl/8"'


def batch(*lines: bytes, policy: LogPolicy | None = None, at: float = MIDNIGHT) -> LogBatch:
    """The only batch of these lines."""
    [log_batch] = cut(policy or log_policy(), LogInBlocks().block(lines, at=at))
    return log_batch


def events(batches: LogBatch) -> list[dict[str, Any]]:
    """Its events."""
    return [json.loads(value) for value in batches.values]


def test_a_line_becomes_a_complete_event() -> None:
    """It has a uuid from its position and bytes, and as its time that of the first reading;
    nothing is left to be added.
    """
    line = log_line(1)
    log_batch = batch(line, at=MIDNIGHT + 0.25)
    name = f"web-1/app/f1/0/0/{line.decode()}"
    assert events(log_batch) == [
        {
            "uuid": str(uuid5(UUID(bytes=NAMESPACE), name)),
            "timestamp": "2026-01-01T00:00:00.250Z",
            "event": "seen",
            "distinct_id": "u1",
            "properties": {"n": 1},
        }
    ]
    assert (log_batch.api_key, log_batch.foreign, log_batch.count) == (KEY, True, 1)


def test_a_derived_uuid_is_that_of_the_standard_library() -> None:
    """Whatever the name."""
    for name in ("", "a", "ü/1", "x" * 300):
        assert fast_uuid5(NAMESPACE, name.encode()).decode() == str(
            uuid5(UUID(bytes=NAMESPACE), name)
        )


def test_the_uuid_tells_hosts_sources_files_generations_positions_and_bytes_apart() -> None:
    """And is the same for a line that is read again, at whatever time."""

    def made(line: bytes = b'{"type":"a","user":"u"}', before: bytes = b"", **changes: Any) -> str:
        policy = log_policy(
            **{name: value for name, value in changes.items() if name in ("host", "name")}
        )
        file = LogInBlocks(identity=changes.get("identity", "f1"))
        file.file.generation = changes.get("generation", 0)
        [log_batch] = cut(
            policy, file.block([before, line] if before else [line], at=changes.get("at", MIDNIGHT))
        )
        uuid = events(log_batch)[-1]["uuid"]
        assert isinstance(uuid, str)
        return uuid

    several: list[dict[str, Any]] = [
        {},
        {"host": "b"},
        {"name": "b"},
        {"identity": "f2"},
        {"generation": 1},
        {"before": b"x"},
        {"line": b'{"type":"b","user":"u"}'},
    ]
    assert len({made(**changes) for changes in several}) == len(several)
    assert made() == made(at=MIDNIGHT + 5)


def test_the_lines_own_time_is_the_events() -> None:
    """Where the format knows one."""
    policy = log_policy(MappingRules(event='"hit"', distinct_id='"d"', properties="{}"), "combined")
    assert events(batch(ACCESS, policy=policy))[0]["timestamp"] == "2025-10-10T11:55:36.000Z"


def test_the_mappings_uuid_and_time_are_kept() -> None:
    """A uuid or a time of its own; a line in which it finds none gets ours."""
    rules = MappingRules(
        event=".type",
        distinct_id=".user",
        uuid=".id",
        timestamp=TimestampRule(".at"),
        properties="{}",
    )
    uuid = "01890a5d-ac96-774b-bcce-b302099a8057"
    at = "2025-05-05T05:05:05Z"
    lines = (log_line(1, id=uuid, at=at), log_line(2, id=uuid), log_line(3, at=at), log_line(4))
    log_events = events(batch(*lines, policy=log_policy(rules)))
    assert [event["uuid"] == uuid for event in log_events] == [True, True, False, False]
    assert [event["timestamp"].startswith("2025") for event in log_events] == [
        True,
        False,
        True,
        False,
    ]
    assert [sorted(event) for event in log_events] == [
        ["distinct_id", "event", "properties", "timestamp", "uuid"]
    ] * 4


def test_lines_that_are_no_events_are_counted() -> None:
    """Lines that `where` leaves out, lines of another format, and lines with
    bytes that aren't UTF-8.
    """
    rules = MappingRules(event=".type", distinct_id=".user", where=".n > 1", properties="{}")
    log_batch = batch(
        log_line(1),
        b"no JSON",
        log_line(2),
        b'{"type":"\xff","user":"u","n":7}',
        policy=log_policy(rules),
    )
    assert [event["event"] for event in events(log_batch)] == ["seen", "\N{REPLACEMENT CHARACTER}"]
    assert (log_batch.filtered, log_batch.unmatched, log_batch.replaced, log_batch.count) == (
        1,
        1,
        1,
        4,
    )
    assert log_batch.rejected == []


def test_unmappable_lines_are_rejected() -> None:
    """With the line as it was read, where it stands, and all that its uuid is made of."""
    log_batch = batch(log_line(1), b'{"type":5,"user":"u"}')
    [rejected] = log_batch.rejected
    assert (rejected.reason, rejected.data) == (Reason.UNMAPPABLE, b'{"type":5,"user":"u"}')
    assert rejected.why == "event: the expression gives the number 5; the event's name is needed"
    assert rejected.facts.name == f"{PATH}:{len(log_line(1)) + 1}"
    assert json.loads(rejected.attributes) == {
        "source": "app",
        "host": "web-1",
        "path": PATH,
        "offset": len(log_line(1)) + 1,
        "identity": "f1",
        "generation": 0,
    }
    assert (log_batch.facts(0).name, json.loads(log_batch.attributes(0))["offset"]) == (
        f"{PATH}:0",
        0,
    )


def test_a_record_that_is_too_long_is_rejected() -> None:
    """Its beginning is kept."""
    file = LogInBlocks()
    [log_batch] = cut(log_policy(max_line=1000), file.block([log_line(1)], [(40, b"x" * 1000)]))
    [rejected] = log_batch.rejected
    assert (rejected.reason, len(rejected.data), rejected.facts.name) == (
        Reason.TOO_LARGE,
        1000,
        f"{PATH}:40",
    )
    assert rejected.why == "the record is longer than 1000 B (max_line); its beginning is kept"
    assert (log_batch.overlong, log_batch.count, len(log_batch.values)) == (1, 2, 1)
    [alone] = cut(log_policy(), file.block([], [(0, b"x")]))
    assert (alone.count, list(alone.values), len(alone.rejected)) == (1, [], 1)


def counts(batches: Sequence[LogBatch]) -> list[int]:
    """Records of each."""
    return [log_batch.count for log_batch in batches]


def test_batches_hold_so_much() -> None:
    """So many records, and so many bytes; a larger record is by itself."""
    policy = log_policy()
    file = LogInBlocks()
    assert counts(
        [*cut(policy, file.block([log_line(n) for n in range(2 * MAX_RECORDS + 1)]))]
    ) == [MAX_RECORDS, MAX_RECORDS, 1]
    large = log_line(0, text="x" * (MAX_BYTES // 2))
    assert counts(
        [
            *cut(
                policy,
                file.block(
                    [large] * 3 + [log_line(1), log_line(2, text="x" * MAX_BYTES), log_line(3)]
                ),
            )
        ]
    ) == [
        1,
        1,
        2,
        1,
        1,
    ]


def test_halves_are_the_whole() -> None:
    """However often it is halved, each record is in one part, in order."""
    policy = log_policy(max_line=1000)
    file = LogInBlocks()
    [whole] = cut(
        policy, file.block([log_line(n) for n in range(5)], [(n, b"x" * 1000) for n in range(3)])
    )
    parts = [whole]
    while any(part.count > 1 for part in parts):
        parts = [half for part in parts for half in (part.halves() if part.count > 1 else (part,))]
    assert counts(parts) == [1] * 8
    assert [value for part in parts for value in part.values] == list(whole.values)
    assert [rejected.facts.name for part in parts for rejected in part.rejected] == [
        rejected.facts.name for rejected in whole.rejected
    ]
