"""What went wrong on the way to the upstream, in words that say what to look at. They name hosts, never addresses with credentials."""

from __future__ import annotations

import ssl

import aiohttp


def describe(error: Exception) -> str:
    """The error in a few words."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host} isn't trusted: {_certificate_words(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy refuses the connection: HTTP {error.status}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"no connection to the proxy: {_os_words(error.os_error)}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"unknown host {error.host}: {_os_words(error.os_error)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"no TLS with {error.host}: {_os_words(error.os_error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port}: {_os_words(error.os_error)}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the answer was cut off before its end"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer came"
    if isinstance(error, ConnectionResetError):
        return "the connection was reset"
    if isinstance(error, OSError):
        return f"the connection failed: {_os_words(error)}"
    return f"the answer couldn't be understood ({type(error).__name__})"


def _certificate_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return type(error).__name__


def _os_words(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()
