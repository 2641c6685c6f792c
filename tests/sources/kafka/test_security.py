"""How a cluster is connected to: settings, certificates, passwords and tokens."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from aiohttp import web
from aiokafka import AIOKafkaConsumer
from aiokafka.conn import AIOKafkaConnection, ScramAuthenticator
from aiokafka.errors import KafkaConnectionError, KafkaError, NodeNotReadyError
from cryptography.hazmat.primitives import serialization

from forwarder.core.installation import install_extra
from forwarder.sources.kafka.diagnosis import Trouble, diagnose, explain, unreachable
from forwarder.sources.kafka.security import (
    ClientCredentials,
    MskToken,
    Security,
    SecurityError,
    ServerUnproven,
    TokenFile,
    connection,
    follow,
    read_secret,
)
from tests.support.certificates import Authority, Certificate
from tests.support.kafka import create_topic, produce, unique
from tests.support.leaks import open_files
from tests.support.secure_kafka import (
    FORBIDDEN_GROUP,
    FORBIDDEN_TOPIC,
    MODES,
    PASSWORD,
    TOPIC,
    VISIBLE_TOPIC,
    Access,
    token,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow
LIMIT = 60.0


@pytest_asyncio.fixture(autouse=True)
async def everything_ends() -> AsyncIterator[None]:
    """aiokafka logs in within the loop's own threads, and doesn't wait for connections over TLS to
    be closed.
    """
    before = set(open_files())
    yield
    await asyncio.get_running_loop().shutdown_default_executor()
    await eventually(lambda: set(open_files()) <= before)


@asynccontextmanager
async def consumer(
    server: str, security: Security, *topics: str, group: str | None = None
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer as the source makes it."""
    client = AIOKafkaConsumer(
        *topics,
        bootstrap_servers=server,
        group_id=group or unique("group"),
        auto_offset_reset="earliest",
        **connection(security),
    )
    follow(client, security)
    try:
        async with asyncio.timeout(LIMIT):
            await client.start()
            yield client
    finally:
        await client.stop()


async def trouble(
    server: str, security: Security, *topics: str, group: str | None = None
) -> Trouble:
    """What is found out about a consumer that can't read."""
    with pytest.raises(KafkaError) as caught:
        async with consumer(server, security, *topics, group=group) as client:
            await client.getone()
    return await diagnose([server], security, caught.value)


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_is_authenticated(access: Access, mode: str) -> None:
    """A record is read through every listener, in a group."""
    name = unique("events")
    await create_topic(access.kafka.bootstrap, name)
    await produce(access.kafka.bootstrap, name, [b"{}"])
    server, security = access.mode(mode)
    async with consumer(server, security, name) as client:
        assert (await client.getone()).value == b"{}"


@pytest.mark.parametrize("mode", [mode for mode in MODES if "PLAIN" in mode or "SCRAM" in mode])
async def test_a_wrong_password_is_named(access: Access, mode: str) -> None:
    """The setting that holds the password, the user, and the broker's words; the
    password itself nowhere.
    """
    access.password_file.write_text("wrong-secret")
    server, security = access.mode(mode)
    error = await trouble(server, security, TOPIC)
    assert error.key == "security.password_file"
    assert error.message.startswith(
        f"{server} refuses user 'reader' with this password: Authentication failed"
    )
    written = await trouble(
        server, dataclasses.replace(security, password_file=None, password="wrong-secret"), TOPIC
    )
    assert written.key == "security.password"
    assert "wrong-secret" not in f"{error!r} {written!r} {security!r}"


