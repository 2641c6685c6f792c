"""Tokens: read again, kept for most of their life, asked for once, and never repeated."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from aiohttp import web
from aiokafka.conn import AIOKafkaConnection

from forwarder.sources.kafka.errors import unreachable
from forwarder.sources.kafka.secret_files import SecurityError, read_secret
from forwarder.sources.kafka.security import Security, connection
from forwarder.sources.kafka.tokens import ClientCredentials, MskToken, ServerUnproven, TokenFile
from tests.support.certificates import Authority, Certificate

SECRET = "s3cret/+%&"
GIVEN = {"access_token": "token-1", "token_type": "Bearer", "expires_in": 300}


@pytest_asyncio.fixture(autouse=True)
async def no_threads_of_the_loop() -> AsyncIterator[None]:
    """Amazon's signer runs within the loop's own."""
    yield
    await asyncio.get_running_loop().shutdown_default_executor()


class Server:
    """An authorization server that answers as it is told."""

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
async def serving(certificate: Certificate | None = None) -> AsyncIterator[Server]:
    """A server on a free port, over TLS if it has a certificate."""
    server, app, tls = Server(), web.Application(), None
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


def asking(server: Server, **options: Any) -> ClientCredentials:
    """A provider for it."""
    return ClientCredentials(server.url, "for:warder", lambda: SECRET, **options)


async def test_a_token_is_asked_for_as_the_standard_says() -> None:
    """Id and secret are encoded before they are joined (RFC 6749, 2.3.1): a colon in the id is no border."""
    async with serving() as server:
        assert await asking(server, scope="kafka read").token() == "token-1"
    authorization, form = server.asked[0]
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == "for%3Awarder:s3cret%2F%2B%25%26"
    assert form == {"grant_type": "client_credentials", "scope": "kafka read"}


@pytest.mark.parametrize(("life", "kept", "over"), [(300, 239.9, 240.0), (100, 79.9, 80.0)])
async def test_a_token_is_kept_until_shortly_before_its_end(life: int, kept: float, over: float) -> None:
    """A minute before, or a fifth of a short life."""
    now = 0.0
    async with serving() as server:
        server.answer = 200, {**GIVEN, "expires_in": life}
        provider = asking(server, now=lambda: now)
        await provider.token()
        now = kept
        await provider.token()
        assert len(server.asked) == 1
        now = over
        await provider.token()
        assert len(server.asked) == 2


@pytest.mark.parametrize("life", [None, 0, "soon", -5])
async def test_a_token_of_unknown_life_is_used_once(life: object) -> None:
    """Nobody said how long it is good for."""
    async with serving() as server:
        server.answer = 200, {**GIVEN, "expires_in": life}
        provider = asking(server)
        await provider.token()
        await provider.token()
    assert len(server.asked) == 2


async def test_many_connections_ask_once() -> None:
    """Whoever asks while a request is under way waits for its answer."""
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
        (401, {"error": "invalid_client"}, "security.client_secret", "refuses 'for:warder' with this secret: HTTP 401 (invalid_client)"),
        (400, {"error": "invalid_scope", "error_description": "no"}, "security.scope", "refuses the scope: HTTP 400 (invalid_scope: no)"),
        (503, "<html>", "security.token_url", "gives no token: HTTP 503"),
        (302, "", "security.token_url", "gives no token: HTTP 302"),
        (200, "<html>", "security.token_url", "answers without an access_token"),
        (200, [], "security.token_url", "answers without an access_token"),
        (200, {"access_token": 7}, "security.token_url", "answers without an access_token"),
        (200, {"access_token": "two\x01words"}, "security.token_url", "gives something else than one token"),
        (200, "x" * 300_000, "security.token_url", "can't be asked: its answer is too long"),
    ],
)
async def test_a_server_that_gives_none_is_named(status: int, answer: object, key: str, words: str) -> None:
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
    assert str(caught.value).startswith("security.token_url: 127.0.0.1 can't be asked: ")
    assert "secret@" not in str(caught.value)


async def test_the_clusters_authority_counts_for_the_server_too(tmp_path: Path) -> None:
    """Beside the system's; without it the certificate isn't trusted."""
    authority = Authority(tmp_path)
    async with serving(authority.issue("tokens")) as server:
        assert await asking(server, ca_file=authority.ca_file).token() == "token-1"
        with pytest.raises(SecurityError, match="its certificate isn't trusted"):
            await asking(server).token()


async def test_a_token_file_is_read_again_each_time(tmp_path: Path) -> None:
    """Whoever renews the token replaces the file."""
    file = tmp_path / "token"
    provider = TokenFile(file)
    for text, token in (("one\n", "one"), ("  two", "two")):
        file.write_text(text)
        assert await provider.token() == token


@pytest.mark.parametrize("text", ["", " \n", "two words", "a\x01b", "tökén"])
async def test_a_file_without_a_token_is_named(tmp_path: Path, text: str) -> None:
    """Neither nothing nor several words nor what would end up within a protocol; it isn't repeated."""
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(SecurityError) as caught:
        await TokenFile(file).token()
    assert caught.value.key == "security.token_file"
    assert not text.strip() or text not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"), [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), (" a \n", " a "), ("ä\n\n", "ä\n")], ids=repr
)
def test_a_password_loses_the_line_end_of_its_editor(tmp_path: Path, written: str, read: str) -> None:
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


