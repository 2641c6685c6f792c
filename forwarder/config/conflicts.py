"""Conflicts between values, and what the checks have in common: sizes, pairs of keys, files."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forwarder.config.units import format_size
from forwarder.core.configured_files import check_file, read_file
from forwarder.core.error_text import error_text
from forwarder.core.tls import client_context


@dataclass(frozen=True, slots=True)
class Conflict:
    """A key whose value doesn't fit: which, why, and how to fix it."""

    key: str
    message: str
    hint: str


def too_large(key: str, size: int, limit: str, bound: int, other: str) -> Conflict:
    """`other` is the key to raise."""
    return Conflict(
        key, f"{format_size(size)} {limit} ({format_size(bound)})", f"lower {key}, or raise {other}"
    )


def one_alone(named: Mapping[str, object]) -> Iterator[Conflict]:
    """One of two keys that need each other is missing."""
    missing = [key for key, value in named.items() if value is None]
    if len(missing) == 1:
        yield Conflict(
            missing[0], "is missing", f"name both files, {' and '.join(named)}, or neither"
        )


def unreadable(key: str, file: Path | None) -> Iterator[Conflict]:
    """A file that is named can't be read."""
    if file is None:
        return
    try:
        check_file(file)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        yield Conflict(
            key, f"{file} can't be read: {error_text(error)}", "name a file that this user may read"
        )


def unusable_pair(named: Mapping[str, Path | None]) -> Iterator[Conflict]:
    """The files of a certificate and its key (by their keys, in this order) can't be read, or
    don't belong together.
    """
    conflicts = [conflict for key, file in named.items() for conflict in unreadable(key, file)]
    yield from conflicts
    cert, key = named.values()
    if cert and key and not conflicts:
        hint = "give a PEM certificate and its own key, without passphrase"
        wrong = [*_lacking(*named.items(), what=("CERTIFICATE", "PRIVATE KEY"))]
        yield from wrong or _refused(next(iter(named)), lambda: _load_pair(cert, key), hint)


def unusable_authorities(key: str, file: Path | None) -> Iterator[Conflict]:
    """The file of authorities can't be read, or holds none."""
    conflicts = list(unreadable(key, file))
    if file is not None:
        conflicts = conflicts or [*_lacking((key, file), what=("CERTIFICATE",))]
        yield from conflicts or _refused(
            key, lambda: _load_authorities(file), "give certificates in PEM form"
        )


_NAMES: Final = {"CERTIFICATE": "certificate", "PRIVATE KEY": "private key"}
_REASONS: Final = {"KEY_VALUES_MISMATCH": "it doesn't belong to the key in the other file"}


def _lacking(*named: tuple[str, Path | None], what: tuple[str, ...]) -> Iterator[Conflict]:
    """Files (by their keys) that don't hold what is expected of each: the two may be exchanged,
    the key may have a passphrase.
    """
    for (key, file), kind in zip(named, what, strict=True):
        text = read_file(file) if file else b""
        if f"{kind}-----".encode() not in text:
            other = next(
                (name for label, name in _NAMES.items() if f"{label}-----".encode() in text), ""
            )
            instead = f", but a {other}" if other else ""
            yield Conflict(
                key,
                f"{file} holds no {_NAMES[kind]} in PEM form{instead}",
                "name the file that holds it",
            )
        elif kind == "PRIVATE KEY" and (
            b"BEGIN ENCRYPTED PRIVATE KEY" in text or b"Proc-Type: 4,ENCRYPTED" in text
        ):
            yield Conflict(
                key,
                f"the private key in {file} has a passphrase",
                f"write it without: openssl pkey -in {file} -out new.pem",
            )


def _refused(key: str, load: Callable[[], None], hint: str) -> Iterator[Conflict]:
    try:
        load()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = _REASONS.get(getattr(error, "reason", None) or "") or error_text(error)
        yield Conflict(key, f"can't be used: {why}", hint)


def _load_pair(cert: Path, key: Path) -> None:
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        cert, key, password=lambda: ""
    )


def _load_authorities(file: Path) -> None:
    client_context(file)
