"""The shapes a body can have (an array, a batch object, one event), cut into events that keep their exact text.

What an envelope says for all its events (key, `sent_at`, `historical_migration`) is read here; nothing is judged but that the JSON has one
of the shapes (wire facts: "How the service decodes a body").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from forwarder.sandbox.answers import Refusal
from forwarder.sandbox.scanning import Member, NotJson, Scanner
from forwarder.sandbox.timing import parse_time

TOKEN_NAMES: Final = ("token", "$token", "api_key")


class Element:
    """One event as it stands in the body: `raw` is its text, `members` what its top level says, in order, repeated keys included."""

    __slots__ = ("_values", "infinite", "is_object", "members", "raw", "text")

    def __init__(self, text: str, start: int, end: int, members: list[Member], *, infinite: bool, is_object: bool = True) -> None:
        self.text = text
        self.raw = text[start:end]
        self.members = members
        self.infinite = infinite
        """Whether a number in it is too large for a double."""
        self.is_object = is_object
        """Whether it can be an event at all; else it has no members."""
        self._values = {member.key: member.value for member in members}

    def get(self, key: str) -> Any:
        """The value of a key of the top level, None if it is absent; of a repeated key the last, as JSON readers do."""
        return self._values.get(key)

    def property(self, key: str) -> Any:
        """The value of one of its properties, None if it is absent."""
        properties = self._values.get("properties")
        return properties.get(key) if isinstance(properties, dict) else None

    def source(self, key: str) -> str | None:
        """The text of a value of the top level, exactly as sent; None if the key is absent or null."""
        for member in reversed(self.members):
            if member.key == key:
                return None if member.value is None else self.text[member.start : member.end]
        return None

    def token(self) -> object:
        """The key that the event itself names, else None."""
        for name in TOKEN_NAMES:
            if self._values.get(name) is not None:
                return self._values[name]
        return self.property("token")


@dataclass(slots=True)
class Envelope:
    """A body's events, and what it says for all of them."""

    elements: list[Element] = field(default_factory=list)
    token: object = None
    historical: bool = False
    odd_historical: bool = False
    """Whether one event says `historical_migration` beside it, and not as a boolean: the real service doesn't look there."""
    sent_at: datetime | None = None


def read_envelope(text: str) -> Envelope:
    """Cut a body into its events. Raises `Refusal` (400) if it is not JSON, or has none of the shapes."""
    scanner = Scanner(text)
    envelope = Envelope()
    try:
        start = scanner.first()
        if text[start] == "[":
            end = read_array(scanner, start, envelope)
        elif text[start] == "{":
            end = _read_object(scanner, start, envelope)
        else:
            raise Refusal(400, "the body is neither an object nor an array")
        scanner.finish(end)
    except NotJson as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    return envelope


def read_object(text: str) -> dict[str, Any]:
    """A body that must be one JSON object. Raises `Refusal` (400)."""
    scanner = Scanner(text)
    try:
        value, end = scanner.value(scanner.first())
        scanner.finish(end)
    except NotJson as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not an object")
    return value


def _read_object(scanner: Scanner, start: int, envelope: Envelope) -> int:
    members, end = scanner.members(start)
    values = {member.key: member for member in members}
    envelope.token = next((values[name].value for name in TOKEN_NAMES if name in values and values[name].value is not None), None)
    envelope.sent_at = parse_time(values["sent_at"].value) if "sent_at" in values else None
    historical = values["historical_migration"].value if "historical_migration" in values else None
    envelope.historical, odd = historical is True, historical is not None and not isinstance(historical, bool)
    if "batch" not in values or values["batch"].value is None:
        envelope.odd_historical = odd
        envelope.elements.append(Element(scanner.text, start, end, members, infinite=scanner.infinite))
        return end
    if not isinstance(values["batch"].value, list):
        raise Refusal(400, "batch is not an array")
    if odd:
        raise Refusal(400, "historical_migration is neither true nor false")
    read_array(scanner, values["batch"].start, envelope)
    return end


def read_array(scanner: Scanner, start: int, envelope: Envelope) -> int:
    """Add the events of the array at `start` to an envelope; returns where the array ends. Raises `NotJson`."""

    def read(at: int) -> int:
        scanner.infinite = False
        if scanner.text[at] != "{":
            _, end = scanner.value(at)
            envelope.elements.append(Element(scanner.text, at, end, [], infinite=scanner.infinite, is_object=False))
            return end
        members, end = scanner.members(at)
        envelope.elements.append(Element(scanner.text, at, end, members, infinite=scanner.infinite))
        return end

    return scanner.elements(start, read)
