"""From the command line and the configuration to a call: address, key, ids, and body. Options
override what `--data` has.

Invariant: the key is never an option's value, nor part of a message: a command line can be read by
every user of the machine, and stays in the shell's history.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forwarder.cli.manage_fields import OWNERS, BodyField, FieldKind, fields_of, parsed, read_json
from forwarder.cli.settings import ask_for_key, key_or_file, load_for_person
from forwarder.config.addresses import check_management
from forwarder.config.api_keys import check_personal_key, personal_key_in, read_personal_key
from forwarder.config.load import Loaded
from forwarder.config.settings import ManagementSettings
from forwarder.config.values import Duration
from forwarder.contract.endpoints import Endpoint, Method
from forwarder.core.errors import ConfigurationError
from forwarder.management import Client

STDIN: Final = "-"
SECTION: Final = "management"
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_KEY_WAYS: Final = (
    "Use `management.api_key_file` in the configuration, "
    "FORWARDER_MANAGEMENT__API_KEY(_FILE), or --api-key-file FILE."
)


@dataclass(frozen=True, slots=True)
class ManagementAccess:
    """What a call needs beside its own ids and fields."""

    settings: ManagementSettings
    key: str = field(repr=False)
    ids: Mapping[str, object]
    """Organization and project: the ids in the endpoint's path that no argument names."""

    def client(self) -> Client:
        """A client with this access. Raises `ConfigurationError`."""
        settings = self.settings
        return Client(
            settings.url,
            self.key,
            timeout=settings.timeout,
            ca_file=settings.ca_file,
            proxy=settings.proxy,
        )


def access(endpoint: Endpoint[Any, Any], typed: Mapping[str, Any]) -> ManagementAccess:
    """The access by options and configuration; asks for a missing key
    last. Raises `ConfigurationError`.
    """
    loaded = load_for_person(typed.get("config"))
    settings = _settings(loaded.settings.management, typed)
    if not settings.url:
        raise _missing("--url URL", "url", "the address of the management API")
    _warn(settings.url)
    ids = {
        parameter.name: _owner(settings, OWNERS[parameter.name])
        for parameter in endpoint.parameters
        if parameter.name in OWNERS
    }
    return ManagementAccess(settings, _key(loaded, typed.get("api_key_file")), ids)


def _settings(settings: ManagementSettings, typed: Mapping[str, Any]) -> ManagementSettings:
    """The settings with the typed options."""
    given = {
        name: typed[name]
        for name in ("url", "organization", "project")
        if typed.get(name) is not None
    }
    if typed.get("timeout") is not None:
        given["timeout"] = _timeout(typed["timeout"])
    if given.get("url"):
        given["url"] = _url(given["url"])
    return replace(settings, **given)


