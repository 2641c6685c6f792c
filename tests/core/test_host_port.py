"""How addresses are read and written."""

from __future__ import annotations

import pytest

from forwarder.core.host_port import join_host_port, split_host_port
from tests.support.cases import cases


@cases(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:8322", "::1", 8322),
        ("localhost:0", "localhost", 0),
        ("[::]:65535", "::", 65535),
    ],
)
def test_host_and_port_round_trip(text: str, host: str, port: int) -> None:
    """Reading and writing are each other's inverse."""
    assert split_host_port(text) == (host, port)
    assert join_host_port(host, port) == text


def test_all_interfaces() -> None:
    """A port alone has no host."""
    assert split_host_port(":80") == ("", 80)


@cases(
    "text",
    [
        "",
        "localhost",
        "a:",
        "a:b",
        "a:-1",
        "a:65536",
        "a:1_0",
        "a:\u0661",
        "a: 80",
        "a:" + "9" * 5000,
    ],
)
def test_invalid_addresses_are_rejected(text: str) -> None:
    """A port is digits, and one that exists."""
    with pytest.raises(ValueError, match="is not host:port"):
        split_host_port(text)
