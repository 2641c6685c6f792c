"""Records by the shared mapping: what the rules give is taken, what they leave out is refused or
follows from the place.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from forwarder.core.ports import Reason
from forwarder.mapping import MappingRules, TimestampRule
from forwarder.sources.imports.format import (
    ImportedEvent,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.mapped import MappedConverter
from forwarder.sources.imports.repeats import Repeats
from tests.sources.imports.samples.mapped import RULES, STRANGE, block, mapping, sample
from tests.support.cases import cases

UUID = "0198c3c0-1111-7222-8333-444455556666"
RECORD = {"name": "e", "who": "u1", "at": "2024-05-01T10:00:00.123Z", "id": UUID, "n": 1}
SIMPLE = MappingRules(
    event=".name",
    distinct_id=".who",
    timestamp=TimestampRule(".at"),
    uuid=".id",
    properties={"n": ".n"},
)
MICROS = 1_714_557_600_123_000


def convert(
    record: bytes | object, rules: MappingRules = SIMPLE, first: int = 0
) -> list[ImportedEvent]:
    """The events of a record."""
    return list(MappedConverter(mapping(rules)).convert(block(record, first=first), 0))


def one(**members: Any) -> ImportedEvent:
    """The event of a record with these members."""
    (event,) = convert(RECORD | members)
    return event


def refusal(record: bytes | object, rules: MappingRules = SIMPLE) -> Reason:
    """Why a record is refused."""
    with pytest.raises(RecordRefused) as refused:
        convert(record, rules)
    assert refused.value.args[0]
    return refused.value.why


def test_an_event_by_rules() -> None:
    """Name, id, time, uuid and properties come from where the rules say."""
    event = one()
    assert (event.event, event.distinct_id, event.time, event.uuid) == ("e", "u1", MICROS, UUID)
    assert msgspec.json.encode(event.properties) == b'{"n":1}'
    assert not event.keyed


GOLDEN: list[tuple[str, dict[str, Any], str, object]] = [
    (
        "an id that is a number",
        {"who": 12345678901234567890},
        "distinct_id",
        "12345678901234567890",
    ),
    ("microseconds", {"at": "2024-05-01T10:00:00.123456+00:00"}, "time", MICROS + 456),
    ("another zone", {"at": "2024-05-01T12:00:00.123+02:00"}, "time", MICROS),
    ("no zone", {"at": "2024-05-01T10:00:00.123"}, "time", MICROS),
    ("a uuid of capitals", {"id": UUID.upper()}, "uuid", UUID),
    ("a uuid without hyphens", {"id": UUID.replace("-", "")}, "uuid", UUID.replace("-", "")),
    ("no uuid", {"id": None}, "uuid", derived_uuid('["mapping","' + "5eed" * 16 + '",0]')),
]


@cases(("members", "field", "value"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN])
def test_what_values_become(members: dict[str, Any], field: str, value: object) -> None:
    """Ids are text, times are microseconds, and uuids are in lower case or follow from the
    record's place.
    """
    assert getattr(one(**members), field) == value


def test_a_natural_key_of_the_rules_gives_the_uuid() -> None:
    """It is the same wherever the record stands; another key gives another one."""
    first, again, other = (
        convert(RECORD | {"id": key}, first=at)[0] for key, at in (("k", 0), ("k", 9), ("l", 0))
    )
    assert first == again
    assert first.uuid != other.uuid


def test_records_that_share_an_id_that_says_nothing_are_no_repeats() -> None:
    """They have one uuid, which the preflight tells; but nothing is left out as a repeat of
    another time or another person.
    """
    records = [
        RECORD | {"id": "undefined"} | other
        for other in ({}, {"at": "2024-05-01T11:00:00Z"}, {"who": "u2"}, {"name": "f"}, {})
    ]
    events = [convert(record)[0] for record in records]
    assert len({event.uuid for event in events}) == 1
    with TemporaryDirectory() as folder, Repeats(Path(folder)) as repeats:
        columns = zip(
            *(
                (event.event, event.distinct_id, event.time, event.uuid, event.keyed)
                for event in events
            ),
            strict=True,
        )
        assert repeats.among(*columns) == [4]


def test_places_are_counted_in_the_file() -> None:
    """Records without ids have uuids of their numbers, and events of an array
    of their indexes beside.
    """
    bare = {key: value for key, value in RECORD.items() if key != "id"}
    place = '["mapping","' + "5eed" * 16 + '",%s]'
    assert [event.uuid for event in convert(bare, first=7)] == [derived_uuid(place % 7)]
    assert [event.uuid for event in convert([bare, RECORD, bare], first=7)] == [
        derived_uuid(place % "7,0"),
        UUID,
        derived_uuid(place % "7,2"),
    ]


def test_values_keep_their_bytes() -> None:
    """Without a rule the whole record is the properties, digit by digit."""
    rules = MappingRules(event=".name", distinct_id=".who", timestamp=TimestampRule(".at"))
    record = (
        b'{"name":"e","who":"u1","at":"2024-05-01T10:00:00Z","big":12345678901234567890123,"x"'
        b":1.50}"
    )
    (event,) = convert(record, rules)
    assert bytes(event.properties["big"]) == b"12345678901234567890123"
    assert bytes(event.properties["x"]) == b"1.50"


@cases(
    ("record", "why"),
    [
        (RECORD | {"who": None}, Reason.MISSING_DISTINCT_ID),
        (RECORD | {"who": "\t"}, Reason.MISSING_DISTINCT_ID),
        (RECORD | {"at": None}, Reason.MISSING_TIMESTAMP),
        (RECORD | {"at": "1931-01-01"}, Reason.MISSING_TIMESTAMP),
        (RECORD | {"at": "soon"}, Reason.UNMAPPABLE),
        (RECORD | {"name": None}, Reason.UNMAPPABLE),
        ([RECORD, RECORD | {"at": None}], Reason.MISSING_TIMESTAMP),
        (5, Reason.UNMAPPABLE),
        (b"{", Reason.UNDECODABLE),
        (b'{"name":"\xff"}', Reason.UNDECODABLE),
    ],
)
def test_refusals(record: bytes | object, why: Reason) -> None:
    """Nothing is guessed: what has no id, no time or no name by the rules is refused, an array as
    a whole.
    """
    assert refusal(record) is why


def test_rules_without_id_or_time() -> None:
    """An id among the properties isn't the event's unless the rules say so,
    and there is no other time.
    """
    record = RECORD | {"distinct_id": "u1"}
    assert (
        refusal(record, MappingRules(event=".name", timestamp=TimestampRule(".at")))
        is Reason.MISSING_DISTINCT_ID
    )
    assert (
        refusal(record, MappingRules(event=".name", distinct_id=".who")) is Reason.MISSING_TIMESTAMP
    )


def test_records_that_are_no_events() -> None:
    """What `where` says no to stands for none."""
    rules = MappingRules(
        event=".name", where=".n > 1", distinct_id=".who", timestamp=TimestampRule(".at")
    )
    assert convert(RECORD, rules) == []
    assert len(convert([RECORD, RECORD | {"n": 2}], rules)) == 1


@cases(("record", "why"), STRANGE)
def test_strange_records(record: bytes, why: Reason | None) -> None:
    """Records as bad exports have them are refused with their reasons."""
    if why is None:
        assert convert(record, RULES)
    else:
        assert refusal(record, RULES) is why


def test_the_sample() -> None:
    """Of 2,000 orders each becomes its event but for those that are known
    to be bad; twice the same.
    """
    records, count, expected = sample()
    converter = MappedConverter(mapping())
    whole = block(*records)
    events: list[ImportedEvent] = []
    refusals: list[Reason] = []
    for index in range(len(records)):
        try:
            events += converter.convert(whole, index)
        except RecordRefused as refused:
            refusals.append(refused.why)
    assert (len(events), Counter(refusals)) == (count, Counter(expected))
    assert convert(records[-1], RULES, first=len(records) - 1) == events[-1:]
    assert json.loads(msgspec.json.encode(events[-1].properties))["$set"]["tier"] in {"new", "gold"}
    assert not any("email" in msgspec.json.encode(event.properties).decode() for event in events)
