"""What is hashed together, and daily: the same visitor in one day, another in the next, and
nothing that leads back to a value.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.mapping import HashRule, Mapping, MappingRules, TimestampRule, Unmappable

SALT = b"example"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


@pytest.fixture(name="salt")
def _salt(tmp_path: Path) -> Path:
    path = tmp_path / "salt"
    path.write_bytes(SALT + b"\n")
    return path


def combined(salt: Path, paths: tuple[str, ...] = (".ip", ".agent"), **rules: Any) -> Mapping:
    """A mapping whose distinct_id is a hash over several values."""
    daily = rules.pop("daily", False)
    hashed = rules.pop("hashed", ())
    rule = HashRule(hashed, salt, daily, {"visitor": paths})
    return Mapping.compile(
        MappingRules(event='"e"', distinct_id=".visitor", hash=rule, **rules), "src", "m"
    )


def visitor(mapping: Mapping, record: bytes, time: float | None = None) -> str | None:
    """The distinct_id of the event that a record gives."""
    made = mapping.map(record, time)
    assert made is not None
    distinct_id: str | None = msgspec.json.decode(made).get("distinct_id")
    return distinct_id


def netstrings(*values: str) -> bytes:
    """What is hashed, as docs/reference/mapping.md describes it."""
    return b"".join(b"%d:%b," % (len(value.encode()), value.encode()) for value in values)


def test_one_hash_over_several_values(salt: Path) -> None:
    """It is the documented one: strings count by their characters, however they are escaped,
    numbers by their text.
    """
    mapping = combined(salt, (".ip", ".agent", ".port"))
    expected = hmac.new(
        SALT, netstrings("203.0.113.7", 'a "quoted" ü', "8080"), "sha256"
    ).hexdigest()
    assert (
        visitor(mapping, rb'{"ip":"203.0.113.7","agent":"a \"quoted\" \u00fc","port":8080}')
        == expected
    )
    assert (
        visitor(mapping, '{"port":"8080","agent":"a \\"quoted\\" ü","ip":"203.0.113.7"}'.encode())
        == expected
    )


def test_values_cant_be_shifted_into_each_other(salt: Path) -> None:
    """Two records whose values joined are the same text have different hashes."""
    mapping = combined(salt)
    assert visitor(mapping, b'{"ip":"ab","agent":"c"}') != visitor(
        mapping, b'{"ip":"a","agent":"bc"}'
    )


def test_missing_values_are_empty(salt: Path) -> None:
    """A missing, null or blank value is as one that is empty; where all are, no member is added."""
    mapping = combined(salt)
    one = {
        visitor(mapping, record)
        for record in (b'{"ip":"a"}', b'{"ip":"a","agent":null}', b'{"ip":"a","agent":" "}')
    }
    assert one == {hmac.new(SALT, netstrings("a", ""), "sha256").hexdigest()}
    assert visitor(mapping, b"{}") is None


@pytest.mark.parametrize("name", ['"visitor"', '"\\u0076isitor"'])
def test_a_member_of_that_name_gives_way(salt: Path, name: str) -> None:
    """Also where there is no hash: what the record says itself isn't a hash of anything."""
    mapping = combined(salt)
    assert visitor(mapping, f'{{{name}:"Ann"}}'.encode()) is None
    made = mapping.map(f'{{"ip":"a",{name}:"Ann"}}'.encode())
    assert made is not None
    assert b"Ann" not in made


def test_hashes_are_made_before_anything_is_dropped_or_hashed(salt: Path) -> None:
    """The values may be dropped or hashed themselves."""
    plain = visitor(combined(salt), b'{"ip":"a","agent":"b"}')
    mapping = combined(salt, drop=(".ip",), hashed=(".agent",))
    made = mapping.map(b'{"ip":"a","agent":"b"}')
    agent = hmac.new(SALT, b"b", "sha256").hexdigest()
    assert (
        made
        == (
            f'{{"event":"e","distinct_id":"{plain}","properties":{{"visitor":"{plain}","agent"'
            f':"{agent}"}}}}'
        ).encode()
    )


def test_a_daily_hash_is_another_one_each_day(salt: Path) -> None:
    """Of the record's time, in UTC; by the documented key."""
    mapping = combined(salt, daily=True)
    record = b'{"ip":"a","agent":"b"}'
    key = hmac.digest(SALT, b"2026-01-31", "sha256")
    assert (
        visitor(mapping, record, NOON) == hmac.new(key, netstrings("a", "b"), "sha256").hexdigest()
    )
    assert visitor(mapping, record, NOON) == visitor(mapping, record, NOON + 11.9 * 3600)
    assert len({visitor(mapping, record, NOON + days * DAY) for days in range(5)}) == 5


