"""Addresses in the configuration: where to listen (`host:port`, `[::1]:port`, `unix:/path`), and
URLs of others.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

_TCP: Final = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})", re.ASCII
)
_HOST: Final = re.compile(
    r"(?P<word>[\w-]+):\d{1,5}|localhost|(?:[\w-]+(?:\.[\w-]+)+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?",
    re.ASCII,
)
"""A host with or without a port; of a single word only with one."""
_ANY: Final = {"0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to
_SOCKET_PATH_LIMIT: Final = 107
"""Bytes that the path of a Unix socket may have (the kernel's `sun_path`, less its NUL)."""
_INGESTION_PATHS: Final = (
    "/batch",
    "/capture",
    "/decide",
    "/flags",
    "/i/v0/e",
    "/track",
    "/engage",
)
_MANAGEMENT_PATHS: Final = ("/api", "/api/organizations", "/api/environments")


@dataclass(frozen=True, slots=True)
class Address:
    """A place to listen: a host and a port (0: any free one), or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def overlaps(self, other: Address) -> bool:
        """Whether both can't be listened on at once, as far as their spelling tells."""
        if self.path or other.path:
            return self.path == other.path
        hosts = {"127.0.0.1" if host == "localhost" else host for host in (self.host, other.host)}
        return self.port == other.port != 0 and (len(hosts) == 1 or bool(hosts & _ANY))


def parse_address(text: str) -> Address:
    """The address that `text` names. Raises `ValueError`, saying how to write it."""
    if text.startswith("unix:"):
        return Address(path=_socket_path(text.removeprefix("unix:")))
    match = _TCP.fullmatch(text)
    if match is None or match["host"] == "*":
        raise ValueError(f"{text!r} is not an address to listen on{_suggest_listen(text)}")
    port = int(match["port"])
    if port > 65535:
        raise ValueError(f"port {port} doesn't exist: the highest is 65535")
    if match["v6"]:
        ipaddress.IPv6Address(match["v6"])
    return Address(match["v6"] or match["host"], port)


def _suggest_listen(text: str) -> str:
    """What is wrong with an address to listen on, and after a colon how to write it."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "unix":
        return f", but a URL: write {rest.partition('/')[0] or 'host:port'} alone"
    if re.fullmatch(r"(\*?:)?\d{1,5}", text):
        port = text.lstrip("*:")
        return (
            f", as it names no host: write 127.0.0.1:{port} for this machine alone, or "
            f"0.0.0.0:{port} for all interfaces"
        )
    if text.startswith("/"):
        return f", but a path: write unix:{text}"
    if text.endswith("/"):
        return f": write {text.rstrip('/')} without the slash"
    if text.count(":") > 1 and "[" not in text:
        return ": write an IPv6 address in brackets and quotes, '[::1]:8320'"
    if re.fullmatch(r"[\w.-]+", text):
        return f", as it names no port: write it as {text}:8320"
    return ": write host:port, '[::1]:port' (quoted) or unix:/path"


def _socket_path(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(
            "the path of a Unix socket must be absolute: write unix:/run/forwarder/forwarder.sock"
        )
    if len(path.encode()) > _SOCKET_PATH_LIMIT:
        raise ValueError(
            f"the path of a Unix socket may have {_SOCKET_PATH_LIMIT} bytes: choose a shorter one"
        )
    return path


def check_listen(text: str) -> str:
    """`text`, if it is an address to listen on. Raises `ValueError` if not."""
    parse_address(text)
    return text


def check_host(text: str) -> str:
    """`text`, if it is a host's name without a port. Raises `ValueError` if not."""
    if not re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", text, re.ASCII):
        raise ValueError(
            f"{text!r} is not a host name: write forwarder.example.com (no scheme, no port)"
        )
    return text


def check_broker(text: str) -> str:
    """`text`, if it is a broker's `host:port`. Raises `ValueError` if not, not repeating one that
    may hold credentials.
    """
    if "@" in text:
        raise ValueError(
            "it holds a user or password: name them in security.username and security.password_file"
        )
    match = _TCP.fullmatch(text)
    if "://" in text or match is None:
        protocol = (
            "leave out what stands before ://, which security.protocol says, and "
            if "://" in text
            else ""
        )
        raise ValueError(
            f"{text!r} is not a broker's address: {protocol}write host:port or '[::1]:port'"
        )
    if not 0 < int(match["port"]) <= 65535:
        raise ValueError(f"{text!r} has a port that doesn't exist: write one from 1 to 65535")
    return text


def _split_http(text: str, example: str) -> SplitResult:
    """The parts of an http(s) URL. The messages never repeat `text`, which may hold credentials."""
    try:
        parts = urlsplit(text)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ValueError(
            f"it is not an address: its host or port can't be read; write it as {example}"
        ) from error
    if parts.scheme not in {"http", "https"}:
        meant = _with_scheme(text) if example.count("/") == 2 else ""
        raise ValueError(f"it must begin with http:// or https://: write it as {meant or example}")
    if not host or re.search(r"[\s\x00-\x1f\\]", text):
        raise ValueError(f"it names no host: write it as {example}")
    return parts


def _with_scheme(text: str) -> str:
    """A host that stands alone as an address; empty if `text` isn't one. Names of one word are of
    this machine or its network, where TLS is rare.
    """
    match = _HOST.fullmatch(text)
    if match is None:
        return ""
    local = match["word"] or text.startswith(("localhost", "127.", "[::1]"))
    return f"{'http' if local else 'https'}://{text}"


_STORES: Final = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})


