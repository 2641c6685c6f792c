"""OTLP logs: from the body of an export request, protobuf or JSON, to log records in plain JSON;
and the messages of the answers.

Plain JSON: an attribute is a member of one object, the last one of a name wins; what is unset and
what is not finite is null; bytes are base64; an integer keeps all its digits. A record has always
the same members (docs/reference/otlp.md).

The body may be hostile. Nothing is made of more values than `Effort` allows, nesting has a bound,
and text that is not UTF-8, which other programs write where the schema forbids it, comes with
U+FFFD in its place. The schema is the one that OpenTelemetry publishes; it is loaded by the first
body in protobuf.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from forwarder.core.error_text import error_text
from forwarder.core.errors import InvalidRequest, RequestTooLarge, UnsupportedMedia
from forwarder.core.ports import Incoming
from forwarder.wire.effort import UNBOUNDED, Effort, TooMuchWork
from forwarder.wire.encodings import decompress_content
from forwarder.wire.repair import mask_lone_surrogates, null_non_finite_numbers
from forwarder.wire.shapes import MALFORMED, is_utf8, reject_nesting
from forwarder.wire.timestamps import at, format_timestamp

MAX_DEPTH: Final = 30
"""Lists and maps within one another; what is nested deeper can't be read in protobuf, whose own
limit is at about the same depth.
"""

MAX_REPEATED: Final = 64 * 1024 * 1024
"""Bytes that records repeat of their resources and scopes. Each has them whole: a small request
could become any size.
"""

VALUES_PER_EVENT: Final = 8
"""Values of records whose conversion takes as long as to rewrite one event."""

_NANOSECONDS: Final = 1_000_000_000
_MAX_INT32: Final = 2**31 - 1
_MAX_UINT32: Final = 2**32 - 1
_MAX_INT64: Final = 2**63 - 1
_MAX_UINT64: Final = 2**64 - 1
_INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,5})?")
_NOT_FINITE: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_BOM: Final = b"\xef\xbb\xbf"

JSON_TYPE: Final = b"application/json"
PROTOBUF_TYPE: Final = b"application/x-protobuf"


_Decoded = TypeVar("_Decoded")


class LogRecord(NamedTuple):
    """A log record."""

    data: bytes
    """The JSON object that a mapping sees."""
    at: bytes = b""
    """Its own time as JSON text, to the microsecond; empty if it has none."""
    seconds: float | None = None
    """The same in seconds since 1970."""


class _AnyValue(Struct, rename="camel", gc=False):
    """The schema's `AnyValue`: one of these is set."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | float | str | None = None
    double_value: float | str | None = None
    array_value: _ArrayValue | None = None
    kvlist_value: _KeyValueList | None = None
    bytes_value: str | None = None

    # N802: the name is that of the method of a protobuf message.
    def WhichOneof(self, _group: str) -> str | None:  # noqa: N802
        """The name of the one that is set; None if none is."""
        for name in self.__struct_fields__:
            if getattr(self, name) is not None:
                return name
        return None


class _ArrayValue(Struct, rename="camel", gc=False):
    values: list[_AnyValue] | None = None


class _KeyValueList(Struct, rename="camel", gc=False):
    values: list[_KeyValue] | None = None


class _KeyValue(Struct, rename="camel", gc=False):
    key: str | None = None
    value: _AnyValue | None = None


class _Resource(Struct, rename="camel", gc=False):
    attributes: list[_KeyValue] | None = None


class _Scope(Struct, rename="camel", gc=False):
    name: str | None = None
    version: str | None = None
    attributes: list[_KeyValue] | None = None


class _Record(Struct, rename="camel", gc=False):
    time_unix_nano: int | float | str | None = None
    observed_time_unix_nano: int | float | str | None = None
    severity_number: int | float | str | None = None
    severity_text: str | None = None
    body: _AnyValue | None = None
    attributes: list[_KeyValue] | None = None
    flags: int | float | str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    event_name: str | None = None


class _ScopeLogs(Struct, rename="camel", gc=False):
    scope: _Scope | None = None
    log_records: list[_Record] | None = None


class _ResourceLogs(Struct, rename="camel", gc=False):
    resource: _Resource | None = None
    scope_logs: list[_ScopeLogs] | None = None


