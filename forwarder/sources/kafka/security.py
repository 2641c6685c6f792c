"""How a cluster is connected to: from the settings of `security` to the client's arguments, TLS,
passwords and tokens.

Tokens for OAUTHBEARER come from a file, from an authorization server, or are signed for Amazon's
managed Kafka (aiokafka knows no AWS_MSK_IAM: it is its OAUTHBEARER with a token that we sign).
aiokafka requests one for each connection.

Invariants: host names are always checked; secrets are read from their files at each connection, so
replacing a file needs no restart; no secret is in a repr, an error or a log. One token request is
in flight at a time, and others wait for it; a cached token is used no longer than until shortly
before it expires.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

import aiohttp
import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, ScramAuthenticator
from aiokafka.errors import KafkaError

from forwarder.core.configured_files import check_file
from forwarder.core.configured_files import read_file as read_configured
from forwarder.core.error_text import error_text
from forwarder.core.errors import ForwarderError
from forwarder.core.installation import install_extra
from forwarder.core.tls import client_context

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
        """Whether the password, or the token, can be read on the wire."""
        return (
            self.signs_in
            and not self.encrypted
            and self.mechanism not in {"SCRAM-SHA-256", "SCRAM-SHA-512"}
        )

    @property
    def signs_in(self) -> bool:
        """Whether connections log in with SASL."""
        return self.protocol.startswith("SASL")


def connection(security: Security) -> dict[str, Any]:
    """aiokafka's arguments, from files as they are now. Raises `SecurityError`,
    which names the setting.
    """
    arguments: dict[str, Any] = {"security_protocol": security.protocol}
    if security.encrypted:
        arguments["ssl_context"] = tls(security)
    if security.signs_in:
        arguments |= _login(security)
    return arguments


def follow(consumer: AIOKafkaConsumer, security: Security) -> None:
    """Have each connection that a consumer makes from now on read password and certificates anew,
    as tokens are anyway: aiokafka takes them once, and would offer a password for ever that has
    been changed.
    """
    client = consumer._client  # there is no other way to it; tests hold it against a real broker
    client.__class__ = _Following
    client.security = security


def tls(security: Security) -> ssl.SSLContext:
    """What the brokers' certificates are checked with, and ours. Raises `SecurityError`."""
    try:
        context = client_context(security.ca_file)
    except (OSError, ValueError) as error:
        raise SecurityError(
            "ca_file", _unreadable(security.ca_file, error, "holds no certificate in PEM")
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if security.cert_file is not None:
        _add_certificate(context, security.cert_file, security.key_file)
    return context


class _Following(AIOKafkaClient):  # type: ignore[misc]  # aiokafka's is untyped
    """A client whose secrets are always those of now. Its errors are Kafka's, which the client
    takes for a failed connection.
    """

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
            raise SecurityError(
                "aws_region", "AWS_MSK_IAM signs for a region", hint="For example eu-central-1."
            )
        return MskToken(security.aws_region)
    if security.token_file is not None:
        return TokenFile(security.token_file)
    if security.token_url is None or security.client_id is None:
        raise SecurityError(
            "token_url", "OAUTHBEARER needs a `token_file`, or a `token_url` and a `client_id`"
        )
    # reports a missing file before it is needed
    read_secret("client_secret", security.client_secret, security.client_secret_file)
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
                check_file(file)
        except OSError as error:
            raise SecurityError(key, _unreadable(file, error, "")) from error
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_passphrase)
    except ssl.SSLError as error:
        raise SecurityError(
            "key_file" if key_file else "cert_file",
            _mismatch(error, cert_file, key_file or cert_file),
        ) from error


def _no_passphrase() -> str:
    """Where the key is encrypted the library would ask the terminal."""
    raise SecurityError(
        "key_file",
        "the private key is protected by a passphrase, which can't be typed here: decrypt it",
    )


def _mismatch(error: ssl.SSLError, cert_file: Path, key_file: Path) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the private key in {key_file} isn't the one of the certificate in {cert_file}"
    return f"{cert_file} and {key_file} hold no certificate with its private key in PEM"


def _unreadable(file: Path | None, error: OSError | ValueError, otherwise: str) -> str:
    if isinstance(error, ssl.SSLError | ValueError):
        return f"{file} {otherwise}"
    return f"{file} can't be read: {error_text(error)}"


ANSWER_SECONDS: Final = 10.0
"""How long an authorization server, or what Amazon's signer asks for credentials, may take."""

MARGIN_SECONDS: Final = 60.0
"""A token isn't used in its last minute, or in the last fifth of a life that is shorter than five.
"""