@pytest.fixture
def amazon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """Made-up credentials, and none of this machine's; calling it takes them away."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, value in zip(names, ("AKIDEXAMPLE", "made/up", "session+token"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_PROFILE", "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)

    def none() -> None:
        for name in names:
            monkeypatch.delenv(name)

    return none


@pytest.mark.usefixtures("amazon")
async def test_a_token_for_amazon_is_a_signed_address() -> None:
    """Base64 of a URL that asks the region's service for `kafka-cluster:Connect`, good for 15 minutes, signed for its host alone."""
    arguments = connection(Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM", aws_region="eu-central-1"))
    assert arguments["sasl_mechanism"] == "OAUTHBEARER"
    token = await arguments["sasl_oauth_token_provider"].token()
    assert "=" not in token
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    asked = {key: values[0] for key, values in parse_qs(url.query, strict_parsing=True).items()}
    assert (url.scheme, url.netloc, url.path) == ("https", "kafka.eu-central-1.amazonaws.com", "/")
    assert asked["Action"] == "kafka-cluster:Connect"
    assert asked["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    date = asked["X-Amz-Date"][:8]
    assert asked["X-Amz-Credential"] == f"AKIDEXAMPLE/{date}/eu-central-1/kafka-cluster/aws4_request"
    assert asked["X-Amz-Expires"] == "900"
    assert asked["X-Amz-SignedHeaders"] == "host"
    assert asked["X-Amz-Security-Token"] == "session+token"
    assert len(bytes.fromhex(asked["X-Amz-Signature"])) == 32
    assert asked["User-Agent"].startswith("aws-msk-iam-sasl-signer-python/")
    assert "made/up" not in url.geturl()


@pytest.mark.usefixtures("amazon")
async def test_a_token_for_amazon_is_kept_for_fourteen_minutes() -> None:
    """It is good for fifteen."""
    now, calls = 1000.0, 0

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
    assert str(caught.value) == "security.mechanism: AWS_MSK_IAM finds no usable AWS credentials: there are none"


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signer is Amazon's, and not everybody's."""
    monkeypatch.setitem(__import__("sys").modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(SecurityError, match="needs the extra `msk`") as caught:
        connection(Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM", aws_region="eu-central-1"))
    assert "[msk]" in caught.value.hint


@pytest.mark.parametrize("answer", ["v=AAAA", "v=not base64", "e=other-error", "rubbish"])
async def test_a_server_that_doesnt_know_the_password_is_an_error_of_kafkas(answer: str) -> None:
    """Else it would end the task that met it, and be told as a bug. One that does know it is let through."""
    security = Security(protocol="SASL_SSL", mechanism="SCRAM-SHA-256", username="me", password="s3cret")
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
        found = unreachable(raised.value, "b:9092", security)
        assert found is not None
        assert (found.key, "doesn't prove" in found.message, "s3cret" in str(found)) == ("bootstrap_servers", True, False)