class _ExportRequest(Struct, rename="camel", gc=False):
    """`ExportLogsServiceRequest` in JSON. Unknown members are ignored, as the protocol has it."""

    resource_logs: list[_ResourceLogs] | None = None


class _BareScopeLogs(Struct, rename="camel", forbid_unknown_fields=True):
    scope: Any = None
    log_records: Any = None
    schema_url: Any = None


class _BareResourceLogs(Struct, rename="camel", forbid_unknown_fields=True):
    resource: Any = None
    scope_logs: list[_BareScopeLogs] | None = None
    schema_url: Any = None


class _BareRequest(Struct, rename="camel", forbid_unknown_fields=True):
    """`ExportLogsServiceRequest` in JSON without log records. Unknown members are errors: records
    may be in them.
    """

    resource_logs: list[_BareResourceLogs] | None = None


_decode_json: Final = msgspec.json.Decoder(_ExportRequest).decode
_decode_bare_json: Final = msgspec.json.Decoder(_BareRequest).decode
_encode: Final = msgspec.json.Encoder().encode


def decode_otlp_body(incoming: Incoming, limit: int) -> bytes:
    """The request's message, not compressed. Raises `UnsupportedMedia` for a type or compression
    that the protocol doesn't have.

    Raises `InvalidRequest` where it can't be decompressed, `RequestTooLarge` over `limit` bytes.
    An empty message in protobuf has no bytes, but a compressed one has.
    """
    mime = incoming.content_type.partition(b";")[0].strip().lower()
    if mime not in (JSON_TYPE, PROTOBUF_TYPE):
        shown = mime[:100].decode("latin-1")
        raise UnsupportedMedia(
            f"unsupported content type: {shown!r}; send {PROTOBUF_TYPE.decode()} or "
            f"{JSON_TYPE.decode()}"
        )
    encoding = incoming.content_encoding.strip().lower()
    if not incoming.body and encoding not in (b"", b"identity"):
        shown = encoding[:100].decode("latin-1")
        raise InvalidRequest(f"the body is empty, which isn't {shown}")
    return decompress_content(incoming.body, incoming.content_encoding, limit)


def read_logs(text: bytes, *, protobuf: bool, effort: Effort = UNBOUNDED) -> Iterator[LogRecord]:
    """The log records of an export request, in its order; each is made when it is asked for.

    Raises `InvalidRequest` for what is no such request, also while records are made,
    `RequestTooLarge` before the first one where they would repeat over `MAX_REPEATED` bytes, and
    `TooMuchWork` beyond `effort`.

    By OTLP (`specification.md` of open-telemetry/opentelemetry-proto at d3b7479) an empty request
    succeeds, unknown fields are ignored, and what is invalid is 400. A request that has unknown
    fields and no record is taken for the latter: something was meant that would be lost silently.
    """
    request: Any = _parse_protobuf(text) if protobuf else _parse_json(text, effort, _decode_json)
    if not _has_records(request):
        if protobuf:
            _reject_unknown_fields(request)
        else:
            _parse_json(text, effort, _decode_bare_json)
    return _Reading(effort.events * VALUES_PER_EVENT).records(request)


def _has_records(request: Any) -> bool:
    return any(
        of_scope.log_records
        for of_resource in request.resource_logs or ()
        for of_scope in of_resource.scope_logs or ()
    )


def _reject_unknown_fields(request: Any) -> None:
    from google.protobuf.unknown_fields import UnknownFieldSet  # noqa: PLC0415 - see below

    for of_resource in request.resource_logs:
        for message in (of_resource, *of_resource.scope_logs):
            _reject_unknown(UnknownFieldSet(message), message)
    _reject_unknown(UnknownFieldSet(request), request)


def _reject_unknown(fields: Any, message: Any) -> None:
    for field in fields:
        raise InvalidRequest(
            "the body isn't an ExportLogsServiceRequest: it has no log records, but a field "
            f"{field.field_number} that {message.DESCRIPTOR.name} doesn't have"
        )


def _parse_protobuf(text: bytes) -> Any:
    # The first body in protobuf loads the library.
    from google.protobuf.message import DecodeError  # noqa: PLC0415
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415

    try:
        return logs_service_pb2.ExportLogsServiceRequest.FromString(text)
    except DecodeError:
        pass
    try:
        return _tolerant_request()(text)
    except DecodeError:
        raise InvalidRequest(
            "the body isn't an ExportLogsServiceRequest in protobuf, or is nested too deep"
        ) from None


