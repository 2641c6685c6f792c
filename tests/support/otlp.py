"""Export requests of OpenTelemetry's log records, in both encodings, from one description.

A value is described as Python has it: text, bytes, a boolean, an integer, a float, a list, a
`dict`, or None for one that is unset. A record has the members of the schema, by their names
there; its attributes are a `dict`, or pairs where a name comes twice.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
SECOND: Final = 1_000_000_000
AT: Final = 1_767_225_600 * SECOND
"""2026-01-01T00:00:00Z."""
_IDS: Final = ("trace_id", "span_id")
_LONG: Final = ("time_unix_nano", "observed_time_unix_nano")


def record(body: Any = "hello", **members: Any) -> dict[str, Any]:
    """A log record at `AT` of the user `ann`, with changes."""
    return {
        "time_unix_nano": AT,
        "event_name": "clicked",
        "attributes": {"user": "ann"},
        "body": body,
        **members,
    }


def export(
    *records: Mapping[str, Any],
    protobuf: bool,
    resource: Any = (("service.name", "shop"),),
    scope: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of a request with these records of one resource and scope."""
    groups = [(resource, scope, records)]
    return in_protobuf(groups) if protobuf else in_json(groups)


def in_protobuf(
    groups: Sequence[tuple[Any, Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]],
) -> bytes:
    """A request of groups, each with its resource's attributes, its scope and
    its records, as protobuf.
    """
    request = ExportLogsServiceRequest()
    for resource, scope, records in groups:
        of_resource = request.resource_logs.add()
        _add(of_resource.resource.attributes, resource)
        of_scope = of_resource.scope_logs.add()
        if scope is not None:
            _fill(of_scope.scope, scope)
        for log_record in records:
            _fill(of_scope.log_records.add(), log_record)
    written: bytes = request.SerializeToString()
    return written


def _fill(message: Any, members: Mapping[str, Any]) -> None:
    for name, value in members.items():
        if name == "attributes":
            _add(message.attributes, value)
        elif name == "body":
            _set(message.body, value)
        else:
            setattr(message, name, value)


def _add(attributes: Any, pairs: Any) -> None:
    for name, value in _pairs(pairs):
        pair = attributes.add()
        pair.key = name
        _set(pair.value, value)


def _set(message: Any, value: Any) -> None:
    kind = _kind(value)
    if kind == "array_value":
        message.array_value.SetInParent()
        for element in value:
            _set(message.array_value.values.add(), element)
    elif kind == "kvlist_value":
        message.kvlist_value.SetInParent()
        _add(message.kvlist_value.values, value)
    elif kind is not None:
        setattr(message, kind, value)


def in_json(
    groups: Sequence[tuple[Any, Mapping[str, Any] | None, Sequence[Mapping[str, Any]]]],
) -> bytes:
    """The same as JSON."""
    written = [
        {
            "resource": {"attributes": _json_pairs(resource)},
            "scopeLogs": [
                {
                    **({} if scope is None else {"scope": _members(scope)}),
                    "logRecords": [_members(log_record) for log_record in records],
                }
            ],
        }
        for resource, scope, records in groups
    ]
    return json.dumps({"resourceLogs": written}).encode()


def _members(members: Mapping[str, Any]) -> dict[str, Any]:
    return {_camel(name): _member(name, value) for name, value in members.items()}


def _member(name: str, value: Any) -> Any:
    if name == "attributes":
        return _json_pairs(value)
    if name == "body":
        return _json_value(value)
    if name in _IDS:
        return value.hex().upper()
    return str(value) if name in _LONG else value


def _json_pairs(pairs: Any) -> list[dict[str, Any]]:
    return [{"key": name, "value": _json_value(value)} for name, value in _pairs(pairs)]


def _json_value(value: Any) -> dict[str, Any]:
    kind = _kind(value)
    if kind is None:
        return {}
    if kind == "array_value":
        value = {"values": [_json_value(element) for element in value]}
    elif kind == "kvlist_value":
        value = {"values": _json_pairs(value)}
    elif kind == "int_value":
        value = str(value)
    elif kind == "bytes_value":
        value = base64.b64encode(value).decode()
    elif kind == "double_value" and not math.isfinite(value):
        value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return {_camel(kind): value}


def _kind(value: Any) -> str | None:
    kinds = (
        (bool, "bool"),
        (int, "int"),
        (float, "double"),
        (str, "string"),
        (bytes, "bytes"),
        (list, "array"),
        (dict, "kvlist"),
    )
    return next((f"{kind}_value" for of, kind in kinds if isinstance(value, of)), None)


def _pairs(pairs: Any) -> Sequence[tuple[str, Any]]:
    return list(pairs.items()) if isinstance(pairs, Mapping) else pairs


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
