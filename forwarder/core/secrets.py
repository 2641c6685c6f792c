"""Masking secrets: a key keeps its kind and its last four characters, an address loses its credentials."""

from __future__ import annotations

import re
from typing import Final

_KEY: Final = re.compile(r"(ph[cxs]_)(\w+)", re.ASCII)
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/?#\s\"'<>]*@")
_SHOWN: Final = 4


def mask_key(key: str) -> str:
    """A key as it may be shown: its prefix, if it has a usual one, and its last four characters; of a short one not even those."""
    match = _KEY.fullmatch(key)
    prefix, secret = match.groups() if match else ("", key)
    return f"{prefix}…{secret[-_SHOWN:] if len(secret) >= 2 * _SHOWN else ''}"


def mask_credentials(text: str) -> str:
    """`text` without the user and password of any address in it."""
    return _CREDENTIALS.sub("…@", text) if "@" in text else text


def mask_secrets(text: str) -> str:
    """`text` with everything masked that looks like a key (`phc_`, `phx_`, `phs_` …) or like credentials in an address."""
    masked = _KEY.sub(lambda match: mask_key(match[0]), text) if "ph" in text else text
    return mask_credentials(masked)