@lru_cache(maxsize=1)
def _tolerant_request() -> Callable[[bytes], Any]:
    """Parses an export request whose texts may be any bytes: by the same schema, with bytes in the
    place of each text.
    """
    # Few requests have a text that isn't UTF-8, so the first one loads what they need.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2  # noqa: PLC0415

    pool = descriptor_pool.DescriptorPool()

    def add(file: Any) -> None:
        for needed in file.dependencies:
            add(needed)
        written = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(written)
        for message in written.message_type:
            for field in message.field:
                if field.type == field.TYPE_STRING:
                    field.type = field.TYPE_BYTES
        pool.Add(written)

    add(logs_service_pb2.DESCRIPTOR)
    described = pool.FindMessageTypeByName(
        "opentelemetry.proto.collector.logs.v1.ExportLogsServiceRequest"
    )
    parse: Callable[[bytes], Any] = message_factory.GetMessageClass(described).FromString
    return parse


def _parse_json(text: bytes, effort: Effort, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    text = text.removeprefix(_BOM)
    if not (text.isascii() or is_utf8(text)):
        text = text.decode("utf-8", "replace").encode()
    reject_nesting(text)
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"the body isn't an ExportLogsServiceRequest: {error_text(error)}"
        ) from None
    except MALFORMED as error:
        if len(text) > effort.repaired:
            raise TooMuchWork from None
        return _parse_repaired(text, error, decode)


def _parse_repaired(text: bytes, error: Exception, decode: Callable[[bytes], _Decoded]) -> _Decoded:
    """The same of a text with NaN, which becomes null, or with lone
    surrogates, which become U+FFFD.
    """
    try:
        return decode(mask_lone_surrogates(null_non_finite_numbers(text)[0]))
    except msgspec.ValidationError as invalid:
        raise InvalidRequest(f"the body isn't an ExportLogsServiceRequest: {invalid}") from None
    except MALFORMED:
        raise InvalidRequest(f"the body isn't JSON: {error_text(error)}") from None


