"""What an error of the client means, and the search for its cause after a connection has failed:
aiokafka does not report it.

A connection is made to each configured broker, step by step as the client does it, and then to
those that the cluster names, until a step fails. Invariants: it is made only after a failure, and
ends within its limit; what it sends are questions; where a certificate is not checked, nothing is
sent at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import errors as kafka
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError, UnsupportedSaslMechanismError
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from forwarder.core.error_text import error_text
from forwarder.core.tls import client_context
from forwarder.sources.kafka.security import (
    PASSWORDS,
    Security,
    SecurityError,
    ServerUnproven,
    connection,
    tls,
)

WORDS: Final = 300
"""Characters of a broker's explanation that are repeated."""

_ISSUER_UNKNOWN: Final = frozenset({2, 18, 19, 20, 21})
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_OTHER_NAME: Final = frozenset({62, 63, 64})


@dataclass(frozen=True, slots=True)
class Trouble:
    """`key` is the setting, as it is called within the cluster's."""

    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class FencedError(KafkaError):  # type: ignore[misc]  # the library has no types
    """Another member of the group has this one's `group_instance_id`, and has taken its place. Its
    arguments are that id and the group.
    """


def quiet() -> None:
    """Silence what aiokafka logs of each attempt: the source logs once what is wrong."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def explain(error: BaseException) -> Trouble | None:
    """What an error means that names its cause; None for one that hides it, as "unable to
    bootstrap" does.
    """
    match error:
        case SecurityError():
            return Trouble(error.key, error.message, error.hint)
        case FencedError():
            instance, group = error.args
            message = (
                f"another forwarder is in group {group!r} as {instance!r} too: they remove "
                "each other, and events arrive twice"
            )
            return Trouble(
                "group_instance_id", message, "Give each forwarder an id of its own, or none."
            )
        case kafka.GroupAuthorizationFailedError():
            return Trouble(
                "group_id",
                f"this user may not read in the group{_named(error)}",
                "Grant it READ on the group, or set another.",
            )
        case kafka.TopicAuthorizationFailedError():
            return Trouble(
                "topics",
                f"this user may not read{_named(error) or ' a topic'}",
                "Grant it READ and DESCRIBE on the topics.",
            )
        case kafka.ClusterAuthorizationFailedError():
            return Trouble(
                "security.username",
                "this user may not use the cluster",
                "Look at its permissions there.",
            )
        case kafka.InvalidGroupIdError():
            return Trouble("group_id", "the cluster refuses the group's name")
        case kafka.InvalidTopicError():
            return Trouble("topics", f"the cluster refuses the name{_named(error)}")
    return None


def unreachable(error: BaseException, address: str, security: Security) -> Trouble | None:
    """What a failed connection to one broker means; None if it isn't clear from the error alone."""
    for cause in _chain(error):
        trouble = (
            _of_login(cause, address, security)
            or _of_tls(cause, address, security)
            or _of_network(cause, address)
        )
        if trouble is not None:
            return trouble
    return None


def _of_login(error: BaseException, address: str, security: Security) -> Trouble | None:
    match error:
        case ServerUnproven():
            message = (
                f"{address} doesn't prove that it knows the password of "
                f"{security.username!r}, as SCRAM asks of a broker"
            )
            return Trouble(
                "bootstrap_servers",
                message,
                "It may not be the broker that it claims to be; nothing is read from it.",
            )
        case kafka.UnsupportedSaslMechanismError():
            return offers_others(address, security, ())
        case kafka.IllegalSaslStateError():
            without = "SSL" if security.encrypted else "PLAINTEXT"
            return Trouble(
                "security.protocol", f"{address} asks for no login (SASL)", f"Set it to {without}."
            )
        case kafka.SaslAuthenticationFailed():
            return refused_login(address, security, _words(error))
    return explain(error)


def refused_login(address: str, security: Security, words: str = "") -> Trouble:
    """The broker refuses our credentials; `words` are its own."""
    reason = f": {words}" if words else ""
    if security.mechanism in PASSWORDS:
        key = "security.password_file" if security.password_file else "security.password"
        return Trouble(
            key,
            f"{address} refuses user {security.username!r} with this password{reason}",
            "Check security.username, too.",
        )
    if security.mechanism == "AWS_MSK_IAM":
        hint = "Check aws_region, and that the role may kafka-cluster:Connect."
        return Trouble("security.mechanism", f"{address} refuses the AWS credentials{reason}", hint)
    key = "security.token_file" if security.token_file else "security.token_url"
    return Trouble(
        key, f"{address} refuses the token{reason}", "Check its expiry, audience, issuer and scope."
    )


def _of_tls(error: BaseException, address: str, security: Security) -> Trouble | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _of_certificate(error, address, security)
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}:
        return speaks_no_tls(address, security)
    if "ALERT" in reason and "PROTOCOL_VERSION" not in reason and "INTERNAL_ERROR" not in reason:
        return _of_client_certificate(reason, address, security)
    if "PROTOCOL_VERSION" in reason or reason == "UNSUPPORTED_PROTOCOL":
        return Trouble("security.protocol", f"{address} speaks no TLS 1.2 or later")
    return None


