"""How a cluster is connected to: from the settings of `security` to the client's arguments.

Invariants: host names are always checked; secrets are read from their files at each connection, so whoever replaces a file need not restart
anything; no secret is in a repr, an error or a log. aiokafka knows no AWS_MSK_IAM: it is its OAUTHBEARER with a token that we sign.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient

from forwarder.sources.kafka.secret_files import SecurityError, read_secret
from forwarder.sources.kafka.tokens import ClientCredentials, MskToken, TokenFile, TokenProvider, check_servers, hear_refusals

PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The settings of a cluster's `security`."""

    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    token_file: Path | None = None
    token_url: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_secret_file: Path | None = None
    scope: str | None = None
    aws_region: str | None = None

    @property
    def encrypted(self) -> bool:
        """Whether connections are TLS."""
        return self.protocol.endswith("SSL")

    @property
    def shows_its_secret(self) -> bool:
        """Whether whoever hears what is sent can read the password, or the token."""
        return self.signs_in and not self.encrypted and self.mechanism not in {"SCRAM-SHA-256", "SCRAM-SHA-512"}

    @property
    def signs_in(self) -> bool:
        """Whether whoever connects says who they are with SASL."""
        return self.protocol.startswith("SASL")


def connection(security: Security) -> dict[str, Any]:
    """aiokafka's arguments, from files as they are now. Raises `SecurityError`, which names the setting."""
    arguments: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypted:
        arguments["ssl_context"] = tls(security)
    if security.signs_in:
        arguments |= _login(security)
    return arguments


def follow(consumer: AIOKafkaConsumer, security: Security) -> None:
    """Have each connection that a consumer makes from now on read password and certificates anew, as tokens are anyway: aiokafka takes
    them once, and would offer a password for ever that has been changed."""
    client = consumer._client  # there is no other way to it; tests hold it against a real broker
    client.__class__ = _Following
    client.security = security


def tls(security: Security) -> ssl.SSLContext:
    """What the brokers' certificates are checked with, and ours. Raises `SecurityError`."""
    try:
        context = ssl.create_default_context(cafile=security.ca_file)
    except (OSError, ValueError) as error:
        raise SecurityError("ca_file", _unreadable(security.ca_file, error, "holds no certificate in PEM")) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if security.cert_file is not None:
        _add_certificate(context, security.cert_file, security.key_file)
    return context


class _Following(AIOKafkaClient):  # type: ignore[misc]  # aiokafka's is untyped
    """A client whose secrets are always those of now. Its errors are Kafka's, which the client takes for a failed connection."""

    security: Security

    @property
    def _sasl_plain_password(self) -> str | None:
        return _password(self.security) if self.security.mechanism in PASSWORDS else None

    @property
    def _ssl_context(self) -> ssl.SSLContext | None:
        return tls(self.security) if self.security.encrypted else None


def _login(security: Security) -> dict[str, Any]:
    if security.mechanism in PASSWORDS:
        check_servers()
        return {
            "sasl_mechanism": security.mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": _password(security),
        }
    hear_refusals()
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": _provider(security)}


def _password(security: Security) -> str:
    return read_secret("password", security.password, security.password_file)


def _provider(security: Security) -> TokenProvider:
    if security.mechanism == "AWS_MSK_IAM":
        if security.aws_region is None:
            raise SecurityError("aws_region", "AWS_MSK_IAM signs for a region", hint="For example eu-central-1.")
        return MskToken(security.aws_region)
    if security.token_file is not None:
        return TokenFile(security.token_file)
    if security.token_url is None or security.client_id is None:
        raise SecurityError("token_url", "OAUTHBEARER needs a `token_file`, or a `token_url` and a `client_id`")
    read_secret("client_secret", security.client_secret, security.client_secret_file)  # so that a missing file is told before it is needed
    return ClientCredentials(
        security.token_url,
        security.client_id,
        lambda: read_secret("client_secret", security.client_secret, security.client_secret_file),
        scope=security.scope,
        ca_file=security.ca_file,
    )


def _add_certificate(context: ssl.SSLContext, cert_file: Path, key_file: Path | None) -> None:
    for key, file in (("cert_file", cert_file), ("key_file", key_file)):
        try:
            if file is not None:
                file.open("rb").close()
        except OSError as error:
            raise SecurityError(key, _unreadable(file, error, "")) from error
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
    except ssl.SSLError as error:
        raise SecurityError("key_file" if key_file else "cert_file", _mismatch(error, cert_file, key_file or cert_file)) from error


def _no_passphrase() -> str:
    """Where the key is encrypted the library would ask the terminal."""
    raise SecurityError("key_file", "the private key is protected by a passphrase, which nobody can type here: decrypt it")


def _mismatch(error: ssl.SSLError, cert_file: Path, key_file: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the private key in {key_file} isn't the one of the certificate in {cert_file}"
    return f"{cert_file} and {key_file} hold no certificate with its private key in PEM"


def _unreadable(file: Path | None, error: OSError | ValueError, otherwise: str) -> str:
    words = getattr(error, "strerror", None)
    if isinstance(error, ssl.SSLError) or words is None:
        return f"{file} {otherwise}"
    return f"{file} can't be read: {words}"
