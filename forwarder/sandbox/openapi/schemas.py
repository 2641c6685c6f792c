"""The building blocks of the document: schemas generated from types, each once and by its name,
and the parts of operations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import CoreSchema

Schema: TypeAlias = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]
REF_PREFIX: Final = "#/components/schemas/"
PUBLISHED_NAMES: Final = {
    "ImportedEventKey": "ImportedEvent",
    "AcceptedEvents": "Taken",
    "ArrivalKind": "Kind",
    "OwningOrganization": "Owner",
    "OwningProject": "InProject",
    "SandboxSummary": "Summary",
    "StoredConflict": "Conflict",
}
"""Names of types in the document, which clients are generated from, where they are not those of
the classes.
"""
Operation: TypeAlias = dict[str, Any]
Paths: TypeAlias = dict[str, dict[str, Operation]]
JSON: Final = "application/json"
PLAIN: Final = "text/plain"
TEXT: Final[Schema] = {"type": "string"}
OBJECT: Final[Schema] = {"type": "object"}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
REJECTIONS: Final = {
    "400": "The body can't be read, or is not of a known form",
    "401": "No key of a project",
    "413": "The body is not smaller than the limit",
}
"""Rejections of the service's endpoints, each a line of text."""


def fields(required: Mapping[str, Schema], **optional: Schema) -> Schema:
    """The schema of an object with these fields, and maybe others."""
    return {"type": "object", "required": list(required), "properties": {**required, **optional}}


def _published(schema: Schema) -> Schema:
    """A generated schema with the published names of types."""
    text = json.dumps(schema)
    for name, published in PUBLISHED_NAMES.items():
        text = text.replace(f'"{name}"', f'"{published}"').replace(
            f'"{REF_PREFIX}{name}"', f'"{REF_PREFIX}{published}"'
        )
    renamed: Schema = json.loads(text)
    return renamed


def _names(schema: object) -> set[str]:
    return set(re.findall(rf'"{REF_PREFIX}(\w+)"', json.dumps(schema)))


class _Untitled(GenerateJsonSchema):
    """Omits titles of fields, which would repeat their names."""

    # The parameters are those that pydantic passes.
    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # noqa: ARG002
        """Never."""
        return False


class Schemas:
    """The schemas in use, by name. `shown` has the fields of a type that are shown otherwise than
    they are stored.
    """

    def __init__(self, shown: Mapping[str, Mapping[str, Schema]] | None = None) -> None:
        self.named: dict[str, Schema] = {}
        self._shown = shown or {}

    def body(self, kind: Any) -> Schema:
        """A reference to the schema of a request body."""
        return self._of(kind, kind.__name__, "validation")

    def described(self, kind: Any) -> Schema:
        """The schema itself of a request body."""
        self.body(kind)
        return self.named[str(kind.__name__)]

    def answer(self, kind: Any, name: str | None = None) -> Schema:
        """A reference to the schema of a response body."""
        return self._of(kind, name or kind.__name__, "serialization")

    def add(self, name: str, schema: Schema) -> Schema:
        """A reference to a schema that no type describes. A name is of one schema."""
        if self.named.setdefault(name, schema) != schema:
            raise ValueError(f"two schemas are called {name}")
        return {"$ref": REF_PREFIX + name}

    def used(self, elsewhere: object) -> dict[str, Schema]:
        """The schemas that `elsewhere` refers to, directly or indirectly, sorted by name."""
        wanted = set[str]()
        todo = _names(elsewhere)
        while todo - wanted:
            wanted |= todo
            todo = _names([self.named[name] for name in wanted])
        return {name: self.named[name] for name in sorted(wanted)}

    def _of(self, kind: Any, name: str, mode: Mode) -> Schema:
        name = PUBLISHED_NAMES.get(name, name)
        if name not in self.named:
            schema = _published(
                TypeAdapter(kind).json_schema(
                    mode=mode, ref_template=REF_PREFIX + "{model}", schema_generator=_Untitled
                )
            )
            for inner, described in schema.pop("$defs", {}).items():
                self.add(inner, self._as_shown(inner, described))
            self.named[name] = self._as_shown(name, schema)
        return {"$ref": REF_PREFIX + name}

    def _as_shown(self, name: str, schema: Schema) -> Schema:
        schema.pop("title", None)
        if name in self._shown:
            schema["properties"] = {**schema["properties"], **self._shown[name]}
            schema["required"] = list(schema["properties"])
        return schema


def answer(
    description: str, schema: Schema | None = None, content_type: str = JSON
) -> dict[str, Any]:
    """An answer; without a schema it has no body."""
    return {
        "description": description,
        **({} if schema is None else {"content": {content_type: {"schema": schema}}}),
    }


def in_path(path: str, schemas: Mapping[str, Schema] | None = None) -> list[dict[str, Any]]:
    """The parameters in a path: text, unless `schemas` says otherwise."""
    known = schemas or {}
    return [
        {"name": name, "in": "path", "required": True, "schema": known.get(name, TEXT)}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def in_query(schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    """Parameters of the query; all of them may be left out."""
    return [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]


def operation(
    name: str,
    tag: str,
    summary: str,
    responses: Mapping[str, dict[str, Any]],
    parameters: Sequence[dict[str, Any]] = (),
    *,
    content: Mapping[str, Schema] | None = None,
    body_required: bool = True,
    **more: Any,
) -> Operation:
    """An operation. `content` has the schema of each content type that its body may have."""
    described: Operation = {"operationId": name, "tags": [tag], "summary": summary, **more}
    if parameters:
        described["parameters"] = list(parameters)
    if content:
        bodies = {content_type: {"schema": schema} for content_type, schema in content.items()}
        described["requestBody"] = {"required": body_required, "content": bodies}
    return {**described, "responses": dict(sorted(responses.items()))}


def rejections() -> dict[str, dict[str, Any]]:
    """The rejections of the service's endpoints."""
    return {status: answer(why, TEXT, PLAIN) for status, why in REJECTIONS.items()}


def operation_name(method: str, path: str) -> str:
    """The name of an operation that no table names."""
    return "_".join((method, *re.findall(r"\w+", re.sub(r":[^}]*\}", "}", path))))
