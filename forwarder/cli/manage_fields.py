"""How the contract's endpoints appear on the command line: the words of each resource, examples,
and fields as options.

Fields are read from the contract's payloads. Whether a value is allowed is the service's decision:
it may know more than the contract. Tests compare every name here with the contract.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from forwarder.contract.endpoints import ENDPOINTS, Endpoint, IdKind
from forwarder.contract.resources import LEVELS
from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text

NULL: Final = "null"
"""How null is typed for a field that may be null."""
_NUMBER: Final = re.compile(r"-?\d{1,30}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ResourceWords:
    """The words of a resource. A nested field has a dot: `user.email`."""

    help: str
    thing: str
    """Name of one item, in the question before it is removed."""
    name: str = "name"
    """The field that a person knows it by."""
    id: str = "id"
    """The field that a path names it by."""
    columns: tuple[str, ...] = ()
    """The fields that a list shows."""


RUNS: Final = (
    *(
        "id",
        "status",
        "records_completed",
        "records_total_count",
        "data_interval_start",
        "data_interval_end",
        "finished_at",
    ),
    "latest_error",
)
"""Columns of the runs that are shown with a batch export."""

LOG_LINES: Final = ("timestamp", "level", "message")
"""Columns of the log of a batch export, where the service answers one."""

WORDS: Final = {
    "organization-batch-exports": ResourceWords(
        "Pause batch exports of any project of an organization.", "batch export"
    ),
    "domains": ResourceWords(
        "Domains of an organization: verify them, and set their single sign-on.",
        *("domain", "domain", "id"),
        (
            "id",
            "domain",
            "is_verified",
            "verified_at",
            "sso_enforcement",
            "jit_provisioning_enabled",
            "has_saml",
        ),
    ),
    "invites": ResourceWords(
        "Invites to an organization, one or twenty at once.",
        *("invite of", "target_email", "id"),
        ("id", "target_email", "level", "is_expired", "first_name", "created_by", "created_at"),
    ),
    "members": ResourceWords(
        "Members of an organization, and their levels.",
        *("member", "user.email", "user.uuid"),
        (
            "user.uuid",
            "user.email",
            "level",
            "user.first_name",
            "user.last_name",
            "joined_at",
            "last_login",
            "is_2fa_enabled",
        ),
    ),
    "projects": ResourceWords(
        "Projects of an organization, and the keys that events are sent with.",
        *("project", "name", "id"),
        ("id", "name", "api_token", "timezone", "ingested_event", "is_demo", "access_control"),
    ),
    "batch-exports": ResourceWords(
        "Batch exports of a project: change, pause, backfill.", "batch export"
    ),
    "batch-export-runs": ResourceWords("Runs of a batch export.", "run"),
    "dashboards": ResourceWords(
        "Dashboards of a project.",
        *("dashboard", "name", "id"),
        ("id", "name", "description", "pinned", "is_shared", "tags", "created_by", "created_at"),
    ),
}

_UUID: Final = "01900000-0000-7000-8000-000000000401"
_FIELDS: Final = {
    "organization-batch-exports pause": "--organization 01900000-0000-7000-8000-000000000001",
    "domains list": "--all --output json",
    "domains create": "--domain example.com",
    "domains update": "--sso-enforcement saml",
    "domains delete": "--yes",
    "invites list": "--limit 20 --offset 40",
    "invites create": "--target-email mia@example.com --level admin",
    "invites bulk": "--target-email mia@example.com --target-email ben@example.com --no-send-email",
    "members update": "--level admin",
    "projects create": "--name Shop --timezone Europe/Berlin --anonymize-ips",
    "batch-exports update": "--interval day --start-at 2026-02-01T00:00:00Z",
    "batch-exports backfill": "--start-at 2026-01-01T00:00:00Z --end-at 2026-01-02T00:00:00Z",
    "dashboards list": "--project 1",
}
"""What follows the ids in the example of a command."""


def example(endpoint: Endpoint[Any, Any]) -> str:
    """A command line that works."""
    ids = [
        "1" if parameter.kind is IdKind.INTEGER else _UUID
        for parameter in endpoint.parameters
        if parameter.name not in OWNERS
    ]
    return " ".join(
        ["forwarder manage", endpoint.name, *ids, _FIELDS.get(endpoint.name, "")]
    ).strip()


OWNERS: Final = {"organization_id": "organization", "project_id": "project"}
"""The ids that are options with a setting as default, and the names of these options."""


def endpoint_of(resource: str, verb: str) -> Endpoint[Any, Any] | None:
    """The endpoint, if it exists."""
    return next(
        (
            endpoint
            for endpoint in ENDPOINTS
            if (endpoint.resource, endpoint.verb) == (resource, verb)
        ),
        None,
    )


class FieldKind(StrEnum):
    """How a field is typed; the values are the metavars of help."""

    FLAG = ""
    NUMBER = "NUMBER"
    LEVEL = "LEVEL"
    TEXT = "TEXT"
    TIME = "TIME"
    TEXTS = "TEXT…"
    JSON = "JSON|@FILE"


@dataclass(frozen=True, slots=True)
class BodyField:
    """One accepted field."""

    name: str
    kind: FieldKind
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    """The values that the contract knows, if it lists them."""
    words: str = ""
    """What it accepts, for its help."""

    @property
    def option(self) -> str:
        """`--target-email`."""
        return f"--{self.name.replace('_', '-')}"

    def read(self, text: str) -> Any:
        """The JSON value of the typed text. Raises `ValueError` with a message for the user."""
        if self.nullable and text == NULL:
            return None
        match self.kind:
            case FieldKind.NUMBER:
                return _number(text)
            case FieldKind.LEVEL:
                return _level(text)
            case FieldKind.JSON:
                return read_json(text)
            case _:
                return text


def fields_of(endpoint: Endpoint[Any, Any]) -> tuple[BodyField, ...]:
    """The fields that an endpoint accepts, in the contract's order."""
    payload: Any = endpoint.request
    return _of_payload(payload) if endpoint.takes_body else ()


