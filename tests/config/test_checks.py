"""What must fit together."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from forwarder.config.checks import conflicts
from forwarder.config.settings import Settings
from tests.support.cases import cases


def conflicts_by_key(**sections: Any) -> dict[str, str]:
    """What doesn't fit in these settings, by key."""
    return {
        conflict.key: f"{conflict.message}: {conflict.hint}"
        for conflict in conflicts(Settings.parse(sections))
    }


def tls(cert: Path | None, key: Path | None) -> dict[str, Any]:
    """The sections that name these files."""
    return {"http": {"tls": {"cert_file": cert, "key_file": key}}}


def write_pair(folder: Path, name: str, passphrase: bytes | None = None) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        subject,
        subject,
        key.public_key(),
        x509.random_serial_number(),
        now,
        now + datetime.timedelta(days=1),
    )
    locked = (
        serialization.BestAvailableEncryption(passphrase)
        if passphrase
        else serialization.NoEncryption()
    )
    cert_file = folder / f"{name}.pem"
    key_file = folder / f"{name}.key"
    cert_file.write_bytes(
        builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    return cert_file, key_file


def test_the_defaults_fit() -> None:
    """No one has to repair what they didn't write."""
    assert conflicts_by_key() == {}


@cases(
    ("sections", "key", "message"),
    [
        (
            {"batch": {"max_bytes": "20MB"}},
            "batch.max_bytes",
            (
                "20MB must be smaller than upstream.max_body (20MB): lower batch.max_bytes, or "
                "raise upstream.max_body"
            ),
        ),
        (
            {"buffer": {"max_bytes": "8MB"}},
            "batch.max_bytes",
            (
                "5MB may be at most half of buffer.max_bytes, all that historical events of a key "
                "may hold (8MB)"
            ),
        ),
        (
            {"upstream": {"max_event": "6MB"}},
            "upstream.max_event",
            (
                "6MB must fit into batch.max_bytes (5MB): lower upstream.max_event, or raise "
                "batch.max_bytes"
            ),
        ),
        (
            {"dead_letters": {"max_bytes": "64KiB"}},
            "upstream.max_event",
            "1MB must fit into dead_letters.max_bytes (64KiB)",
        ),
        (
            {"workers": 8},
            "batch.max_bytes",
            "5MB may be at most half of one worker's share of buffer.max_bytes, all that "
            "historical events of a key may hold (8MiB)"
            ": lower batch.max_bytes, or raise buffer.max_bytes",
        ),
        (
            {"workers": 4, "dead_letters": {"max_bytes": "3MB"}},
            "upstream.max_event",
            "1MB must fit into one worker's share of dead_letters.max_bytes (750kB)",
        ),
        (
            {"buffer": {"kind": "disk", "max_bytes": "64MiB"}, "upstream": {"max_event": "4MB"}},
            "upstream.max_event",
            "4MB must fit into one file of the disk buffer, which takes events of 2044KiB: "
            "lower upstream.max_event, or raise buffer.max_bytes to 245MiB",
        ),
        (
            {"buffer": {"kind": "disk", "max_bytes": "10GiB"}, "upstream": {"max_event": "64MiB"}},
            "upstream.max_event",
            "takes events of 65532KiB: lower upstream.max_event",
        ),
        (
            {"buffer": {"ack": "disk"}},
            "buffer.ack",
            (
                "disk needs buffer.kind: disk: set buffer.kind to disk, or buffer.ack to memory "
                "or delivered"
            ),
        ),
        (
            {"workers": 2, "delivery": {"ordering": "per_distinct_id"}},
            "delivery.ordering",
            "per_distinct_id can't be kept by 2 workers",
        ),
        (
            {"delivery": {"retry": {"initial": "1m"}}},
            "delivery.retry.initial",
            "1m is more than delivery.retry.max (30s)",
        ),
        ({"admin": {"listen": "0.0.0.0:8320"}}, "admin.listen", "can't both be listened on"),
    ],
)
def test_settings_that_do_not_fit_are_reported(
    sections: dict[str, Any], key: str, message: str
) -> None:
    """The message names both keys and both values, and says which way to turn them."""
    assert message in conflicts_by_key(**sections)[key]


def test_limits_that_just_fit_are_accepted() -> None:
    """Strictly below the body's limit, up to half of the buffer, up to the batch."""
    sizes = {
        "upstream": {"max_body": 2_000_001, "max_event": 2_000_000},
        "batch": {"max_bytes": 2_000_000},
        "buffer": {"max_bytes": 4_000_000},
    }
    assert conflicts_by_key(**sizes) == {}


@cases(
    "sections",
    [
        {"buffer": {"kind": "disk", "ack": "disk"}},
        {"buffer": {"ack": "delivered"}},
        {"buffer": {"kind": "disk", "ack": "memory"}},
        {"workers": 2, "delivery": {"ordering": "none"}},
        {"workers": 4},
        {"workers": 2, "sources": {"http": {"listen": "unix:/run/forwarder.sock"}}},
        {"buffer": {"kind": "disk", "max_bytes": "245MiB"}, "upstream": {"max_event": "4MB"}},
    ],
)
def test_what_fits_is_accepted(sections: dict[str, Any]) -> None:
    """Every level up to the buffer's kind, and delivered over any; workers
    that each have room enough.
    """
    assert conflicts_by_key(**sections) == {}


def test_a_certificate_and_its_key_fit(tmp_path: Path) -> None:
    """A pair that belongs together is taken; its authority too, and whatever key is beside a
    certificate, for no one reads that.
    """
    (cert, key) = write_pair(tmp_path, "one")
    (_, locked) = write_pair(tmp_path, "locked", b"passphrase")
    assert conflicts_by_key(sources=tls(cert, key), upstream={"ca_file": cert}) == {}
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + locked.read_bytes())
    assert conflicts_by_key(sources=tls(both, key), upstream={"ca_file": both}) == {}