ANSWER_BYTES: Final = 256 * 1024
WORDS: Final = 300
"""Characters of a server's explanation that are repeated."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka's is untyped
    """Gives aiokafka a token."""

    @abstractmethod
    async def token(self) -> str:
        """A token that is good now. Raises `SecurityError`. Cancellation ends the wait."""


class HearingAuthenticator(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka's is untyped
    """Notices that a token is refused. aiokafka takes the refusal for success, and the cluster for
    one without brokers.
    """

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """A server that refuses says why, and fails only when it has had this answer (RFC 7628,
        section 3.2.3).
        """
        return (b"\x01", True) if payload else await super().step(payload)


def hear_refusals() -> None:
    """Have aiokafka's connections use it: they offer no option for it."""
    AIOKafkaConnection.authenticator_oauth = lambda conn: HearingAuthenticator(
        sasl_oauth_token_provider=conn._sasl_oauth_token_provider
    )


class ServerUnproven(KafkaError):  # type: ignore[misc]  # aiokafka's is untyped
    """A server that was logged in to hasn't shown that it knows the password, too."""


class CheckingAuthenticator(ScramAuthenticator):  # type: ignore[misc]  # aiokafka's is untyped
    """SCRAM, where both sides prove that they know the password. aiokafka's errors about the other
    side's proof aren't Kafka's, and end whatever task has connected.
    """

    def _step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """Its next message, in a thread; None if there is none. Raises `ServerUnproven`."""
        try:
            message: tuple[bytes, bool] | None = super()._step(payload)
        except (ValueError, KeyError) as error:
            raise ServerUnproven("its proof of the password is wrong") from error
        return message


def check_servers() -> None:
    """Have aiokafka's connections use it: they offer no option for it."""
    AIOKafkaConnection.authenticator_scram = lambda conn: CheckingAuthenticator(
        loop=conn._loop,
        sasl_plain_password=conn._sasl_plain_password,
        sasl_plain_username=conn._sasl_plain_username,
        sasl_mechanism=conn._sasl_mechanism,
    )


class TokenFile(TokenProvider):
    """A file that something else keeps current, as a sidecar or Kubernetes does."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def token(self) -> str:
        return _one_word(
            "token_file",
            read_file("token_file", self._file),
            f"{self._file} holds something else than one token",
        )


class _CachedToken(TokenProvider):
    """Keeps a token for most of its life."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._token = ""
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def token(self) -> str:
        async with self._lock:
            if self._now() >= self._until:
                self._token, life = await self._fetch()
                self._until = self._now() + max(0.0, life - min(MARGIN_SECONDS, life / 5))
            return self._token

    @abstractmethod
    async def _fetch(self) -> tuple[str, float]:
        """A new token, and the seconds for which it is good; 0 if that is unknown."""


