"""Addresses of destinations: private ones by whatever name, and messages without secrets."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from forwarder.sandbox.exports.jobs import DestinationFailed, DestinationPolicy, ExportMisconfigured
from forwarder.sandbox.exports.network import DestinationUrl, is_private, scrub
from tests.support.cases import cases

PRIVATE = [
    "127.0.0.1",
    "127.255.0.3",
    "0.0.0.0",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "::127.0.0.1",
    "2002:7f00:1::",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
]
PUBLIC = [
    "1.1.1.1",
    "172.15.0.1",
    "172.32.0.1",
    "2606:4700:4700::1111",
    "::ffff:1.1.1.1",
    "64:ff9b::101:101",
]


def test_private_addresses() -> None:
    """Of both families, and one inside the other."""
    assert [address for address in PRIVATE if not is_private(address)] == []
    assert [address for address in PUBLIC if is_private(address)] == []


def answering(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Let every name have these addresses."""

    def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


async def resolve(url: str, *, private: bool = False) -> list[str]:
    """The addresses of a URL."""
    with ThreadPoolExecutor(1) as executor:
        return list(
            await DestinationUrl.parse(url, "url").resolve(
                DestinationPolicy(None, private), executor
            )
        )


@cases(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "127.1"],
)
async def test_this_machine(host: str) -> None:
    """In every spelling that is resolved."""
    with pytest.raises(ExportMisconfigured, match=r"private address.*--allow-private-destinations"):
        await resolve(f"http://{host}:9/batch/")
    assert await resolve(f"http://{host}:9/batch/", private=True) != []


async def test_names_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """One private address among public ones is enough."""
    answering(monkeypatch, "1.1.1.1", "2606:4700::1")
    assert await resolve("https://events.example.com") == ["1.1.1.1", "2606:4700::1"]
    answering(monkeypatch, "1.1.1.1", "169.254.169.254")
    with pytest.raises(
        ExportMisconfigured, match=r"https://events\.example\.com is at a private address"
    ):
        await resolve("https://events.example.com?token=hidden")
    answering(monkeypatch)
    with pytest.raises(DestinationFailed, match=r"'events\.example\.com' has no address"):
        await resolve("https://events.example.com")


@cases(
    "url",
    [
        None,
        "",
        5,
        "events.example.com",
        "ftp://x",
        "file:///etc/passwd",
        "http://",
        "http://[::1",
        "http://x:99999",
    ],
)
def test_what_is_no_url(url: object) -> None:
    """The message names the setting, and doesn't repeat its value."""
    with pytest.raises(ExportMisconfigured, match="endpoint_url of the destination is not a URL"):
        DestinationUrl.parse(url, "endpoint_url")


def test_what_is_shown() -> None:
    """Neither credentials nor a query; of what a destination says, the beginning
    without secrets.
    """
    url = DestinationUrl.parse(
        "https://user:se@cret@host.example:8443/batch/?token=hidden#x", "url"
    )
    assert url.shown == "https://host.example:8443/batch/"
    said = scrub(
        "no such key sEcReT1 or sEcReT, nor phc_abcdefgh12345678,\n  at http://u:p@host/ "
        + "x" * 500,
        ["sEcReT", "sEcReT1", ""],
    )
    assert said.startswith("no such key … or …, nor phc_…5678, at http://…@host/ xxx")
    assert len(said) == 201