class _Reading:
    """Makes plain values of a request's, in either encoding: its structs have the names of the
    messages' fields.
    """

    def __init__(self, values: int) -> None:
        """`values`: how many may be converted."""
        self._left = values

    def records(self, request: Any) -> Iterator[LogRecord]:
        parts = list[tuple[Any, bytes, bytes]]()
        repeated = 0
        for of_resource in self._counted(request.resource_logs):
            resource = _encode(self._attributes(of_resource.resource))
            for of_scope in self._counted(of_resource.scope_logs):
                records = self._counted(of_scope.log_records)
                scope = self._scope(of_scope.scope)
                parts.append((records, resource, scope))
                repeated += len(records) * (len(resource) + len(scope))
        if repeated > MAX_REPEATED:
            raise RequestTooLarge(
                "its log records, each with its resource and scope, would repeat over "
                f"{MAX_REPEATED} bytes"
            )
        for records, resource, scope in parts:
            for record in records:
                yield self._record(record, Raw(resource), Raw(scope))

    def _counted(self, items: Any) -> Any:
        """The items, if as many may be converted."""
        if not items:
            return ()
        self._left -= len(items)
        if self._left < 0:
            raise TooMuchWork
        return items

    def _record(self, record: Any, resource: Raw, scope: Raw) -> LogRecord:
        own = _nanoseconds(record.time_unix_nano)
        observed = _nanoseconds(record.observed_time_unix_nano)
        members = {
            "time": _time(own) if own else None,
            "observed_time": _time(observed) if observed else None,
            "severity": _text(record.severity_text) or None,
            "severity_number": _integer(record.severity_number or 0, -_MAX_INT32 - 1, _MAX_INT32)
            or None,
            "body": self._plain(record.body, 0),
            "attributes": self._members(record.attributes, 1),
            "resource": resource,
            "scope": scope,
            "trace_id": _id(record.trace_id),
            "span_id": _id(record.span_id),
            "event_name": _text(record.event_name) or None,
            "flags": _integer(record.flags or 0, 0, _MAX_UINT32),
        }
        at = own or observed
        data = _encode(members)
        return (
            LogRecord(data, b'"%b"' % _time(at // 1000 * 1000).encode(), at / _NANOSECONDS)
            if at
            else LogRecord(data)
        )

    def _scope(self, scope: Any) -> bytes:
        name, version = (
            (None, None)
            if scope is None
            else (_text(scope.name) or None, _text(scope.version) or None)
        )
        return _encode({"name": name, "version": version, "attributes": self._attributes(scope)})

    def _attributes(self, owner: Any) -> dict[str, object]:
        return {} if owner is None else self._members(owner.attributes, 1)

    def _members(self, pairs: Any, depth: int) -> dict[str, object]:
        return {
            _text(pair.key) or "": self._plain(pair.value, depth) for pair in self._counted(pairs)
        }

    def _plain(self, value: Any, depth: int) -> object:
        """A value of any kind. `depth`: the lists and maps that it is in."""
        kind = None if value is None else value.WhichOneof("value")
        if kind == "string_value":
            return _text(value.string_value)
        if kind == "int_value":
            return _integer(value.int_value, -_MAX_INT64 - 1, _MAX_INT64)
        if kind == "double_value":
            return _double(value.double_value)
        if kind == "bool_value":
            return value.bool_value
        if kind == "bytes_value":
            found = value.bytes_value
            return found if isinstance(found, str) else base64.b64encode(found).decode()
        if kind not in ("array_value", "kvlist_value"):
            return None  # unset, or of a kind that was added to the schema later
        if depth >= MAX_DEPTH:
            raise InvalidRequest(
                f"a value is nested too deep: over {MAX_DEPTH} lists and maps within one another"
            )
        if kind == "kvlist_value":
            return self._members(value.kvlist_value.values, depth + 1)
        return [self._plain(item, depth + 1) for item in self._counted(value.array_value.values)]


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _id(value: str | bytes | None) -> str | None:
    """The id of a trace or span in hexadecimal digits, lower case."""
    if not value:
        return None
    if isinstance(value, bytes):
        return value.hex()
    return value.lower() if _HEX.fullmatch(value) else value


def _integer(value: float | str, least: int, most: int) -> int:
    """An integer, which JSON has as a number or as a string."""
    if isinstance(value, str):
        number = int(value) if _INTEGER.fullmatch(value) else None
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    else:
        number = value
    if number is None or not least <= number <= most:
        raise InvalidRequest(f"not an integer, or out of range: {str(value)[:40]!r}")
    return number


def _double(value: float | str) -> float | None:
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return None
        if _NUMBER.fullmatch(value) is None:
            raise InvalidRequest(f"not a number: {value[:40]!r}")
        value = float(value)
    return value if math.isfinite(value) else None


def _nanoseconds(value: float | str | None) -> int:
    """A time in nanoseconds since 1970; 0 for none."""
    return _integer(value, 0, _MAX_UINT64) if value else 0


def _time(nanoseconds: int) -> str:
    """A time as ISO 8601 with as many digits as it needs."""
    second, rest = divmod(nanoseconds, _NANOSECONDS)
    digits = f"{rest:09}"
    if digits.endswith("000000"):
        digits = digits[:3]
    elif digits.endswith("000"):
        digits = digits[:6]
    return f"{_second(second)}.{digits}Z"


@lru_cache(maxsize=16)
def _second(second: int) -> str:
    """A whole second without its zone; neighbouring records share it."""
    return format_timestamp(at(second))[: -len(".000Z")].decode()


def export_response(rejected: int, why: str, *, protobuf: bool) -> bytes:
    """The body of an answer 200: an `ExportLogsServiceResponse`; empty if all
    log records were accepted.
    """
    if not protobuf:
        partial = {"partialSuccess": {"rejectedLogRecords": str(rejected), "errorMessage": why}}
        return _encode(partial if rejected else {})
    return (
        _field(1, b"\x08%b%b" % (_varint(rejected), _field(2, why.encode("utf-8", "replace"))))
        if rejected
        else b""
    )


def status_message(text: str, *, protobuf: bool) -> bytes:
    """The body of an error: a `google.rpc.Status` with a message. The protocol uses no code."""
    return _field(2, text.encode("utf-8", "replace")) if protobuf else _encode({"message": text})


def _field(number: int, content: bytes) -> bytes:
    """A field of protobuf that holds bytes, text or a message."""
    return b"%c%b%b" % (number << 3 | 2, _varint(len(content)), content)


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
