"""One event of a v1 request, written as the classic event that `/batch/` takes.

What v1 has beside the properties goes back into them, under the names that the service gives it:
`session_id` is `$session_id`, `options.disable_skew_correction` is `$ignore_sent_at`, and so on;
the SDK's name and version, which come in a header, are `$lib` and `$lib_version`. The service puts
them behind the properties, where they win over a property of the same name; here such a property
gets the value in its place, so that no key is there twice. Members that v1 doesn't know are left
out, as the service does.

Invariant: all other bytes of the properties, and of every member that stays, are
those that were received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.wire.identity import ABSENT, MAX_ID_CHARACTERS, first_byte
from forwarder.wire.splice import Edits, Locator

MAX_SDK_INFO: Final = 200
"""Bytes; a longer one is ignored, because it would be put into each event."""

MALFORMED_EVENT: Final = "malformed_event"
MALFORMED_PROPERTIES: Final = "malformed_event_properties"
INVALID_SESSION: Final = "invalid_session_or_window"
INVALID_OPTIONS: Final = "invalid_options"
"""Why an event is none of this protocol: the `details` of its result."""


class _Event(Struct, gc=False):
    event: Raw = ABSENT
    uuid: Raw = ABSENT
    distinct_id: Raw = ABSENT
    timestamp: Raw = ABSENT
    session_id: Raw = ABSENT
    window_id: Raw = ABSENT
    options: Raw = ABSENT
    properties: Raw = ABSENT


class _Options(Struct, gc=False):
    cookieless_mode: Raw = ABSENT
    disable_skew_correction: Raw = ABSENT
    product_tour_id: Raw = ABSENT
    process_person_profile: Raw = ABSENT


class _Promoted(Struct, gc=False):
    """The properties that may have to give way."""

    session_id: Raw = field(name="$session_id", default=ABSENT)
    window_id: Raw = field(name="$window_id", default=ABSENT)
    cookieless_mode: Raw = field(name="$cookieless_mode", default=ABSENT)
    disable_skew_correction: Raw = field(name="$ignore_sent_at", default=ABSENT)
    product_tour_id: Raw = field(name="$product_tour_id", default=ABSENT)
    process_person_profile: Raw = field(name="$process_person_profile", default=ABSENT)
    lib: Raw = field(name="$lib", default=ABSENT)
    lib_version: Raw = field(name="$lib_version", default=ABSENT)


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_options = msgspec.json.Decoder(_Options).decode
_decode_promoted = msgspec.json.Decoder(_Promoted).decode
_decode_any = msgspec.json.Decoder().decode

_NAMES: Final[dict[str, bytes]] = {
    field.name: field.encode_name.encode() for field in msgspec.structs.fields(_Promoted)
}
_BOOLS: Final = {"true": b"true", "1": b"true", "false": b"false", "0": b"false"}
_NULL: Final = b"null"
_QUOTE: Final = b'"'
_BACKSLASH: Final = ord("\\")
_OBJECT: Final = b"{"
_NUMBER_STARTS: Final = b"-0123456789"
_NO_OPTIONS: Final = (b"", b"{}", _NULL)
_MAY_BE_SPACE: Final = frozenset([0x20, *range(0x80, 0x100)])
"""Bytes that white space may begin or end with, where it isn't escaped."""


class _Malformed(Exception):
    """The event is none of this protocol."""

    def __init__(self, details: str) -> None:
        self.details = details


@dataclass(slots=True)
class Rewritten:
    """A classic event, and what its result needs to know; `problem` if it can't be one: then
    `data` is as it was received.
    """

    data: bytes
    uuid: bytes = b""
    """As it was sent, as JSON text; empty if it is no string."""
    problem: str = ""
    id_is_cut: bool = False


class Rewriter:
    """Writes the events of one request anew."""

    def __init__(self, sdk_info: bytes) -> None:
        lib = library(sdk_info)
        self._lib = () if lib is None else (("lib", lib[0]), ("lib_version", lib[1]))
        self._options: dict[bytes, list[tuple[str, bytes]]] = {}
        """What was read of options: those of a request are mostly alike."""

    def rewrite(self, event: bytes, original: bytes) -> Rewritten:
        """The classic event. `original`: `event` as it was received, of the same length, with what
        isn't text in it.
        """
        try:
            members = _decode_event(event)
        except msgspec.ValidationError:
            return Rewritten(original, problem=MALFORMED_EVENT)
        piece = bytes if event is original or event == original else _cutter(event, original)
        uuid = piece(members.uuid)
        uuid = uuid if uuid[:1] == _QUOTE else b""
        try:
            data = self._classic(members, piece)
        except _Malformed as error:
            return Rewritten(original, uuid, error.details)
        return Rewritten(data, uuid, id_is_cut=_is_cut(members.distinct_id))

    def _classic(self, event: _Event, piece: Callable[[Raw], bytes]) -> bytes:
        promoted = [*_ids(event, piece), *self._options_of(event.options, piece), *self._lib]
        members = [
            b'"event":%b' % piece(event.event) if event.event is not ABSENT else b"",
            b'"uuid":%b' % _trimmed(piece(event.uuid)) if event.uuid is not ABSENT else b"",
            b'"distinct_id":%b' % _trimmed(piece(event.distinct_id))
            if event.distinct_id is not ABSENT
            else b"",
            b'"timestamp":%b' % piece(event.timestamp) if event.timestamp is not ABSENT else b"",
            b'"properties":%b' % _properties(event.properties, piece, promoted),
        ]
        return b"{%b}" % b",".join(filter(None, members))

    def _options_of(self, raw: Raw, piece: Callable[[Raw], bytes]) -> list[tuple[str, bytes]]:
        text = piece(raw)
        options = self._options.get(text)
        if options is None:
            options = self._options[text] = _options(raw, piece)
        return options


