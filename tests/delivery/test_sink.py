"""The sink against real sockets: what it sends, and how it words what goes wrong."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from forwarder import __version__
from forwarder.core.event import Batch, Chunk, Lane
from forwarder.core.outcome import Reply
from forwarder.core.path import ForwarderPath, parse_path
from forwarder.delivery.sink import MAX_ANSWER, MAX_RETRY_AFTER, HttpSink, UpstreamPolicy
from forwarder.wire.envelope import body_pieces, envelope_size
from tests.delivery.rig import LANE, Rig, chunk_of, events
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.upstream import OK, Answer, Fault, Upstream, failing, plain


def batch_of(count: int = 3, lane: Lane = LANE) -> Batch:
    """A batch of one chunk for each event."""
    chunks = tuple(chunk_of([raw], 0.0, lane) for raw in events(count))
    return Batch(lane, chunks, envelope_size(lane, chunks))


async def send(policy: UpstreamPolicy, batch: Batch | None = None) -> Reply:
    """One attempt with a sink of its own."""
    sink = HttpSink(policy, FakeClock())
    try:
        return await sink.send(batch or batch_of())
    finally:
        await sink.close()


@pytest.mark.parametrize("compression", [True, False], ids=["gzip", "none"])
async def test_the_body_arrives_byte_for_byte(compression: bool) -> None:
    """The upstream gets exactly the batch's body, with the headers that the service expects."""
    async with Upstream() as upstream:
        batch = batch_of(2000, LANE._replace(historical=True))
        reply = await send(UpstreamPolicy(upstream.url + "/", compression), batch)
        assert reply == Reply(200, "application/json", None, OK.body)
        (request,) = upstream.requests
        assert request.body == b"".join(body_pieces(batch))
        assert len(request.body) == batch.size
        assert request.path == "/batch/"
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"] == f"forwarder/{__version__}"
        assert request.headers.get("content-encoding") == ("gzip" if compression else None)
        assert request.headers["content-length"] == str(len(request.wire))
        assert "cookie" not in request.headers


async def test_a_path_in_the_address_is_kept() -> None:
    """An upstream behind a path prefix is asked there."""
    async with Upstream() as upstream:
        await send(UpstreamPolicy(upstream.url + "/ingest/"))
        assert upstream.requests[0].path == "/ingest/batch/"


async def test_connections_are_used_again() -> None:
    """One after the other, requests share a connection; cookies that the upstream sets are not
    sent back.
    """
    async with Upstream(lambda _: plain(200, set_cookie="a=b")) as upstream:
        sink = HttpSink(UpstreamPolicy(upstream.url), FakeClock())
        for _ in range(3):
            await sink.send(batch_of())
        await sink.close()
        assert upstream.connections == 1
        assert all("cookie" not in request.headers for request in upstream.requests)


async def test_a_long_answer_is_cut() -> None:
    """Of an answer longer than 64 KiB only the beginning is read."""
    async with Upstream(lambda _: plain(400, "x" * 1_000_000)) as upstream:
        reply = await send(UpstreamPolicy(upstream.url))
        assert (reply.status, len(reply.body)) == (400, MAX_ANSWER)


async def test_an_answer_before_the_body_was_read_is_heard() -> None:
    """An upstream that answers 413 to the head alone, and closes, is understood."""
    async with Upstream() as upstream:
        upstream.script.append(Answer(413, b"too large", {}, Fault.EARLY))
        reply = await send(UpstreamPolicy(upstream.url), batch_of(10))
        assert reply.status == 413


@cases(
    ("fault", "words"),
    [
        (Fault.TRUNCATE, "cut off"),
        (Fault.RESET, "reset"),
        (Fault.RESET_IN_REQUEST, "reset"),
        (Fault.CLOSE, "closed before an answer"),
    ],
)
async def test_broken_connections_are_distinguished(fault: Fault, words: str) -> None:
    """No whole answer: the reply has no status, and says what happened."""
    async with Upstream() as upstream:
        upstream.script.append(failing(fault))
        reply = await send(UpstreamPolicy(upstream.url), batch_of(3))
        assert reply.status is None
        assert words in reply.error


