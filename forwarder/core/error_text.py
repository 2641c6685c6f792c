"""Exceptions in plain English, for logs, messages, the status page and the reasons of dead letters.

Invariant: no text has a class's name, a number of the system's, a tuple, or a place in a source
file. Errors of libraries are recognized by the names of their classes, so that nothing is imported
for it.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Any, Final

from forwarder.core.errors import ConfigurationError, ForwarderError

LONGEST: Final = 300

_CUT_OFF: Final = "the answer was cut off before its end"
_CLOSED: Final = "the connection was closed before an answer came"
_NOT_HTTP: Final = "the answer isn't valid HTTP"
_OWN: Final = frozenset({"builtins", "ssl", "socket", "aiohttp", "asyncio", "gzip", "shutil"})
"""Where errors of the system are defined: their own words are Python's,
others' are meant for people.
"""
_NUMBER: Final = re.compile(r"\[Errno (\d+)\]")
_PYTHON: Final = re.compile(
    r"\[Errno -?\d+\] ?|\[[A-Z0-9_]+(?:: [A-Z0-9_]+)?\] ?| ?\(_ssl\.c:\d+\)|Error -?\d+ while \w+ "
    r"data: |<class '|'>"
)
_TLS: Final = {
    "WRONG_VERSION_NUMBER": "the other side doesn't speak TLS",
    "RECORD_LAYER_FAILURE": "the other side doesn't speak TLS",
    "HTTP_REQUEST": "the other side speaks HTTP without TLS",
    "UNSUPPORTED_PROTOCOL": "the other side speaks no TLS 1.2 or later",
    "UNEXPECTED_EOF_WHILE_READING": "the connection was closed during the TLS handshake",
    "KEY_VALUES_MISMATCH": "the private key doesn't belong to the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "it holds no certificate in PEM form",
    "BAD_DECRYPT": "the private key can't be decrypted",
}


def error_text(error: BaseException) -> str:
    """Why something failed, to stand behind "…: ": no full stop, at most 300 characters, the
    system's errors as the system spells them.
    """
    if isinstance(error, ForwarderError):
        return error.message
    if isinstance(error, BaseExceptionGroup):
        return error_text(error.exceptions[0])
    for kind in type(error).__mro__:
        words = _KNOWN.get(f"{kind.__module__.partition('.')[0]}.{kind.__name__}")
        if words is not None:
            return _tidy(words(error))
    return _tidy(str(error)) or f"unexpected: {_class_words(error)}"


def unreachable_text(error: OSError, host: str, where: str) -> str:
    """Why there is no connection to `where`, an address or "the proxy", for the error with which
    it failed.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "gaierror" in kinds:
        return f"unknown host {host}: {_inside(error)}"
    if "SSLCertVerificationError" in kinds:
        return _certificate(error, host)
    if "SSLError" in kinds:
        return f"no TLS with {where}: {_inside(error)}"
    return f"no connection to {where}: {_inside(error)}"


def _tidy(text: str) -> str:
    """The first line, without what is Python's."""
    line = _PYTHON.sub("", text.strip().partition("\n")[0]).strip().rstrip(".:")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _inside(error: BaseException) -> str:
    """The text of an error that stands within that of another."""
    return _lower(error_text(error))


def _lower(line: str) -> str:
    return line[0].lower() + line[1:] if line[:1].isupper() and not line[1:2].isupper() else line


def _class_words(error: BaseException) -> str:
    return (
        re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error")).lower()
        or "error"
    )


def _system(error: OSError) -> str:
    """Of the system: by its number, which tells more than the text that asyncio puts there."""
    number = error.errno
    if number is None and (found := _NUMBER.search(str(error))):
        number = int(found[1])  # asyncio joins the errors of a name's addresses into one
    if type(error).__module__.partition(".")[0] in _OWN and number is not None and number > 0:
        return os.strerror(number)
    return error.strerror or str(error) or "the system reports an error"


def _timeout(error: Any) -> str:
    return _system(error) if error.errno else "no answer in time"


def _tls(error: Any) -> str:
    reason = error.reason or ""
    if "ALERT" in reason:
        return f"the other side refuses: {_spelled(reason.partition('ALERT_')[2] or reason)}"
    if not reason and "PEM" in str(error):
        return "it isn't valid PEM"
    return _TLS.get(reason) or _spelled(reason) or error.strerror or "TLS failed"


def _spelled(constant: str) -> str:
    return constant.replace("_", " ").lower()


def _verification(error: Any) -> str:
    return f"the certificate isn't trusted: {_lower(_tidy(error.verify_message))}"


def _certificate(error: Exception, host: str) -> str:
    said = getattr(error, "verify_message", None)
    return (
        f"the certificate of {host} isn't trusted: "
        f"{_lower(_tidy(said)) if said else _inside(error)}"
    )


