"""What stands in the way of reading, in one sentence that names the setting to look at."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka import errors as kafka

from forwarder.sources.kafka.secret_files import SecurityError
from forwarder.sources.kafka.security import PASSWORDS, Security
from forwarder.sources.kafka.tokens import ServerUnproven

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


def quiet() -> None:
    """Keep what aiokafka logs of each attempt to itself: the source says once what is wrong."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def explain(error: BaseException) -> Trouble | None:
    """What an error means that says so itself; None for one that hides its cause, as "unable to bootstrap" does."""
    match error:
        case SecurityError():
            return Trouble(error.key, error.message, error.hint)
        case kafka.GroupAuthorizationFailedError():
            return Trouble("group_id", f"this user may not read in the group{_named(error)}", "Grant it READ on the group, or set another.")
        case kafka.TopicAuthorizationFailedError():
            return Trouble("topics", f"this user may not read{_named(error) or ' a topic'}", "Grant it READ and DESCRIBE on the topics.")
        case kafka.ClusterAuthorizationFailedError():
            return Trouble("security.username", "this user may not use the cluster", "Look at its permissions there.")
        case kafka.InvalidGroupIdError():
            return Trouble("group_id", "the cluster refuses the group's name")
        case kafka.InvalidTopicError():
            return Trouble("topics", f"the cluster refuses the name{_named(error)}")
    return None


def unreachable(error: BaseException, address: str, security: Security) -> Trouble | None:
    """What a failed connection to one broker means; None if it isn't clear from the error alone."""
    for cause in _chain(error):
        found = _of_login(cause, address, security) or _of_tls(cause, address, security) or _of_network(cause, address)
        if found is not None:
            return found
    return None


def _of_login(error: BaseException, address: str, security: Security) -> Trouble | None:
    match error:
        case ServerUnproven():
            message = f"{address} doesn't prove that it knows the password of {security.username!r}, as SCRAM asks of a broker"
            return Trouble("bootstrap_servers", message, "It may not be the broker that it claims to be; nothing is read from it.")
        case kafka.UnsupportedSaslMechanismError():
            return offers_others(address, security, ())
        case kafka.IllegalSaslStateError():
            without = "SSL" if security.encrypted else "PLAINTEXT"
            return Trouble("security.protocol", f"{address} asks for no login (SASL)", f"Set it to {without}.")
        case kafka.SaslAuthenticationFailed():
            return refused_login(address, security, _words(error))
    return explain(error)


def refused_login(address: str, security: Security, words: str = "") -> Trouble:
    """Who we say we are isn't believed; `words` are the broker's."""
    told = f": {words}" if words else ""
    if security.mechanism in PASSWORDS:
        key = "security.password_file" if security.password_file else "security.password"
        return Trouble(key, f"{address} refuses user {security.username!r} with this password{told}", "Check security.username, too.")
    if security.mechanism == "AWS_MSK_IAM":
        hint = "Check aws_region, and that the role may kafka-cluster:Connect."
        return Trouble("security.mechanism", f"{address} refuses the AWS credentials{told}", hint)
    key = "security.token_file" if security.token_file else "security.token_url"
    return Trouble(key, f"{address} refuses the token{told}", "Check its expiry, audience, issuer and scope.")


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


def _of_certificate(error: ssl.SSLCertVerificationError, address: str, security: Security) -> Trouble:
    code = error.verify_code
    if code in _OTHER_NAME:
        hint = "Name the brokers as their certificates do; the names that they advertise count, too."
        return Trouble("bootstrap_servers", f"the certificate of {address} is for another name", hint)
    if code == _EXPIRED:
        message = f"the certificate of {address}, or its authority's, has expired"
        return Trouble("bootstrap_servers", message, "The cluster's has to be renewed.")
    if code == _NOT_YET_VALID:
        return Trouble("bootstrap_servers", f"the certificate of {address} isn't valid yet", "Look at the clocks.")
    known = f"those in {security.ca_file}" if security.ca_file else "the system's"
    why = f": its authority isn't among {known}" if code in _ISSUER_UNKNOWN else f": {error.verify_message}"
    hint = "Name a PEM file that holds the authority of the cluster's certificates."
    return Trouble("security.ca_file", f"the certificate of {address} isn't trusted{why}", hint)


def _of_client_certificate(reason: str, address: str, security: Security) -> Trouble:
    if security.cert_file is None:
        return Trouble("security.cert_file", f"{address} asks for a client's certificate", "Set it and security.key_file.")
    expired = "it has expired" if "EXPIRED" in reason else "it doesn't trust who signed it, or the certificate isn't for clients"
    return Trouble("security.cert_file", f"{address} refuses the certificate in {security.cert_file}: {expired}")


def speaks_tls(address: str, security: Security) -> Trouble:
    """A port that speaks TLS was spoken to without."""
    tls = "SASL_SSL" if security.signs_in else "SSL"
    return Trouble("security.protocol", f"{address} speaks TLS, and {security.protocol} doesn't", f"Set it to {tls}.")


def asks_for_login(address: str, security: Security, offered: Sequence[str]) -> Trouble:
    """A port that wants SASL was spoken to without."""
    sasl = "SASL_SSL" if security.encrypted else "SASL_PLAINTEXT"
    message = f"{address} asks for a login (SASL), and {security.protocol} has none"
    return Trouble("security.protocol", message, f"Set it to {sasl}, and security.mechanism to one of: {', '.join(offered)}.")


def offers_others(address: str, security: Security, offered: Sequence[str]) -> Trouble:
    """A mechanism that the broker doesn't have; `offered` are those that it has, if it says so."""
    hint = f"It offers {', '.join(offered)}." if offered else ""
    return Trouble("security.mechanism", f"{address} doesn't offer {security.mechanism}", hint)


def speaks_no_tls(address: str, security: Security) -> Trouble:
    """TLS was spoken to a port that is plain."""
    plain = "SASL_PLAINTEXT" if security.signs_in else "PLAINTEXT"
    return Trouble("security.protocol", f"{address} doesn't speak TLS", f"Name a port that does, or set it to {plain}.")


def _of_network(error: BaseException, address: str) -> Trouble | None:
    if isinstance(error, socket.gaierror):
        return Trouble("bootstrap_servers", f"no address is known for the name in {address}")
    if isinstance(error, ConnectionRefusedError) or _refused_by_all(error):
        return Trouble("bootstrap_servers", f"nobody listens on {address}")
    if isinstance(error, TimeoutError | asyncio.TimeoutError | kafka.RequestTimedOutError):
        return Trouble("bootstrap_servers", f"{address} doesn't answer", "A firewall may drop what is sent there.")
    if isinstance(error, OSError) and error.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EPERM}:
        return Trouble("bootstrap_servers", f"{address} can't be reached: {os.strerror(error.errno).lower()}")
    return None


def _refused_by_all(error: BaseException) -> bool:
    """A name with several addresses: asyncio joins their errors into one without a number."""
    return type(error) is OSError and str(error).startswith("Multiple exceptions") and str(errno.ECONNREFUSED) in str(error)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _named(error: BaseException) -> str:
    """Which group or topics, as far as the error says."""
    names: set[str] = set()
    for each in error.args:
        names |= {each} if isinstance(each, str) else {str(name) for name in each} if isinstance(each, Iterable) else set()
    return f" {', '.join(sorted(names))[:WORDS]}" if names else ""


def _words(error: BaseException) -> str:
    return " ".join(str(each) for each in error.args if isinstance(each, str) and each.isprintable())[:WORDS]
