"""Looking for the cause after a connection has failed: aiokafka keeps it to itself.

A connection is made to each broker that was named, step by step as the client does it, and then to those that the cluster names, until
a step fails. Invariants: it is made only after a failure, and ends within its limit; what it sends are questions; where a certificate isn't
checked, nothing is sent at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError, UnsupportedSaslMechanismError
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from forwarder.sources.kafka.errors import Trouble, asks_for_login, explain, offers_others, speaks_no_tls, speaks_tls, unreachable
from forwarder.sources.kafka.security import Security, connection, tls

LIMIT: Final = 10.0
"""Seconds for the whole search."""

ALERT_SECONDS: Final = 1.0
"""How long is listened for a broker's opinion of a client's certificate: in TLS 1.3 it comes after the handshake, or never."""

_FAILED: Final = (OSError, KafkaError, TimeoutError, ValueError, AssertionError)
"""What a connection that fails raises; the last two come from answers that aren't Kafka's."""


async def diagnose(servers: Sequence[str], security: Security, error: BaseException, limit: float = LIMIT) -> Trouble:
    """Why `error` came about, within `limit` seconds. Where nothing is found, what it says itself. Cancellation ends the search."""
    known = explain(error)
    if known is not None:
        return known
    found = await asyncio.gather(*[_within(limit, _ask(server, security, limit)) for server in servers])
    troubles = [trouble for trouble in found if trouble is not None]
    if len(troubles) < len(found) or not troubles:  # one of them is well: what failed is over, or lies elsewhere
        return Trouble("bootstrap_servers", f"{', '.join(servers)}: {_told(error)}")
    return min(troubles, key=lambda trouble: trouble.key == "bootstrap_servers")


async def _within(limit: float, asking: Any) -> Trouble | None:
    try:
        async with asyncio.timeout(limit):
            trouble: Trouble | None = await asking
            return trouble
    except TimeoutError:
        return Trouble("bootstrap_servers", f"no answer within {limit:g} s", "A firewall may drop what is sent there.")


async def _ask(server: str, security: Security, limit: float) -> Trouble | None:
    """What is wrong with one of the named brokers, or with those that it names; None: nothing."""
    try:
        async with _connected(server, security, limit) as conn:
            answer = await conn.send(MetadataRequest([]))
    except _FAILED as error:
        return await _why(server, security, error, limit)
    named = [f"{broker[1]}:{broker[2]}" for broker in answer.brokers]
    for address in [each for each in named if each != server]:
        try:
            async with _connected(address, security, limit):
                pass
        except _FAILED as error:
            trouble = await _why(address, security, error, limit)
            return dataclasses.replace(trouble, hint=f"{server} names that address (advertised.listeners). {trouble.hint}".strip())
    return None


async def _why(address: str, security: Security, error: BaseException, limit: float) -> Trouble:
    """The step that failed: as the error tells, else by asking the broker differently."""
    if isinstance(error, UnsupportedSaslMechanismError):
        return offers_others(address, security, await _offered(address, security, limit))
    told = unreachable(error, address, security)
    if told is not None:
        return told
    if security.encrypted:
        found = await _why_no_tls(address, security, limit)
    else:
        found = speaks_tls(address, security) if await _handshake(address, _unchecked()) else None
    if found is None and not security.signs_in and (offered := await _offered(address, security, limit)):
        found = asks_for_login(address, security, offered)
    return found or Trouble("bootstrap_servers", f"{address}: {_told(error)}")


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
    """The mechanisms that a broker has; none if it asks for no login, or doesn't say."""
    without = dataclasses.replace(security, protocol="SSL" if security.encrypted else "PLAINTEXT")
    try:
        async with _connected(address, without, limit) as conn:
            answer = await conn.send(SaslHandShakeRequest("none of them"))
            return sorted(answer.enabled_mechanisms)
    except _FAILED:
        return []


@contextlib.asynccontextmanager
async def _connected(address: str, security: Security, limit: float) -> AsyncIterator[AIOKafkaConnection]:
    """A connection as the client makes them, logged in."""
    host, port = _parts(address)
    conn = AIOKafkaConnection(host, port, request_timeout_ms=int(limit * 1000), **connection(security))
    try:
        await conn.connect()
        yield conn
    finally:
        closed = conn.close()
        if conn._protocol is not None:  # else nothing was connected, and nobody would tell of the end
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
    """Return when the broker has closed the connection, or seems to wait for us to say something. Raises its alert."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ALERT_SECONDS):
            await reader.read(1)


def _unchecked() -> ssl.SSLContext:
    """To see whether TLS is spoken at all; what would be sent over it could go to anybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__