def _dropped(error: Any) -> str:
    """A connection that broke: without a number the library itself found it closed."""
    if isinstance(error.__cause__, OSError) and error.errno is None:
        return _inside(error.__cause__)
    return (
        f"the connection failed: {_lower(_system(error))}"
        if error.errno
        else "the connection was closed"
    )


def _kafka(error: Any) -> str:
    said = (
        str(error.args[0])
        if error.args and not str(error.args[0]).startswith(("<", "(", "{", "["))
        else ""
    )
    return said or _class_words(error)


def _text_encoding(error: UnicodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return (
            f"it isn't text in {error.encoding.upper()}: byte "
            f"0x{error.object[error.start]:02x} at offset {error.start}"
        )
    return "it has characters that can't be encoded"


_KNOWN: Final[dict[str, Callable[[Any], str]]] = {
    "aiohttp.ClientConnectorCertificateError": lambda error: _certificate(
        error.certificate_error, error.host
    ),
    "aiohttp.ClientConnectionResetError": lambda _: "the connection was reset",
    "aiohttp.ClientConnectorError": lambda error: unreachable_text(
        error.os_error, error.host, f"{error.host}:{error.port}"
    ),
    "aiohttp.ClientError": lambda _: _NOT_HTTP,
    "aiohttp.ClientConnectionError": lambda _: "the connection was closed",
    "aiohttp.ClientHttpProxyError": lambda error: (
        f"the proxy refuses the connection: HTTP {error.status}"
    ),
    "aiohttp.ClientOSError": _dropped,
    "aiohttp.ClientPayloadError": lambda _: _CUT_OFF,
    "aiohttp.ClientProxyConnectionError": lambda error: (
        f"no connection to the proxy: {_inside(error.os_error)}"
    ),
    "aiohttp.InvalidURL": lambda _: "its address is invalid",
    "aiohttp.ServerDisconnectedError": lambda _: _CLOSED,
    "aiohttp.ServerTimeoutError": _timeout,
    "aiohttp.TooManyRedirects": lambda _: "too many redirects",
    "aiokafka.KafkaError": _kafka,
    "builtins.ConnectionResetError": lambda _: "the connection was reset",
    "builtins.ImportError": lambda error: (
        f"the package {error.name} is missing" if error.name else str(error)
    ),
    "builtins.MemoryError": lambda _: "out of memory",
    "builtins.OSError": _system,
    "builtins.RecursionError": lambda _: "it is nested too deeply",
    "builtins.TimeoutError": _timeout,
    "builtins.UnicodeError": _text_encoding,
    "gzip.BadGzipFile": lambda error: (
        "it isn't gzip" if "Not a gzipped" in str(error) else "its gzip data is damaged"
    ),
    "http.HTTPException": lambda _: _NOT_HTTP,
    "http.IncompleteRead": lambda _: _CUT_OFF,
    "http.RemoteDisconnected": lambda _: _CLOSED,
    "json.JSONDecodeError": lambda error: (
        f"{_lower(error.msg)} at line {error.lineno}, column {error.colno}"
    ),
    "ssl.SSLCertVerificationError": _verification,
    "ssl.SSLError": _tls,
} | {
    f"builtins.{name}": lambda error: f"unexpected: {_class_words(error)}"
    for name in (
        "ArithmeticError",
        "AssertionError",
        "AttributeError",
        "LookupError",
        "NameError",
        "NotImplementedError",
        "TypeError",
    )
}
"""By the class's package and name, the nearest ancestor's first. What bugs raise says nothing that
a person could use: the log has it.
"""


def cannot_listen(key: str, listen: str, error: OSError) -> ConfigurationError:
    """The error for an address that can't be listened on; `key` is the setting that holds it."""
    port = listen.rpartition(":")[2]
    if error.errno == errno.EADDRINUSE:
        # Only a port that is in use needs it.
        from forwarder.core.port_owner import owner_of_port  # noqa: PLC0415

        owner = owner_of_port(int(port)) if port.isdecimal() else ""
        what = f"{owner or 'something else'} listens there"
        hint = f"Stop it, or set `{key}` to another address."
    elif error.errno == errno.EACCES and port.isdecimal():
        from forwarder.core.users import user_name  # noqa: PLC0415

        what = f"user {user_name()} may not listen on a port below 1024"
        hint = (
            f"Set `{key}` to a higher port, give the process CAP_NET_BIND_SERVICE, or have "
            "systemd's socket unit listen."
        )
    else:
        what = error_text(error)
        hint = f"Set `{key}` to an address of this machine that this user may listen on."
    return ConfigurationError(f"{key}: can't listen on {listen}: {what}", hint=hint)
