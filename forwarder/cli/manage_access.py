"""Where the management API is and with which key it is called: from the command line, the environment and the configuration.

Invariant: the key is never an option's value, nor part of a message: what stands on a command line can be read by everybody on the
machine, and stays in the shell's history.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forwarder.cli.manage_body import STDIN
from forwarder.cli.manage_words import OWNERS
from forwarder.cli.sections import loaded_sections, stronger
from forwarder.config.addresses import check_management
from forwarder.config.api_keys import check_personal_key, personal_key_in, read_personal_key
from forwarder.config.load import DEFAULT_FILE, Loaded
from forwarder.config.settings import ManagementSettings
from forwarder.config.values import Duration
from forwarder.contract.endpoints import Endpoint
from forwarder.core.errors import ConfigurationError
from forwarder.management import Client

SECTION: Final = "management"
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_KEY_WAYS: Final = "Use `management.api_key_file` in the configuration, FORWARDER_MANAGEMENT__API_KEY(_FILE), or --api-key-file FILE."


@dataclass(frozen=True, slots=True)
class Access:
    """All that a call needs beside its own ids and fields."""

    settings: ManagementSettings
    key: str = field(repr=False)
    ids: Mapping[str, object]
    """Whose things are meant: the ids in the endpoint's path that no argument names."""

    def client(self) -> Client:
        """A client that calls so. Raises `ConfigurationError`."""
        settings = self.settings
        return Client(settings.url, self.key, timeout=settings.timeout, ca_file=settings.ca_file, proxy=settings.proxy)


def access(endpoint: Endpoint[Any, Any], typed: Mapping[str, Any]) -> Access:
    """The access that the options and the configuration give. Asks for a missing key, last of all. Raises `ConfigurationError`."""
    loaded = loaded_sections([SECTION], typed.get("config"), DEFAULT_FILE)
    settings = _settled(loaded.settings.management, typed)
    if not settings.url:
        raise _missing("--url URL", "url", "the address of the management API")
    _warn(settings.url)
    ids = {parameter.name: _owner(settings, OWNERS[parameter.name]) for parameter in endpoint.parameters if parameter.name in OWNERS}
    return Access(settings, _key(loaded, typed.get("api_key_file")), ids)


def _settled(settings: ManagementSettings, typed: Mapping[str, Any]) -> ManagementSettings:
    """The settings, under what was typed."""
    given = {name: typed[name] for name in ("url", "organization", "project") if typed.get(name) is not None}
    if typed.get("timeout") is not None:
        given["timeout"] = _timeout(typed["timeout"])
    if given.get("url"):
        given["url"] = _url(given["url"])
    return replace(settings, **given)


def _warn(url: str) -> None:
    """Say it if the key will be read by everybody on the way."""
    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in _HERE:
        sys.stderr.write(
            f"{parts.netloc} is reached without TLS: everybody on the way can read the key. Use https:// if the service has it.\n"
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
    """The organization or project that is meant."""
    found = getattr(settings, name)
    if not found:
        raise _missing(f"--{name} ID", name, f"which {name} is meant")
    return str(found)


def _missing(option: str, key: str, what: str) -> ConfigurationError:
    hint = f"Set `{SECTION}.{key}` in the configuration, or FORWARDER_{SECTION.upper()}__{key.upper()}, to give it once for all."
    return ConfigurationError(f"{option} is missing: {what}", hint=hint)


def _key(loaded: Loaded, file: str | None) -> str:
    """The key: of the file that was named, else of the configuration, else asked for."""
    if file is not None:
        return _of_file("--api-key-file", file)
    settings = loaded.settings.management
    kept, named = settings.api_key, settings.api_key_file
    if kept and named:
        keeps = stronger(loaded, f"{SECTION}.api_key", f"{SECTION}.api_key_file").endswith("key")
        kept, named = (kept, None) if keeps else (None, named)
    if kept:
        return kept
    return _of_file(f"{SECTION}.api_key_file", str(named)) if named else _asked()


def _of_file(named: str, file: str) -> str:
    if file == STDIN and sys.stdin.isatty():
        return _asked()  # or what is typed would be shown
    try:
        return personal_key_in(sys.stdin.read(), "standard input") if file == STDIN else read_personal_key(Path(file))
    except ValueError as error:
        raise ConfigurationError(f"{named}: {error}") from None


def _asked() -> str:
    """The key that a person types, unseen. Where nobody can be asked, an error says how else to give it."""
    if not sys.stdin.isatty():
        raise ConfigurationError("there is no personal API key to call the service with", hint=_KEY_WAYS)
    try:
        return check_personal_key(getpass.getpass("Personal API key: ", sys.stderr).strip())
    except EOFError:
        raise ConfigurationError("no personal API key was given", hint=_KEY_WAYS) from None
    except ValueError as error:
        raise ConfigurationError(str(error), hint=_KEY_WAYS) from None