def check_upstream(text: str) -> str:
    """The service's base address without a slash at its end. Raises `ValueError` if it can't be
    one, not repeating it.
    """
    return _check_base(text, "https://us.i.example.com", _INGESTION_PATHS, "/batch/")


def check_archive(text: str) -> str:
    """`text`, if it is the address of a folder or of an object store. Raises `ValueError` if not,
    not repeating it.
    """
    scheme, separator, rest = text.partition("://")
    bucket = rest.partition("/")[0]
    if scheme == "file" and separator and rest.startswith("/"):
        return text
    if scheme not in _STORES or not separator or not bucket:
        raise ValueError(
            "it isn't the address of an archive: write file:///srv/events or s3://bucket/events/"
        )
    if ":" in bucket or ("@" in bucket and not scheme.startswith("abfs")):
        raise ValueError(
            "it holds credentials or a port: they belong in the environment, or in archive.store "
            "(endpoint)"
        )
    return text


def check_management(text: str) -> str:
    """The management API's base address without a slash at its end. Raises `ValueError` if it
    can't be one, not repeating it.
    """
    return _check_base(text, "https://us.example.com", _MANAGEMENT_PATHS, "/api/")


def _check_base(text: str, example: str, endpoints: tuple[str, ...], endpoint: str) -> str:
    parts = _split_http(text, example)
    if "@" in parts.netloc:
        raise ValueError(
            "it holds a user or password, which the service doesn't take: remove everything up to "
            "the @"
        )
    if "?" in text or "#" in text:
        raise ValueError("it must have no query and no fragment: end it before the ? or #")
    path = parts.path.rstrip("/")
    if path.endswith(endpoints):
        raise ValueError(
            "it is the base address that belongs here: leave out the path of the endpoint, such "
            f"as {endpoint}"
        )
    return f"{parts.scheme}://{parts.netloc}{path}"


def check_proxy(text: str) -> str:
    """`text`, if it is an HTTP proxy's address. Raises `ValueError` if not, not repeating it."""
    parts = _split_http(text, "http://proxy.example.com:3128")
    if parts.path not in {"", "/"} or "?" in text or "#" in text:
        raise ValueError("it must end after the port: write it as http://proxy.example.com:3128")
    return text


def check_token_url(text: str) -> str:
    """`text`, if it is an address that gives tokens. Raises `ValueError` if not, not
    repeating it.
    """
    if "@" in _split_http(text, "https://login.example.com/oauth2/token").netloc:
        raise ValueError(
            "it holds a user or password: name them in client_id and client_secret_file"
        )
    return text


def check_origin(text: str) -> str:
    """`text`, if it is `*` or an origin as browsers send it. Raises `ValueError` if not."""
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s?#@]+", text):
        raise ValueError(
            f"{text!r} is not an origin: write https://app.example.com (no path, no slash at the "
            "end) or *"
        )
    return text


_OWN_PATHS: Final = (
    "/batch",
    "/capture",
    "/e",
    "/i",
    "/track",
    "/engage",
    "/decide",
    "/flags",
    "/api/feature_flag",
    "/array",
    "/static",
    "/s",
)
"""What the listener serves itself, or passes through."""


def check_path_prefix(text: str) -> str:
    """`text`, if paths below it can't be mistaken for others. Raises `ValueError` if not."""
    if not re.fullmatch(r"(?:/[A-Za-z0-9_~-]+)+", text):
        raise ValueError(
            f"{text!r} is not a path prefix: write /ingest (a slash first, none at the end, "
            "letters, digits, _, - and ~ between slashes)"
        )
    for own in _OWN_PATHS:
        if _overlap(own, text):
            raise ValueError(
                f"{text!r} can't be distinguished from {own}, which SDKs use: choose another, "
                "such as /ingest"
            )
    return text


def check_distinct_prefixes(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """`prefixes`, if none is below another. Raises `ValueError` if not."""
    for number, prefix in enumerate(prefixes):
        for other in prefixes[number + 1 :]:
            if _overlap(prefix, other):
                raise ValueError(
                    f"{prefix} and {other} can't be distinguished: leave one of them out"
                )
    return prefixes


def _overlap(one: str, other: str) -> bool:
    """Whether one path is the other, or above it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
"""A range of addresses."""


def parse_network(text: str) -> Network:
    """The network or single address that `text` names. Raises `ValueError`, saying how
    to write it.
    """
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(
            f"{error}: write an address (10.0.0.7) or a network (10.0.0.0/8)"
        ) from error