def test_fields_are_hashed_daily_too(salt: Path) -> None:
    """`hash.field` has the same key."""
    rules = MappingRules(
        event='"e"', distinct_id=".user", hash=HashRule((".user",), salt, daily=True)
    )
    mapping = Mapping.compile(rules, "src")
    key = hmac.digest(SALT, b"2026-01-31", "sha256")
    assert visitor(mapping, b'{"user":"Ann"}', NOON) == hmac.new(key, b"Ann", "sha256").hexdigest()
    assert visitor(mapping, b'{"user":"Ann"}', NOON + DAY) != visitor(
        mapping, b'{"user":"Ann"}', NOON
    )


@pytest.mark.parametrize(
    "source",
    [".time", ".time | .", '.user as $u | .time // ""'],
    ids=["path", "jq", "jq that looks at a hashed field"],
)
@pytest.mark.parametrize("drop", [(), (".other",)])
def test_the_day_is_the_timestamp_of_the_mapping(
    salt: Path, source: str, drop: tuple[str, ...]
) -> None:
    """Where it gives one: the record's own time counts only where it doesn't."""
    mapping = combined(
        salt, daily=True, timestamp=TimestampRule(source), drop=drop, hashed=(".user",)
    )
    record = b'{"ip":"a","agent":"b","user":"Ann","time":"%b","other":1}'
    day = visitor(mapping, record % b"2026-01-31T23:59:59Z", 0.0)
    assert day == visitor(mapping, record % b"2026-01-31T00:00:00Z", 9.0 * DAY)
    assert day != visitor(mapping, record % b"2026-02-01T00:00:00Z", 0.0)
    made = mapping.map(record % b"2026-01-31T23:59:59Z")
    assert made is not None
    assert msgspec.json.decode(made)["timestamp"] == "2026-01-31T23:59:59.000Z"
    if source == ".time":
        assert visitor(mapping, b'{"ip":"a","agent":"b"}', NOON) == day


def test_a_timestamp_that_is_dropped_says_no_day(salt: Path) -> None:
    """What is dropped is seen by no expression, the timestamp included."""
    mapping = combined(salt, daily=True, timestamp=TimestampRule(".t.at"), drop=(".t",))
    record = b'{"ip":"a","agent":"b","t":{"at":"2020-02-02"}}'
    assert visitor(mapping, record, NOON) == visitor(
        combined(salt, daily=True), b'{"ip":"a","agent":"b"}', NOON
    )


@pytest.mark.parametrize("time", [None, 1e18, -1e18])
def test_a_record_without_a_day_is_unmappable(salt: Path, time: float | None) -> None:
    """Its hash would be the same on all days."""
    with pytest.raises(Unmappable, match=r"^hash\.daily: the record"):
        combined(salt, daily=True).map(b'{"ip":"a"}', time)


def test_where_comes_first(salt: Path) -> None:
    """A record that isn't an event isn't an error either, if it has no time, or something else
    where values should be.
    """
    mapping = combined(salt, (".who.ip",), daily=True, where=".go")
    assert mapping.map(b'{"go":false}') is None
    assert mapping.map(b'{"go":false,"who":1}', NOON) is None
    with pytest.raises(
        Unmappable, match=r"^hash\.combine\.visitor: \.who is the number 1, which has no \.ip"
    ):
        mapping.map(b'{"go":true,"who":1}', NOON)


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        ((), "has no paths"),
        (("ip",), "'ip' is not the path of one value"),
        ((".a[]",), "of one value"),
    ],
)
def test_what_cant_be_combined(salt: Path, paths: tuple[str, ...], why: str) -> None:
    """The setting is named."""
    with pytest.raises(ConfigurationError, match=r"^m\.hash\.combine\.visitor: .*" + why):
        combined(salt, paths)


def test_daily_needs_times(salt: Path) -> None:
    """A source that knows no times of its records needs a rule for them."""
    rules = MappingRules(event='"e"', hash=HashRule((".user",), salt, daily=True))
    with pytest.raises(
        ConfigurationError, match=r"^mapping\.hash\.daily: needs the time of each record"
    ):
        Mapping.compile(rules, "src", has_time=False)
    dated = MappingRules(
        event='"e"', timestamp=TimestampRule(".t"), hash=HashRule((".user",), salt, daily=True)
    )
    assert Mapping.compile(dated, "src", has_time=False).map(b'{"t":"2026-01-31"}') is not None