def _cutter(event: bytes, original: bytes) -> Callable[[Raw], bytes]:
    locator = Locator(event)

    def piece(value: Raw) -> bytes:
        if value is ABSENT:
            return b""
        start, end = locator.span(value)
        return original[start:end]

    return piece


def _ids(members: _Event, piece: Callable[[Raw], bytes]) -> list[tuple[str, bytes]]:
    """The session and the window, each a string or null."""
    ids: list[tuple[str, bytes]] = []
    for name, raw in (("session_id", members.session_id), ("window_id", members.window_id)):
        text = piece(raw) if raw is not ABSENT else _NULL
        if text != _NULL:
            if text[:1] != _QUOTE:
                raise _Malformed(INVALID_SESSION)
            ids.append((name, text))
    return ids


def _options(raw: Raw, piece: Callable[[Raw], bytes]) -> list[tuple[str, bytes]]:
    """The options as the service understands them: true, "1", 7 and the
    like are true; null is none.
    """
    if bytes(raw) in _NO_OPTIONS:
        return []
    if first_byte(raw) != _OBJECT:
        raise _Malformed(INVALID_OPTIONS)
    options = _decode_options(raw)
    flags = ("cookieless_mode", "disable_skew_correction", "process_person_profile")
    pairs = [(name, _flag(getattr(options, name))) for name in flags]
    pairs.append(("product_tour_id", _text(options.product_tour_id, piece)))
    return [(name, value) for name, value in pairs if value]


def _flag(raw: Raw) -> bytes:
    text = bytes(raw)
    if text in (b"", _NULL):
        return b""
    if text in (b"true", b"false"):
        return text
    if text[:1] in _NUMBER_STARTS:
        return b"true" if float(text) else b"false"
    value = _BOOLS.get(_decode_any(text).strip().lower()) if text[:1] == _QUOTE else None
    if value is None:
        raise _Malformed(INVALID_OPTIONS)
    return value


def _text(raw: Raw, piece: Callable[[Raw], bytes]) -> bytes:
    text = bytes(raw)
    if text in (b"", _NULL):
        return b""
    if text[:1] == _QUOTE:
        return piece(raw)
    if text.lstrip(b"-").isdigit():
        return b'"%b"' % text
    raise _Malformed(INVALID_OPTIONS)


def _properties(
    raw: Raw, piece: Callable[[Raw], bytes], promoted: list[tuple[str, bytes]]
) -> bytes:
    """The properties with what was promoted from them."""
    text = piece(raw) if raw is not ABSENT else _NULL
    if text == _NULL:
        return b"{%b}" % b",".join([b'"%b":%b' % (_NAMES[name], value) for name, value in promoted])
    if text[:1] != _OBJECT:
        raise _Malformed(MALFORMED_PROPERTIES)
    if not promoted:
        return text
    there = _decode_promoted(raw)
    replaced: list[tuple[Raw, bytes]] = []
    missing: list[bytes] = []
    for name, value in promoted:
        old: Raw = getattr(there, name)
        if old is ABSENT:
            missing.append(b'"%b":%b' % (_NAMES[name], value))
        else:
            replaced.append((old, value))
    if not replaced and text[1:2] == _QUOTE:
        return b"{%b,%b" % (b",".join(missing), text[1:])
    edits = Edits(text)
    locator = Locator(raw)
    for old, value in replaced:
        edits.replace(locator.span(old), value)
    if missing:
        edits.insert_members(0, b",".join(missing))
    return edits.made()


def _trimmed(text: bytes) -> bytes:
    """A string without white space at its ends, as the service takes ids of this protocol;
    anything else as it is.
    """
    if text[:1] != _QUOTE or (
        text[1] not in _MAY_BE_SPACE and text[-2] not in _MAY_BE_SPACE and _BACKSLASH not in text
    ):
        return text
    try:
        value = _decode_any(text)
    except msgspec.DecodeError:
        return text  # a lone surrogate: the event goes to the dead letters as it is
    return text if value == value.strip() else msgspec.json.encode(value.strip())


def _is_cut(distinct_id: Raw) -> bool:
    """Whether the service, which takes an id of any length by `/batch/`, cuts this one."""
    text = bytes(distinct_id)
    return (
        len(text) > MAX_ID_CHARACTERS
        and text[:1] == _QUOTE
        and len(_decode_any(text)) > MAX_ID_CHARACTERS
    )


def library(sdk_info: bytes) -> tuple[bytes, bytes] | None:
    """Name and version of the SDK as JSON texts, parted at the last slash; None for
    anything else.
    """
    return _library(sdk_info) if len(sdk_info) <= MAX_SDK_INFO else None


@lru_cache(maxsize=256)
def _library(sdk_info: bytes) -> tuple[bytes, bytes] | None:
    name, slash, version = sdk_info.rpartition(b"/")
    name = name.strip()
    version = version.strip()
    if not (slash and name and version) or not sdk_info.isascii():
        return None
    return msgspec.json.encode(name.decode()), msgspec.json.encode(version.decode())
