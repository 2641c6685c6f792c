"""TLS for the listener: versions, renewal, and files that can't be used."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from forwarder.core.errors import ConfigurationError
from forwarder.core.tls import client_context
from forwarder.sources.http import HttpPolicy, load_tls, reload_tls
from tests.support.certificates import make_certificate
from tests.support.listening import listening, post

HEAD = b"POST /e HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for `name` in a folder of its own, and its key."""
    (folder / name).mkdir()
    made = make_certificate(folder / name, name)
    return made.cert_file, made.key_file


def encrypted(pair: tuple[Path, Path]) -> tuple[Path, Path]:
    """The same certificate, with its key behind a passphrase."""
    key = serialization.load_pem_private_key(pair[1].read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"password")
    pair[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    return pair


def trusting(
    cert_file: Path, maximum: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED
) -> ssl.SSLContext:
    """A client's context that trusts one certificate alone."""
    context = client_context(cert_file)
    context.maximum_version = maximum
    return context


async def test_tls(tmp_path: Path) -> None:
    """Requests come through TLS 1.2 and newer; a certificate that is renewed is served to new
    connections; plain text is refused.
    """
    old = certificate(tmp_path, "old.example")
    new = certificate(tmp_path, "new.example")
    context = load_tls(*old)
    async with listening(HttpPolicy(max_body=1000), tls=context) as to:
        client = await to.connect(ssl=trusting(old[0]), server_hostname="old.example")
        assert (await client.ask(post())).status == 200
        reload_tls(context, *new)
        assert (await client.ask(post())).status == 200
        fresh = await to.connect(
            ssl=trusting(new[0], ssl.TLSVersion.TLSv1_2), server_hostname="new.example"
        )
        assert (await fresh.ask(HEAD % 1001)).status == 413
        closing = await to.connect(ssl=trusting(new[0]), server_hostname="new.example")
        assert (await closing.ask(post("/e", b"", "Connection: close"))).status == 200
        assert await closing.ended() == b""
        plain = await to.connect()
        await plain.send(post())
        assert b"HTTP/" not in await plain.ended()


def test_unusable_certificates(tmp_path: Path) -> None:
    """Files that can't be used are configuration errors, and a bad renewal
    leaves the old pair serving.
    """
    good = certificate(tmp_path, "a")
    other = certificate(tmp_path, "b")
    secret = encrypted(certificate(tmp_path, "c"))
    context = load_tls(*good)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    pairs = [(good[0], other[1]), (tmp_path / "none", good[1]), secret, (good[1], good[0])]
    for pair in (*pairs, (pipe, good[1]), (good[0], pipe), (good[0], Path("/dev/zero"))):
        with pytest.raises(ConfigurationError, match="can't be used"):
            load_tls(*pair)
        with pytest.raises(ConfigurationError, match="can't be used"):
            reload_tls(context, *pair)
