"""The two newer protocols of ingestion, whose key is a header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forwarder.contract.ingestion import CAPTURE
from forwarder.sandbox.ai import AI_PATH
from forwarder.sandbox.openapi.operations import JSON, OBJECT, REFUSALS, TEXT, UUID, Operation, answer, named, operation, refused
from forwarder.sandbox.openapi.schemas import Schema, Schemas, fields
from forwarder.sandbox.v1 import REQUIRED, V1_PATH

PROJECT_KEY: Final = "projectKey"
_MOMENT: Final[Schema] = {"type": "string", "format": "date-time"}
_HEADERS: Final[Mapping[str, Schema]] = {
    "posthog-attempt": {"type": "integer", "minimum": 1},
    "posthog-request-id": UUID,
    "posthog-request-timestamp": _MOMENT,
}
_OF_HTTP: Final = frozenset({"content-type", "user-agent"})
"""Headers that every client sends as it is."""
_EVENT: Final = fields({"event": TEXT, "uuid": UUID, "distinct_id": TEXT, "timestamp": _MOMENT}, properties=OBJECT)
_BODY: Final = fields(
    {"created_at": _MOMENT, "batch": {"type": "array", "minItems": 1, "items": _EVENT}}, historical_migration={"type": "boolean"}
)
_RESULT: Final = fields({"result": {"enum": ["ok", "warning", "drop", "retry"]}}, details=TEXT)
_RESULTS: Final[Schema] = {"type": "object", "additionalProperties": _RESULT, "propertyNames": UUID}
_HEADER: Final[Schema] = {"type": ["string", "null"]}
_PART: Final = fields({"name": TEXT, "length": {"type": "integer"}, "content-type": _HEADER, "content-encoding": _HEADER})


def take_v1(schemas: Schemas) -> Operation:
    """The operation of events with a result for each."""
    error = schemas.add("V1Error", fields({"error": TEXT, "error_description": TEXT}))
    refusals = {**REFUSALS, "415": "The content type or encoding is unknown"}
    headers = [name for name in REQUIRED if name not in _OF_HTTP]
    return operation(
        named("post", V1_PATH),
        "ingestion",
        "Take events by the newer protocol, with a result for each.",
        {
            "200": answer("What became of each event", fields({"results": _RESULTS})),
            **{status: answer(why, error) for status, why in refusals.items()},
        },
        [{"name": name, "in": "header", "required": True, "schema": _HEADERS.get(name, TEXT)} for name in headers],
        content={JSON: _BODY},
        security=[{PROJECT_KEY: []}],
    )


def take_ai(schemas: Schemas) -> Operation:
    """The operation of an event with large values as parts of their own."""
    event = {name: each for name, each in schemas.described(CAPTURE.request)["properties"].items() if name != "api_key"}
    form = fields({"event": {"type": "object", "required": ["event", "distinct_id"], "properties": event}}, **{"event.properties": OBJECT})
    return operation(
        named("post", AI_PATH),
        "ingestion",
        "Take one event of a language model, with large values as parts of their own.",
        {"200": answer("The parts that were taken", fields({"accepted_parts": {"type": "array", "items": _PART}})), **refused()},
        content={"multipart/form-data": form},
        security=[{PROJECT_KEY: []}],
    )
