"""One sender can't keep others from connections, permits and room, however slow or many its
requests are.
"""

from __future__ import annotations

import contextlib
import resource
from ipaddress import ip_network
from pathlib import Path

from structlog.testing import capture_logs

from forwarder.core.tls import client_context
from forwarder.sources.http import HttpPolicy, load_tls
from forwarder.sources.http.acceptor import HANDSHAKES
from forwarder.sources.http.addresses import ClientAddresses
from forwarder.sources.http.passthrough.service import FLAG_PERMITS, OTHER_PERMITS
from forwarder.sources.http.protocol.limits import BODY_GRACE
from tests.support.answered import answered, asked
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.listening import ListenerRig, RawConnection, listening, post, turns
from tests.support.origin import OK, Asked, origin, through

GREEDY = ("127.0.0.2", 0)
BEGUN = b"x" * 100
PROXIED = HttpPolicy(trusted_proxies=(ip_network("127.0.0.1/32"),))


def upload(path: str, size: int = 1_000_000, *headers: str) -> bytes:
    """The head of a request that announces a large body, and the first of it."""
    return post(path, BEGUN, *headers).replace(b"Length: 100", b"Length: %d" % size)


async def begin_uploads(to: ListenerRig, count: int, path: str) -> list[RawConnection]:
    """So many slow uploads of one sender."""
    clients = [await to.connect(local_addr=GREEDY) for _ in range(count)]
    for client in clients:
        await client.send(upload(path))
    return clients


async def read_all(asked: Asked) -> None:
    """Read the whole request, however long that takes, and answer."""
    await asked.read()
    await asked.write(OK)


def in_flight(to: ListenerRig) -> int:
    """Passages in flight."""
    assert to.passthrough is not None
    return to.passthrough.statistics().in_flight


async def test_slow_uploads_leave_flags_alone() -> None:
    """130 uploads to /s that never end: flags are answered, to their sender too, and so are
    others' recordings and all events.
    """
    async with origin(read_all) as upstream, listening(passthrough=through(upstream)) as to:
        await begin_uploads(to, 130, "/s/")
        share = OTHER_PERMITS * 7 // 8
        await to.until(lambda: in_flight(to) == share)
        for local in (GREEDY, ("127.0.0.1", 0)):
            client = await to.connect(local_addr=local)
            assert (await asked(client, post("/flags/?v=2", b"{}"))).status == 200
            assert (await asked(client, post("/decide", b"{}"))).status == 200
            assert (await asked(client, post())).status == 200
        assert (await asked(await to.connect(), post("/s/", b"recording"))).status == 200