def _of_certificate(
    error: ssl.SSLCertVerificationError, address: str, security: Security
) -> Trouble:
    code = error.verify_code
    if code in _OTHER_NAME:
        hint = (
            "Name the brokers as their certificates do; the names that they advertise count, too."
        )
        return Trouble(
            "bootstrap_servers", f"the certificate of {address} is for another name", hint
        )
    if code == _EXPIRED:
        message = f"the certificate of {address}, or its authority's, has expired"
        return Trouble("bootstrap_servers", message, "The cluster's has to be renewed.")
    if code == _NOT_YET_VALID:
        return Trouble(
            "bootstrap_servers",
            f"the certificate of {address} isn't valid yet",
            "Look at the clocks.",
        )
    known = f"those in {security.ca_file}" if security.ca_file else "the system's"
    why = (
        f": its authority isn't among {known}"
        if code in _ISSUER_UNKNOWN
        else f": {error.verify_message}"
    )
    hint = "Name a PEM file that holds the authority of the cluster's certificates."
    return Trouble("security.ca_file", f"the certificate of {address} isn't trusted{why}", hint)


def _of_client_certificate(reason: str, address: str, security: Security) -> Trouble:
    if security.cert_file is None:
        return Trouble(
            "security.cert_file",
            f"{address} asks for a client's certificate",
            "Set it and security.key_file.",
        )
    expired = (
        "it has expired"
        if "EXPIRED" in reason
        else "it doesn't trust who signed it, or the certificate isn't for clients"
    )
    return Trouble(
        "security.cert_file",
        f"{address} refuses the certificate in {security.cert_file}: {expired}",
    )


def speaks_tls(address: str, security: Security) -> Trouble:
    """A port that speaks TLS was spoken to without."""
    tls = "SASL_SSL" if security.signs_in else "SSL"
    return Trouble(
        "security.protocol",
        f"{address} speaks TLS, and {security.protocol} doesn't",
        f"Set it to {tls}.",
    )


def asks_for_login(address: str, security: Security, offered: Sequence[str]) -> Trouble:
    """A port that wants SASL was spoken to without."""
    sasl = "SASL_SSL" if security.encrypted else "SASL_PLAINTEXT"
    message = f"{address} asks for a login (SASL), and {security.protocol} has none"
    return Trouble(
        "security.protocol",
        message,
        f"Set it to {sasl}, and security.mechanism to one of: {', '.join(offered)}.",
    )


def offers_others(address: str, security: Security, offered: Sequence[str]) -> Trouble:
    """The broker lacks a mechanism; `offered` are those that it has, if it reports them."""
    hint = f"It offers {', '.join(offered)}." if offered else ""
    return Trouble("security.mechanism", f"{address} doesn't offer {security.mechanism}", hint)


def speaks_no_tls(address: str, security: Security) -> Trouble:
    """TLS was spoken to a port that is plain."""
    plain = "SASL_PLAINTEXT" if security.signs_in else "PLAINTEXT"
    return Trouble(
        "security.protocol",
        f"{address} doesn't speak TLS",
        f"Name a port that does, or set it to {plain}.",
    )


def _of_network(error: BaseException, address: str) -> Trouble | None:
    if isinstance(error, socket.gaierror):
        return Trouble("bootstrap_servers", f"no address is known for the name in {address}")
    if isinstance(error, ConnectionRefusedError) or _refused_by_all(error):
        return Trouble("bootstrap_servers", f"nothing listens on {address}")
    if isinstance(error, TimeoutError | asyncio.TimeoutError | kafka.RequestTimedOutError):
        return Trouble(
            "bootstrap_servers",
            f"{address} doesn't answer",
            "A firewall may drop what is sent there.",
        )
    if isinstance(error, OSError) and error.errno in {
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.EACCES,
        errno.EPERM,
    }:
        return Trouble("bootstrap_servers", f"{address} can't be reached: {error_text(error)}")
    return None


