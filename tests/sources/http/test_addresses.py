"""Whose address an event is stamped with."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.http import HttpPolicy
from forwarder.sources.http.addresses import ClientAddresses, parse_address
from tests.support.cases import cases
from tests.support.listening import listening, post

PROXIES = tuple(
    [
        ip_network(network)
        for network in ("10.0.0.0/8", "127.0.0.0/8", "fd00::/8", "198.41.128.0/24")
    ]
)
ADDRESSES = ClientAddresses(PROXIES, stamp=True)
PEER = ADDRESSES.peer(("10.0.0.1", 1234))


@cases(
    ("header", "client"),
    [
        (b"8.8.8.8", "8.8.8.8"),
        (b" 8.8.8.8 ", "8.8.8.8"),
        (b"8.8.8.8:4711", "8.8.8.8"),
        (b"2606:4700::1", "2606:4700::1"),
        (b"[2606:4700::1]", "2606:4700::1"),
        (b"[2606:4700::1]:443", "2606:4700::1"),
        (b"[2606:4700::1%eth0]:443", "2606:4700::1"),
        (b"::ffff:8.8.8.8", "8.8.8.8"),
        (b"1.1.1.1, 8.8.8.8", "8.8.8.8"),
        (b"1.1.1.1, 8.8.8.8, 10.1.2.3", "8.8.8.8"),
        (b"1.1.1.1,8.8.8.8,::ffff:10.1.2.3,fd00::7", "8.8.8.8"),
        (b"8.8.8.8,, 10.1.2.3,", "8.8.8.8"),
        (b"8.8.8.8, 192.168.1.1, 10.1.2.3", None),
        (b"8.8.8.8, nonsense, 10.1.2.3", None),
        (b"8.8.8.8, unknown, 198.41.128.9", "198.41.128.9"),
        (b"10.5.5.5, 10.1.2.3", None),
        (b"198.41.128.7, 10.1.2.3", "198.41.128.7"),
        (b"8.8.8.8:4711:1", None),
        (b"[8.8.8.8", None),
        (b"fe80::1%eth0", None),
        (b"224.0.0.1", None),
        (b"0.0.0.0", None),
        (b"\xff\xfe", None),
        (b"8.8.8.8" + b", 10.0.0.1" * 100, None),
    ],
)
def test_forwarded_for(header: bytes, client: str | None) -> None:
    """X-Forwarded-For is walked from the right past trusted proxies; what can't be read ends the
    walk at the last of them.
    """
    assert ADDRESSES.client(PEER, header, b"") == client
    assert ADDRESSES.client(PEER, header, b"for=9.9.9.9") == client
    assert ADDRESSES.client(PEER, header, b"") == client


@cases(
    ("header", "client"),
    [
        (b"for=8.8.8.8", "8.8.8.8"),
        (b"For=8.8.8.8;proto=http;by=203.0.113.43", "8.8.8.8"),
        (b'for="[2606:4700::1]:4711"', "2606:4700::1"),
        (b'proto=https;for="8.8.8.8:80", for=10.0.0.9', "8.8.8.8"),
        (b"for=1.1.1.1, for=8.8.8.8;by=1.1.1.1 , for=10.0.0.9", "8.8.8.8"),
        (b'for="8.8.\\8.8"', "8.8.8.8"),
        (b"for=unknown", None),
        (b'for="_hidden", for=10.0.0.9', None),
        (b"for=8.8.8.8, proto=http", None),
        (b'for="8.8.8.8', None),
        (b"for 8.8.8.8", None),
        (b"for=8.8.8.8 for=1.1.1.1", None),
        (b'x="a, for=1.1.1.1";for=8.8.8.8', "8.8.8.8"),
    ],
)
def test_forwarded(header: bytes, client: str | None) -> None:
    """Forwarded (RFC 7239) is read the same way; a malformed one is not read at all."""
    assert ADDRESSES.client(PEER, b"", header) == client


@cases(
    ("peername", "stamp", "trusted"),
    [
        (("8.8.8.8", 1), "8.8.8.8", False),
        (("::ffff:8.8.8.8", 1, 0, 0), "8.8.8.8", False),
        (("fe80::1%2", 1, 0, 2), None, False),
        (("192.168.0.1", 1), None, False),
        (("10.0.0.1", 1), None, True),
        (("::ffff:10.0.0.1", 1, 0, 0), None, True),
        ("", None, True),
        (None, None, True),
        (("weird",), None, False),
    ],
)
def test_peers(peername: object, stamp: str | None, trusted: bool) -> None:
    """A peer stamps itself if its address is global; a Unix socket's peer is trusted."""
    peer = ADDRESSES.peer(peername)
    assert (peer.stamp, peer.trusted) == (stamp, trusted)
    never = ClientAddresses(PROXIES, stamp=False).peer(peername)
    assert (never.stamp, never.trusted) == (None, False)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_any_forwarded_header_gives_an_address_or_none(
    forwarded_for: bytes, forwarded: bytes
) -> None:
    """Whatever the headers hold, the answer is an address that may be stamped, or none."""
    client = ADDRESSES.client(PEER, forwarded_for, forwarded)
    assert client is None or (
        parse_address(client) is not None and str(parse_address(client)) == client
    )


def test_the_cache_is_bounded() -> None:
    """Made-up headers don't fill memory."""
    addresses = ClientAddresses(PROXIES, stamp=True)
    for number in range(5000):
        addresses.client(PEER, b"8.8.8.8, %d" % number, b"")
    addresses.client(PEER, b"8.8.8.8" * 1000, b"")
    assert len(addresses._cache) <= 1024


async def test_only_trusted_peers_are_believed() -> None:
    """A forwarding header of anybody else means nothing; several lines are one list; a head that
    was seen before is read again.
    """
    request = post("/e", b"", "X-Forwarded-For: 1.1.1.1", "X-Forwarded-For: 8.8.8.8")
    for proxies, client_address in ((PROXIES, "8.8.8.8"), ((), None)):
        async with listening(HttpPolicy(trusted_proxies=proxies)) as to:
            client = await to.connect()
            for _ in range(3):
                assert (await client.ask(request)).status == 200
            assert [incoming.client for incoming in to.intake.accepted] == [client_address] * 3


async def test_stamping_can_be_off() -> None:
    """With stamping off no one's address is passed on."""
    async with listening(HttpPolicy(trusted_proxies=PROXIES, stamp_ip=False)) as to:
        assert (await to.ask(post("/e", b"", "X-Forwarded-For: 8.8.8.8"))).status == 200
        assert to.intake.accepted[0].client is None
