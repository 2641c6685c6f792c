"""Tokens for OAUTHBEARER: from a file, from an authorization server, or signed for Amazon's managed Kafka.

aiokafka asks for one at each connection. Invariants: one request is under way at a time, and whoever asks meanwhile waits for it; a token
that is kept is used no longer than until shortly before it expires; tokens are in no repr and no error.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus, urlsplit

import aiohttp
import msgspec
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator, ScramAuthenticator
from aiokafka.errors import KafkaError

from forwarder.core.errors import install_extra
from forwarder.sources.kafka.secret_files import SecurityError, read_file

ANSWER_SECONDS: Final = 10.0
"""How long an authorization server, or what Amazon's signer asks for credentials, may take."""

MARGIN_SECONDS: Final = 60.0
"""A token isn't used in its last minute, or in the last fifth of a life that is shorter than five."""

ANSWER_BYTES: Final = 256 * 1024
WORDS: Final = 300
"""Characters of a server's explanation that are repeated."""


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka's is untyped
    """Gives aiokafka a token."""

    @abstractmethod
    async def token(self) -> str:
        """A token that is good now. Raises `SecurityError`. Cancellation ends the wait."""


class HearingAuthenticator(OAuthAuthenticator):  # type: ignore[misc]  # aiokafka's is untyped
    """Hears that a token is refused. aiokafka takes the refusal for success, and the cluster for one without brokers."""

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """A server that refuses says why, and fails only when it has had this answer (RFC 7628, section 3.2.3)."""
        return (b"\x01", True) if payload else await super().step(payload)


def hear_refusals() -> None:
    """Have aiokafka's connections use it: they let nobody choose."""
    AIOKafkaConnection.authenticator_oauth = lambda conn: HearingAuthenticator(
        sasl_oauth_token_provider=conn._sasl_oauth_token_provider
    )


class ServerUnproven(KafkaError):  # type: ignore[misc]  # aiokafka's is untyped
    """A server that was logged in to hasn't shown that it knows the password, too."""


class CheckingAuthenticator(ScramAuthenticator):  # type: ignore[misc]  # aiokafka's is untyped
    """SCRAM, where both sides prove that they know the password. aiokafka's errors about the other side's proof aren't Kafka's, and end
    whatever task has connected."""

    def _step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """Its next message, in a thread; None if there is none. Raises `ServerUnproven`."""
        try:
            message: tuple[bytes, bool] | None = super()._step(payload)
        except (ValueError, KeyError) as error:
            raise ServerUnproven("its proof of the password is wrong") from error
        return message


def check_servers() -> None:
    """Have aiokafka's connections use it: they let nobody choose."""
    AIOKafkaConnection.authenticator_scram = lambda conn: CheckingAuthenticator(
        loop=conn._loop,
        sasl_plain_password=conn._sasl_plain_password,
        sasl_plain_username=conn._sasl_plain_username,
        sasl_mechanism=conn._sasl_mechanism,
    )


class TokenFile(TokenProvider):
    """A file that somebody else keeps current, as a sidecar or Kubernetes does."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def token(self) -> str:
        """See `TokenProvider.token`."""
        return _one_word("token_file", read_file("token_file", self._file), f"{self._file} holds something else than one token")


class _Kept(TokenProvider):
    """Keeps a token for most of its life."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._token = ""
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def token(self) -> str:
        """See `TokenProvider.token`."""
        async with self._lock:
            if self._now() >= self._until:
                self._token, life = await self._fetch()
                self._until = self._now() + max(0.0, life - min(MARGIN_SECONDS, life / 5))
            return self._token

    @abstractmethod
    async def _fetch(self) -> tuple[str, float]:
        """A new token, and the seconds for which it is good; 0 if nobody says."""


class ClientCredentials(_Kept):
    """Asks an authorization server (RFC 6749, section 4.4) with an id and its secret, which is read again each time."""

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
        basic = b64encode(f"{quote_plus(self._client_id)}:{quote_plus(self._secret())}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}", "Accept": "application/json"}
        try:
            async with asyncio.timeout(ANSWER_SECONDS), aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
                posting = session.post(self._url, data=self._form, headers=headers, allow_redirects=False, ssl=self._tls())
                async with posting as response:
                    return self._read(response.status, await _start_of(response))
        except TimeoutError:
            raise SecurityError("token_url", f"{self._host} gives no answer within {ANSWER_SECONDS:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SecurityError("token_url", f"{self._host} can't be asked: {_words(error)}") from error

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
        return _one_word("token_url", token, f"{self._host} gives something else than one token"), life

    def _refused(self, status: int, answer: dict[str, Any]) -> SecurityError:
        words = [str(answer[key])[:WORDS] for key in ("error", "error_description") if isinstance(answer.get(key), str)]
        told = f" ({': '.join(words)})" if words else ""
        if status == 401 or answer.get("error") in {"invalid_client", "unauthorized_client"}:
            message = f"{self._host} refuses {self._client_id!r} with this secret: HTTP {status}{told}"
            return SecurityError("client_secret", message, hint="Check `client_id` and its secret.")
        if answer.get("error") == "invalid_scope":
            return SecurityError("scope", f"{self._host} refuses the scope: HTTP {status}{told}")
        return SecurityError("token_url", f"{self._host} gives no token: HTTP {status}{told}")

    def _tls(self) -> ssl.SSLContext:
        """The system's authorities, and those of `ca_file`, which may be the cluster's alone."""
        context = ssl.create_default_context()
        if self._ca_file is not None:
            context.load_verify_locations(self._ca_file)
        return context

    @property
    def _host(self) -> str:
        """For people: the address may hold credentials."""
        return urlsplit(self._url).hostname or "the authorization server"


class MskToken(_Kept):
    """Has Amazon's signer make a token from whatever credentials its tools find. It blocks, so a thread does it."""

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
            raise SecurityError("mechanism", f"no AWS credentials came within {ANSWER_SECONDS:g} s") from None
        except Exception as error:  # the signer lets through whatever its own libraries raise
            hint = "Give the process a role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
            raise SecurityError("mechanism", f"AWS_MSK_IAM finds no usable AWS credentials: {_aws_words(error)}", hint=hint) from None
        return token, expiry / 1000 - self._now()


def _signer() -> Callable[[str], tuple[str, int]]:
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise SecurityError("mechanism", "AWS_MSK_IAM needs the extra `msk`", hint=install_extra("msk")) from error
    signer: Callable[[str], tuple[str, int]] = MSKAuthTokenProvider.generate_auth_token
    return signer


def _aws_words(error: Exception) -> str:
    """Without credentials the signer stumbles over None."""
    return "there are none" if isinstance(error, AttributeError) else f"{type(error).__name__}: {str(error)[:WORDS]}"


def _one_word(key: str, text: str, otherwise: str) -> str:
    """A token is one word of printable ASCII (RFC 6750); anything else would end up in the middle of a protocol."""
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
        return (error.os_error.strerror or type(error.os_error).__name__).lower()
    return str(error) if type(error) is ValueError else type(error).__name__
