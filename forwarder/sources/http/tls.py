"""TLS for the listener: certificate and key from files, renewed without a restart."""

from __future__ import annotations

import ssl
from pathlib import Path

from forwarder.core.configured_files import check_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError


def load_tls(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    """A context for `HttpListener.start`, for TLS 1.2 and newer. Raises `ConfigurationError` if
    the files can't be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    reload_tls(context, cert_file, key_file)
    return context


def reload_tls(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    """Use what the files hold now for connections from now on. Raises `ConfigurationError`, and
    then the old pair is kept.
    """
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for target in (probe, context):
        try:
            check_file(cert_file)
            check_file(key_file)
            target.load_cert_chain(cert_file, key_file, password=_reject_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                (
                    f"The certificate {cert_file} and its key {key_file} can't be used: "
                    f"{error_text(error)}"
                ),
                hint=(
                    "Give a PEM certificate chain and its unencrypted PEM key, readable by "
                    "this user."
                ),
            ) from error


def _reject_password() -> str:
    raise ValueError("the key is encrypted")
