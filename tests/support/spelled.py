"""Events in every spelling that JSON allows, with a reference of what stamping may change in them,
to the byte.

An event is drawn as the list of its members' spellings, so that the reference never has to parse
JSON: it knows where everything is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st

SPACE: Final = st.sampled_from(["", "", "", " ", "\n", "\t ", "\r\n  "])
UUID: Final = "0190a0a0-1111-7222-8333-444455556666"
VALID_UUIDS: Final = [
    UUID,
    UUID.upper(),
    UUID.replace("-", ""),
    "{" + UUID + "}",
    "urn:uuid:" + UUID,
]
VALID_TIMES: Final = [
    "2025-12-31T12:00:00Z",
    "2025-12-31T12:00:00.123456+03:00",
    "2025-12-31 12:00:00",
    "2025-12-31",
]

NUMBERS: Final = st.sampled_from(
    [
        "0",
        "-0",
        "1.0",
        "1e5",
        "1E+5",
        "-0.0",
        "123456789012345678901234567890",
        "0.1000",
        "1e-400",
        "1e999",
    ]
)
STRINGS: Final = st.one_of(
    st.text(max_size=12).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(max_size=12).map(json.dumps),
    st.sampled_from(
        [
            r'"\u00e9\/\b"',
            r'"\ud83d\ude00"',
            '"\\"offset\\":5,"',
            '"NaN"',
            '"},{"',
            r'"\\"',
            '"\x7f"',
            '"\u2028"',
        ]
    ),
)
SCALARS: Final = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))


def _array(values: list[str], space: str) -> str:
    return f"[{space}{f'{space},'.join(values)}{space}]"


@st.composite
def spelled_object(draw: st.DrawFn, values: st.SearchStrategy[str]) -> str:
    """An object with odd spacing, in which keys may come twice."""
    keys = draw(
        st.lists(
            st.sampled_from(
                ['"a"', '"a"', r'"\u0061"', '"uuid"', '"timestamp"', '"offset"', '"é"']
            ),
            max_size=4,
        )
    )
    return (
        "{"
        + ",".join(
            draw(SPACE) + key + draw(SPACE) + ":" + draw(SPACE) + draw(values) + draw(SPACE)
            for key in keys
        )
        + "}"
    )


VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.builds(_array, st.lists(inner, max_size=3), SPACE) | spelled_object(inner),
    max_leaves=8,
)


@dataclass
class SpelledMember:
    """A member as it is spelled."""

    name: str
    before: str
    key: str
    middle: str
    value: str
    after: str

    def text(self, value: str | None = None) -> str:
        """Its text, with another value."""
        return (
            f"{self.before}{self.key}{self.middle}{self.value if value is None else value}"
            f"{self.after}"
        )


@dataclass
class SpelledEvent:
    """An event, and what is to become of it."""

    members: list[SpelledMember]
    has_uuid: bool
    has_timestamp: bool
    inner: str | None
    """What stands between the braces of properties that gain `$ip`."""

    @property
    def text(self) -> str:
        """The event as it is sent."""
        return "{" + ",".join(member.text() for member in self.members) + "}"

    def stamped(self, uuid: str, timestamp: str, ip: str | None) -> str:
        """The event as it is to be sent on, given what was stamped."""
        named = {member.name for member in self.members}
        parts: list[str] = []
        if not self.has_uuid and "uuid" not in named:
            parts.append(f'"uuid":"{uuid}"')
        if not self.has_timestamp and "timestamp" not in named:
            parts.append(f'"timestamp":"{timestamp}"')
        if ip is not None and "properties" not in named:
            parts.append(f'"properties":{{"$ip":"{ip}"}}')
        return (
            "{"
            + ",".join(
                [
                    *parts,
                    *[self._stamped_member(member, uuid, timestamp, ip) for member in self.members],
                ]
            )
            + "}"
        )

    def _stamped_member(
        self, member: SpelledMember, uuid: str, timestamp: str, ip: str | None
    ) -> str:
        if member.name == "uuid" and not self.has_uuid:
            return member.text(f'"{uuid}"')
        if member.name == "timestamp" and not self.has_timestamp:
            return member.text(f'"{timestamp}"')
        if member.name == "properties" and ip is not None:
            return member.text(self._stamped_properties(member.value, ip))
        return member.text()

    def _stamped_properties(self, value: str, ip: str) -> str:
        if value == "null":
            return f'{{"$ip":"{ip}"}}'
        if self.inner is None:
            return value
        return f'{{"$ip":"{ip}"{"," if self.inner.strip() else ""}{self.inner}}}'


def escaped(name: str) -> str:
    """A key with its first letter as an escape."""
    return f'"\\u{ord(name[0]):04x}{name[1:]}"'


@st.composite
def _properties(draw: st.DrawFn) -> tuple[str, str | None]:
    """A value of `properties`, and what stands in it if it gains `$ip`."""
    kind = draw(st.sampled_from(["object", "object", "object", "ip", "geoip", "second", "other"]))
    if kind == "other":
        return draw(st.sampled_from(["null", "[]", '"x"', "5", "[{}]"])), None
    inner = draw(spelled_object(VALUES))[1:-1]
    extra = {
        "ip": ['"$ip":null', '"$ip":"9.9.9.9"', r'"\u0024ip": ""'],
        "geoip": ['"$geoip_disable":true', '"$geoip_disable" : 1'],
        "second": [
            '"alias":"b"',
            '"$anon_distinct_id": 5.0',
            '"alias":"a","$geoip_disable":false',
            '"$anon_distinct_id":" "',
        ],
        "object": [""],
    }[kind]
    member = draw(st.sampled_from(extra))
    joined = ",".join(filter(str.strip, [member, inner])) if member else inner
    return "{" + joined + "}", None if kind in ("ip", "geoip") else joined


@st.composite
def spelled_events(
    draw: st.DrawFn, *, complete: bool = False, with_properties: bool = False
) -> SpelledEvent:
    """An event that has a name and an id; complete ones need no uuid and no timestamp, in the
    usual forms.
    """
    values = {
        "event": json.dumps(
            draw(st.text(min_size=1, max_size=8)), ensure_ascii=draw(st.booleans())
        ),
        "distinct_id": json.dumps(draw(st.text(max_size=8)) + "x")
        if complete
        else draw(st.sampled_from(['"x"', "5", '["x"]', r'"\u0078"'])),
    }
    uuid = (
        draw(st.sampled_from(VALID_UUIDS[:2]))
        if complete
        else draw(st.sampled_from([*VALID_UUIDS, None, "", "not-a-uuid", UUID[:-1]]))
    )
    time = (
        draw(st.sampled_from(VALID_TIMES[:2]))
        if complete
        else draw(st.sampled_from([*VALID_TIMES, None, "", "no time"]))
    )
    present = complete or draw(st.booleans())
    if uuid or present:
        values["uuid"] = json.dumps(uuid)
    if time or present:
        values["timestamp"] = json.dumps(time)
    inner: str | None = None
    if with_properties or draw(st.booleans()):
        values["properties"], inner = draw(_properties())
    for name in draw(st.lists(st.sampled_from(["extra", "$set", "é"]), unique=True)):
        values[name] = draw(VALUES)
    members = [
        SpelledMember(
            name,
            draw(SPACE),
            draw(st.sampled_from([json.dumps(name, ensure_ascii=False)] * 4 + [escaped(name)])),
            draw(SPACE) + ":" + draw(SPACE),
            value,
            draw(SPACE),
        )
        for name, value in draw(st.permutations(list(values.items())))
    ]
    return SpelledEvent(members, uuid in VALID_UUIDS, time in VALID_TIMES, inner)
