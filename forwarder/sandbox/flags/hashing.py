"""Where an identifier stands for a flag: the hash of the service and its SDKs, `sha1_60_v1`."""

from __future__ import annotations

import hashlib
from typing import Final

_SCALE: Final = float(0xFFFFFFFFFFFFFFF)


def bucket(key: str, identifier: str, salt: str = "", separator: str = ".") -> float:
    """Where an identifier stands for a flag, from 0 to 1: the first 15
    hexadecimal digits of a SHA-1.
    """
    digest = hashlib.sha1(
        f"{key}{separator}{identifier}{salt}".encode(errors="surrogatepass"), usedforsecurity=False
    ).digest()
    return (int.from_bytes(digest[:8]) >> 4) / _SCALE
