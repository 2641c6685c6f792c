"""A mapping: compiled rules, and what they make of a record: its event, whose it is and which, its time and its properties.

Invariants:
- What is dropped or hashed is so before any expression sees the record: no rule can bring it back.
- Values that are read by a plain path, and the whole record as properties, keep their bytes.
- A record gives one event, or none because `where` says no, or an error: nothing is guessed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from forwarder.mapping.expressions import Expressions
from forwarder.mapping.paths import Path, parse_path
from forwarder.mapping.problems import NotJson, Unmappable, described, misconfigured
from forwarder.mapping.redaction import Redaction
from forwarder.mapping.rules import HashRule, MappingRules, ObjectRule
from forwarder.mapping.times import Times

_NO_EVENT: Final = "is missing: the expression of the event's name"
_EVENT_HINT: Final = "For example .type, or for one fixed name '\"signed up\"'."
_SALT_HINT: Final = "Name a file with a long secret, such as `openssl rand -hex 32` writes. Keep it: with another one all hashes change."
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Mapping:
    """Makes events of records."""

    def __init__(self, rules: MappingRules, name: str, key: str, repair: Callable[[bytes], bytes] | None) -> None:
        expressions = Expressions(key)
        if not rules.event.strip():
            raise misconfigured(f"{key}.event", _NO_EVENT, _EVENT_HINT)
        if rules.where is not None:
            expressions.only_where(rules.where)
        self._name = name
        self._repair = repair
        self._redaction = _redaction(rules, key)
        self._event = expressions.add("event", rules.event)
        self._distinct_id = None if rules.distinct_id is None else expressions.add("distinct_id", rules.distinct_id)
        self._timestamp = None if rules.timestamp is None else expressions.add("timestamp", rules.timestamp.source)
        self._times = None if rules.timestamp is None else Times(f"{key}.timestamp", rules.timestamp)
        self._uuid = None if rules.uuid is None else expressions.add("uuid", rules.uuid)
        self._properties = ObjectValue("properties", "." if rules.properties is None else rules.properties, expressions)
        written = (("set", rules.set), ("set_once", rules.set_once), ("groups", rules.groups))
        added = [(f"${rule}", ObjectValue(rule, each, expressions)) for rule, each in written if each is not None]
        self._additions = Additions(added) if added else None
        expressions.compile()
        self._expressions = expressions

    @classmethod
    def compile(cls, rules: MappingRules, name: str, key: str = "mapping", repair: Callable[[bytes], bytes] | None = None) -> Mapping:
        """The mapping of the source called `name`, which natural keys of events belong to. Reads the file of the salt.

        `key` is the name of the rules' setting, for errors. `repair` makes JSON of a record that is not; it gives the
        record as it is if it can't. Raises `ConfigurationError` for a rule that can't be used.
        """
        return cls(rules, name, key, repair)

    def map(self, data: bytes) -> bytes | None:
        """The event that a record, one JSON object, becomes, as JSON text; None if `where` says that it is none.

        Raises `NotJson`, and `Unmappable` if a rule finds something else than it needs.
        """
        return self._repaired(self._map, data)

    def map_record(self, data: bytes) -> bytes | None:
        """The same for a record that may also be an array of objects: a JSON array of the events of those that `where` leaves.

        None if it leaves none. If one of them can't be mapped, none is.
        """
        is_array = data[:1] == b"[" or data.lstrip()[:1] == b"["
        return self._repaired(self._map_all if is_array else self._map, data)

    def _repaired(self, make: Callable[[bytes], bytes | None], data: bytes) -> bytes | None:
        """The result for a record, or for its repaired form where it is not JSON."""
        try:
            return _reported(make, data)
        except NotJson:
            repaired = data if self._repair is None else self._repair(data)
            if repaired == data:
                raise
        return _reported(make, repaired)

    def _map_all(self, data: bytes) -> bytes | None:
        events = [event for event in [self._map(bytes(raw)) for raw in _split(data)] if event is not None]
        return b"[%b]" % b",".join(events) if events else None

    def _map(self, data: bytes) -> bytes | None:
        values = self._expressions.evaluate(data if self._redaction is None else self._redaction.apply(data))
        if values is None:
            return None
        members = [b'{"event":%b' % _event(values[self._event])]
        if self._distinct_id is not None and (distinct_id := read_distinct_id(values[self._distinct_id])):
            members.append(b'"distinct_id":%b' % distinct_id)
        if self._timestamp is not None and self._times is not None and values[self._timestamp]:
            members.append(b'"timestamp":%b' % self._times.read(values[self._timestamp]))
        if self._uuid is not None and (uuid := read_uuid(values[self._uuid], self._name)):
            members.append(b'"uuid":%b' % uuid)
        properties = self._properties.of(values) or b"{}"
        if self._additions is not None:
            properties = self._additions.into(properties, values)
        members.append(b'"properties":%b}' % properties)
        return b",".join(members)


def _reported(make: Callable[[bytes], bytes | None], data: bytes) -> bytes | None:
    """`make(data)`, with errors of ours in place of the decoder's."""
    try:
        return make(data)
    except msgspec.ValidationError:
        raise Unmappable(f"the record is {described(data.strip())}; the rules need an object") from None
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
    return "a string in it holds half a surrogate pair, or it isn't JSON" if _SURROGATE.search(data) else said


