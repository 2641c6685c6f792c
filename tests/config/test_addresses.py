"""Addresses in the configuration."""

from __future__ import annotations

import pytest

from forwarder.config.addresses import (
    Address,
    check_origin,
    check_path_prefix,
    check_proxy,
    check_upstream,
    parse_address,
    parse_network,
)
from forwarder.sources.http.passthrough.allowed import PassedRoutes
from forwarder.sources.http.protocol.routes import Routes
from tests.support.cases import cases


@cases(
    ("text", "address"),
    [
        ("127.0.0.1:8320", Address("127.0.0.1", 8320)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:8320", Address("::1", 8320)),
        ("unix:/run/forwarder.sock", Address(path="/run/forwarder.sock")),
    ],
)
def test_reads_addresses_to_listen_on(text: str, address: Address) -> None:
    """The three ways to write an address."""
    assert parse_address(text) == address


@cases(
    "text",
    [
        "",
        ":8320",
        "8320",
        "host",
        "host:",
        "host:http",
        "host:65536",
        "::1:8320",
        "[::1]",
        "[zz]:1",
        "unix:",
        "unix:run/x",
        "unix:/" + "x" * 108,
        "a b:1",
    ],
)
def test_refuses_what_is_no_address(text: str) -> None:
    """What can't be listened on is reported before anything starts."""
    with pytest.raises(ValueError, match=r"\w"):
        parse_address(text)


@cases(
    ("one", "other", "both"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", False),
        ("127.0.0.1:1", "localhost:1", False),
        ("0.0.0.0:1", "127.0.0.1:1", False),
        ("[::]:1", "127.0.0.1:1", False),
        ("127.0.0.1:1", "127.0.0.1:2", True),
        ("127.0.0.1:0", "127.0.0.1:0", True),
        ("127.0.0.1:1", "127.0.0.2:1", True),
        ("unix:/a", "unix:/b", True),
        ("unix:/a", "unix:/a", False),
        ("unix:/a", "127.0.0.1:0", True),
    ],
)
def test_tells_whether_two_places_are_one(one: str, other: str, both: bool) -> None:
    """Two listeners need two places; all interfaces include each, and port 0 is always
    a new one.
    """
    assert parse_address(one).overlaps(parse_address(other)) is not both
    assert parse_address(other).overlaps(parse_address(one)) is not both


@cases(
    ("text", "url"),
    [
        ("https://h.example.com/", "https://h.example.com"),
        ("http://h:8000/base/", "http://h:8000/base"),
        ("http://[::1]:1", "http://[::1]:1"),
    ],
)
def test_takes_base_addresses(text: str, url: str) -> None:
    """A base path stays, a slash at the end goes."""
    assert check_upstream(text) == url


@cases(
    "text",
    [
        "h.example.com",
        "ftp://h",
        "http://",
        "https://user:hunter2@h",
        "https://h?hunter2",
        "https://h#x",
        "https://h/batch/",
        "http://h:x",
        "http://a b",
    ],
)
def test_refuses_other_upstreams_without_repeating_them(text: str) -> None:
    """An address that can't be the service's is refused, and what may be a
    secret in it isn't shown.
    """
    with pytest.raises(ValueError, match=r"\w") as caught:
        check_upstream(text)
    assert "hunter2" not in str(caught.value)


def test_takes_a_proxy_with_credentials() -> None:
    """A proxy may need a user and a password."""
    assert check_proxy("http://user:hunter2@proxy:3128") == "http://user:hunter2@proxy:3128"


@cases(
    "text",
    [
        "socks5://u:hunter2@proxy:1080",
        "proxy:3128",
        "http://u:hunter2@proxy:3128/path",
        "http://u:hunter2@proxy:port",
    ],
)
def test_refuses_other_proxies_without_repeating_them(text: str) -> None:
    """Only HTTP proxies are spoken to."""
    with pytest.raises(ValueError, match="http://proxy") as caught:
        check_proxy(text)
    assert "hunter2" not in str(caught.value)


@cases("text", ["*", "https://app.example.com", "http://localhost:3000", "capacitor://localhost"])
def test_takes_origins(text: str) -> None:
    """An origin is a scheme, a host and perhaps a port."""
    assert check_origin(text) == text


@cases("text", ["", "app.example.com", "https://app.example.com/"])
def test_refuses_other_origins(text: str) -> None:
    """A path, even a slash, would never be equal to what a browser sends."""
    with pytest.raises(ValueError, match="origin"):
        check_origin(text)


def test_reads_networks_and_single_addresses() -> None:
    """A single address is a network of one."""
    assert str(parse_network("10.0.0.7")) == "10.0.0.7/32"
    assert str(parse_network("fd00::/8")) == "fd00::/8"
    with pytest.raises(ValueError, match="host bits set: write"):
        parse_network("10.0.0.7/8")


def test_prefixes_leave_every_path_alone() -> None:
    """A prefix is none of the paths that are served or passed through, and is neither above nor
    below one.
    """
    passed = (
        b"/decide",
        b"/flags/definitions",
        b"/api/feature_flag",
        b"/array/x",
        b"/static/x",
        b"/s",
        b"/i/x",
    )
    allowed = PassedRoutes()
    assert all(map(allowed.find, passed))
    for path in [path.decode().rstrip("/") for path in (*Routes().by_path, *passed)]:
        segments = path.split("/")
        for above in ["/".join(segments[:count]) for count in range(2, len(segments) + 1)]:
            with pytest.raises(ValueError, match="can't be distinguished from"):
                check_path_prefix(above)
        with pytest.raises(ValueError, match="can't be distinguished from"):
            check_path_prefix(f"{path}/x")
    assert check_path_prefix("/api/ingest") == "/api/ingest"