def _refused_by_all(error: BaseException) -> bool:
    """A name with several addresses: asyncio joins their errors into one without a number."""
    return (
        type(error) is OSError
        and str(error).startswith("Multiple exceptions")
        and str(errno.ECONNREFUSED) in str(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _named(error: BaseException) -> str:
    """Which group or topics, as far as the error names them."""
    names: set[str] = set()
    for item in error.args:
        if isinstance(item, str):
            names.add(item)
        elif isinstance(item, Iterable):
            names.update(str(name) for name in item)
    return f" {', '.join(sorted(names))[:WORDS]}" if names else ""


def _words(error: BaseException) -> str:
    return " ".join(
        str(text) for text in error.args if isinstance(text, str) and text.isprintable()
    )[:WORDS]


LIMIT: Final = 10.0
"""Seconds for the whole search."""

ALERT_SECONDS: Final = 1.0
"""How long is listened for a broker's opinion of a client's certificate: in TLS 1.3 it comes after
the handshake, or never.
"""

_FAILED: Final = (OSError, KafkaError, TimeoutError, ValueError, AssertionError)
"""What a connection that fails raises; the last two come from answers that aren't Kafka's."""


async def diagnose(
    servers: Sequence[str], security: Security, error: BaseException, limit: float = LIMIT
) -> Trouble:
    """The cause of `error`, found within `limit` seconds; else its own message. Cancellation ends
    the search.
    """
    known = explain(error)
    if known is not None:
        return known
    outcomes = await asyncio.gather(
        *[_within(limit, _ask(server, security, limit)) for server in servers]
    )
    troubles = [trouble for trouble in outcomes if trouble is not None]
    # If one of them is well, what failed is over, or lies elsewhere.
    if len(troubles) < len(outcomes) or not troubles:
        return Trouble("bootstrap_servers", f"{', '.join(servers)}: {error_text(error)}")
    return min(troubles, key=lambda trouble: trouble.key == "bootstrap_servers")


async def _within(limit: float, asking: Any) -> Trouble | None:
    try:
        async with asyncio.timeout(limit):
            trouble: Trouble | None = await asking
            return trouble
    except TimeoutError:
        return Trouble(
            "bootstrap_servers",
            f"no answer within {limit:g} s",
            "A firewall may drop what is sent there.",
        )


async def _ask(server: str, security: Security, limit: float) -> Trouble | None:
    """What is wrong with one of the named brokers, or with those that it names; None: nothing."""
    try:
        async with _connected(server, security, limit) as conn:
            answer = await conn.send(MetadataRequest([]))
    except _FAILED as error:
        return await _why(server, security, error, limit)
    named = [f"{broker[1]}:{broker[2]}" for broker in answer.brokers]
    for address in [server_name for server_name in named if server_name != server]:
        try:
            async with _connected(address, security, limit):
                pass
        except _FAILED as error:
            trouble = await _why(address, security, error, limit)
            return dataclasses.replace(
                trouble,
                hint=f"{server} names that address (advertised.listeners). {trouble.hint}".strip(),
            )
    return None


async def _why(address: str, security: Security, error: BaseException, limit: float) -> Trouble:
    """The step that failed: from the error, else by connecting to the broker differently."""
    if isinstance(error, UnsupportedSaslMechanismError):
        return offers_others(address, security, await _offered(address, security, limit))
    trouble = unreachable(error, address, security)
    if trouble is not None:
        return trouble
    if security.encrypted:
        cause = await _why_no_tls(address, security, limit)
    else:
        cause = speaks_tls(address, security) if await _handshake(address, _unchecked()) else None
    if (
        cause is None
        and not security.signs_in
        and (offered := await _offered(address, security, limit))
    ):
        cause = asks_for_login(address, security, offered)
    return cause or Trouble("bootstrap_servers", f"{address}: {error_text(error)}")


async def _why_no_tls(address: str, security: Security, limit: float) -> Trouble | None:
    try:
        async with _connected(address, Security(), limit):
            return speaks_no_tls(address, security)
    except _FAILED:
        pass
    try:
        await _handshake(address, tls(security), raising=True)
    except _FAILED as error:
        return unreachable(error, address, security)
    return None


async def _offered(address: str, security: Security, limit: float) -> list[str]:
    """The mechanisms that a broker has; none if it requires no login, or doesn't report them."""
    without = dataclasses.replace(security, protocol="SSL" if security.encrypted else "PLAINTEXT")
    try:
        async with _connected(address, without, limit) as conn:
            answer = await conn.send(SaslHandShakeRequest("none of them"))
            return sorted(answer.enabled_mechanisms)
    except _FAILED:
        return []


@contextlib.asynccontextmanager
async def _connected(
    address: str, security: Security, limit: float
) -> AsyncIterator[AIOKafkaConnection]:
    """A connection as the client makes them, logged in."""
    host, port = _parts(address)
    conn = AIOKafkaConnection(
        host, port, request_timeout_ms=int(limit * 1000), **connection(security)
    )
    try:
        await conn.connect()
        yield conn
    finally:
        closed = conn.close()
        if conn._protocol is not None:  # else nothing was connected, and no end would be reported
            await closed


async def _handshake(address: str, context: ssl.SSLContext, *, raising: bool = False) -> bool:
    """Whether a TLS handshake succeeds; then listen whether the broker objects. Nothing is sent."""
    host, port = _parts(address)
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        try:
            await _listen(reader)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except OSError as error:
        if raising:
            raise
        return isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or "")
    return True


async def _listen(reader: asyncio.StreamReader) -> None:
    """Return when the broker has closed the connection, or seems to wait for a
    request. Raises its alert.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ALERT_SECONDS):
            await reader.read(1)


def _unchecked() -> ssl.SSLContext:
    """To see whether TLS is spoken at all; what would be sent over it could go to anybody."""
    context = client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
