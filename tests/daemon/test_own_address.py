"""An upstream that is the daemon itself, as far as that can be known at the start."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.own_address import own_addresses, reject_own_address
from tests.support.cases import cases

ADDRESSES = {
    "localhost": ["127.0.0.1", "::1"],
    "gateway.internal": ["203.0.113.9", "127.0.0.1"],
    "elsewhere.example": ["203.0.113.7"],
}


def settings(listen: str, **upstream: Any) -> Settings:
    """Settings with these addresses."""
    return Settings.parse({"upstream": upstream, "sources": {"http": {"listen": listen}}})


def keys(listen: str, **upstream: Any) -> list[str]:
    """The keys that are reported."""
    return [
        own.key
        for own in own_addresses(
            settings(listen, **upstream), lambda name: ADDRESSES.get(name, [name])
        )
    ]


def addresses_of_this_machine() -> list[str]:
    """Beside the loopback one: the one that the machine would send from, if there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.7", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


@cases("listen", ["127.0.0.1:8320", "0.0.0.0:8320", "[::]:8320", "localhost:8320"])
@cases(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0.0.0.0",
        "gateway.internal",
    ],
)
def test_its_own_address_in_any_spelling(listen: str, host: str) -> None:
    """Literals, names, IPv4 written as IPv6, and the address that means this machine."""
    assert keys(listen, url=f"http://{host}:8320/ingest") == ["upstream.url"]


@pytest.mark.parametrize("address", addresses_of_this_machine())
def test_any_address_of_the_machine_where_it_listens_on_all(address: str) -> None:
    """But not where it listens on the loopback address alone."""
    assert keys("0.0.0.0:8320", url=f"http://{address}:8320") == ["upstream.url"]
    assert keys("[::]:8320", url=f"http://{address}:8320") == ["upstream.url"]
    assert keys("127.0.0.1:8320", url=f"http://{address}:8320") == []


@cases(
    ("listen", "url"),
    [
        ("127.0.0.1:8320", "http://127.0.0.1:8321"),
        ("127.0.0.1:8320", "http://127.0.0.2:8320"),
        ("127.0.0.1:8320", "http://127.0.0.1"),
        ("0.0.0.0:8320", "http://elsewhere.example:8320"),
        ("0.0.0.0:8320", "http://203.0.113.7:8320"),
        ("0.0.0.0:8320", "http://[2001:db8::7]:8320"),
        ("unix:/run/forwarder.sock", "http://127.0.0.1:8320"),
        ("127.0.0.1:0", "http://127.0.0.1:80"),
        ("0.0.0.0:8320", "http://unknown.invalid:8320"),
    ],
)
def test_other_addresses_are_none(listen: str, url: str) -> None:
    """Another port, another machine, a Unix socket, a name that isn't known."""
    addresses = own_addresses(
        settings(listen, url=url),
        lambda name: [] if name.endswith(".invalid") else ADDRESSES.get(name, [name]),
    )
    assert addresses == []


def test_ports_that_are_not_written() -> None:
    """Those of the schemes."""
    assert keys("0.0.0.0:80", url="http://127.0.0.1") == ["upstream.url"]
    assert keys("0.0.0.0:443", url="https://localhost") == ["upstream.url"]


def test_other_addresses_that_are_connected_to() -> None:
    """The assets' address too; with a proxy it is the proxy alone, which looks up the others."""
    assert keys(
        "127.0.0.1:8320", url="https://us.example.com", assets_url="http://127.0.0.1:8320"
    ) == ["upstream.assets_url"]
    assert (
        keys("127.0.0.1:8320", url="http://127.0.0.1:8320", proxy="http://203.0.113.7:3128") == []
    )
    assert keys("127.0.0.1:8320", url="https://us.example.com", proxy="http://localhost:8320") == [
        "upstream.proxy"
    ]


def test_a_resolver_that_does_not_answer_keeps_nothing_from_starting() -> None:
    """It isn't waited for past the limit."""
    released = threading.Event()

    def resolve(_: str) -> list[str]:
        released.wait(30)
        return ["127.0.0.1"]

    try:
        assert (
            own_addresses(
                settings("0.0.0.0:8320", url="http://slow.example:8320"), resolve, limit=0.01
            )
            == []
        )
    finally:
        released.set()


def test_the_error_says_what_to_do() -> None:
    """Names resolved by the system."""
    with pytest.raises(
        ConfigurationError, match=r"upstream\.url: localhost:8320 is this forwarder itself"
    ) as raised:
        reject_own_address(settings("127.0.0.1:8320", url="http://localhost:8320"))
    assert "analytics service" in raised.value.hint
    reject_own_address(settings("127.0.0.1:8320", url="http://localhost:8322"))
