"""Stamping one event of any form, and UUIDs."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.core.stamps import all_hyphenated, is_uuid
from forwarder.stamping import stamp as stamping
from forwarder.stamping import stamp_event as module
from forwarder.stamping.stamp_event import AT_RECEIPT, StampContext, StampedEvent, stamp_event
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT
from tests.support.intakes import NOW, UUID, unique

RECEIVED = datetime(2026, 1, 1, tzinfo=UTC)
ABSENT = "absent"
IP = b'"8.8.8.8"'

TIMES: dict[str, datetime | None] = {
    ABSENT: None,
    "null": None,
    '""': None,
    '" "': None,
    '"soon"': None,
    "1767225600": None,
    "[]": None,
    '"2025-12-31T12:00:00Z"': datetime(2025, 12, 31, 12, tzinfo=UTC),
    '"2025-12-31T12:00:00.5"': datetime(2025, 12, 31, 12, 0, 0, 500_000, tzinfo=UTC),
    '"2025-12-31T12:00:00+03"': datetime(2025, 12, 31, 9, tzinfo=UTC),
    '"2025-12-31T12:00:00-03:30"': datetime(2025, 12, 31, 15, 30, tzinfo=UTC),
    '"2025-12-31"': datetime(2025, 12, 31, tzinfo=UTC),
    '"\\u0032025-12-31"': datetime(2025, 12, 31, tzinfo=UTC),
}
OFFSETS: dict[str, float | None] = {
    ABSENT: None,
    "null": None,
    '"5"': None,
    "true": None,
    "[1]": None,
    "0": 0,
    "1500": 1500,
    "1500.5": 1500.5,
    "-2e3": -2000,
    "1e300": float("inf"),
    "1e999": float("inf"),
    "-1e999": float("-inf"),
    "1" * 400: float("inf"),
    "1" * 5000: float("inf"),
}
SKEWS = {
    "no sent_at": (False, 0.0),
    "sent_at without skew": (True, 0.0),
    "an hour ahead": (True, 3600.0),
    "a day behind": (True, -86400.5),
}


def text_of(members: dict[str, str], space: str = "") -> bytes:
    """An event of members spelled as JSON; absent ones are left out."""
    pairs = {"event": '"e"', "distinct_id": '"d"', **members}
    return (
        "{"
        + ",".join(
            f'{space}"{key}"{space}:{space}{value}{space}'
            for key, value in pairs.items()
            if value != ABSENT
        )
        + "}"
    ).encode()


def stamped(data: bytes, receipt: StampContext) -> dict[str, Any]:
    """The stamped event, read; fails if it has a key twice."""
    result = stamp_event(data, receipt)
    assert isinstance(result, StampedEvent)
    return unique(result.data)


def written(time: datetime | None) -> str:
    """A corrected time; now where there is none."""
    digits = "milliseconds" if (time or RECEIVED).microsecond % 1000 == 0 else "microseconds"
    return (time or RECEIVED).isoformat(timespec=digits).replace("+00:00", "Z")


def moved(time: datetime, seconds: float) -> datetime | None:
    """A time some seconds later, if there is such a time."""
    try:
        return time + timedelta(seconds=seconds)
    except OverflowError:
        return None


def expected_time(timestamp: str, offset: str, skew: str, ignore: str) -> str:
    """The rules (wire facts: Time), once more: what `timestamp` should say afterwards."""
    has_sent_at, seconds = SKEWS[skew]
    own = TIMES[timestamp]
    ago = OFFSETS[offset]
    if own and has_sent_at and ignore != "true":
        return written(moved(own, -seconds)) if seconds else json.loads(timestamp)
    if ago is not None:
        return written(moved(RECEIVED, -ago / 1000))
    return json.loads(timestamp) if own else NOW


@cases("timestamp", TIMES)
@cases("skew", SKEWS)
def test_time(timestamp: str, skew: str) -> None:
    """Each form of timestamp with each form of offset, with and without `$ignore_sent_at`, by the
    rules; a resolved offset goes.
    """
    has_sent_at, seconds = SKEWS[skew]
    for offset, ignore, space in itertools.product(
        OFFSETS, (ABSENT, "true", "false", "null"), ("", " ")
    ):
        properties = ABSENT if ignore == ABSENT else f'{{"$ignore_sent_at":{ignore}}}'
        data = text_of(
            {
                "timestamp": timestamp,
                "offset": offset,
                "uuid": f'"{UUID}"',
                "properties": properties,
            },
            space,
        )
        event = stamped(data, StampContext(MIDNIGHT, has_sent_at=has_sent_at, skew=seconds))
        assert event["timestamp"] == expected_time(timestamp, offset, skew, ignore), data[:200]
        assert ("offset" in event) is (offset != ABSENT and OFFSETS[offset] is None)


@cases("timestamp", [spelling for spelling, time in TIMES.items() if time])
def test_a_good_timestamp_keeps_its_bytes(timestamp: str) -> None:
    """Without a skew to correct, its spelling stays."""
    result = stamp_event(
        text_of({"timestamp": timestamp}), StampContext(MIDNIGHT, has_sent_at=True)
    )
    assert isinstance(result, StampedEvent)
    assert timestamp.encode() in result.data


@cases("key", ["offset", "\\u006fffset", "off\\u0073et"])
@cases("place", [0, 1, 2])
@cases("space", ["", "\n  "])
@cases("with_uuid", [True, False])
def test_a_resolved_offset_is_removed_wherever_it_stands(
    key: str, place: int, space: str, with_uuid: bool
) -> None:
    """First, in the middle or last, however its key is spelled, whatever space is around it, and
    only it.
    """
    members = ['"event":"offset"', '"distinct_id":"\\"offset\\":5"', f'"uuid":"{UUID}"'][
        : 3 if with_uuid else 2
    ]
    members.insert(place if place < 2 else len(members), f'"{key}"{space}:{space}5000')
    data = ("{" + ",".join(f"{space}{member}{space}" for member in members) + "}").encode()
    event = stamped(data, StampContext(MIDNIGHT))
    uuid = event.pop("uuid")
    assert (uuid == UUID) is with_uuid
    assert event == {
        "event": "offset",
        "distinct_id": '"offset":5',
        "timestamp": "2025-12-31T23:59:55.000Z",
    }


@cases(
    "value",
    [
        ABSENT,
        "null",
        '""',
        '"x"',
        "5",
        "true",
        "[]",
        "{}",
        f'"{UUID[:-1]}"',
        f'"{UUID}0"',
        f'" {UUID}"',
        '"\\ud83d\\ude00"',
    ],
)
@cases("space", ["", " "])
def test_a_bad_uuid_is_replaced_where_it_stands(value: str, space: str) -> None:
    """Absent, null, empty, invalid or no string: a new one, in its place; never a second one."""
    data = text_of({"uuid": value, "timestamp": f'"{NOW}"'}, space)
    result = stamp_event(data, StampContext(MIDNIGHT))
    assert isinstance(result, StampedEvent)
    uuid = unique(result.data)["uuid"]
    assert is_uuid(uuid.encode())
    if value != ABSENT:
        assert result.data == data.replace(
            f'"uuid"{space}:{space}{value}'.encode(), f'"uuid"{space}:{space}"{uuid}"'.encode()
        )


@cases(
    "value",
    [
        UUID,
        UUID.upper(),
        UUID.replace("-", ""),
        f"{{{UUID}}}",
        f"urn:uuid:{UUID}",
        "\\u0030" + UUID[1:],
    ],
)
def test_a_good_uuid_keeps_its_bytes(value: str) -> None:
    """In every form that the service reads."""
    data = text_of({"uuid": f'"{value}"', "timestamp": f'"{NOW}"'})
    assert stamp_event(data, StampContext(MIDNIGHT)) == StampedEvent(data, ("d",))


@cases(
    ("properties", "expected"),
    [
        (ABSENT, {"$ip": "8.8.8.8"}),
        ("null", {"$ip": "8.8.8.8"}),
        ("{}", {"$ip": "8.8.8.8"}),
        ("{ \n}", {"$ip": "8.8.8.8"}),
        ('{"a":1}', {"$ip": "8.8.8.8", "a": 1}),
        ('{ "a":1 }', {"$ip": "8.8.8.8", "a": 1}),
        ('{"$ip":"1.1.1.1"}', {"$ip": "1.1.1.1"}),
        ('{"$ip":null}', {"$ip": None}),
        ('{"\\u0024ip":""}', {"$ip": ""}),
        ('{"a":{"$ip":"1.1.1.1"}}', {"$ip": "8.8.8.8", "a": {"$ip": "1.1.1.1"}}),
        ('{"$geoip_disable":true}', {"$geoip_disable": True}),
        ('{"$geoip_disable": false}', {"$ip": "8.8.8.8", "$geoip_disable": False}),
        ('{"$geoip_disable":null}', {"$ip": "8.8.8.8", "$geoip_disable": None}),
        ('{"$geoip_disable":true,"$ip":"1.1.1.1"}', {"$geoip_disable": True, "$ip": "1.1.1.1"}),
        ("[]", []),
        ('[{"a":1}]', [{"a": 1}]),
        ('"{}"', "{}"),
        ("5", 5),
        ("false", False),
    ],
)
def test_the_address(properties: str, expected: Any) -> None:
    """`$ip` is added where there are properties or could be, where it isn't there, and where
    `$geoip_disable` isn't set.
    """
    data = text_of({"properties": properties})
    assert stamped(data, StampContext(MIDNIGHT, ip=IP))["properties"] == expected
    without = stamped(data, StampContext(MIDNIGHT))
    assert without.get("properties", ABSENT) == (
        ABSENT if properties == ABSENT else json.loads(properties)
    )


@cases(
    ("event", "reason"),
    [
        (b'{"distinct_id":"d"}', Reason.MISSING_EVENT),
        (b'{"event":null,"distinct_id":"d"}', Reason.MISSING_EVENT),
        (b'{"event":"","distinct_id":"d"}', Reason.MISSING_EVENT),
        (b'{"event":5,"distinct_id":"d"}', Reason.INVALID_EVENT),
        (b'{"event":{},"distinct_id":"d"}', Reason.INVALID_EVENT),
        (b'{"event":"e"}', Reason.MISSING_DISTINCT_ID),
        (b'{"event":"e","distinct_id":null}', Reason.MISSING_DISTINCT_ID),
        (b'{"event":"e","distinct_id":""}', Reason.MISSING_DISTINCT_ID),
        (b'{"event":"e","distinct_id":" \\t\\u2003"}', Reason.MISSING_DISTINCT_ID),
        (
            b'{"event":"e","distinct_id":"","properties":{"distinct_id":" "}}',
            Reason.MISSING_DISTINCT_ID,
        ),
        (b'{"event":"e","properties":"distinct_id"}', Reason.MISSING_DISTINCT_ID),
        (b"5", Reason.INVALID_EVENT),
        (b"null", Reason.INVALID_EVENT),
        (b"[]", Reason.INVALID_EVENT),
        (b'"x"', Reason.INVALID_EVENT),
    ],
)
def test_events_that_can_not_be_accepted(event: bytes, reason: Reason) -> None:
    """Nameless, without an id or no object at all."""
    assert stamp_event(event, StampContext(MIDNIGHT)) is reason


@cases(
    "event",
    [
        b'{"event":"e","distinct_id":5}',
        b'{"event":"e","$distinct_id":"x"}',
        b'{"event":"e","properties":{"distinct_id":"x"}}',
        b'{"event":"e","distinct_id":null,"properties":{"distinct_id":["x"]}}',
        b'{"\\u0065vent":"\\u0065","distinct_id":false}',
        b'{"event":" ","distinct_id":"x"}',
    ],
)
def test_events_with_any_id_are_accepted(event: bytes) -> None:
    """The id may stand in three places and be of any type."""
    assert isinstance(stamp_event(event, StampContext(MIDNIGHT)), StampedEvent)


def test_the_stamped_size_counts() -> None:
    """An event is too large if it is so with its stamps; exactly at the limit it isn't."""
    event = b'{"event":"e","distinct_id":"d","uuid":"%b","timestamp":"2025-12-31"}' % UUID.encode()
    size = len(event) + len(b'"properties":{"$ip":"8.8.8.8"},')
    assert isinstance(
        stamp_event(event, StampContext(MIDNIGHT, ip=IP, max_event=size)), StampedEvent
    )
    assert stamp_event(event, StampContext(MIDNIGHT, ip=IP, max_event=size - 1)) is Reason.TOO_LARGE


