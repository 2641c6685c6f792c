"""The fields that an endpoint accepts, as options: how each is typed, and what JSON becomes of it.

All is read from the contract's payloads. Whether a value is allowed is for the service to say: it may know more than the contract.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from forwarder.contract.endpoints import Endpoint
from forwarder.contract.resources import LEVELS

NULL: Final = "null"
"""How null is typed, where a field may be that."""
_NUMBER: Final = re.compile(r"-?\d{1,30}", re.ASCII)


class Kind(StrEnum):
    """How a field is typed; the values are what help calls them."""

    FLAG = ""
    NUMBER = "NUMBER"
    LEVEL = "LEVEL"
    TEXT = "TEXT"
    TIME = "TIME"
    TEXTS = "TEXT…"
    JSON = "JSON|@FILE"


@dataclass(frozen=True, slots=True)
class Field:
    """One field that is accepted."""

    name: str
    kind: Kind
    required: bool = False
    nullable: bool = False
    choices: tuple[str, ...] = ()
    """What there is to choose from, as far as the contract knows."""
    words: str = ""
    """What it may be, for its help."""

    @property
    def option(self) -> str:
        """`--target-email`."""
        return f"--{self.name.replace('_', '-')}"

    def read(self, text: str) -> Any:
        """The JSON value of what was typed. Raises `ValueError`, in words, if it can't be one of this kind."""
        if self.nullable and text == NULL:
            return None
        match self.kind:
            case Kind.NUMBER:
                return _number(text)
            case Kind.LEVEL:
                return _level(text)
            case Kind.JSON:
                return read_json(text)
            case _:
                return text


def fields_of(endpoint: Endpoint[Any, Any]) -> tuple[Field, ...]:
    """The fields that an endpoint accepts, in the contract's order."""
    payload: Any = endpoint.request
    return _of_payload(payload) if endpoint.takes_body else ()


@cache
def _of_payload(payload: Any) -> tuple[Field, ...]:
    from pydantic import TypeAdapter

    schema = TypeAdapter(payload).json_schema()
    required = schema.get("required", ())
    return tuple([_field(name, found, required=name in required) for name, found in schema["properties"].items()])


def _field(name: str, schema: dict[str, Any], *, required: bool) -> Field:
    parts = schema.get("anyOf", [schema])
    nullable = {"type": "null"} in parts
    only = next(part for part in parts if part != {"type": "null"})
    kind = _kind(only)
    choices = tuple(LEVELS.values()) if kind is Kind.LEVEL else tuple(only.get("enum", ()))
    return Field(name, kind, required, nullable, choices, _words(only, kind, choices, nullable=nullable))


def _kind(schema: dict[str, Any]) -> Kind:
    match schema.get("type"):
        case "boolean":
            return Kind.FLAG
        case "integer":
            return Kind.LEVEL if schema.get("enum") == list(LEVELS) else Kind.NUMBER
        case "string":
            return Kind.TIME if schema.get("format") == "date-time" else Kind.TEXT
        case "array" if schema["items"].get("type") == "string":
            return Kind.TEXTS
        case _:
            return Kind.JSON


def _words(schema: dict[str, Any], kind: Kind, choices: tuple[str, ...], *, nullable: bool) -> str:
    if kind is Kind.LEVEL:
        said = [", ".join(f"{name} ({level})" for level, name in LEVELS.items())]
    elif choices:
        said = [", ".join(choices)]
    elif kind is Kind.TEXTS:
        said = ["may be given again"]
    elif kind is Kind.TIME:
        said = ["such as 2026-01-31T12:00:00Z"]
    elif "maximum" in schema and schema["maximum"] < 1000:
        said = [f"from {schema['minimum']} to {schema['maximum']}"]
    else:
        said = [f"at most {schema['maxLength']:,} characters"] if "maxLength" in schema else []
    return "; ".join([*said, *([NULL] if nullable else [])])


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def _level(text: str) -> int:
    """A level by its name, or by its number, known or not."""
    named = {name: level for level, name in LEVELS.items()}
    if text.lower() in named:
        return named[text.lower()]
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no level: write {', '.join(named)}, or a number")
    return int(text)


def read_json(text: str) -> Any:
    """The value of JSON, or of the file that is named behind an `@`. Raises `ValueError`, in words."""
    return parsed(_file(Path(text[1:])) if text.startswith("@") else text)


def parsed(text: str) -> Any:
    """The value of JSON text. Raises `ValueError`, in words that repeat nothing of it: there may be secrets in it."""
    try:
        return json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        raise ValueError(f"it isn't JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refused(constant: str) -> Any:
    raise ValueError(f"it isn't JSON: {constant} is no value of it")


def _file(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} can't be read: {getattr(error, 'strerror', None) or 'it is no text in UTF-8'}") from None
