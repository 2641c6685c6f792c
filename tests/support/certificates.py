"""Certificates that a test makes for itself."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOUR: Final = datetime.timedelta(hours=1)
DAY: Final = datetime.timedelta(days=1)
_LOCAL: Final = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@dataclass(frozen=True, slots=True)
class Certificate:
    """Where it is, and its bytes."""

    cert_file: Path
    key_file: Path
    der: bytes


class Authority:
    """Signs certificates; its own is in `ca.pem` in its folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        own = _builder(self._name, self._name, self._key.public_key(), DAY).add_extension(
            _AN_AUTHORITY, critical=True
        )
        self.ca_file = folder / "ca.pem"
        self.ca_file.write_bytes(
            own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(
        self, name: str, *, local: bool = True, life: datetime.timedelta = DAY
    ) -> Certificate:
        """A certificate for `name`, and for localhost and 127.0.0.1 if it is `local`, in
        NAME.cert.pem and NAME.key.pem. One whose `life` is negative has ended that long ago.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName(name), *(_LOCAL if local else ())]
        builder = _builder(_named(name), self._name, key.public_key(), life)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _written(builder.sign(self._key, hashes.SHA256()), key, self._folder, f"{name}.")


def make_certificate(folder: Path, name: str = "localhost") -> Certificate:
    """A certificate for `name`, `localhost` and 127.0.0.1, signed by itself, good for a day, in
    `cert.pem` and `key.pem`.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(name), _named(name), key.public_key(), DAY)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name), *_LOCAL]), critical=False
    )
    builder = builder.add_extension(_AN_AUTHORITY, critical=True)
    return _written(builder.sign(key, hashes.SHA256()), key, folder, "")


_AN_AUTHORITY: Final = x509.BasicConstraints(ca=True, path_length=None)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    end = datetime.datetime.now(datetime.UTC) + life
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(end - abs(life) - HOUR)
        .not_valid_after(end)
    )


def _written(
    certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey, folder: Path, prefix: str
) -> Certificate:
    cert_file = folder / f"{prefix}cert.pem"
    key_file = folder / f"{prefix}key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    unencrypted = serialization.NoEncryption()
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted
        )
    )
    return Certificate(cert_file, key_file, certificate.public_bytes(serialization.Encoding.DER))
