"""Every way to be let in, against a real broker, and what is said when one isn't."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer
from aiokafka.conn import ScramAuthenticator
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError

from forwarder.sources.kafka.diagnosis import diagnose
from forwarder.sources.kafka.errors import Trouble, explain
from forwarder.sources.kafka.security import Security, connection, follow
from tests.support.certificates import Authority
from tests.support.kafka import create_topic, produce, unique
from tests.support.leaks import open_files
from tests.support.secure_kafka import FORBIDDEN_GROUP, FORBIDDEN_TOPIC, MODES, PASSWORD, TOPIC, VISIBLE_TOPIC, Access, token
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
LIMIT = 20.0

@pytest_asyncio.fixture(autouse=True)
async def everything_ends() -> AsyncIterator[None]:
    """aiokafka logs in within the loop's own threads, and doesn't wait for connections over TLS to be closed."""
    before = set(open_files())
    yield
    await asyncio.get_running_loop().shutdown_default_executor()
    await eventually(lambda: set(open_files()) <= before)


@asynccontextmanager
async def consumer(server: str, security: Security, *topics: str, group: str | None = None) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer as the source makes it."""
    client = AIOKafkaConsumer(
        *topics, bootstrap_servers=server, group_id=group or unique("group"), auto_offset_reset="earliest", **connection(security)
    )
    follow(client, security)
    try:
        async with asyncio.timeout(LIMIT):
            await client.start()
            yield client
    finally:
        await client.stop()


async def trouble(server: str, security: Security, *topics: str, group: str | None = None) -> Trouble:
    """What is found out about a consumer that can't read."""
    with pytest.raises(KafkaError) as caught:
        async with consumer(server, security, *topics, group=group) as client:
            await client.getone()
    return await diagnose([server], security, caught.value)


@pytest.mark.parametrize("mode", MODES)
async def test_one_is_let_in(access: Access, mode: str) -> None:
    """A record is read through every listener, in a group."""
    name = unique("events")
    await create_topic(access.kafka.bootstrap, name)
    await produce(access.kafka.bootstrap, name, [b"{}"])
    server, security = access.mode(mode)
    async with consumer(server, security, name) as client:
        assert (await client.getone()).value == b"{}"


@pytest.mark.parametrize("mode", [mode for mode in MODES if "PLAIN" in mode or "SCRAM" in mode])
async def test_a_wrong_password_is_named(access: Access, mode: str) -> None:
    """The setting that holds the password, the user, and the broker's words; the password itself nowhere."""
    access.password_file.write_text("wrong-secret")
    server, security = access.mode(mode)
    found = await trouble(server, security, TOPIC)
    assert found.key == "security.password_file"
    assert found.message.startswith(f"{server} refuses user 'reader' with this password: Authentication failed")
    written = await trouble(server, dataclasses.replace(security, password_file=None, password="wrong-secret"), TOPIC)
    assert written.key == "security.password"
    assert "wrong-secret" not in f"{found!r} {written!r} {security!r}"