async def test_slow_calls_for_flags_leave_some_to_others() -> None:
    """The same with /flags itself: another sender's calls are answered."""
    async with origin(read_all) as upstream, listening(passthrough=through(upstream)) as to:
        await begin_uploads(to, 130, "/flags/")
        await to.until(lambda: in_flight(to) == FLAG_PERMITS * 7 // 8)
        client = await to.connect()
        assert (await asked(client, post("/flags/?v=2", b"{}"))).status == 200


@cases("path", ["/s/", "/flags/", "/batch/"])
async def test_a_trickle_ends_after_the_grace(path: str) -> None:
    """A body at 500 bytes a second is 408 when the grace is over, passed on or not; its permit and
    its room are free then.
    """
    async with origin(read_all) as upstream, listening(passthrough=through(upstream)) as to:
        slow = await begin_uploads(to, 8, path)
        for _ in range(int(BODY_GRACE) + 3):
            for client in slow:
                if not client.writer.is_closing():
                    client.writer.write(b"x" * 500)
            await to.clock.advance(1)
        assert [(await client.reply()).status for client in slow] == [408] * 8
        await to.until(lambda: in_flight(to) == 0)
        assert to.listener.statistics().receiving_bytes == 0


async def test_a_steady_upload_is_let_finish() -> None:
    """At 2 KB a second a body of 60 KB comes in."""
    async with origin(read_all) as upstream, listening(passthrough=through(upstream)) as to:
        client = await to.connect()
        await client.send(upload("/s/", 60_100))
        for _ in range(30):
            await client.send(b"x" * 2000)
            await to.clock.advance(1)
        assert (await answered(client)).status == 200


async def test_one_address_cannot_hold_all_connections() -> None:
    """It has seven eighths; another address connects and is served, and what the log says names
    the one that holds most.
    """
    async with listening(HttpPolicy(max_connections=64)) as to:
        with capture_logs() as logs:
            greedy = [await to.connect(local_addr=GREEDY) for _ in range(80)]
            assert [(await client.reply()).status for client in greedy[56:]] == [503] * 24
            honest = [await to.connect() for _ in range(6)]
            for client in honest:
                assert (await client.ask(post())).status == 200
            await to.clock.advance(2)
        (line,) = logs
        assert (line["rejected"], line["most_from"], line["held"], line["max_connections"]) == (
            24,
            "127.0.0.2",
            56,
            64,
        )
        assert to.listener.statistics().rejected_connections == 24
        await greedy[0].close()
        await to.until(lambda: to.listener.statistics().connections < 86)
        assert (await honest[0].ask(post())).status == 200


async def test_large_slow_bodies_leave_room_for_others() -> None:
    """100 bodies of 20 MB that come in slowly hold a sender's share; what another brings, in
    pieces too, is accepted.
    """
    policy = HttpPolicy(max_receiving=4_000_000)
    async with listening(policy) as to:
        greedy = [await to.connect(local_addr=GREEDY) for _ in range(100)]
        for client in greedy:
            client.writer.write(upload("/batch/", 20_000_000) + b"x" * 99_900)
        await to.until(lambda: to.listener.statistics().requests.get(("/batch", 503), 0) >= 60)
        assert to.listener.statistics().receiving_bytes <= policy.max_receiving
        client = await to.connect()
        body = b"y" * 300_000
        await client.send(post(body=body)[:-299_000], *[b"y" * 29_900] * 10)
        assert (await client.reply()).status == 200
        assert to.intake.bodies == [body]


async def test_a_lone_sender_may_bring_the_largest_body() -> None:
    """Its share of what may be received is enough for it."""
    policy = HttpPolicy()
    async with listening(policy) as to:
        client = await to.connect()
        size = policy.max_body
        client.writer.write(upload("/batch/", size) + b"x" * (size - 100))
        assert (await client.reply()).status == 200


async def test_behind_a_trusted_proxy_its_clients_share() -> None:
    """Requests that come through one proxy are distinguished by its forwarding header; without it
    they are one sender's.
    """
    async with (
        origin(read_all) as upstream,
        listening(PROXIED, passthrough=through(upstream)) as to,
    ):
        for _ in range(OTHER_PERMITS * 7 // 8):
            client = await to.connect()
            await client.send(upload("/s/", 1_000_000, "X-Forwarded-For: 9.9.9.9"))
        client = await to.connect()
        await to.until(lambda: in_flight(to) == OTHER_PERMITS * 7 // 8)
        assert (await asked(client, post("/s/", b"x", "X-Forwarded-For: 8.8.8.8"))).status == 200
        assert (await asked(client, post("/s/", b"x"))).status == 200
        assert (await asked(client, post("/s/", b"x", "X-Forwarded-For: 9.9.9.9"))).status == 503


async def test_all_of_a_unix_socket_are_one_sender(tmp_path: Path) -> None:
    """A sidecar that is alone has seven eighths of the connections, and tiny pools whole."""
    async with listening(HttpPolicy(max_connections=8), f"unix:{tmp_path}/in.sock") as to:
        clients = [await to.connect() for _ in range(8)]
        for client in clients[:7]:
            assert (await client.ask(post())).status == 200
        assert (await clients[7].reply()).status == 503


async def test_one_address_cannot_hold_all_tls_handshakes(tmp_path: Path) -> None:
    """300 connections that say nothing over TLS hold its share of handshakes; another's succeed,
    and theirs end with their time.
    """
    pair = make_certificate(tmp_path)
    context = load_tls(pair.cert_file, pair.key_file)
    client_side = client_context(pair.cert_file)
    async with listening(HttpPolicy(header_timeout=2.0), tls=context) as to:
        silent = [await to.connect(local_addr=GREEDY) for _ in range(HANDSHAKES + 44)]
        share = HANDSHAKES * 7 // 8
        await to.until(lambda: to.listener.statistics().rejected_connections == len(silent) - share)
        client = await to.connect(ssl=client_side, server_hostname="localhost")
        assert (await client.ask(post())).status == 200
        for connection in silent:
            with contextlib.suppress(ConnectionError):
                assert await connection.ended() == b""
        again = await to.connect(local_addr=GREEDY, ssl=client_side, server_hostname="localhost")
        assert (await again.ask(post())).status == 200


async def test_a_handshake_ends_with_its_listener(tmp_path: Path) -> None:
    """One that is in progress isn't waited for."""
    pair = make_certificate(tmp_path)
    async with listening(tls=load_tls(pair.cert_file, pair.key_file)) as to:
        client = await to.connect()
        await turns()
        await to.listener.close(0)
        with contextlib.suppress(ConnectionError):
            assert await client.ended() == b""


async def test_without_files_to_open() -> None:
    """The log says so once, and when it is over; connections that are open continue."""
    async with listening() as to:
        client = await to.connect()
        assert (await client.ask(post())).status == 200
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with capture_logs() as logs:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                await to.clock.advance(5)
                assert (await client.ask(post())).status == 200
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await to.clock.advance(5)
        assert [line["log_level"] for line in logs] == ["error", "info"]
        assert (await to.ask(post())).status == 200


@cases(
    ("peername", "sender"),
    [
        (("203.0.113.9", 1), "203.0.113.9"),
        (("::ffff:203.0.113.9", 1, 0, 0), "203.0.113.9"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 1, 0, 0), "2001:db8:1:2::/64"),
        ("", "unix"),
        (None, "unix"),
    ],
)
@cases("stamp", [True, False])
def test_shares_are_per_address_or_ipv6_network(peername: object, sender: str, stamp: bool) -> None:
    """An address, whether it is stamped or not; of IPv6 a customer's whole network."""
    assert ClientAddresses((), stamp=stamp).peer(peername).sender == sender
