"""Values that are objects: the properties of an event, and what goes into them under names of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from forwarder.mapping.expressions import Expressions
from forwarder.mapping.problems import Unmappable, described
from forwarder.mapping.redaction import Redaction
from forwarder.mapping.rules import ObjectRule

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