async def test_a_broker_that_doesnt_know_the_password_is_named(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SCRAM a broker shows that it does, too. One that is in the middle can't: aiokafka sees that, and ends in an error of its own."""

    def wrong(*_: object) -> None:
        raise ValueError("Server sent wrong signature!")

    server, security = access.mode("SCRAM-SHA-256 over TLS")
    monkeypatch.setattr(ScramAuthenticator, "process_server_final_message", wrong)
    found = await trouble(server, security, TOPIC)
    assert str(found).startswith(f"bootstrap_servers: {server} doesn't prove that it knows the password of {security.username!r}")


async def test_a_user_that_nobody_knows_is_refused_as_a_wrong_password_is(access: Access) -> None:
    """The broker doesn't tell them apart, and so the hint names the user's name."""
    server, security = access.mode("SCRAM-SHA-512 over TLS")
    found = await trouble(server, dataclasses.replace(security, username="nobody"), TOPIC)
    assert (found.key, found.hint) == ("security.password_file", "Check security.username, too.")


@pytest.mark.parametrize("mode", ["TLS", "PLAIN over TLS"])
async def test_an_untrusted_authority_is_named(access: Access, mode: str, tmp_path: Path) -> None:
    """The certificate is by another authority than the one in the file; and none of the system's."""
    server, security = access.mode(mode)
    other = Authority(tmp_path, "other").ca_file
    found = await trouble(server, dataclasses.replace(security, ca_file=other), TOPIC)
    assert str(found) == f"security.ca_file: the certificate of {server} isn't trusted: its authority isn't among those in {other}"
    found = await trouble(server, dataclasses.replace(security, ca_file=None), TOPIC)
    assert str(found) == f"security.ca_file: the certificate of {server} isn't trusted: its authority isn't among the system's"


async def test_an_expired_certificate_is_named(access: Access) -> None:
    """It is the cluster's to renew."""
    server = access.kafka.address("EXPIRED")
    found = await trouble(server, access.security(protocol="SSL"), TOPIC)
    assert str(found) == f"bootstrap_servers: the certificate of {server}, or its authority's, has expired"


async def test_a_certificate_for_another_name_is_named(access: Access) -> None:
    """Host names are always checked."""
    server = access.kafka.address("STRANGER")
    found = await trouble(server, access.security(protocol="SSL"), TOPIC)
    assert str(found) == f"bootstrap_servers: the certificate of {server} is for another name"


async def test_a_missing_client_certificate_is_named(access: Access) -> None:
    """The broker asks for one."""
    server = access.kafka.address("MUTUAL")
    found = await trouble(server, access.security(protocol="SSL"), TOPIC)
    assert str(found) == f"security.cert_file: {server} asks for a client's certificate"


async def test_a_refused_client_certificate_is_named(access: Access, tmp_path: Path) -> None:
    """It is signed by somebody whom the broker doesn't trust."""
    stranger = Authority(tmp_path, "other").issue("client")
    server, security = access.mode("mutual TLS")
    found = await trouble(server, dataclasses.replace(security, cert_file=stranger.cert_file, key_file=stranger.key_file), TOPIC)
    assert found.key == "security.cert_file"
    assert found.message.startswith(f"{server} refuses the certificate in {stranger.cert_file}: ")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
async def test_tls_to_a_plain_port_is_named(access: Access, protocol: str) -> None:
    """The protocol is wrong, or the port."""
    server = access.kafka.address("PLAIN" if protocol == "SSL" else "LOGIN")
    mechanism = None if protocol == "SSL" else "PLAIN"
    found = await trouble(server, access.security(protocol=protocol, mechanism=mechanism), TOPIC)
    assert str(found) == f"security.protocol: {server} doesn't speak TLS"


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "SECURE"])
@pytest.mark.parametrize("mechanism", [None, "PLAIN"])
async def test_plain_words_to_a_port_of_tls_are_named(access: Access, listener: str, mechanism: str | None) -> None:
    """The other way round; whether or not the port wants a client's certificate."""
    server = access.kafka.address(listener)
    protocol = "SASL_PLAINTEXT" if mechanism else "PLAINTEXT"
    found = await trouble(server, access.security(protocol=protocol, mechanism=mechanism), TOPIC)
    assert str(found) == f"security.protocol: {server} speaks TLS, and {protocol} doesn't"


@pytest.mark.parametrize(("listener", "protocol"), [("LOGIN", "PLAINTEXT"), ("SECURE", "SSL")])
async def test_a_port_that_asks_for_a_login_is_named(access: Access, listener: str, protocol: str) -> None:
    """And what it offers."""
    server = access.kafka.address(listener)
    found = await trouble(server, access.security(protocol=protocol), TOPIC)
    assert str(found) == f"security.protocol: {server} asks for a login (SASL), and {protocol} has none"
    assert "OAUTHBEARER, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in found.hint


@pytest.mark.parametrize(("listener", "protocol"), [("PLAIN", "SASL_PLAINTEXT"), ("TLS", "SASL_SSL")])
async def test_a_port_that_asks_for_no_login_is_named(access: Access, listener: str, protocol: str) -> None:
    """A login there is an error, too."""
    server = access.kafka.address(listener)
    found = await trouble(server, access.security(protocol=protocol, mechanism="PLAIN"), TOPIC)
    assert str(found) == f"security.protocol: {server} asks for no login (SASL)"


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_a_mechanism_that_the_broker_lacks_is_named(access: Access, mechanism: str) -> None:
    """With those that it offers."""
    server = access.kafka.address("SCRAMONLY")
    found = await trouble(server, access.security(protocol="SASL_SSL", mechanism=mechanism), TOPIC)
    assert str(found) == f"security.mechanism: {server} doesn't offer {mechanism}"
    assert found.hint == "It offers SCRAM-SHA-256, SCRAM-SHA-512."


@pytest.mark.parametrize("bad", [token(life=-60), "not-a-token"], ids=["expired", "nonsense"])
async def test_a_refused_token_is_named(access: Access, bad: str) -> None:
    """The setting is the file; the token isn't repeated."""
    access.token_file.write_text(bad)
    server, security = access.mode("OAUTHBEARER over TLS")
    found = await trouble(server, security, TOPIC)
    assert found.key == "security.token_file"
    assert found.message.startswith(f"{server} refuses the token")
    assert bad not in repr(found)


async def test_a_forbidden_group_is_named(access: Access) -> None:
    """The user is known, and may not."""
    server, security = access.mode("SCRAM-SHA-256 over TLS")
    found = await trouble(server, security, TOPIC, group=FORBIDDEN_GROUP)
    assert str(found) == f"group_id: this user may not read in the group {FORBIDDEN_GROUP}"


