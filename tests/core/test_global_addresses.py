"""Which addresses are global does not depend on the interpreter."""

from __future__ import annotations

from ipaddress import ip_address

from forwarder.core.global_addresses import is_global
from tests.support.cases import cases


@cases(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("100.63.255.255", True),
        ("100.64.0.0", False),
        ("10.1.2.3", False),
        ("127.0.0.1", False),
        ("169.254.1.1", False),
        ("172.32.0.0", True),
        ("192.0.0.8", False),
        ("192.0.0.9", True),
        ("192.0.0.128", False),
        ("198.20.0.0", True),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::2", True),
        ("2606:4700::1", True),
        ("2001:db8::1", False),
        ("2001::1", False),
        ("2001:1::1", True),
        ("2001:1::3", False),
        ("2001:3::1", True),
        ("2001:4:112::1", True),
        ("2001:20::1", True),
        ("2001:30::1", True),
        ("2001:200::", True),
        ("2002::1", False),
        ("64:ff9b::808:808", True),
        ("64:ff9b:1::1", False),
        ("3fff::1", False),
        ("fd00::1", False),
        ("fe80::1", False),
    ],
)
def test_an_address_is_global_on_every_python_or_on_none(address: str, expected: bool) -> None:
    """Networks that a Python knows to be special, and another does not, are in one table."""
    assert is_global(ip_address(address)) is expected