async def test_a_broker_that_doesnt_know_the_password_is_named(
    access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SCRAM a broker shows that it does, too. One that is in the middle can't: aiokafka sees
    that, and ends in an error of its own.
    """

    def wrong(*_: object) -> None:
        raise ValueError("Server sent wrong signature!")

    server, security = access.mode("SCRAM-SHA-256 over TLS")
    monkeypatch.setattr(ScramAuthenticator, "process_server_final_message", wrong)
    error = await trouble(server, security, TOPIC)
    assert str(error).startswith(
        f"bootstrap_servers: {server} doesn't prove that it knows the password of "
        f"{security.username!r}"
    )


async def test_an_unknown_user_is_rejected_like_a_wrong_password(access: Access) -> None:
    """The broker doesn't tell them apart, and so the hint names the user's name."""
    server, security = access.mode("SCRAM-SHA-512 over TLS")
    error = await trouble(server, dataclasses.replace(security, username="nobody"), TOPIC)
    assert (error.key, error.hint) == ("security.password_file", "Check security.username, too.")


@pytest.mark.parametrize("mode", ["TLS", "PLAIN over TLS"])
async def test_an_untrusted_authority_is_named(access: Access, mode: str, tmp_path: Path) -> None:
    """The certificate is by another authority than the one in the file; and none of
    the system's.
    """
    server, security = access.mode(mode)
    other = Authority(tmp_path, "other").ca_file
    error = await trouble(server, dataclasses.replace(security, ca_file=other), TOPIC)
    assert str(error) == (
        f"security.ca_file: the certificate of {server} isn't trusted: its authority "
        f"isn't among those in {other}"
    )
    error = await trouble(server, dataclasses.replace(security, ca_file=None), TOPIC)
    assert str(error) == (
        f"security.ca_file: the certificate of {server} isn't trusted: its authority "
        "isn't among the system's"
    )


async def test_an_expired_certificate_is_named(access: Access) -> None:
    """It is the cluster's to renew."""
    server = access.kafka.address("EXPIRED")
    error = await trouble(server, access.security(protocol="SSL"), TOPIC)
    assert (
        str(error)
        == f"bootstrap_servers: the certificate of {server}, or its authority's, has expired"
    )


async def test_a_certificate_for_another_name_is_named(access: Access) -> None:
    """Host names are always checked."""
    server = access.kafka.address("STRANGER")
    error = await trouble(server, access.security(protocol="SSL"), TOPIC)
    assert str(error) == f"bootstrap_servers: the certificate of {server} is for another name"


async def test_a_missing_client_certificate_is_named(access: Access) -> None:
    """The broker asks for one."""
    server = access.kafka.address("MUTUAL")
    error = await trouble(server, access.security(protocol="SSL"), TOPIC)
    assert str(error) == f"security.cert_file: {server} asks for a client's certificate"


async def test_a_refused_client_certificate_is_named(access: Access, tmp_path: Path) -> None:
    """It is signed by someone whom the broker doesn't trust."""
    stranger = Authority(tmp_path, "other").issue("client")
    server, security = access.mode("mutual TLS")
    error = await trouble(
        server,
        dataclasses.replace(security, cert_file=stranger.cert_file, key_file=stranger.key_file),
        TOPIC,
    )
    assert error.key == "security.cert_file"
    assert error.message.startswith(f"{server} refuses the certificate in {stranger.cert_file}: ")


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
async def test_tls_to_a_plain_port_is_named(access: Access, protocol: str) -> None:
    """The protocol is wrong, or the port."""
    server = access.kafka.address("PLAIN" if protocol == "SSL" else "LOGIN")
    mechanism = None if protocol == "SSL" else "PLAIN"
    error = await trouble(server, access.security(protocol=protocol, mechanism=mechanism), TOPIC)
    assert str(error) == f"security.protocol: {server} doesn't speak TLS"


@pytest.mark.parametrize("listener", ["TLS", "MUTUAL", "SECURE"])
@pytest.mark.parametrize("mechanism", [None, "PLAIN"])
async def test_plain_words_to_a_port_of_tls_are_named(
    access: Access, listener: str, mechanism: str | None
) -> None:
    """The reverse; whether or not the port wants a client's certificate."""
    server = access.kafka.address(listener)
    protocol = "SASL_PLAINTEXT" if mechanism else "PLAINTEXT"
    error = await trouble(server, access.security(protocol=protocol, mechanism=mechanism), TOPIC)
    assert str(error) == f"security.protocol: {server} speaks TLS, and {protocol} doesn't"


@pytest.mark.parametrize(("listener", "protocol"), [("LOGIN", "PLAINTEXT"), ("SECURE", "SSL")])
async def test_a_port_that_asks_for_a_login_is_named(
    access: Access, listener: str, protocol: str
) -> None:
    """And what it offers."""
    server = access.kafka.address(listener)
    error = await trouble(server, access.security(protocol=protocol), TOPIC)
    assert (
        str(error)
        == f"security.protocol: {server} asks for a login (SASL), and {protocol} has none"
    )
    assert "OAUTHBEARER, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in error.hint


@pytest.mark.parametrize(
    ("listener", "protocol"), [("PLAIN", "SASL_PLAINTEXT"), ("TLS", "SASL_SSL")]
)
async def test_a_port_that_asks_for_no_login_is_named(
    access: Access, listener: str, protocol: str
) -> None:
    """A login there is an error, too."""
    server = access.kafka.address(listener)
    error = await trouble(server, access.security(protocol=protocol, mechanism="PLAIN"), TOPIC)
    assert str(error) == f"security.protocol: {server} asks for no login (SASL)"


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
async def test_a_mechanism_that_the_broker_lacks_is_named(access: Access, mechanism: str) -> None:
    """With those that it offers."""
    server = access.kafka.address("SCRAMONLY")
    error = await trouble(server, access.security(protocol="SASL_SSL", mechanism=mechanism), TOPIC)
    assert str(error) == f"security.mechanism: {server} doesn't offer {mechanism}"
    assert error.hint == "It offers SCRAM-SHA-256, SCRAM-SHA-512."


@pytest.mark.parametrize("bad", [token(life=-60), "not-a-token"], ids=["expired", "nonsense"])
async def test_a_refused_token_is_named(access: Access, bad: str) -> None:
    """The setting is the file; the token isn't repeated."""
    access.token_file.write_text(bad)
    server, security = access.mode("OAUTHBEARER over TLS")
    error = await trouble(server, security, TOPIC)
    assert error.key == "security.token_file"
    assert error.message.startswith(f"{server} refuses the token")
    assert bad not in repr(error)


async def test_a_forbidden_group_is_named(access: Access) -> None:
    """The user is known, and may not."""
    server, security = access.mode("SCRAM-SHA-256 over TLS")
    error = await trouble(server, security, TOPIC, group=FORBIDDEN_GROUP)
    assert str(error) == f"group_id: this user may not read in the group {FORBIDDEN_GROUP}"


async def test_a_forbidden_topic_is_named(access: Access) -> None:
    """As the group is."""
    server, security = access.mode("SCRAM-SHA-256 over TLS")
    error = await trouble(server, security, FORBIDDEN_TOPIC)
    assert str(error) == f"topics: this user may not read {FORBIDDEN_TOPIC}"


async def test_a_topic_that_may_only_be_seen_is_named(access: Access) -> None:
    """Reading is another right than seeing."""
    server, security = access.mode("SCRAM-SHA-256 over TLS")
    error = await trouble(server, security, VISIBLE_TOPIC)
    assert str(error) == f"topics: this user may not read {VISIBLE_TOPIC}"


async def test_a_broker_that_is_elsewhere_than_it_says_is_named(access: Access) -> None:
    """The port that was named answers; where the cluster says that its brokers are,
    no one listens.
    """
    server = access.kafka.address("FARAWAY")
    error = await diagnose([server], Security(), NodeNotReadyError())
    assert str(error) == "bootstrap_servers: nothing listens on 127.0.0.1:1"
    assert error.hint == f"{server} names that address (advertised.listeners)."


async def test_one_broker_of_several_is_enough(access: Access) -> None:
    """If one of those that were named is well, the others aren't the trouble."""
    servers = ["127.0.0.1:1", access.kafka.address("PLAIN")]
    error = await diagnose(servers, Security(), KafkaConnectionError("closed"))
    assert str(error) == f"bootstrap_servers: {', '.join(servers)}: closed"


async def test_a_refused_connection_names_the_port() -> None:
    """Neither by number nor by name."""
    for server in ("127.0.0.1:1", "localhost:1"):
        error = await trouble(server, Security(), TOPIC)
        assert str(error) == f"bootstrap_servers: nothing listens on {server}"


async def test_an_unknown_host_is_named() -> None:
    """The name is the setting's."""
    error = await trouble("nowhere.invalid:9092", Security(), TOPIC)
    assert (
        str(error) == "bootstrap_servers: no address is known for the name in nowhere.invalid:9092"
    )


async def test_a_port_that_says_nothing_is_named() -> None:
    """The search has a limit of its own."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as silent:
        server = "{}:{}".format(*silent.sockets[0].getsockname())
        for security in (Security(), Security(protocol="SSL")):
            error = await diagnose(
                [server], security, KafkaConnectionError("Unable to bootstrap"), limit=0.3
            )
            assert error.key == "bootstrap_servers"
            assert "answer" in error.message


async def test_a_password_that_is_changed_meanwhile_is_used_at_the_next_connection(
    access: Access,
) -> None:
    """The consumer was made with one that is no longer right: what is in the file
    counts when it connects.
    """
    name = unique("events")
    await create_topic(access.kafka.bootstrap, name)
    await produce(access.kafka.bootstrap, name, [b"{}"])
    server, security = access.mode("PLAIN over TLS")
    access.password_file.write_text("of yesterday")
    client = AIOKafkaConsumer(
        name, bootstrap_servers=server, auto_offset_reset="earliest", **connection(security)
    )
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
    error = await diagnose([server], security, caught.value)
    assert str(error) == (
        f"security.password_file: {access.password_file} can't be read: No such file or directory"
    )


async def test_nothing_of_a_search_is_logged_with_a_secret(
    access: Access, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_an_uninformative_error_starts_a_diagnosis() -> None:
    """aiokafka's "unable to bootstrap" explains nothing."""
    assert explain(KafkaConnectionError("Unable to bootstrap from [('a', 1)]")) is None


Spoil = Callable[[Path, Certificate], Security]


def tls(certificate: Certificate, **files: Path) -> Security:
    """Settings with a client's certificate."""
    return Security(
        # The fields have different types, which a dictionary doesn't say.
        **{  # type: ignore[arg-type]
            "protocol": "SSL",
            "cert_file": certificate.cert_file,
            "key_file": certificate.key_file,
            **files,
        }
    )


def encrypted(folder: Path, certificate: Certificate) -> Security:
    """The key has a passphrase."""
    key = serialization.load_pem_private_key(certificate.key_file.read_bytes(), None)
    best = serialization.BestAvailableEncryption(b"passphrase")
    file = folder / "encrypted.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, best)
    )
    return tls(certificate, key_file=file)


