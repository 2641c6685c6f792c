"""Which IP addresses are reachable from the whole Internet, the same on every Python.

`ipaddress.is_global` changes with the interpreter, also between two releases of 3.12. These are
the networks of IANA's special-purpose registries.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_LOCAL_V4: Final = (
    *map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "240.0.0.0/4",
        ),
    ),
)
_LOCAL_V6: Final = (
    *map(
        IPv6Network,
        (
            "::/127",
            "::ffff:0:0/96",
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
            "fc00::/7",
            "fe80::/10",
        ),
    ),
)
_GLOBAL_V4: Final = (IPv4Network("192.0.0.9/32"), IPv4Network("192.0.0.10/32"))
_GLOBAL_V6: Final = (
    *map(
        IPv6Network,
        (
            "2001:1::1/128",
            "2001:1::2/128",
            "2001:3::/32",
            "2001:4:112::/48",
            "2001:20::/28",
            "2001:30::/28",
        ),
    ),
)
"""Parts of the local networks that are global."""


def is_global(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address is reachable from the whole Internet, or a group of such."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _LOCAL_V4) or any(
            address in network for network in _GLOBAL_V4
        )
    return not any(address in network for network in _LOCAL_V6) or any(
        address in network for network in _GLOBAL_V6
    )