def _warn(url: str) -> None:
    """Warn if the key is sent without encryption over a network."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _HERE:
        sys.stderr.write(
            f"{parts.netloc} is reached without TLS, so the key can be read on the network. Use "
            "https:// if the service supports it.\n"
        )


def _timeout(text: str) -> float:
    try:
        return Duration("100ms", "1h").read(text) or 0.0
    except ValueError as error:
        raise ConfigurationError(f"--timeout: {error}") from None


def _url(text: str) -> str:
    try:
        return check_management(text)
    except ValueError as error:
        raise ConfigurationError(f"--url: {error}") from None


def _owner(settings: ManagementSettings, name: str) -> str:
    """The id of the organization or project."""
    found = getattr(settings, name)
    if not found:
        raise _missing(f"--{name} ID", name, f"the id of the {name}")
    return str(found)


def _missing(option: str, key: str, what: str) -> ConfigurationError:
    hint = (
        f"Set `{SECTION}.{key}` in the configuration, or "
        f"FORWARDER_{SECTION.upper()}__{key.upper()}, to set it permanently."
    )
    return ConfigurationError(f"{option} is missing: {what}", hint=hint)


def _key(loaded: Loaded, file: str | None) -> str:
    """The personal key: of the named file, or configured, or else asked for."""
    if file is not None:
        return _key_in("--api-key-file", file)
    settings = loaded.settings.management
    key, configured = key_or_file(loaded, SECTION, settings.api_key, settings.api_key_file)
    if key:
        return key
    return _key_in(f"{SECTION}.api_key_file", str(configured)) if configured else _ask()


def _key_in(name: str, file: str) -> str:
    if file == STDIN and sys.stdin.isatty():
        return _ask()  # reading it as text would show it
    try:
        return (
            personal_key_in(sys.stdin.read(), "standard input")
            if file == STDIN
            else read_personal_key(Path(file))
        )
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _ask() -> str:
    return ask_for_key("personal API key", check_personal_key, _KEY_WAYS)


def body_of(endpoint: Endpoint[Any, Any], typed: Mapping[str, Any], data: str | None) -> Any:
    """The body to send; `typed` has the options by the names of their
    fields. Raises `ConfigurationError`.
    """
    if not endpoint.takes_body:
        return None
    fields = fields_of(endpoint)
    given = {
        field.name: _value(field, typed[field.name])
        for field in fields
        if typed.get(field.name) not in (None, [], ())
    }
    body = (
        _several(given, _data(data), fields[_named(fields)].name)
        if endpoint.several
        else _one(given, _data(data))
    )
    _check(endpoint, fields, body)
    return body


def _named(fields: tuple[BodyField, ...]) -> int:
    """The index of the field that distinguishes several bodies: the required one."""
    return next(number for number, field in enumerate(fields) if field.required)


def _value(field: BodyField, typed: Any) -> Any:
    """The JSON value typed for a field."""
    try:
        if isinstance(typed, bool):
            return typed
        return (
            [field.read(text) for text in typed] if isinstance(typed, list) else field.read(typed)
        )
    except ValueError as error:
        raise ConfigurationError(
            f"{field.option}: {error}", hint="`--help` describes what it accepts."
        ) from None


def _data(text: str | None) -> Any:
    """The value of `--data`; without it an empty object."""
    if text is None:
        return {}
    try:
        return parsed(sys.stdin.read()) if text == STDIN else read_json(text)
    except ValueError as error:
        hint = "Give JSON, @FILE, or - for standard input."
        raise ConfigurationError(f"--data: {error}", hint=hint) from None


def _one(given: dict[str, Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise ConfigurationError(
            "--data: not a JSON object", hint='Write fields with their values: {"name": "…"}.'
        )
    return {**data, **given}


def _several(given: dict[str, Any], data: Any, name: str) -> list[Any]:
    """A list of bodies: those of the data, each overridden by the options, and one for each value
    of the field `name`.
    """
    common = {field: value for field, value in given.items() if field != name}
    values = given.get(name, [])
    if isinstance(data, list):
        if not all(isinstance(item, dict) for item in data):
            raise ConfigurationError(
                "--data: not a list of JSON objects", hint=f'Write [{{"{name}": "…"}}, …].'
            )
        return [
            *[{**item, **common} for item in data],
            *[{name: value, **common} for value in values],
        ]
    if not values:
        return [_one(common, data)]
    return [_one({**common, name: value}, data) for value in values]


def _check(endpoint: Endpoint[Any, Any], fields: tuple[BodyField, ...], body: Any) -> None:
    """Reject what every service would refuse, before calling it."""
    for item in body if isinstance(body, list) else [body]:
        missing = next(
            (field for field in fields if field.required and field.name not in item), None
        )
        if missing is not None:
            hint = f'It is required; its name in --data is "{missing.name}".'
            raise ConfigurationError(f"{missing.option} is missing", hint=hint)
    if endpoint.method is Method.PATCH and not body:
        raise ConfigurationError(
            "there is nothing to change", hint=f"Give a field, such as {_example(fields)}."
        )


def _example(fields: tuple[BodyField, ...]) -> str:
    field = next((field for field in fields if field.kind is not FieldKind.JSON), fields[0])
    return field.option