async def test_a_reset_in_the_middle_of_a_large_body() -> None:
    """A connection that is reset while megabytes are being sent is an error like any other."""
    noise = Chunk(
        LANE,
        b'{"event":"x","distinct_id":"y","properties":{"z":"' + b"z" * 8_000_000 + b'"}}',
        1,
        frozenset(),
        0.0,
    )
    async with Upstream() as upstream:
        upstream.script.append(failing(Fault.RESET_IN_REQUEST))
        reply = await send(
            UpstreamPolicy(upstream.url, compression=False),
            Batch(LANE, (noise,), envelope_size(LANE, (noise,))),
        )
        assert reply.status is None
        assert reply.error


async def test_a_retry_after_survives_a_truncated_answer() -> None:
    """How long to wait is known from the head, though the body was cut off."""
    async with Upstream(
        lambda _: Answer(503, b"come back later", {"Retry-After": "7"}, Fault.TRUNCATE)
    ) as upstream:
        reply = await send(UpstreamPolicy(upstream.url))
        assert (reply.status, reply.retry_after) == (None, 7.0)
        assert "HTTP 503" in reply.error


async def test_a_hang_is_a_time_out() -> None:
    """After the time-out the request is given up."""
    async with Upstream(lambda _: failing(Fault.HANG)) as upstream:
        response = await send(UpstreamPolicy(upstream.url, timeout=0.05))
        assert response.error == "no whole answer within 0.05 s"


async def test_a_refused_connection_is_named() -> None:
    """A port where no one listens."""
    async with Upstream() as upstream:
        url = upstream.url
    assert (
        "connect call failed" in (await send(UpstreamPolicy(url))).error
        or "refused" in (await send(UpstreamPolicy(url))).error
    )


async def test_an_unknown_host_is_named() -> None:
    """A host name that no one knows; the reply says which."""
    reply = await send(UpstreamPolicy("http://nowhere.invalid"))
    await asyncio.get_running_loop().shutdown_default_executor()
    assert reply.status is None
    assert reply.error.startswith("unknown host nowhere.invalid")


async def test_an_unreachable_proxy_is_named_without_its_password() -> None:
    """What fails is the proxy; its credentials are in no error."""
    async with Upstream() as upstream:
        gone = upstream.port
    reply = await send(
        UpstreamPolicy("http://example.invalid", proxy=f"http://user:secret@127.0.0.1:{gone}")
    )
    assert "proxy" in reply.error
    assert "secret" not in reply.error


async def test_a_proxy_is_used() -> None:
    """With `proxy`, requests to a plain upstream go to it, with the whole address."""
    async with Upstream() as proxy:
        reply = await send(UpstreamPolicy("http://example.invalid", proxy=proxy.url))
        assert reply.status == 200
        assert proxy.requests[0].path == "http://example.invalid/batch/"


def certificate(folder: Path, *, days: int) -> tuple[ssl.SSLContext, str]:
    """A server's TLS with a certificate of its own for 127.0.0.1 that is good for `days` from a
    month ago; the file to trust.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "upstream")])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=days))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "certificate.pem"
    secret = folder / "key.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem, secret)
    return server, str(pem)


async def test_tls_with_a_trusted_certificate(tmp_path: Path) -> None:
    """A certificate of one's own is trusted through `ca_file`."""
    tls, trusted = certificate(tmp_path, days=60)
    async with Upstream(tls=tls) as upstream:
        assert (await send(UpstreamPolicy(upstream.url, ca_file=trusted))).status == 200


async def test_an_untrusted_certificate_is_named(tmp_path: Path) -> None:
    """A certificate that no one vouches for isn't talked to."""
    tls, _ = certificate(tmp_path, days=60)
    async with Upstream(tls=tls) as upstream:
        reply = await send(UpstreamPolicy(upstream.url))
        assert "isn't trusted: self" in reply.error
        assert upstream.requests == []


