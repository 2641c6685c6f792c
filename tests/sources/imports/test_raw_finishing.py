"""Raw events as they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.events import ImportedEvent, RecordRefused, RefusalReason
from forwarder.sources.imports.finishing import EventFinisher
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.policy import FinishPolicy, PersonProperties
from forwarder.sources.imports.raw_finishing import RawEventFinisher
from tests.sources.imports.samples.native import as_json, block

UUID = "0198c3c0-1111-7222-8333-444455556666"
JOB = "5a5a5a5a-0000-5000-8000-000000000000"
HEAD = {"event": "e", "distinct_id": "u1", "uuid": UUID, "timestamp": "2024-05-01T00:00:00Z"}
ADDED = {"$geoip_disable": True, "$import_job_id": JOB}


def finish(record: bytes | object, policy: PersonProperties = "set_once", *, geoip: bool = False) -> bytes:
    """The bytes of the event of a record."""
    (text,) = RawEventFinisher(FinishPolicy(policy, geoip, JOB)).finish(NativeConverter(policy).convert_block(block(record)))
    assert isinstance(text, bytes)
    return text


def test_the_bytes_of_an_event() -> None:
    """What is added stands first among the properties; nothing else is changed by a byte."""
    record = as_json(HEAD)[:-1] + b', "properties": {"big":12345678901234567890123, "n": 1.50}, "x":[ 1 ]}'
    new = b'"$geoip_disable":true,"$import_job_id":"' + JOB.encode() + b'",'
    assert finish(record) == record.replace(b'{"big"', b"{" + new + b'"big"')
    assert finish(record, geoip=True) == record.replace(b'{"big"', b'{"$import_job_id":"' + JOB.encode() + b'","big"')


@pytest.mark.parametrize("number", ["1e400", "-1E+999", "9" * 400])
def test_numbers_that_overflow_are_refused_alone(number: str) -> None:
    """What strict parsers refuse is refused before it is sent; the events beside it go on."""
    records = [as_json({**HEAD, "properties": {"n": each}}) for each in ("good", "bad", "better")]
    records[1] = records[1].replace(b'"bad"', number.encode())
    first, refused, last = RawEventFinisher(FinishPolicy("set_once", False, JOB)).finish(
        NativeConverter("set_once").convert_block(block(*records))
    )
    assert isinstance(first, bytes)
    assert isinstance(last, bytes)
    assert isinstance(refused, RecordRefused)
    assert refused.why is RefusalReason.NOT_JSON
    assert "308 digits" in refused.detail or "too large for a double" in refused.detail


@pytest.mark.parametrize("members", [{}, {"properties": None}, {"properties": {}}])
def test_events_without_properties(members: dict[str, Any]) -> None:
    """They get some, with what every imported event has."""
    assert json.loads(finish({**HEAD, **members})) == {**HEAD, "properties": ADDED}


def test_values_keep_their_bytes_where_properties_are_put_together_anew() -> None:
    """Digits and white space within values stay, also of those that move from one name to another."""
    record = as_json(HEAD)[:-1] + b',"properties":{"n":1.50,"list":[ 1, 2.0 ],"$set":{"big": 12345678901234567890123}}}'
    assert b'"n":1.50,"list":[ 1, 2.0 ],"$set_once":{"big": 12345678901234567890123}' in finish(record)


def test_what_is_added_takes_the_place_of_its_like() -> None:
    """A job's id from before, and a wish to be located, give way; with geoip, an event's own wish stays."""
    record = {**HEAD, "properties": {"$geoip_disable": False, "a": 1, "$import_job_id": "another"}}
    assert json.loads(finish(record))["properties"] == {"a": 1, **ADDED}
    assert json.loads(finish(record, geoip=True))["properties"] == {"$geoip_disable": False, "a": 1, "$import_job_id": JOB}
    assert finish(record).count(b"$import_job_id") == 1


PERSON: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("$set in properties", {"$set": {"a": 1}}, {}, {"$set_once": {"a": 1}}),
    ("$set at the top", {}, {"$set": {"a": 1}}, {"$set_once": {"a": 1}}),
    ("both: the top wins", {"$set": {"a": 1, "b": 1}}, {"$set": {"a": 2}}, {"$set_once": {"a": 2, "b": 1}}),
    ("$set_once wins", {"$set": {"a": 1, "b": 1}, "$set_once": {"a": 2}}, {}, {"$set_once": {"a": 2, "b": 1}}),
    ("$set_once at the top wins", {"$set": {"a": 1}, "$set_once": {"a": 2}}, {"$set_once": {"a": 3}}, {"$set_once": {"a": 3}}),
    ("$set_once below wins over $set at the top", {"$set_once": {"a": 2}}, {"$set": {"a": 1}}, {"$set_once": {"a": 2}}),
    ("no object", {"$set": None}, {"$set": 7}, {}),
    ("no object beside one", {"$set": "x", "$set_once": {"a": 1}}, {}, {"$set_once": {"a": 1}}),
    ("$unset goes", {"$unset": ["a"]}, {"$unset": ["b"]}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("inside", "above", "expected"), [row[1:] for row in PERSON], ids=[row[0] for row in PERSON])
def test_set_becomes_set_once(inside: dict[str, Any], above: dict[str, Any], expected: dict[str, Any]) -> None:
    """Nothing of the past overwrites a person's property, and nothing takes one away, wherever it stood in the event."""
    found = json.loads(finish({**HEAD, **above, "properties": {"x": 1, **inside}}))
    assert found == {**HEAD, "properties": {"x": 1, **expected, **ADDED}}