async def test_a_forbidden_topic_is_named(access: Access) -> None:
    """As the group is."""
    server, security = access.mode("SCRAM-SHA-256 over TLS")
    found = await trouble(server, security, FORBIDDEN_TOPIC)
    assert str(found) == f"topics: this user may not read {FORBIDDEN_TOPIC}"


async def test_a_topic_that_may_only_be_seen_is_named(access: Access) -> None:
    """Reading is another right than seeing."""
    server, security = access.mode("SCRAM-SHA-256 over TLS")
    found = await trouble(server, security, VISIBLE_TOPIC)
    assert str(found) == f"topics: this user may not read {VISIBLE_TOPIC}"


async def test_a_broker_that_is_elsewhere_than_it_says_is_named(access: Access) -> None:
    """The port that was named answers; where the cluster says that its brokers are, nobody listens."""
    server = access.kafka.address("FARAWAY")
    found = await diagnose([server], Security(), NodeNotReadyError())
    assert str(found) == "bootstrap_servers: nobody listens on 127.0.0.1:1"
    assert found.hint == f"{server} names that address (advertised.listeners)."


async def test_one_broker_of_several_is_enough(access: Access) -> None:
    """If one of those that were named is well, the others aren't the trouble."""
    servers = ["127.0.0.1:1", access.kafka.address("PLAIN")]
    found = await diagnose(servers, Security(), KafkaConnectionError("closed"))
    assert str(found) == f"bootstrap_servers: {', '.join(servers)}: KafkaConnectionError: closed"


async def test_a_port_on_which_nobody_listens_is_named() -> None:
    """Neither by number nor by name."""
    for server in ("127.0.0.1:1", "localhost:1"):
        found = await trouble(server, Security(), TOPIC)
        assert str(found) == f"bootstrap_servers: nobody listens on {server}"


async def test_a_name_that_nobody_knows_is_named() -> None:
    """The name is the setting's."""
    found = await trouble("nowhere.invalid:9092", Security(), TOPIC)
    assert str(found) == "bootstrap_servers: no address is known for the name in nowhere.invalid:9092"


async def test_a_port_that_says_nothing_is_named() -> None:
    """The search has a limit of its own."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as silent:
        server = "{}:{}".format(*silent.sockets[0].getsockname())
        for security in (Security(), Security(protocol="SSL")):
            found = await diagnose([server], security, KafkaConnectionError("Unable to bootstrap"), limit=0.3)
            assert found.key == "bootstrap_servers"
            assert "answer" in found.message


async def test_a_password_that_is_changed_meanwhile_is_used_at_the_next_connection(access: Access) -> None:
    """The consumer was made with one that is no longer right: what is in the file counts when it connects."""
    name = unique("events")
    await create_topic(access.kafka.bootstrap, name)
    await produce(access.kafka.bootstrap, name, [b"{}"])
    server, security = access.mode("PLAIN over TLS")
    access.password_file.write_text("of yesterday")
    client = AIOKafkaConsumer(name, bootstrap_servers=server, auto_offset_reset="earliest", **connection(security))
    follow(client, security)
    access.password_file.write_text(PASSWORD)
    async with asyncio.timeout(LIMIT):
        await client.start()
        try:
            assert (await client.getone()).value == b"{}"
        finally:
            await client.stop()


async def test_a_file_that_vanishes_is_an_error_of_kafkas(access: Access) -> None:
    """A client in mid-life takes it for a failed connection; the setting is named."""
    server, security = access.mode("PLAIN over TLS")
    client = AIOKafkaConsumer(TOPIC, bootstrap_servers=server, **connection(security))
    follow(client, security)
    access.password_file.unlink()
    with pytest.raises(KafkaConnectionError) as caught:
        await client.start()
    await client.stop()
    found = await diagnose([server], security, caught.value)
    assert str(found) == f"security.password_file: {access.password_file} can't be read: No such file or directory"


async def test_nothing_of_a_search_is_logged_with_a_secret(access: Access, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the level: aiokafka's own lines hold neither password nor token."""
    caplog.set_level(logging.DEBUG)
    for mode in ("SCRAM-SHA-256", "OAUTHBEARER over TLS"):
        server, security = access.mode(mode)
        async with consumer(server, security, TOPIC):
            pass
    assert PASSWORD not in caplog.text
    assert access.token_file.read_text().strip() not in caplog.text


def test_tls_is_never_older_than_1_2(access: Access) -> None:
    """And names are always checked."""
    _, security = access.mode("TLS")
    context: Any = connection(security)["ssl_context"]
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_what_says_nothing_is_left_to_a_search() -> None:
    """aiokafka's "unable to bootstrap" explains nothing."""
    assert explain(KafkaConnectionError("Unable to bootstrap from [('a', 1)]")) is None
