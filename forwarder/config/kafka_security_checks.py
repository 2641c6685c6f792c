"""Whether the ways to sign in to a Kafka cluster fit together, and their files can be read.

Each mechanism has its keys, in a table. A key that would have no effect is told: somebody who wrote it believes that it has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from forwarder.config.conflicts import Conflict, one_alone, unreadable, unusable_authorities, unusable_pair
from forwarder.config.kafka import KafkaSecuritySettings

_PASSWORD: Final = ("username", "password", "password_file")
_KEYS: Final = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _PASSWORD,
    "SCRAM-SHA-512": _PASSWORD,
    "OAUTHBEARER": ("token_file", "token_url", "client_id", "client_secret", "client_secret_file", "scope"),
    "AWS_MSK_IAM": ("aws_region",),
}
"""The keys of each mechanism."""
_ENOUGH: Final = 4096
"""Bytes of a file that tell whether there is something in it."""
_OF_TLS: Final = ("ca_file", "cert_file", "key_file")
_OF_TOKEN_URL: Final = ("client_id", "client_secret", "client_secret_file", "scope")


def security_conflicts(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    """Everything that doesn't fit in the section at `key`. Reads the files that are named."""
    for check in (_mechanism, _other_mechanisms, _password, _token, _amazon, _tls, _files):
        yield from check(key, security)


def _set(security: KafkaSecuritySettings, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if getattr(security, name) is not None]


def _mechanism(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    signs_in = security.protocol.startswith("SASL_")
    if signs_in and security.mechanism is None:
        yield Conflict(f"{key}.mechanism", f"is missing: {security.protocol} signs in", f"write one of {', '.join(_KEYS)}")
    if security.mechanism and not signs_in:
        message = f"{security.mechanism} needs a protocol that signs in, and {key}.protocol is {security.protocol}"
        yield Conflict(f"{key}.mechanism", message, f"set {key}.protocol to SASL_SSL, or leave the mechanism out")


def _other_mechanisms(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    own = _KEYS.get(security.mechanism or "", ())
    others = tuple(dict.fromkeys(name for names in _KEYS.values() for name in names if name not in own))
    for name in _set(security, others):
        needed = " or ".join(mechanism for mechanism, names in _KEYS.items() if name in names)
        yield Conflict(f"{key}.{name}", f"has an effect only with {needed}", f"set {key}.mechanism to it, or leave the key out")


def _password(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if _KEYS.get(security.mechanism or "") != _PASSWORD:
        return
    if security.username is None:
        yield Conflict(f"{key}.username", f"is missing: {security.mechanism} signs in with a user and a password", "write the user's name")
    yield from _one_of(key, security, "password_file", "password")


def _token(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if security.mechanism != "OAUTHBEARER":
        return
    yield from _one_of(key, security, "token_file", "token_url")
    if security.token_url is None:
        for name in _set(security, _OF_TOKEN_URL):
            yield Conflict(f"{key}.{name}", f"has an effect only with {key}.token_url", "set that, or leave the key out")
        return
    if security.client_id is None:
        yield Conflict(f"{key}.client_id", f"is missing: {key}.token_url asks who wants a token", "write the client's id")
    yield from _one_of(key, security, "client_secret_file", "client_secret")


def _one_of(key: str, security: KafkaSecuritySettings, one: str, other: str) -> Iterator[Conflict]:
    """Either of two keys is needed, and not both."""
    found = _set(security, (one, other))
    if not found:
        yield Conflict(f"{key}.{one}", f"is missing: {security.mechanism} needs it or {key}.{other}", "set one of the two")
    if len(found) == 2:
        yield Conflict(f"{key}.{other}", f"can't be beside {key}.{one}", "keep one of the two")


def _amazon(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if security.mechanism != "AWS_MSK_IAM":
        return
    if security.aws_region is None:
        yield Conflict(f"{key}.aws_region", "is missing: AWS_MSK_IAM signs for a region", "for example: eu-central-1")
    if security.protocol == "SASL_PLAINTEXT":
        yield Conflict(f"{key}.protocol", "SASL_PLAINTEXT can't be used with AWS_MSK_IAM", f"set {key}.protocol to SASL_SSL")


def _tls(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    if not security.protocol.endswith("SSL"):
        for name in _set(security, _OF_TLS):
            message = f"has no effect: {security.protocol} isn't encrypted"
            yield Conflict(f"{key}.{name}", message, f"set {key}.protocol to SSL or SASL_SSL, or leave the key out")
    pair = {f"{key}.cert_file": security.cert_file, f"{key}.key_file": security.key_file}
    yield from one_alone(pair)
    yield from unusable_pair(pair)
    yield from unusable_authorities(f"{key}.ca_file", security.ca_file)


def _files(key: str, security: KafkaSecuritySettings) -> Iterator[Conflict]:
    for name in ("password_file", "token_file", "client_secret_file"):
        yield from _unusable_secret(f"{key}.{name}", getattr(security, name))


def _unusable_secret(key: str, file: Path | None) -> Iterator[Conflict]:
    """The file can't be read, or there is nothing in it."""
    found = list(unreadable(key, file))
    if file is not None and not found and _is_empty(file):
        found.append(Conflict(key, f"{file} is empty", "write the secret into it"))
    yield from found


def _is_empty(file: Path) -> bool:
    with file.open("rb") as opened:
        return not opened.read(_ENOUGH).strip()
