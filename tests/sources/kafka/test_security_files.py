"""Files that can't be used: the setting and the file are named, and nothing of what is in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from forwarder.sources.kafka.secret_files import SecurityError
from forwarder.sources.kafka.security import Security, connection
from tests.support.certificates import Authority, Certificate

Spoil = Callable[[Path, Certificate], Security]


def tls(certificate: Certificate, **files: Path) -> Security:
    """Settings with a client's certificate."""
    return Security(**{"protocol": "SSL", "cert_file": certificate.cert_file, "key_file": certificate.key_file, **files})  # type: ignore[arg-type]  # by name


def encrypted(folder: Path, certificate: Certificate) -> Security:
    """The key has a passphrase."""
    key = serialization.load_pem_private_key(certificate.key_file.read_bytes(), None)
    best = serialization.BestAvailableEncryption(b"passphrase")
    file = folder / "encrypted.pem"
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, best))
    return tls(certificate, key_file=file)


def rubbish(folder: Path) -> Path:
    """A file of something else."""
    file = folder / "rubbish.pem"
    file.write_text("s3cret")
    return file


CASES: dict[str, tuple[Spoil, str, str]] = {
    "no authority": (lambda folder, _: Security(protocol="SSL", ca_file=folder / "none"), "ca_file", "can't be read: No such file"),
    "rubbish as one": (lambda folder, _: Security(protocol="SSL", ca_file=rubbish(folder)), "ca_file", "holds no certificate in PEM"),
    "a folder": (lambda folder, _: Security(protocol="SSL", ca_file=folder), "ca_file", "can't be read"),
    "no certificate": (lambda folder, own: tls(own, cert_file=folder / "none"), "cert_file", "can't be read: No such file"),
    "no key": (lambda folder, own: tls(own, key_file=folder / "none"), "key_file", "can't be read: No such file"),
    "rubbish for a key": (lambda folder, own: tls(own, key_file=rubbish(folder)), "key_file", "hold no certificate with its private key"),
    "another key": (
        lambda folder, own: tls(own, key_file=Authority(folder).issue("other").key_file), "key_file", "isn't the one of the certificate",
    ),
    "an encrypted key": (encrypted, "key_file", "protected by a passphrase"),
    "no password": (
        lambda folder, _: Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="me", password_file=folder / "none"),
        "password_file", "can't be read: No such file",
    ),
    "no secret": (
        lambda folder, _: Security(
            protocol="SASL_SSL", mechanism="OAUTHBEARER", token_url="https://a/", client_id="me", client_secret_file=folder / "none"
        ),
        "client_secret_file", "can't be read: No such file",
    ),
    "no token": (lambda _folder, _own: Security(protocol="SASL_SSL", mechanism="OAUTHBEARER"), "token_url", "needs a `token_file`"),
    "no region": (lambda _folder, _own: Security(protocol="SASL_SSL", mechanism="AWS_MSK_IAM"), "aws_region", "signs for a region"),
}  # fmt: skip


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