GOOD = "0190a0a0-1111-7222-8333-444455556666"


@given(st.uuids(), st.booleans())
def test_every_form_of_every_uuid(value: uuid.UUID, upper: bool) -> None:
    """Hyphenated, simple, in braces and as a URN, in either case."""
    for text in (str(value), value.hex, f"{{{value}}}"):
        assert is_uuid((text.upper() if upper else text).encode())
    assert is_uuid(value.urn.encode())
    assert all_hyphenated(as_values([str(value).upper() if upper else str(value)]))


def as_values(texts: Iterable[str]) -> list[Raw]:
    """The texts as an event holds them."""
    return [Raw(msgspec.json.encode(text)) for text in texts]


def test_only_texts_are_uuids() -> None:
    """Nothing else, also where it is as long."""
    for value in (
        b"null",
        b"[]",
        b"1" * 38,
        b"[%b]" % (b"1" * 36),
        b'"' + GOOD[:30].encode() + rb'\u0030"',
    ):
        assert not all_hyphenated([Raw(value)])


@cases(
    "text",
    [
        "",
        "x",
        GOOD[:-1],
        GOOD + "0",
        GOOD + "\n",
        " " + GOOD,
        GOOD.replace("-", "_"),
        GOOD.replace("0190", "019g"),
        "{" + GOOD,
        GOOD + "}",
        "urn:" + GOOD,
        "{urn:uuid:" + GOOD + "}",
        "{" + GOOD.replace("-", "") + "}",
        GOOD.replace("0", "\u0660"),
        GOOD.replace("-", "", 1),
        "-" * 36,
        "x" * 36,
    ],
)
def test_texts_that_are_none(text: str) -> None:
    """Anything else, and so in a list of good ones."""
    assert not is_uuid(text.encode())
    assert not all_hyphenated(as_values([GOOD, text, GOOD]))