def rubbish(folder: Path) -> Path:
    """A file of something else."""
    file = folder / "rubbish.pem"
    file.write_text("s3cret")
    return file


CASES: dict[str, tuple[Spoil, str, str]] = {
    "no authority": (
        lambda folder, _: Security(protocol="SSL", ca_file=folder / "none"),
        "ca_file",
        "can't be read: No such file",
    ),
    "rubbish as one": (
        lambda folder, _: Security(protocol="SSL", ca_file=rubbish(folder)),
        "ca_file",
        "holds no certificate in PEM",
    ),
    "a folder": (
        lambda folder, _: Security(protocol="SSL", ca_file=folder),
        "ca_file",
        "can't be read",
    ),
    "no certificate": (
        lambda folder, own: tls(own, cert_file=folder / "none"),
        "cert_file",
        "can't be read: No such file",
    ),
    "no key": (
        lambda folder, own: tls(own, key_file=folder / "none"),
        "key_file",
        "can't be read: No such file",
    ),
    "rubbish for a key": (
        lambda folder, own: tls(own, key_file=rubbish(folder)),
        "key_file",
        "hold no certificate with its private key",
    ),
    "another key": (
        lambda folder, own: tls(own, key_file=Authority(folder).issue("other").key_file),
        "key_file",
        "isn't the one of the certificate",
    ),
    "an encrypted key": (encrypted, "key_file", "protected by a passphrase"),
    "no password": (
        lambda folder, _: Security(
            protocol="SASL_PLAINTEXT",
            mechanism="PLAIN",
            username="me",
            password_file=folder / "none",
        ),
        "password_file",
        "can't be read: No such file",
    ),
    "no secret": (
        lambda folder, _: Security(
            protocol="SASL_SSL",
            mechanism="OAUTHBEARER",
            token_url="https://a/",
            client_id="me",
            client_secret_file=folder / "none",
        ),
        "client_secret_file",
        "can't be read: No such file",
    ),
    "no token": (
        lambda _folder, _own: Security(protocol="SASL_SSL", mechanism="OAUTHBEARER"),
        "token_url",
        "needs a `token_file`",
    ),
    "no region": (
        lambda _folder, _own: Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM"),
        "aws_region",
        "signs for a region",
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_file_that_cant_be_used_is_named(tmp_path: Path, case: str) -> None:
    """With the key of its setting; the terminal isn't asked for a passphrase."""
    (tmp_path / "own").mkdir()
    spoil, key, words = CASES[case]
    with pytest.raises(SecurityError) as caught:
        connection(spoil(tmp_path, Authority(tmp_path / "own").issue("client")))
    assert caught.value.key == f"security.{key}"
    assert words in caught.value.message
    assert "s3cret" not in str(caught.value)


SECRET = "s3cret/+%&"
GIVEN = {"access_token": "token-1", "token_type": "Bearer", "expires_in": 300}


@pytest_asyncio.fixture(autouse=True)
async def no_threads_of_the_loop() -> AsyncIterator[None]:
    """Amazon's signer runs within the loop's own."""
    yield
    await asyncio.get_running_loop().shutdown_default_executor()


class AuthorizationServer:
    """An authorization server that gives scripted answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.answer: tuple[int, object] = (200, GIVEN)
        self.hold: asyncio.Event | None = None
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer."""
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append((request.headers["Authorization"], form))
        if self.hold is not None:
            await self.hold.wait()
        status, body = self.answer
        return web.Response(status=status, text=body if isinstance(body, str) else json.dumps(body))


@asynccontextmanager
async def serving(certificate: Certificate | None = None) -> AsyncIterator[AuthorizationServer]:
    """A server on a free port, over TLS if it has a certificate."""
    server = AuthorizationServer()
    app = web.Application()
    tls = None
    app.router.add_post("/token", server.handle)
    if certificate is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certificate.cert_file, certificate.key_file)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        server.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/token"
        yield server
    finally:
        await runner.cleanup()


def asking(server: AuthorizationServer, **options: Any) -> ClientCredentials:
    """A provider for it."""
    return ClientCredentials(server.url, "for:warder", lambda: SECRET, **options)


async def test_a_token_is_asked_for_as_the_standard_says() -> None:
    """Id and secret are encoded before they are joined (RFC 6749, 2.3.1): a
    colon in the id is no border.
    """
    async with serving() as server:
        assert await asking(server, scope="kafka read").token() == "token-1"
    authorization, form = server.asked[0]
    assert (
        base64.b64decode(authorization.removeprefix("Basic ")).decode()
        == "for%3Awarder:s3cret%2F%2B%25%26"
    )
    assert form == {"grant_type": "client_credentials", "scope": "kafka read"}


@pytest.mark.parametrize(("life", "until", "over"), [(300, 239.9, 240.0), (100, 79.9, 80.0)])
async def test_a_token_is_kept_until_shortly_before_its_end(
    life: int, until: float, over: float
) -> None:
    """A minute before, or a fifth of a short life."""
    now = 0.0
    async with serving() as server:
        server.answer = 200, {**GIVEN, "expires_in": life}
        provider = asking(server, now=lambda: now)
        await provider.token()
        now = until
        await provider.token()
        assert len(server.asked) == 1
        now = over
        await provider.token()
        assert len(server.asked) == 2


@pytest.mark.parametrize("life", [None, 0, "soon", -5])
async def test_a_token_of_unknown_life_is_used_once(life: object) -> None:
    """No one said how long it is good for."""
    async with serving() as server:
        server.answer = 200, {**GIVEN, "expires_in": life}
        provider = asking(server)
        await provider.token()
        await provider.token()
    assert len(server.asked) == 2


async def test_many_connections_ask_once() -> None:
    """Anyone who asks while a request is in progress waits for its answer."""
    async with serving() as server:
        server.hold = asyncio.Event()
        provider = asking(server)
        asks = [asyncio.create_task(provider.token()) for _ in range(5)]
        await asyncio.sleep(0)
        server.hold.set()
        assert await asyncio.gather(*asks) == ["token-1"] * 5
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("status", "answer", "key", "words"),
    [
        (
            401,
            {"error": "invalid_client"},
            "security.client_secret",
            "refuses 'for:warder' with this secret: HTTP 401 (invalid_client)",
        ),
        (
            400,
            {"error": "invalid_scope", "error_description": "no"},
            "security.scope",
            "refuses the scope: HTTP 400 (invalid_scope: no)",
        ),
        (503, "<html>", "security.token_url", "gives no token: HTTP 503"),
        (302, "", "security.token_url", "gives no token: HTTP 302"),
        (200, "<html>", "security.token_url", "answers without an access_token"),
        (200, [], "security.token_url", "answers without an access_token"),
        (200, {"access_token": 7}, "security.token_url", "answers without an access_token"),
        (
            200,
            {"access_token": "two\x01words"},
            "security.token_url",
            "gives something else than one token",
        ),
        (200, "x" * 300_000, "security.token_url", "gives no token: its answer is too long"),
    ],
)
async def test_a_server_that_gives_none_is_named(
    status: int, answer: object, key: str, words: str
) -> None:
    """With the setting, and what the server says; never with the secret."""
    async with serving() as server:
        server.answer = status, answer
        with pytest.raises(SecurityError) as caught:
            await asking(server).token()
    assert str(caught.value) == f"{key}: 127.0.0.1 {words}"
    assert SECRET not in repr(caught.value)