async def test_an_expired_certificate_keeps_the_events_until_it_is_renewed(tmp_path: Path) -> None:
    """With an expired certificate nothing is sent and nothing lost; a renewed one is found by the
    next attempt.
    """
    expired, _ = certificate(tmp_path, days=1)
    async with (
        Upstream(tls=expired) as upstream,
        Rig(upstream, ca_file=str(tmp_path / "certificate.pem")) as rig,
    ):
        rig.offer(events(2))
        await rig.until(lambda: rig.delivery.statistics().upstream.failing)
        assert "certificate has expired" in rig.delivery.statistics().upstream.why
        assert upstream.requests == []
        assert rig.buffer.statistics().events == 2


async def test_an_upstream_that_comes_back_gets_everything_once() -> None:
    """Refused connections for minutes, one attempt at a time; when the upstream is there again,
    all is delivered once.
    """
    upstream = Upstream()
    async with upstream:
        pass
    async with Rig(upstream, concurrency=8) as rig:
        for number in range(20):
            rig.offer(events(3, f"r{number}-"))
        await rig.until(lambda: rig.clock.monotonic() > 1300)
        tried = rig.delivery.statistics().requests["error"]
        assert tried <= 8 + 300 / 30 + 8
        async with upstream:
            await rig.run_until_empty()
            assert set(rig.times_accepted().values()) == {1}
            assert len(rig.times_accepted()) == 60


async def test_cancelling_drops_the_connection() -> None:
    """A cancelled attempt leaves no connection and no task behind."""
    async with Upstream(lambda _: failing(Fault.HANG)) as upstream:
        sink = HttpSink(UpstreamPolicy(upstream.url), FakeClock())
        task = asyncio.create_task(sink.send(batch_of()))
        await upstream.until(lambda: upstream.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await upstream.until(lambda: upstream.in_flight == 0)
        await sink.close()


async def test_an_impossible_retry_after_date_is_ignored() -> None:
    """A date that no calendar has is no wish, and no error: the answer counts as any other 503."""
    async with Upstream(
        lambda _: plain(503, retry_after=f"Thu, 01 Jan {'9' * 30} 00:00:00 GMT")
    ) as upstream:
        reply = await send(UpstreamPolicy(upstream.url))
        assert (reply.status, reply.retry_after) == (503, None)


@pytest.mark.parametrize("value", ["999999999", "Sat, 01 Jan 2124 00:00:00 GMT"])
async def test_an_hour_is_the_longest_wait(value: str) -> None:
    """A Retry-After of decades, in either form, counts for an hour: a slip in a proxy's settings
    doesn't stop delivery for good.
    """
    async with Upstream(lambda _: plain(503, retry_after=value)) as upstream:
        assert (await send(UpstreamPolicy(upstream.url))).retry_after == MAX_RETRY_AFTER


async def test_requests_name_the_forwarders_they_passed() -> None:
    """The daemon's id on every request, and on a lane's batches what its events came by."""
    path = ForwarderPath(FakeClock(), "a" * 12)
    path.note(LANE, parse_path(b"1; " + b"b" * 12))
    async with Upstream() as upstream:
        sink = HttpSink(UpstreamPolicy(upstream.url), FakeClock(), path)
        await sink.send(batch_of())
        await sink.send(batch_of(lane=LANE._replace(historical=True)))
        await sink.decide("phc_key")
        await sink.close()
        said = [
            request.headers["forwarder-path"] for request in (*upstream.requests, *upstream.decides)
        ]
    assert said == [f"2; {'a' * 12}, {'b' * 12}", f"1; {'a' * 12}", f"1; {'a' * 12}"]


@cases(
    ("answer", "loop"),
    [
        (Answer(508, b"in a loop", {"Forwarder-Error": "loop"}), True),
        (Answer(508, b"of something else", {}), False),
        (Answer(508, b"of something else", {"Forwarder-Error": "another"}), False),
        (Answer(500, b"no loop", {"Forwarder-Error": "loop"}), False),
    ],
)
async def test_only_a_forwarder_reports_a_loop(answer: Answer, loop: bool) -> None:
    """By a header beside its 508: that of anything else on the way is a passing failure."""
    async with Upstream(lambda _: answer) as upstream:
        assert (await send(UpstreamPolicy(upstream.url))).loop is loop