@cache
def _of_payload(payload: Any) -> tuple[BodyField, ...]:
    from pydantic import TypeAdapter

    schema = TypeAdapter(payload).json_schema()
    required = schema.get("required", ())
    return tuple(
        [
            _field(name, found, required=name in required)
            for name, found in schema["properties"].items()
        ]
    )


def _field(name: str, schema: dict[str, Any], *, required: bool) -> BodyField:
    parts = schema.get("anyOf", [schema])
    nullable = {"type": "null"} in parts
    only = next(part for part in parts if part != {"type": "null"})
    kind = _kind(only)
    choices = tuple(LEVELS.values()) if kind is FieldKind.LEVEL else tuple(only.get("enum", ()))
    return BodyField(
        name, kind, required, nullable, choices, _words(only, kind, choices, nullable=nullable)
    )


def _kind(schema: dict[str, Any]) -> FieldKind:
    match schema.get("type"):
        case "boolean":
            return FieldKind.FLAG
        case "integer":
            return FieldKind.LEVEL if schema.get("enum") == list(LEVELS) else FieldKind.NUMBER
        case "string":
            return FieldKind.TIME if schema.get("format") == "date-time" else FieldKind.TEXT
        case "array" if schema["items"].get("type") == "string":
            return FieldKind.TEXTS
        case _:
            return FieldKind.JSON


def _words(
    schema: dict[str, Any], kind: FieldKind, choices: tuple[str, ...], *, nullable: bool
) -> str:
    if kind is FieldKind.LEVEL:
        notes = [", ".join(f"{name} ({level})" for level, name in LEVELS.items())]
    elif choices:
        notes = [", ".join(choices)]
    elif kind is FieldKind.TEXTS:
        notes = ["repeatable"]
    elif kind is FieldKind.TIME:
        notes = ["such as 2026-01-31T12:00:00Z"]
    elif "maximum" in schema and schema["maximum"] < 1000:
        notes = [f"from {schema['minimum']} to {schema['maximum']}"]
    else:
        notes = [f"at most {schema['maxLength']:,} characters"] if "maxLength" in schema else []
    return "; ".join([*notes, *([NULL] if nullable else [])])


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _level(text: str) -> int:
    """A level by its name or number; unknown numbers are allowed."""
    named = {name: level for level, name in LEVELS.items()}
    if text.lower() in named:
        return named[text.lower()]
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is not a level: write {', '.join(named)}, or a number")
    return int(text)


def read_json(text: str) -> Any:
    """The value of JSON text, or of the file named after an `@`. Raises `ValueError` with a
    message for the user.
    """
    return parsed(_file(Path(text[1:])) if text.startswith("@") else text)


def parsed(text: str) -> Any:
    """The value of JSON text. Raises `ValueError` with a message that quotes nothing of it: it may
    contain secrets.
    """
    try:
        return json.loads(text, parse_constant=_reject)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def _reject(constant: str) -> Any:
    raise ValueError(f"invalid JSON: {constant} is not allowed")


def _file(file: Path) -> str:
    try:
        return read_file(file, pipe=True).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} can't be read: {error_text(error)}") from None
