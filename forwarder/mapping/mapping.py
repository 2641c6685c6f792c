"""A mapping: compiled rules, and what they make of a record: its event, whose it is and which, its
time and its properties.

Invariants:
- What is dropped or hashed is so before any expression sees the record: no rule can bring it back.
- Values that are read by a plain path, and the whole record as properties, keep their bytes.
- A record gives one event, or none because `where` says no, or an error: nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from forwarder.core.nesting import MAX_NESTING, check_nesting
from forwarder.core.stamps import uuid5
from forwarder.mapping.expressions import Expressions
from forwarder.mapping.mapping_rules import MappingRules, ObjectRule
from forwarder.mapping.privacy import AddedMember, Privacy, add_members
from forwarder.mapping.problems import NotJson, Unmappable, described, misconfigured
from forwarder.mapping.times import Times

_BACKSLASH: Final = ord("\\")
"""A number is found in bytes in an eighth of the time that bytes are."""
_NO_EVENT: Final = "is missing: the expression of the event's name"
_EVENT_HINT: Final = "For example .type, or for one fixed name '\"signed up\"'."
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
EventParts: TypeAlias = tuple[bytes, bytes, bytes, bytes, bytes]
"""Name, distinct_id, timestamp, uuid and properties of an event as JSON texts; empty for what the
mapping gives nothing for.
"""
_T = TypeVar("_T")
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
REST: Final = "*"
"""In place of a property's name: its expression gives an object, whose members are properties.
Those that are named take their places, also where they are null; `context_*`, which is null, leaves
out all whose names begin so.
"""


class Mapping:
    """Makes events of records."""

    def __init__(
        self,
        rules: MappingRules,
        name: str,
        key: str,
        repair: Callable[[bytes], bytes] | None,
        *,
        has_time: bool,
    ) -> None:
        expressions = Expressions(key)
        if not rules.event.strip():
            raise misconfigured(f"{key}.event", _NO_EVENT, _EVENT_HINT)
        if rules.where is not None:
            expressions.only_where(rules.where)
        self._name = name
        self._repair = repair
        self._event = expressions.add("event", rules.event)
        self._distinct_id = (
            None if rules.distinct_id is None else expressions.add("distinct_id", rules.distinct_id)
        )
        self._timestamp = (
            None
            if rules.timestamp is None
            else expressions.add("timestamp", rules.timestamp.source)
        )
        self._times = (
            None
            if rules.timestamp is None
            else Times(f"{key}.timestamp", rules.timestamp, has_time=has_time)
        )
        self._privacy = (
            Privacy(rules, key, self._times, has_time=has_time)
            if rules.drop or rules.hash is not None
            else None
        )
        self._uuid = None if rules.uuid is None else expressions.add("uuid", rules.uuid)
        self._has_parts = rules.uuid is not None and rules.uuid.strip().startswith("[")
        """Whether uuids follow from keys of several parts."""
        self._properties = ObjectValue(
            "properties", "." if rules.properties is None else rules.properties, expressions
        )
        self._record = self._properties.slot if rules.properties is None else None
        """The slot of the whole record, where the properties are that."""
        written = (("set", rules.set), ("set_once", rules.set_once), ("groups", rules.groups))
        added = [
            (f"${rule}", ObjectValue(rule, source, expressions))
            for rule, source in written
            if source is not None
        ]
        self._additions = Additions(added) if added else None
        expressions.compile()
        self._expressions = expressions

    @classmethod
    def compile(
        cls,
        rules: MappingRules,
        name: str,
        key: str = "mapping",
        repair: Callable[[bytes], bytes] | None = None,
        *,
        has_time: bool = True,
    ) -> Mapping:
        """The mapping of the source called `name`, which natural keys of events belong to. Reads
        the file of the salt.

        `key` is the name of the rules' setting, for errors. `repair` makes JSON of a record that
        is not; it gives the record as it is if it can't. `has_time`: whether the source knows the
        times of its records. Raises `ConfigurationError` for a rule that can't be used.
        """
        return cls(rules, name, key, repair, has_time=has_time)

    def map(self, data: bytes, time: float | None = None) -> bytes | None:
        """The event that a record, one JSON object, becomes, as JSON text; None if `where` says
        that it is none.

        `time`: the record's own, seconds since 1970, None if it isn't known: for years that are
        missing, and daily hashes.
        Raises `NotJson`, and `Unmappable` if a rule finds something else than it needs.
        """
        parts = self.parts(data, time)
        return None if parts is None else join_parts(parts)

    def parts(self, data: bytes, time: float | None = None) -> EventParts | None:
        """The same in its parts."""
        try:
            return self._parts(data, time)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._repaired(self._parts, data, time)

    def map_record(self, data: bytes, time: float | None = None) -> bytes | None:
        """The same for a record that may also be an array of objects: a JSON array of the events
        of those that `where` leaves.

        None if it leaves none. If one of them can't be mapped, none is.
        """
        is_array = data[:1] == b"[" or (data[:1] != b"{" and data.lstrip()[:1] == b"[")
        return self._repaired(self._map_all, data, time) if is_array else self.map(data, time)

    def _repaired(
        self, make: Callable[[bytes, float | None], _T], data: bytes, time: float | None
    ) -> _T:
        """The result for a record, or for its repaired form where it is not JSON."""
        try:
            return _reported(make, data, time)
        except NotJson:
            repaired = data if self._repair is None else self._repair(data)
            if repaired == data:
                raise
        return _reported(make, repaired, time)

    def _map_all(self, data: bytes, time: float | None) -> bytes | None:
        check_nesting(data)
        events = [
            event
            for event in [self._map_one(bytes(raw), time) for raw in _split(data)]
            if event is not None
        ]
        return b"[%b]" % b",".join(events) if events else None

    def _map_one(self, data: bytes, time: float | None) -> bytes | None:
        parts = self._parts(data, time)
        return None if parts is None else join_parts(parts)

    def _parts(self, data: bytes, time: float | None) -> EventParts | None:
        if len(data) > MAX_NESTING:
            check_nesting(data)
        when = b""
        problem = ""
        if self._privacy is not None:
            data, when, problem = self._privacy.apply(data, time)
        values = self._expressions.evaluate(data)
        if values is None:
            return None
        if problem:
            raise Unmappable(problem)
        event = values[self._event]
        if event[:1] != b'"' or event == b'""':
            raise Unmappable(
                f"event: the expression gives {described(event)}; the event's name is needed"
            )
        distinct_id = uuid = b""
        if self._distinct_id is not None:
            distinct_id = values[self._distinct_id]
            # not plainly a string that isn't blank
            if (
                not distinct_id[1:2].isalnum()
                or distinct_id[:1] != b'"'
                or _BACKSLASH in distinct_id
            ):
                distinct_id = read_distinct_id(distinct_id)
        if (
            self._timestamp is not None
            and self._times is not None
            and not when
            and values[self._timestamp]
        ):
            when = self._times.read(values[self._timestamp], time)
        if self._uuid is not None:
            key = values[self._uuid]
            uuid = uuid_of_parts(key, self._name) if self._has_parts else read_uuid(key, self._name)
        properties = (
            values[self._record]
            if self._record is not None
            else self._properties.of(values) or b"{}"
        )
        if self._additions is not None:
            properties = self._additions.into(
                properties, values, unescaped=self._properties.is_rewritten
            )
        return event, distinct_id, when, uuid, properties


def join_parts(parts: EventParts) -> bytes:
    """The event as JSON text."""
    event, distinct_id, timestamp, uuid, properties = parts
    members = [b'{"event":%b' % event]
    if distinct_id:
        members.append(b'"distinct_id":%b' % distinct_id)
    if timestamp:
        members.append(b'"timestamp":%b' % timestamp)
    if uuid:
        members.append(b'"uuid":%b' % uuid)
    members.append(b'"properties":%b}' % properties)
    return b",".join(members)


def _reported(make: Callable[[bytes, float | None], _T], data: bytes, time: float | None) -> _T:
    """`make(data)`, with errors of ours in place of the decoder's."""
    try:
        return make(data, time)
    except msgspec.ValidationError:
        raise Unmappable(
            f"the record is {described(data.strip())}; the rules need an object"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotJson(_why_not(data, str(error))) from None
    except RecursionError:
        raise NotJson("it is nested too deep") from None


def _why_not(data: bytes, said: str) -> str:
    """Why a record is no JSON text; `said` is what its decoder said."""
    if not data.strip():
        return "it is empty"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "it isn't UTF-8"
    return (
        "a string in it holds half a surrogate pair, or it isn't JSON"
        if _SURROGATE.search(data)
        else said
    )


class ObjectValue:
    """An expression that gives an object, or names with an expression each."""

    def __init__(self, rule: str, written: ObjectRule, expressions: Expressions) -> None:
        self._rule = rule
        self.slot = (
            expressions.add(rule, written, is_object=True) if isinstance(written, str) else None
        )
        pairs = {} if isinstance(written, str) else dict(written)
        rest = pairs.pop(REST, None)
        self._rest = (
            None if rest is None else expressions.add(f"{rule}.{REST}", rest, is_object=True)
        )
        self.is_rewritten = rest is not None
        """Whether the names in the object are written anew."""
        slots = {name: expressions.add(f"{rule}.{name}", text) for name, text in pairs.items()}
        self._slots = [*slots.items()]
        self._left_out = tuple(
            name.removesuffix(REST)
            for name, text in pairs.items()
            if rest is not None and name.endswith(REST) and text.strip() == "null"
        )
        self._members = [(msgspec.json.encode(name) + b":", slot) for name, slot in slots.items()]

    def of(self, values: Sequence[bytes]) -> bytes:
        """The object as JSON text; empty if there is none, or nothing in it. Raises `Unmappable`
        for another kind of value.
        """
        if self._rest is not None:
            return self._with_rest(values[self._rest], values)
        if self.slot is None:
            members = [name + values[slot] for name, slot in self._members if values[slot]]
            return b"{%b}" % b",".join(members) if members else b""
        return self._checked(values[self.slot])

    def _with_rest(self, rest: bytes, values: Sequence[bytes]) -> bytes:
        members = _decode_members(rest) if self._checked(rest) else {}
        if self._left_out:
            members = {
                name: value
                for name, value in members.items()
                if not name.startswith(self._left_out)
            }
        for name, slot in self._slots:
            if values[slot]:
                members[name] = msgspec.Raw(values[slot])
            elif name in members:
                del members[name]
        return _encode(members) if members else b""

    def _checked(self, value: bytes) -> bytes:
        if value and value[:1] != b"{":
            raise Unmappable(
                f"{self._rule}: the expression gives {described(value)}; an object is needed"
            )
        return value


class Additions:
    """Members that rules put into the properties; where those have one of that name,
    it gives way.
    """

    def __init__(self, objects: Sequence[tuple[str, ObjectValue]]) -> None:
        self._objects = [(AddedMember(name), value) for name, value in objects]

    def into(self, properties: bytes, values: Sequence[bytes], *, unescaped: bool) -> bytes:
        """The properties with the members, which come first; `unescaped`: see `add_members`.
        Raises `Unmappable`.
        """
        return add_members(
            properties,
            [(member, text) for member, value in self._objects if (text := value.of(values))],
            unescaped=unescaped,
        )


NATURAL_KEYS: Final = UUID("3f0d6f0e-6a55-4bb0-9c7e-6a1c2f1f5d83")
"""Namespace of the uuids that are made from natural keys. Never to be changed: a record that is
read again has to give the same one.
"""

_HYPHENATED: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(rf"(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|[0-9a-fA-F]{{32}}")
_NUMBER_STARTS: Final = b"-0123456789"
_decode_string = msgspec.json.Decoder(str).decode


def read_distinct_id(value: bytes) -> bytes:
    """A value as a distinct_id, JSON text: a string as it is, a number as the string of its own
    text; empty if it says nothing.

    Raises `Unmappable` for anything else.
    """
    if not _text("distinct_id", value).strip():
        return b""
    return value if value[:1] == b'"' else b'"%b"' % value


def read_uuid(value: bytes, name: str) -> bytes:
    """A value as an event's uuid, JSON text; empty if it says nothing.

    A UUID stays what it is; from any other text, a natural key of the source `name`, one is
    derived. Raises `Unmappable` for what is neither a string nor a number.
    """
    text = _text("uuid", value).strip()
    if not text:
        return b""
    return b'"%b"' % (
        text.encode()
        if _UUID.fullmatch(text)
        else uuid5(NATURAL_KEYS.bytes, f"{name}/{text}".encode())
    )


def uuid_of_parts(value: bytes, name: str) -> bytes:
    """The uuid that follows from an array, a natural key of several parts; empty if none of them
    says anything. Raises `Unmappable` for another value.
    """
    if value[:1] != b"[":
        return read_uuid(value, name)
    if not value.strip(b"[nul, ]"):
        return b""
    return b'"%b"' % uuid5(NATURAL_KEYS.bytes, b"%b/%b" % (name.encode(), value))


def _text(rule: str, value: bytes) -> str:
    if not value:
        return ""
    if value[:1] == b'"':
        return _decode_string(value)
    if value[:1] in _NUMBER_STARTS:
        return value.decode()
    raise Unmappable(
        f"{rule}: the expression gives {described(value)}; a string or a number is needed"
    )