async def test_a_server_that_isnt_there_is_named() -> None:
    """By its host alone: an address may hold credentials."""
    with pytest.raises(SecurityError) as caught:
        await ClientCredentials("http://me:secret@127.0.0.1:1/token", "id", lambda: SECRET).token()
    assert caught.value.key == "security.token_url"
    assert str(caught.value).startswith("security.token_url: 127.0.0.1 gives no token: ")
    assert "secret@" not in str(caught.value)


async def test_the_clusters_authority_counts_for_the_server_too(tmp_path: Path) -> None:
    """Beside the system's; without it the certificate isn't trusted."""
    authority = Authority(tmp_path)
    async with serving(authority.issue("tokens")) as server:
        assert await asking(server, ca_file=authority.ca_file).token() == "token-1"
        with pytest.raises(SecurityError, match="its certificate isn't trusted"):
            await asking(server).token()


async def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    """Anyone who renews the token replaces the file."""
    file = tmp_path / "token"
    provider = TokenFile(file)
    for text, word in (("one\n", "one"), ("  two", "two")):
        file.write_text(text)
        assert await provider.token() == word


@pytest.mark.parametrize("text", ["", " \n", "two words", "a\x01b", "tökén"])
async def test_a_file_without_a_token_is_named(tmp_path: Path, text: str) -> None:
    """Neither nothing nor several words nor what would end up within a protocol; it
    isn't repeated.
    """
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(SecurityError) as caught:
        await TokenFile(file).token()
    assert caught.value.key == "security.token_file"
    assert not text.strip() or text not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), (" a \n", " a "), ("ä\n\n", "ä\n")],
    ids=repr,
)
def test_a_password_loses_the_line_end_of_its_editor(
    tmp_path: Path, written: str, read: str
) -> None:
    """And nothing else: blanks may be part of it."""
    file = tmp_path / "password"
    file.write_bytes(written.encode())
    assert read_secret("password", None, file) == read


