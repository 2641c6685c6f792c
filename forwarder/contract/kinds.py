"""The kinds of values that the interface has, as types: JSON as Python reads it, with what the interface says beyond that as a schema."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from pydantic import Field, JsonValue, WithJsonSchema

Uuid: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]
Timestamp: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""ISO 8601 in UTC."""
Email: TypeAlias = Annotated[str, WithJsonSchema({"type": "string", "format": "email"})]
Json: TypeAlias = JsonValue
"""Any JSON value; null is one."""
JsonObject: TypeAlias = dict[str, JsonValue]

MEMBER: Final = 1
ADMIN: Final = 8
OWNER: Final = 15
LEVELS: Final = {MEMBER: "member", ADMIN: "admin", OWNER: "owner"}
"""Of a membership (wire facts: "Management API, where the contract says not shown"; unverified)."""

Level: TypeAlias = Annotated[int, Field(json_schema_extra={"enum": list(LEVELS)})]