def test_set_once_alone_stays_where_it_is() -> None:
    """Without a `$set` there is nothing to merge."""
    found = json.loads(finish({**HEAD, "$set_once": {"a": 1}, "properties": {"x": 1, "$set_once": {"a": 2}}}))
    assert found["$set_once"] == {"a": 1}
    assert found["properties"] == {"x": 1, "$set_once": {"a": 2}, **ADDED}


def test_other_policies() -> None:
    """`none` takes all away that is about the person; `set` leaves it as it is."""
    about = {"$set": {"a": 1}, "$set_once": {"b": 1}, "$unset": ["c"]}
    record = {**HEAD, **about, "properties": {"x": 1, **about}}
    assert json.loads(finish(record, "none")) == {**HEAD, "properties": {"x": 1, **ADDED}}
    assert json.loads(finish(record, "set")) == {**record, "properties": {"x": 1, **about, **ADDED}}


def test_events_that_are_too_large() -> None:
    """Only the one that has too many bytes when it is finished is refused, in its place."""
    small, large = {**HEAD, "properties": {"a": 1}}, {**HEAD, "properties": {"a": "x" * 200}}
    limit = len(finish(large)) - 1
    finisher = RawEventFinisher(FinishPolicy("set_once", geoip=False, job_id=JOB), limit)
    found = finisher.finish(NativeConverter("set_once").convert_block(block(small, large, small)))
    assert [found[0], found[2]] == [finish(small)] * 2
    assert isinstance(found[1], RecordRefused)
    assert found[1].why is RefusalReason.TOO_LARGE
    assert RawEventFinisher(FinishPolicy("set_once", geoip=False, job_id=JOB), limit + 1).finish(
        NativeConverter("set_once").convert_block(block(large))
    ) == [finish(large)]


VALUES = st.none() | st.integers(-9, 9) | st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)
NAMES = st.sampled_from(["$set", "$set_once", "$unset", "$geoip_disable", "$import_job_id", "a", "b"])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.sampled_from(["none", "set_once", "set"]), st.booleans())
def test_raw_events_and_events_are_finished_alike(properties: dict[str, Any], policy: PersonProperties, geoip: bool) -> None:
    """What one finisher makes of an event's properties, the other makes of their bytes."""
    time = 1_714_521_600_000_000
    other = EventFinisher(FinishPolicy(policy, geoip, JOB)).finish(ImportedEvent("e", "u1", time, UUID, properties))
    assert json.loads(finish({**HEAD, "properties": properties}, policy, geoip=geoip)) == json.loads(other)
