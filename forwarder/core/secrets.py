"""Masking secrets: a key keeps its kind and its last four characters, an address its host, a
property that is named like one its name; and e-mail addresses, which keep their domain.
"""

from __future__ import annotations

import re
from typing import Any, Final

_KEY: Final = re.compile(r"(ph[cxs]_)(\w+)", re.ASCII)
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s\"'<>]*@")
_SHOWN: Final = 4


def mask_key(key: str) -> str:
    """A key as it may be shown: its prefix, if it has a usual one, and its last four characters;
    of a short one not even those.
    """
    match = _KEY.fullmatch(key)
    prefix, secret = match.groups() if match else ("", key)
    return f"{prefix}…{secret[-_SHOWN:] if len(secret) >= 2 * _SHOWN else ''}"


def mask_credentials(text: str) -> str:
    """`text` without the user and password of any address in it."""
    return _CREDENTIALS.sub("…@", text) if "@" in text else text


def mask_secrets(text: str, key: str = "") -> str:
    """`text` with everything masked that is this key, or looks like one (`phc_`, `phx_`, `phs_` …)
    or like credentials in an address.
    """
    if key:
        text = text.replace(key, mask_key(key))
    masked = _KEY.sub(lambda match: mask_key(match[0]), text) if "ph" in text else text
    return mask_credentials(masked)


_SECRET_NAME: Final = re.compile(
    r"passw|secret|token|credential|authori[sz]ation|cookie|api.?key|private.?key", re.IGNORECASE
)
_PARAMETER: Final = re.compile(r"([?&;#])([^=?&;#\s]*)=[^&;#\s]+")
"""A name has no character that begins one: the time that a search takes grows with the text,
whatever a sender writes into it.
"""
HIDDEN: Final = "…"
_LOCAL: Final = r"[\w.!#$'*+^`|~-]"
_EMAIL: Final = re.compile(rf"(?<!{_LOCAL}){_LOCAL}+((?:@|%40)[\w-]+(?:\.[\w-]+)+)")
"""The text before the @, which no character of it stands before: a search takes linear time."""


def redact(value: Any, key: str = "") -> Any:
    """Decoded JSON without secrets: what a property holds whose name looks like a secret's, and so
    do parameters in addresses, is `…`; keys, this one too, and credentials in texts and in names
    are masked (`mask_secrets`).

    Raises `RecursionError` for what is nested too deep.
    """
    if isinstance(value, str):
        return mask_secrets(_PARAMETER.sub(_hidden, value) if "=" in value else value, key)
    if isinstance(value, dict):
        return {
            mask_secrets(name, key): HIDDEN if _SECRET_NAME.search(name) else redact(item, key)
            for name, item in value.items()
        }
    return [redact(item, key) for item in value] if isinstance(value, list) else value


def mask_emails(value: Any) -> Any:
    """Decoded JSON with e-mail addresses as `…@example.com`, also in names and in parameters of
    addresses.
    """
    if isinstance(value, str):
        return _EMAIL.sub(rf"{HIDDEN}\1", value) if "@" in value or "%40" in value else value
    if isinstance(value, dict):
        return {mask_emails(name): mask_emails(item) for name, item in value.items()}
    return [mask_emails(item) for item in value] if isinstance(value, list) else value


def _hidden(parameter: re.Match[str]) -> str:
    begin, name = parameter.groups()
    return f"{begin}{name}={HIDDEN}" if _SECRET_NAME.search(name) else parameter[0]
