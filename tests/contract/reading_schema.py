"""Says of a JSON schema of the contract what `interface.md` says of the field: its type, whether
it can be null, its rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

Schema = Mapping[str, Any]

_FORMATS: Final = {"uuid": "UUID", "date-time": "time", "email": "e-mail address"}
_PATTERNS: Final = {
    r"\S": "not blank",
    r"^(0(\.[0-9]{1,2})?|1(\.0{1,2})?)$": "0 to 1 with at most two decimals",
}


class SchemaKind(NamedTuple):
    """A type by its name in the document, and whether null is of it."""

    type: str
    null: bool


class Field(NamedTuple):
    """A field by what the document has in its cells."""

    kind: SchemaKind
    rule: str
    needed: bool


def fields(typed: Any) -> dict[str, Field]:
    """The fields of one of the contract's types."""
    schema = TypeAdapter(typed).json_schema()
    defs = schema.get("$defs", {})
    needed = schema.get("required", [])
    return {
        name: Field(kind(subschema, defs), rule(subschema, defs), name in needed)
        for name, subschema in schema["properties"].items()
    }


def kind(schema: Schema, defs: Schema) -> SchemaKind:
    """What a value is."""
    if schema.get("$ref", "").endswith("/JsonValue"):
        return SchemaKind("JSON", null=True)
    if "$ref" in schema:
        return SchemaKind(schema["$ref"].rpartition("/")[2], null=False)
    if "anyOf" in schema:
        one = [subschema for subschema in schema["anyOf"] if subschema != {"type": "null"}]
        return SchemaKind(
            " or ".join(kind(subschema, defs).type for subschema in one),
            null=len(one) < len(schema["anyOf"]),
        )
    if schema["type"] == "array":
        return SchemaKind(f"list of {kind(schema['items'], defs).type}", null=False)
    if schema["type"] == "object":
        return SchemaKind(_mapping(schema, defs), null=False)
    return SchemaKind(_FORMATS.get(schema.get("format", ""), str(schema["type"])), null=False)


def _mapping(schema: Schema, defs: Schema) -> str:
    value = schema.get("additionalProperties", True)
    inner = "JSON" if value is True else str(kind(value, defs).type)
    return "object" if inner == "JSON" else f"object of {inner}"


def rule(schema: Schema, defs: Schema) -> str:
    """What else is said of a value, in the words of the document; empty: nothing."""
    if "anyOf" in schema:
        return "; ".join(
            filter(
                None,
                (
                    rule(subschema, defs)
                    for subschema in schema["anyOf"]
                    if subschema != {"type": "null"}
                ),
            )
        )
    if "enum" in schema:
        return "one of " + ", ".join(f"`{choice}`" for choice in schema["enum"])
    said = []
    if "maxItems" in schema:
        said.append(f"at most {schema['maxItems']:,} of {rule(schema['items'], defs)}")
    if "maxLength" in schema:
        said.append(
            f"{'1 to' if schema.get('minLength') else 'at most'} {schema['maxLength']:,} characters"
        )
    if "maximum" in schema:
        said.append(f"{schema['minimum']:,} to {schema['maximum']:,}")
    if "pattern" in schema:
        said.append(_PATTERNS[schema["pattern"]])
    return "; ".join(said)
