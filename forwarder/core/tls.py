"""How the certificates of servers are checked, the same on every Python.

Python 3.13 began to set `VERIFY_X509_STRICT` and `VERIFY_X509_PARTIAL_CHAIN` in its default
context. The first refuses certificates that lack extensions of RFC 5280, such as those of many
private authorities; the second trusts an intermediate certificate without its root. Which server
is trusted must not depend on the interpreter, so both are as they were before.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from forwarder.core.configured_files import check_file


def client_context(ca_file: str | Path | None = None) -> ssl.SSLContext:
    """What a client checks certificates with: the authorities in `ca_file`, or the system's.

    Raises `OSError` or `ssl.SSLError` if the file can't be used.
    """
    if ca_file is not None:
        check_file(Path(ca_file))
    context = ssl.create_default_context(cafile=ca_file)
    context.verify_flags &= ~(ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN)
    return context


def https_context() -> ssl.SSLContext:
    """`client_context` with what `http.client` sets in a context of its own: the protocol that it
    speaks, and that a server may ask for a certificate later.
    """
    context = client_context()
    context.set_alpn_protocols(["http/1.1"])
    context.post_handshake_auth = True
    return context
