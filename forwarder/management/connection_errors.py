"""What went wrong on the way to the service, as a `Failure`: words that name hosts, never addresses or headers, and what to look at."""

from __future__ import annotations

import os
import ssl
from typing import Final

import aiohttp

from forwarder.management.replies import BROKEN, PROXY, UNREACHABLE, UNTRUSTED, Failure

_LOOK_AT_URL: Final = "Check `url`, the network, and whether a `proxy` is needed."
_LOOK_AT_PROXY: Final = "Check `proxy`."
_TRUST: Final = "If the service has an authority of its own, name its certificate in `ca_file`."
_ODD: Final = "Check that `url` is the service's, and that it speaks http or https as `url` says."
_LOOK_AT_SERVICE: Final = "If it goes on, look at the service and at what stands before it."


class Broken(aiohttp.ClientError):
    """A connection that ended while a request was on it. Not one of those errors after which aiohttp repeats a request by itself."""


def failure(error: Exception) -> Failure:
    """What became of a request."""
    return _not_connected(error) or _broken(error)


def _not_connected(error: Exception) -> Failure | None:
    """The failure to get a connection, if that is what it is: nothing was sent."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        words = f"the certificate of {error.host} isn't trusted: {_certificate_words(error.certificate_error)}"
        return Failure(UNTRUSTED, words, _TRUST, sent=False, again=False)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        words = f"the proxy refuses the connection: HTTP {error.status}"
        return Failure(PROXY, words, _LOOK_AT_PROXY, sent=False, again=error.status >= 500)
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return Failure(PROXY, f"no connection to the proxy: {_os_words(error.os_error)}", _LOOK_AT_PROXY, sent=False)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Failure(UNREACHABLE, f"unknown host {error.host}: {_os_words(error.os_error)}", _LOOK_AT_URL, sent=False)
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return Failure(UNREACHABLE, f"no TLS with {error.host}:{error.port}: {_os_words(error.os_error)}", _ODD, sent=False)
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure(UNREACHABLE, f"no connection to {error.host}:{error.port}: {_os_words(error.os_error)}", _LOOK_AT_URL, sent=False)
    return None


def _broken(error: Exception) -> Failure:
    if isinstance(error, aiohttp.ClientPayloadError):
        words = "the answer was cut off before its end, or can't be decompressed"
    elif isinstance(error, Broken):
        words = str(error)
    elif isinstance(error, ConnectionResetError):
        words = "the connection was reset"
    elif isinstance(error, OSError):
        words = f"the connection failed: {_os_words(error)}"
    else:
        return Failure(BROKEN, f"the answer isn't HTTP as it should be ({type(error).__name__})", _ODD, sent=True)
    return Failure(BROKEN, words, _LOOK_AT_SERVICE, sent=True)


async def unrepeated(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A middleware that keeps aiohttp from repeating requests when a connection ends: it would repeat a DELETE, unseen."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except aiohttp.ServerDisconnectedError:
        words = "the connection was closed before an answer came"
    except aiohttp.ClientOSError as error:
        # without a number it is aiohttp's own: it found the connection closed, and names the whole address
        words = (
            f"the connection failed: {_os_words(error)}" if error.errno else "the connection was closed while the request was being sent"
        )
    raise Broken(words)


def _certificate_words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return type(error).__name__


def _os_words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):  # its number isn't the system's
        return (error.reason or type(error).__name__).replace("_", " ").lower()
    words = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror  # a name's error is below 0
    return (words or type(error).__name__).lower()
