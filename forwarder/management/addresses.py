"""Validation of addresses, keys and ids, before anything is sent.

Invariants: an id is one segment of its path, whatever it contains; a message never repeats a key,
nor an address that may contain one.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from yarl import URL

from forwarder.config.addresses import check_management, check_proxy
from forwarder.contract.endpoints import Endpoint
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.tls import client_context
from forwarder.management.errors import InvalidCall

LONGEST_ID: Final = 200
_KEY: Final = re.compile(r"[!-~]+")
_NOT_IN_IDS: Final = re.compile(r"[/\\\x00-\x1f\x7f]")
_NO_IDS: Final = frozenset({"", ".", ".."})


def base_address(url: str) -> str:
    """The service's base address, without a slash at its end. Raises `ConfigurationError`, not
    repeating it.
    """
    try:
        return str(URL(check_management(url))).rstrip("/")
    except ValueError as error:
        words = str(error)
    raise ConfigurationError(
        f"url: {words}", hint="Give the address at which the service's own pages are, without /api."
    )


def check_key(api_key: str) -> str:
    """The key, if it can be a personal API key. Raises `ConfigurationError`, not repeating it."""
    if not api_key:
        raise ConfigurationError("api_key: there is none", hint="Give a personal API key (phx_…).")
    if api_key.startswith("phc_"):
        hint = (
            "A project key only sends events. Make a personal API key (phx_…) with the scopes "
            "that you need."
        )
        raise ConfigurationError(
            "api_key: it is a project's key (phc_…), not a personal API key", hint=hint
        )
    if not _KEY.fullmatch(api_key):
        hint = "Give the key alone: no quotes, no `Bearer`, no line break at its end."
        raise ConfigurationError(
            "api_key: it has spaces, line breaks or other characters that no key has", hint=hint
        )
    return api_key


def check_proxy_url(proxy: str | None) -> str | None:
    """The proxy's address. Raises `ConfigurationError`, not repeating it."""
    try:
        return None if proxy is None else check_proxy(proxy)
    except ValueError as error:
        words = str(error)
    raise ConfigurationError(f"proxy: {words}")


def tls_context(base: str, ca_file: str | Path | None) -> ssl.SSLContext | None:
    """What certificates of the service at `base` are checked with; None if it shows
    none. Raises `ConfigurationError`.
    """
    if ca_file is None and not base.startswith("https:"):
        return None  # loading the system's authorities is slow
    try:
        return client_context(ca_file)
    except ssl.SSLError:
        words = f"{ca_file} holds no certificate in PEM form"
    except OSError as error:
        words = f"{ca_file} can't be read: {error_text(error)}"
    raise ConfigurationError(
        f"ca_file: {words}",
        hint="Give a PEM file with the certificates of the authorities to trust.",
    )


def path_of(endpoint: Endpoint[Any, Any], ids: Mapping[str, object]) -> str:
    """The endpoint's path with these ids. Raises `InvalidCall`."""
    wanted = {parameter.name for parameter in endpoint.parameters}
    for name in [*(wanted - ids.keys()), *(ids.keys() - wanted)]:
        what = "is missing" if name in wanted else "isn't an id that it takes"
        raise InvalidCall(
            f"{endpoint.name}: {name} {what}",
            hint=f"Its ids are: {', '.join(sorted(wanted))}.",
            field=name,
        )
    return endpoint.path.format_map(
        {name: _segment(endpoint, name, value) for name, value in ids.items()}
    )


def _segment(endpoint: Endpoint[Any, Any], name: str, value: object) -> str:
    text = "" if value is None else str(value)
    if text in _NO_IDS or len(text) > LONGEST_ID or _NOT_IN_IDS.search(text):
        raise InvalidCall(
            f"{endpoint.name}: {name} {_id_fault(text)}",
            hint="Give the id as the service shows it.",
            field=name,
        )
    return quote(text, safe="")


def _id_fault(text: str) -> str:
    if not text:
        return "is empty"
    if len(text) > LONGEST_ID:
        return f"has {len(text)} characters, more than any id"
    return f"can't be {text!r}: no id holds slashes or control characters, or is made of dots"