def test_a_password_that_isnt_text_is_named_and_not_repeated(tmp_path: Path) -> None:
    """Not even in what the error came from."""
    file = tmp_path / "password"
    file.write_bytes(b"s3cr\xfft")
    with pytest.raises(SecurityError) as caught:
        read_secret("password", None, file)
    assert str(caught.value) == f"security.password_file: {file} isn't text in UTF-8"
    assert caught.value.__cause__ is None


def test_a_secret_must_be_in_a_regular_file(tmp_path: Path) -> None:
    """Nothing waits for a pipe's writer, for each connection that is made."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(SecurityError, match="it is a pipe, not a regular file"):
        read_secret("password", None, pipe)
    with pytest.raises(SecurityError, match="it is a pipe, not a regular file"):
        connection(Security(protocol="SSL", ca_file=pipe))


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Made-up credentials, and none of this machine's; calling it takes them away."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, value in zip(names, ("AKIDEXAMPLE", "made/up", "session+token"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in (
        "AWS_PROFILE",
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ):
        monkeypatch.delenv(name, raising=False)

    def none() -> None:
        for name in names:
            monkeypatch.delenv(name)

    return none


@pytest.mark.usefixtures("amazon")
async def test_a_token_for_amazon_is_a_signed_address() -> None:
    """Base64 of a URL that asks the region's service for `kafka-cluster:Connect`, good for 15
    minutes, signed for its host alone.
    """
    arguments = connection(
        Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM", aws_region="eu-central-1")
    )
    assert arguments["sasl_mechanism"] == "OAUTHBEARER"
    token = await arguments["sasl_oauth_token_provider"].token()
    assert "=" not in token
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = {key: values[0] for key, values in parse_qs(url.query, strict_parsing=True).items()}
    assert (url.scheme, url.netloc, url.path) == ("https", "kafka.eu-central-1.amazonaws.com", "/")
    assert asked["Action"] == "kafka-cluster:Connect"
    assert asked["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    date = asked["X-Amz-Date"][:8]
    assert (
        asked["X-Amz-Credential"] == f"AKIDEXAMPLE/{date}/eu-central-1/kafka-cluster/aws4_request"
    )
    assert asked["X-Amz-Expires"] == "900"
    assert asked["X-Amz-SignedHeaders"] == "host"
    assert asked["X-Amz-Security-Token"] == "session+token"
    assert len(bytes.fromhex(asked["X-Amz-Signature"])) == 32
    assert asked["User-Agent"].startswith("aws-msk-iam-sasl-signer-python/")
    assert "made/up" not in url.geturl()


@pytest.mark.usefixtures("amazon")
async def test_a_token_for_amazon_is_kept_for_fourteen_minutes() -> None:
    """It is good for fifteen."""
    now = 1000.0
    calls = 0

    def sign(_region: str) -> tuple[str, int]:
        nonlocal calls
        calls += 1
        return f"token-{calls}", int((now + 900) * 1000)

    provider = MskToken("eu-central-1", now=lambda: now)
    provider._sign = sign
    assert await provider.token() == "token-1"
    now += 839
    assert await provider.token() == "token-1"
    now += 1
    assert await provider.token() == "token-2"


async def test_missing_credentials_for_amazon_are_named(amazon: Callable[[], None]) -> None:
    """Nothing is found where its tools look."""
    amazon()
    with pytest.raises(SecurityError) as caught:
        await MskToken("eu-central-1").token()
    assert (
        str(caught.value)
        == "security.mechanism: AWS_MSK_IAM finds no usable AWS credentials: there are none"
    )


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signer is Amazon's, and not everyone's."""
    monkeypatch.setitem(__import__("sys").modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(SecurityError, match="needs the extra `msk`") as caught:
        connection(
            Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM", aws_region="eu-central-1")
        )
    assert caught.value.hint == install_extra("msk")


@pytest.mark.parametrize("answer", ["v=AAAA", "v=not base64", "e=other-error", "rubbish"])
async def test_a_server_that_doesnt_know_the_password_is_an_error_of_kafkas(answer: str) -> None:
    """Else it would end the task that met it, and be reported as a bug. One that
    does know it is let through.
    """
    security = Security(
        protocol="SASL_SSL", mechanism="SCRAM-SHA-256", username="me", password="s3cret"
    )
    arguments = connection(security)
    for last in (answer, None):
        conn = AIOKafkaConnection("b", 9092, **arguments)
        login = conn.authenticator_scram()
        first, _ = await login.step(None)
        nonce = first.decode().rpartition("r=")[2]
        await login.step(f"r={nonce}more,s=c2FsdA==,i=4096".encode())
        if last is None:
            proof = base64.b64encode(login._server_signature).decode()
            assert await login.step(f"v={proof}".encode()) is None
            continue
        with pytest.raises(ServerUnproven) as raised:
            await login.step(last.encode())
        error = unreachable(raised.value, "b:9092", security)
        assert error is not None
        assert (error.key, "doesn't prove" in error.message, "s3cret" in str(error)) == (
            "bootstrap_servers",
            True,
            False,
        )