class ClientCredentials(_CachedToken):
    """Asks an authorization server (RFC 6749, section 4.4) with an id and its secret, which is
    read again each time.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        secret: Callable[[], str],
        *,
        scope: str | None = None,
        ca_file: Path | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(now)
        self._url = url
        self._client_id = client_id
        self._secret = secret
        self._ca_file = ca_file
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})

    async def _fetch(self) -> tuple[str, float]:
        basic = b64encode(
            f"{quote_plus(self._client_id)}:{quote_plus(self._secret())}".encode()
        ).decode()
        headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
            ):
                posting = session.post(
                    self._url,
                    data=self._form,
                    headers=headers,
                    allow_redirects=False,
                    ssl=self._tls(),
                )
                async with posting as response:
                    return self._read(response.status, await _start_of(response))
        except TimeoutError:
            raise SecurityError(
                "token_url", f"{self._host} gives no answer within {ANSWER_SECONDS:g} s"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SecurityError(
                "token_url", f"{self._host} gives no token: {_words(error)}"
            ) from error

    def _read(self, status: int, body: bytes) -> tuple[str, float]:
        try:
            answer = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            answer = None
        if not isinstance(answer, dict):
            answer = {}
        if status != 200:
            raise self._refused(status, answer)
        token = answer.get("access_token")
        if not isinstance(token, str):
            raise SecurityError("token_url", f"{self._host} answers without an access_token")
        try:
            life = float(answer.get("expires_in") or 0)
        except (TypeError, ValueError):
            life = 0.0
        return _one_word(
            "token_url", token, f"{self._host} gives something else than one token"
        ), life

    def _refused(self, status: int, answer: dict[str, Any]) -> SecurityError:
        words = [
            str(answer[key])[:WORDS]
            for key in ("error", "error_description")
            if isinstance(answer.get(key), str)
        ]
        reason = f" ({': '.join(words)})" if words else ""
        if status == 401 or answer.get("error") in {"invalid_client", "unauthorized_client"}:
            message = (
                f"{self._host} refuses {self._client_id!r} with this secret: HTTP {status}{reason}"
            )
            return SecurityError("client_secret", message, hint="Check `client_id` and its secret.")
        if answer.get("error") == "invalid_scope":
            return SecurityError("scope", f"{self._host} refuses the scope: HTTP {status}{reason}")
        return SecurityError("token_url", f"{self._host} gives no token: HTTP {status}{reason}")

    def _tls(self) -> ssl.SSLContext:
        """The system's authorities, and those of `ca_file`, which may be the cluster's alone."""
        context = client_context()
        if self._ca_file is not None:
            check_file(self._ca_file)
            context.load_verify_locations(self._ca_file)
        return context

    @property
    def _host(self) -> str:
        """For people: the address may hold credentials."""
        return urlsplit(self._url).hostname or "the authorization server"


class MskToken(_CachedToken):
    """Has Amazon's signer make a token from whatever credentials its tools find. It blocks, so a
    thread does it.
    """

    def __init__(self, region: str, now: Callable[[], float] = time.time) -> None:
        super().__init__(now)
        self._region = region
        self._sign = _signer()

    async def _fetch(self) -> tuple[str, float]:
        signing = asyncio.get_running_loop().run_in_executor(None, self._sign, self._region)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                token, expiry = await signing
        except TimeoutError:
            raise SecurityError(
                "mechanism", f"no AWS credentials came within {ANSWER_SECONDS:g} s"
            ) from None
        except Exception as error:  # the signer lets through whatever its own libraries raise
            hint = "Give the process a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            raise SecurityError(
                "mechanism",
                f"AWS_MSK_IAM finds no usable AWS credentials: {_aws_words(error)}",
                hint=hint,
            ) from None
        return token, expiry / 1000 - self._now()


def _signer() -> Callable[[str], tuple[str, int]]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise SecurityError(
            "mechanism", "AWS_MSK_IAM needs the extra `msk`", hint=install_extra("msk")
        ) from error
    signer: Callable[[str], tuple[str, int]] = MSKAuthTokenProvider.generate_auth_token
    return signer


def _aws_words(error: Exception) -> str:
    """Without credentials the signer stumbles over None."""
    return "there are none" if isinstance(error, AttributeError) else error_text(error)[:WORDS]


def _one_word(key: str, text: str, otherwise: str) -> str:
    """A token is one word of printable ASCII (RFC 6750); anything else would end up in the middle
    of a protocol.
    """
    token = text.strip()
    if not token.isascii() or not token.isprintable() or len(token.split()) != 1:
        raise SecurityError(key, otherwise)
    return token


async def _start_of(response: aiohttp.ClientResponse) -> bytes:
    """As much of an answer as any that is one."""
    pieces: list[bytes] = []
    async for piece in response.content.iter_chunked(16 * 1024):
        pieces.append(piece)
        if sum(map(len, pieces)) > ANSWER_BYTES:
            raise ValueError("its answer is too long")
    return b"".join(pieces)


def _words(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate isn't trusted (`ca_file` may hold its authority)"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error_text(error.os_error)
    return error_text(error)


class SecurityError(ForwarderError, KafkaError):  # type: ignore[misc]  # aiokafka's is untyped
    """What is needed to connect isn't there. `key` is the setting, below `security`. It is one of
    Kafka's errors, too, so that a client in mid-life takes it for a failed connection and tries
    again, instead of losing the task that met it.
    """

    code = "kafka_security"

    def __init__(self, key: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = f"security.{key}"

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


def read_secret(key: str, value: str | None, file: Path | None) -> str:
    """The secret `key`: what is in `file` now, without the line end that editors add, else
    `value`. Raises `SecurityError`.
    """
    if file is None:
        if not value:
            raise SecurityError(key, f"it is needed here, or `{key}_file`")
        return value
    secret = read_file(f"{key}_file", file)
    return secret.removesuffix("\n").removesuffix("\r")


def read_file(key: str, file: Path) -> str:
    """The text in `file`, which isn't empty. Raises `SecurityError`, without repeating
    any of it.
    """
    try:
        text = read_configured(file).decode("utf-8")
    except UnicodeDecodeError:
        # the error would hold the bytes
        raise SecurityError(key, f"{file} isn't text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise SecurityError(key, f"{file} can't be read: {error_text(error)}") from error
    if not text.strip():
        raise SecurityError(key, f"{file} is empty")
    return text
