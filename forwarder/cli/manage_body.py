"""The body of a call, from the options for its fields and from `--data`; options go over what the data say."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from forwarder.cli.manage_fields import Field, Kind, fields_of, parsed, read_json
from forwarder.contract.endpoints import Endpoint, Method
from forwarder.core.errors import ConfigurationError

STDIN = "-"


def body_of(endpoint: Endpoint[Any, Any], typed: Mapping[str, Any], data: str | None) -> Any:
    """What is to be sent; `typed` has the options by the names of their fields. Raises `ConfigurationError`: it can't be meant so."""
    if not endpoint.takes_body:
        return None
    fields = fields_of(endpoint)
    given = {field.name: _value(field, typed[field.name]) for field in fields if typed.get(field.name) not in (None, [], ())}
    body = _several(given, _data(data), fields[_named(fields)].name) if endpoint.several else _one(given, _data(data))
    _check(endpoint, fields, body)
    return body


def _named(fields: tuple[Field, ...]) -> int:
    """Which field tells several bodies apart: the one that each needs."""
    return next(number for number, field in enumerate(fields) if field.required)


def _value(field: Field, typed: Any) -> Any:
    """The JSON value of what was typed for a field."""
    try:
        if isinstance(typed, bool):
            return typed
        return [field.read(each) for each in typed] if isinstance(typed, list) else field.read(typed)
    except ValueError as error:
        raise ConfigurationError(f"{field.option}: {error}", hint="`--help` says what it takes.") from None


def _data(text: str | None) -> Any:
    """What `--data` says; without it nothing."""
    if text is None:
        return {}
    try:
        return parsed(sys.stdin.read()) if text == STDIN else read_json(text)
    except ValueError as error:
        hint = "Give JSON, @FILE, or - for standard input."
        raise ConfigurationError(f"--data: {error}", hint=hint) from None


def _one(given: dict[str, Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise ConfigurationError("--data: it isn't an object", hint='Write fields with their values: {"name": "…"}.')
    return {**data, **given}


def _several(given: dict[str, Any], data: Any, name: str) -> list[Any]:
    """A list of bodies: those of the data, with the options laid over each, and one for each value of the field `name`."""
    common = {field: value for field, value in given.items() if field != name}
    values = given.get(name, [])
    if isinstance(data, list):
        if not all(isinstance(each, dict) for each in data):
            raise ConfigurationError("--data: it isn't a list of objects", hint=f'Write [{{"{name}": "…"}}, …].')
        return [*[{**each, **common} for each in data], *[{name: value, **common} for value in values]]
    if not values:
        return [_one(common, data)]
    return [_one({**common, name: value}, data) for value in values]


def _check(endpoint: Endpoint[Any, Any], fields: tuple[Field, ...], body: Any) -> None:
    """What every service would refuse needs no call."""
    for each in body if isinstance(body, list) else [body]:
        missing = next((field for field in fields if field.required and field.name not in each), None)
        if missing is not None:
            hint = f'It is needed; in --data it is called "{missing.name}".'
            raise ConfigurationError(f"{missing.option} is missing", hint=hint)
    if endpoint.method is Method.PATCH and not body:
        raise ConfigurationError("nothing is to be changed", hint=f"Say what changes, such as {_example(fields)}.")


def _example(fields: tuple[Field, ...]) -> str:
    field = next((field for field in fields if field.kind is not Kind.JSON), fields[0])
    return field.option