@cases(
    "uuids",
    [
        ["", GOOD + GOOD],
        [GOOD[:8], GOOD[8:]],
        [GOOD + GOOD, ""],
        [GOOD[:20], GOOD[20:] + GOOD[:10], GOOD[10:]],
    ],
)
def test_bad_ones_do_not_make_up_for_each_other(uuids: list[str]) -> None:
    """Several texts that joined look like as many UUIDs are still no UUIDs: one of them would fail
    a whole upstream request.
    """
    assert not all_hyphenated(as_values(uuids))


@given(
    st.lists(
        st.sampled_from(
            [GOOD, GOOD.upper(), GOOD.replace("-", ""), "", GOOD * 2, GOOD[:18], GOOD[18:]]
        ),
        max_size=5,
    )
)
def test_all_means_each(uuids: list[str]) -> None:
    """One look at all of them says what a look at each would."""
    assert all_hyphenated(as_values(uuids)) == all(
        len(uuid_text) == 36 and is_uuid(uuid_text.encode()) for uuid_text in uuids
    )


def test_every_reason_at_receipt_has_its_texts() -> None:
    """What stamping rejects has words for its dead letter and for the result of a v1 event."""
    named = {
        Reason[name]
        for source in (module, stamping)
        for name in re.findall(r"\bReason\.([A-Z_]+)", inspect.getsource(source))
    }
    assert set(AT_RECEIPT) == named
    assert all(text.why and text.detail for text in AT_RECEIPT.values())