def _event(value: bytes) -> bytes:
    if value[:1] != b'"' or value == b'""':
        raise Unmappable(f"event: the expression gives {described(value)}; the event's name is needed")
    return value


def _redaction(rules: MappingRules, key: str) -> Redaction | None:
    """What takes out and hashes; None if nothing is. Raises `ConfigurationError`."""
    if not rules.drop and rules.hash is None:
        return None
    dropped = _paths(rules.drop, f"{key}.drop")
    if rules.hash is None:
        return Redaction(dropped)
    return Redaction(dropped, _paths(rules.hash.fields, f"{key}.hash.field"), _salt(rules.hash, f"{key}.hash.salt_file"))


def _paths(written: Iterable[str], key: str) -> Sequence[Path]:
    paths: list[Path] = []
    for text in written:
        path = parse_path(text)
        if not path:
            what = "is the whole record" if path == () else "is no path"
            raise misconfigured(key, f"{text!r} {what}", 'Paths are such as .user.email, .["odd name"], .items[0].sku or .items[].email.')
        paths.append(path)
    return paths


def _salt(rule: HashRule, key: str) -> bytes:
    try:
        salt = rule.salt_file.read_bytes().strip()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise misconfigured(key, f"{rule.salt_file} can't be read: {getattr(error, 'strerror', None) or error}", _SALT_HINT) from error
    if not salt:
        raise misconfigured(key, f"{rule.salt_file} is empty", _SALT_HINT)
    return salt


_SPACE: Final = b" \t\r\n"


class ObjectValue:
    """An expression that gives an object, or names with an expression each."""

    def __init__(self, rule: str, written: ObjectRule, expressions: Expressions) -> None:
        self._rule = rule
        self._slot = expressions.add(rule, written) if isinstance(written, str) else None
        pairs = [] if isinstance(written, str) else list(written.items())
        self._members = [(msgspec.json.encode(name) + b":", expressions.add(f"{rule}.{name}", each)) for name, each in pairs]

    def of(self, values: Sequence[bytes]) -> bytes:
        """The object as JSON text; empty if there is none, or nothing in it. Raises `Unmappable` for another kind of value."""
        if self._slot is None:
            members = [name + values[slot] for name, slot in self._members if values[slot]]
            return b"{%b}" % b",".join(members) if members else b""
        value = values[self._slot]
        if value and value[:1] != b"{":
            raise Unmappable(f"{self._rule}: the expression gives {described(value)}; an object is needed")
        return value


class Additions:
    """Members that rules put into the properties; where those have one of that name, it gives way."""

    def __init__(self, objects: Sequence[tuple[str, ObjectValue]]) -> None:
        self._objects = [(name, b'"%b":' % name.encode(), Redaction([(name,)]), value) for name, value in objects]

    def into(self, properties: bytes, values: Sequence[bytes]) -> bytes:
        """The properties with the members, which come first. Raises `Unmappable`."""
        added: list[bytes] = []
        for name, member, removal, value in self._objects:
            text = value.of(values)
            if text:
                added.append(member + text)
                if name.encode() in properties or b"\\u" in properties:
                    properties = removal.apply(properties)
        if not added:
            return properties
        rest = properties[1:].lstrip(_SPACE)
        return b"{%b%b%b" % (b",".join(added), b"" if rest == b"}" else b",", rest)


NATURAL_KEYS: Final = UUID("3f0d6f0e-6a55-4bb0-9c7e-6a1c2f1f5d83")
"""Namespace of the uuids that are made from natural keys. Never to be changed: a record that is read again has to give the same one."""

_HYPHENATED: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_UUID: Final = re.compile(rf"(?:urn:uuid:)?{_HYPHENATED}|\{{{_HYPHENATED}\}}|[0-9a-fA-F]{{32}}")
_NUMBER_STARTS: Final = b"-0123456789"
_decode_string = msgspec.json.Decoder(str).decode


def read_distinct_id(value: bytes) -> bytes:
    """A value as a distinct_id, JSON text: a string as it is, a number as the string of its own text; empty if it says nothing.

    Raises `Unmappable` for anything else.
    """
    return b"" if not _text("distinct_id", value).strip() else value if value[:1] == b'"' else b'"%b"' % value


def read_uuid(value: bytes, name: str) -> bytes:
    """A value as an event's uuid, JSON text; empty if it says nothing.

    A UUID stays what it is; from any other text, a natural key of the source `name`, one is derived. Raises `Unmappable` for what is
    neither a string nor a number.
    """
    text = _text("uuid", value).strip()
    if not text:
        return b""
    return b'"%b"' % (text.encode() if _UUID.fullmatch(text) else _derived(f"{name}/{text}"))


def _derived(name: str) -> bytes:
    """The UUID of version 5 for a name; what `uuid.uuid5` gives, in a fifth of its time."""
    digest = bytearray(hashlib.sha1(NATURAL_KEYS.bytes + name.encode(), usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex().encode()
    return b"-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _text(rule: str, value: bytes) -> str:
    if not value:
        return ""
    if value[:1] == b'"':
        return _decode_string(value)
    if value[:1] in _NUMBER_STARTS:
        return value.decode()
    raise Unmappable(f"{rule}: the expression gives {described(value)}; a string or a number is needed")