def test_one_of_the_tls_files_alone_is_not_enough(tmp_path: Path) -> None:
    """A certificate without a key would silently mean no TLS."""
    cert, key = write_pair(tmp_path, "one")
    assert conflicts_by_key(sources=tls(cert, None))["sources.http.tls.key_file"].startswith(
        "is missing"
    )
    assert conflicts_by_key(sources=tls(None, key))["sources.http.tls.cert_file"].startswith(
        "is missing"
    )


def test_files_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    """Missing files, another's key, a locked key and text that is no certificate are found before
    the start.
    """
    (cert, _) = write_pair(tmp_path, "one")
    (_, other) = write_pair(tmp_path, "two")
    locked_cert, locked_key = write_pair(tmp_path, "locked", b"passphrase")
    text = tmp_path / "text"
    text.write_text("not a certificate")
    name = "sources.http.tls.cert_file"
    key_name = "sources.http.tls.key_file"
    assert (
        "can't be used: it doesn't belong to the key in the other file"
        in conflicts_by_key(sources=tls(cert, other))[name]
    )
    assert (
        f"the private key in {locked_key} has a passphrase: write it without"
        in conflicts_by_key(sources=tls(locked_cert, locked_key))[key_name]
    )
    exchanged = conflicts_by_key(sources=tls(other, cert))
    assert (
        f"{other} holds no certificate in PEM form, but a private key: name the file that holds it"
        in exchanged[name]
    )
    assert (
        f"{cert} holds no private key in PEM form, but a certificate: name the file that holds it"
        in exchanged[key_name]
    )
    assert (
        f"{text} holds no certificate in PEM form"
        in conflicts_by_key(sources=tls(text, text))[name]
    )
    assert (
        f"{text} holds no certificate in PEM form"
        in conflicts_by_key(upstream={"ca_file": text})["upstream.ca_file"]
    )
    assert (
        "can't be read: No such file"
        in conflicts_by_key(upstream={"ca_file": tmp_path / "none"})["upstream.ca_file"]
    )
    assert set(conflicts_by_key(sources=tls(tmp_path / "a", tmp_path / "b"))) == {
        name,
        "sources.http.tls.key_file",
    }
