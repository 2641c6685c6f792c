"""Several destinations behind one listener: what goes where, and that the trouble of one is none
of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.ack import AckLevel
from forwarder.core.errors import StillDecoding
from forwarder.deadletter.schema import open_writable
from forwarder.deadletter.selection import mark_for_replay
from forwarder.intake.source_intake import SourceIntake
from forwarder.storage.directory import worker_directories
from forwarder.telemetry.exposition import expose
from forwarder.telemetry.metrics import metrics
from forwarder.telemetry.snapshot import Snapshot
from tests.support.clock import FakeClock
from tests.support.listening import post
from tests.support.records import record_list
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.waiters import IntakeCallback
from tests.support.waiting import eventually
from tests.support.whole import KEY, Whole, accepted, always_balanced, batch, event, events

SHOP = "phc_us_shop123"
SHOP_EU = "phc_eu_shop123"
DISK: dict[str, Any] = {"kind": "disk", "max_bytes": "4MiB"}
SMALL: dict[str, Any] = {
    "batch": {"max_age": "100ms", "max_bytes": "100kB"},
    "sources": {"http": {"listen": "127.0.0.1:0", "max_body": "200kB"}},
}
DELIVERED = "Forwarder-Ack: delivered"
V1_PATH = "/i/v1/analytics/events"


def several(*upstreams: Upstream, **more: Any) -> dict[str, Any]:
    """Destinations `us`, `eu` and `lab`; events of the shop go to the first two, orders to the
    first and the last.
    """
    named = [
        {
            "name": name,
            "url": upstream.url,
            "verify_keys": False,
            "max_event": "50kB",
            **more.get(name, {}),
        }
        for name, upstream in zip(("us", "eu", "lab"), upstreams, strict=False)
    ]
    routes = [{"match": {"api_key": SHOP}, "to": ["us", "eu"]}]
    if upstreams[2:]:
        routes.append({"match": {"event": ["order*"]}, "to": ["us", "lab"]})
    return {"upstream": {"url": ""}, "upstreams": named, "routes": more.get("routes", routes)}


def buffered(snapshot: Snapshot) -> dict[str, int]:
    """Events in each destination's buffer."""
    return {destination.name: destination.buffered for destination in snapshot.destinations}


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_each_event_goes_where_its_route_says(kind: str) -> None:
    """To both, to one, and to the first by default: byte for byte, in their order, with the
    destination's own project key.
    """
    mixed = [event(f"{'order' if number % 3 == 0 else 'page'}{number}") for number in range(50)]
    mine = events(30, "shop")
    async with Upstream() as us, Upstream() as eu, Upstream() as lab:
        where = several(us, eu, lab, eu={"api_keys": {SHOP: SHOP_EU}})
        async with Whole("", buffer={"kind": kind}, **where) as whole:
            with always_balanced(whole.pipeline):
                await whole.take(mine, SHOP)
                await whole.take(mixed)
                for raw in events(3, "single"):
                    reply = await whole.send(
                        post("/capture/", b'{"api_key":"%b",%b' % (SHOP.encode(), raw[1:]))
                    )
                    assert reply.status == 200
                await whole.emptied()
            snapshot = whole.snapshot
        alone = [b'{"api_key":"%b",%b' % (SHOP.encode(), raw[1:]) for raw in events(3, "single")]
        assert accepted(us) == dict.fromkeys([*mine, *mixed, *alone], 1)
        assert accepted(eu) == dict.fromkeys([*mine, *alone], 1)
        assert accepted(lab) == dict.fromkeys(mixed[::3], 1)
        assert [name for request in lab.requests for name in request.names] == [
            f"order{number}" for number in range(0, 50, 3)
        ]
        assert {request.api_key for request in eu.requests} == {SHOP_EU}
        assert {request.api_key for request in us.requests} == {SHOP, KEY}
        assert {
            destination.name: sum(lane.total_received for lane in destination.lanes)
            for destination in snapshot.destinations
        } == {
            "us": 83,
            "eu": 33,
            "lab": 17,
        }
        assert {lane.label.partition("@")[2] for lane in snapshot.lanes} == {"us", "eu", "lab"}


async def test_a_sample_has_people_whole() -> None:
    """All events of a person are in the sample, or none is; everyone goes to the destination
    without a sample.
    """
    sent = [event(f"e{number}", f"person{number % 40}") for number in range(200)]
    async with Upstream() as us, Upstream() as eu:
        where = several(us, eu, routes=[{"to": ["us", {"eu": {"sample": 0.5}}]}])
        async with Whole("", **where) as whole:
            await whole.take(sent)
            await whole.emptied()
    assert accepted(us) == dict.fromkeys(sent, 1)
    people = {arrival["distinct_id"] for request in eu.requests for arrival in request.events}
    assert 8 < len(people) < 32
    assert sum(accepted(eu).values()) == 5 * len(people)


async def test_a_destination_that_is_down_delays_no_sender_until_its_buffer_is_full() -> None:
    """Then events routed to it are rejected, and nothing of them is anywhere; those of other
    routes are accepted as before.
    """
    async with Upstream() as us, Upstream(lambda _: plain(503)) as eu:
        where = several(us, eu)
        async with Whole("", buffer={"max_bytes": "1MiB"}, **where, **SMALL) as whole:
            with always_balanced(whole.pipeline):
                sent: list[bytes] = []
                while True:
                    mine = events(10, f"n{len(sent)}-", padding=4000)
                    reply = await whole.send(post("/batch/", batch(mine, SHOP)))
                    if reply.status != 200:
                        break
                    sent += mine
                assert reply.status == 503
                assert len(sent) > 100
                await whole.take(others := events(20, "other"))
                await whole.until(lambda: buffered(whole.snapshot)["us"] == 0)
                assert accepted(us) == dict.fromkeys([*sent, *others], 1)
                assert buffered(whole.snapshot)["eu"] == len(sent)
                assert any(
                    warning.startswith("eu: the upstream fails")
                    for warning in whole.snapshot.warnings
                )
                eu.answer = lambda _: OK
                await whole.emptied()
    assert accepted(eu) == dict.fromkeys(sent, 1)


async def test_an_optional_one_drops_what_it_has_no_room_for() -> None:
    """No one is rejected or waits for it; what it drops is in its books."""
    async with Upstream() as us, Upstream(lambda _: plain(500)) as eu:
        where = several(us, eu, eu={"required": False})
        async with Whole("", buffer={"max_bytes": "1MiB"}, **where, **SMALL) as whole:
            with always_balanced(whole.pipeline):
                sent = [raw for part in range(40) for raw in events(10, f"n{part}-", padding=4000)]
                for start in range(0, len(sent), 10):
                    await whole.take(sent[start : start + 10], SHOP)
                await whole.until(lambda: buffered(whole.snapshot)["us"] == 0)
                assert accepted(us) == dict.fromkeys(sent, 1)
                _, lab = whole.snapshot.destinations
                assert (
                    sum(lane.dropped.get("optional_destination", 0) for lane in lab.lanes)
                    == len(sent) - lab.buffered
                    > 0
                )
            assert whole.snapshot.ready
            assert any(
                "the destination isn't required" in warning for warning in whole.snapshot.warnings
            )


async def test_delivered_waits_for_all_required_ones() -> None:
    """200 comes when the last of them has the events; 503 if one has them too late."""
    held = asyncio.Event()
    clock = FakeClock()
    answers: list[Answer] = [Answer(when=held)]
    async with (
        Upstream() as us,
        Upstream(lambda _: answers[0]) as eu,
        Whole("", clock, **several(us, eu)) as whole,
    ):
        with always_balanced(whole.pipeline):
            asked = asyncio.ensure_future(
                whole.send(post("/batch/", batch(sent := events(5), SHOP), DELIVERED))
            )
            await whole.until(
                lambda: eu.requests and us.requests and not buffered(whole.snapshot)["us"]
            )
            assert not asked.done()
            held.set()
            assert (await asked).status == 200
            assert accepted(us) == accepted(eu) == dict.fromkeys(sent, 1)
            answers[0] = plain(500)
            late = asyncio.ensure_future(
                whole.send(post("/batch/", batch(events(5, "late"), SHOP), DELIVERED))
            )
            await whole.until(late.done)
            assert late.result().status == 503
        assert whole.snapshot.destinations[0].buffered == 0


async def test_a_crash_loses_nothing_for_either_destination() -> None:
    """After a crash each destination gets all that was acknowledged, from files of its own."""
    down: Callable[[Request], Answer] = lambda _: plain(503)  # noqa: E731
    async with (
        Upstream(down) as us,
        Upstream(down) as eu,
        Whole("", buffer=DISK, **several(us, eu), **SMALL) as whole,
    ):
        with always_balanced(whole):
            for part in range(5):
                await whole.take(events(20, f"n{part}-"), SHOP)
            await whole.restart(crash=True)
            assert buffered(whole.snapshot) == {"us": 100, "eu": 100}
            us.answer = eu.answer = lambda _: OK
            await whole.emptied()
    assert accepted(us) == accepted(eu)
    assert len(accepted(us)) == 100


async def test_a_dead_letter_goes_back_to_its_own_destination(tmp_path: Path) -> None:
    """What one refuses is a dead letter of that one; replayed, the other doesn't get it again."""
    refuse = [b"bad"]

    def answer(request: Request) -> Answer:
        return plain(400, "no") if refuse and refuse[0] in request.body else OK

    async with Upstream() as us, Upstream(answer) as eu:
        where = several(us, eu)
        async with Whole("", buffer={**DISK, "path": str(tmp_path)}, **where, **SMALL) as whole:
            with always_balanced(whole.pipeline):
                await whole.take([*events(5), event("bad")], SHOP)
                await whole.emptied()
                letters = {
                    destination.name: sum(lane.total_dead for lane in destination.lanes)
                    for destination in whole.snapshot.destinations
                }
                assert letters == {"us": 0, "eu": 1}
                refuse.clear()
                await whole.pipeline._parts.destinations[1].stores.committer.settle()
                with contextlib.closing(
                    open_writable(tmp_path / "worker-0-eu" / "dead-letters.db")
                ) as connection:
                    ((number,),) = connection.execute("SELECT number FROM letters").fetchall()
                    assert mark_for_replay(connection, [(number, None)], None, lambda _: None) == [
                        number
                    ]
                await whole.until(lambda: "bad" in eu.delivered)
                await whole.emptied()
    assert us.delivered.count("bad") == eu.delivered.count("bad") == 1


async def test_pending_events_stay_with_the_first_of_new_destinations(
    tmp_path: Path,
) -> None:
    """The files without a name become those of the first destination."""
    buffer = {**DISK, "path": str(tmp_path)}
    async with Upstream(lambda _: plain(503)) as us, Upstream() as eu:
        async with Whole(us.url, upstream={"max_event": "50kB"}, buffer=buffer, **SMALL) as whole:
            await whole.take(sent := events(10), SHOP)
        us.answer = lambda _: OK
        async with Whole("", buffer=buffer, **several(us, eu), **SMALL) as whole:
            await whole.emptied()
        assert accepted(us) == dict.fromkeys(sent, 1)
        assert eu.requests == []
    assert list(worker_directories(tmp_path)) == [(0, "eu"), (0, "us")]


async def test_metrics_name_the_destination_only_where_there_are_several() -> None:
    """Each figure of a buffer, a delivery or a lane has the label then; what belongs to the
    listener never has.
    """
    async with Upstream() as us, Upstream() as eu:
        async with Whole("", **several(us, eu)) as whole:
            await whole.take(events(3), SHOP)
            await whole.emptied()
            text = expose(metrics(whole.snapshot))[0].decode()
        async with Whole(us.url) as whole:
            await whole.take(events(3), SHOP)
            await whole.emptied()
            alone = expose(metrics(whole.snapshot))[0].decode()
    lines = [
        line
        for line in text.splitlines()
        if line.startswith(("forwarder_events_delivered_total", "forwarder_buffer_limit_bytes"))
    ]
    assert sorted(line.partition('destination="')[2][:2] for line in lines) == [
        "eu",
        "eu",
        "us",
        "us",
    ]
    assert 'forwarder_http_requests_total{code="200",path="/batch"} 1.0' in text
    assert "destination" not in alone


async def test_an_event_rejected_at_receipt_is_a_dead_letter_of_each_destination() -> None:
    """So each destination's books have all that is routed to it."""
    async with Upstream() as us, Upstream() as eu, Whole("", **several(us, eu)) as whole:
        with always_balanced(whole.pipeline):
            await whole.take([*events(2), b'{"event":"no id"}'], SHOP)
            await whole.take([b'{"distinct_id":"x"}'])
            await whole.emptied()
        letters = {
            destination.name: sum(lane.total_dead for lane in destination.lanes)
            for destination in whole.snapshot.destinations
        }
        assert letters == {"us": 2, "eu": 1}


async def test_the_only_one_has_project_keys_of_its_own_too() -> None:
    """What is left of a move to another service: senders keep the key that they have."""
    async with Upstream() as eu:
        where = several(eu, us={"api_keys": {SHOP: SHOP_EU}}, routes=[])
        async with Whole("", **where) as whole:
            with always_balanced(whole.pipeline):
                await whole.take(events(3), SHOP)
                await whole.take(events(1, "other"))
                await whole.emptied()
    keys = {name: request.api_key for request in eu.requests for name in request.names}
    assert keys == {"e0": SHOP_EU, "e1": SHOP_EU, "e2": SHOP_EU, "other0": KEY}


async def test_a_large_body_is_divided_too() -> None:
    """What the decoder process reads goes the same ways."""
    sent = events(4000, "order", padding=400)
    async with (
        Upstream() as us,
        Upstream() as eu,
        Upstream() as lab,
        Whole("", **several(us, eu, lab)) as whole,
    ):
        reply = await whole.send(post("/batch/", batch(sent)))
        assert reply.status == 200
        await eventually(lambda: whole.snapshot.destinations[2].lanes)
        await whole.emptied()
    assert accepted(us) == accepted(lab) == dict.fromkeys(sent, 1)
    assert eu.requests == []


LONG = b'{"to":"%b","p":[' + b"1," * 60_000 + b"1]}"
"""Properties for which a condition takes longer than may be done before other requests go on."""


def long_event(name: str, to: str) -> bytes:
    """An event with such properties."""
    return event(name, properties=LONG % to.encode())


@pytest.mark.parametrize(
    "entrance",
    [
        "batch",
        "log",
        *(pytest.param(entrance, marks=pytest.mark.long) for entrance in ("single", "v1")),
    ],
)
async def test_slow_conditions_delay_no_sender(entrance: str, tmp_path: Path) -> None:
    """The decoder process evaluates those of routes, also of what becomes a dead letter; each event
    goes where its route says, in order, as it was received.
    """
    names = [(f"e{number}", ("us", "eu")[number % 2]) for number in range(6)]
    sent = [long_event(*pair) for pair in names]
    bad = b'{"event":"bad","properties":%b}' % (LONG % b"eu")
    log = tmp_path / "app.log"
    log.touch()
    source = {
        "api_key": KEY,
        "path": [str(log)],
        "mapping": {"event": ".event", "distinct_id": ".distinct_id", "properties": ".properties"},
    }
    size = {"max_event": "1MB"}
    route = {"match": {"where": '.properties.to == "eu"'}, "to": ["eu"]}
    async with Upstream() as us, Upstream() as eu:
        where = several(us, eu, us=size, eu=size, routes=[route])
        where["sources"] = {"http": {"listen": "127.0.0.1:0"}, "logs": [source]}
        async with Whole("", **where) as whole:
            if entrance == "single":
                for raw in sent:
                    body = b'{"api_key":"%b",%b' % (KEY.encode(), raw[1:])
                    assert (await whole.send(post("/capture/", body))).status == 200
            elif entrance == "batch":
                await whole.take([*sent, bad])
            elif entrance == "v1":
                body = b'{"created_at":"2026-01-01T00:00:00Z","batch":[%b]}' % b",".join(sent)
                headers = ("Authorization: Bearer " + KEY, "Content-Type: application/json")
                assert (await whole.send(post(V1_PATH, body, *headers))).status == 200
            else:
                log.write_bytes(b"\n".join([*sent, bad, b""]))
            letters = int(entrance in ("batch", "log"))
            await eventually(
                lambda: whole.total(lambda lane: lane.total_received) == len(sent) + letters,
                explain=lambda: whole.snapshot,
            )
            await whole.emptied()
            snapshot = whole.snapshot
            assert whole.pipeline._parts.decoder.starts == 1
    for name, upstream in (("us", us), ("eu", eu)):
        here = [event for event, to in names if to == name]
        assert [event_name for request in upstream.requests for event_name in request.names] == here
        if entrance == "batch":
            assert set(accepted(upstream)) == {
                long_event(*pair) for pair in names if pair[1] == name
            }
    dead = {
        destination.name: sum(destination.lanes[0].dead_lettered.values())
        for destination in snapshot.destinations
    }
    assert dead == {"us": 0, "eu": letters}


async def test_a_record_that_never_fits_goes_where_its_events_would_have_gone() -> None:
    """Its conditions take long, so the decoder process has divided it; one of its events is more
    than all dead letters may be, so the record becomes one, as it came.
    """
    bad = b'{"event":"bad","properties":{"p":"%b"}}' % (b"x" * 3_000_000)
    value = gzip.compress(batch([long_event("e", "eu"), bad]))
    size = {"max_event": "1MB"}
    route = {"match": {"where": '.properties.to == "eu"'}, "to": ["eu"]}
    async with (
        Upstream() as us,
        Upstream() as eu,
        Whole(
            "",
            dead_letters={"max_bytes": "1MB"},
            **several(us, eu, us=size, eu=size, routes=[route]),
        ) as whole,
    ):
        parts = whole.pipeline._parts
        branches = [destination.branch for destination in parts.destinations]
        records = SourceIntake(parts.intake.gate, branches, source="kafka")
        record = record_list(value)
        with pytest.raises(StillDecoding) as waiting:
            records.accept(record, IntakeCallback(), AckLevel.DELIVERED)
        decoded = asyncio.Event()
        waiting.value.when_done(decoded.set)
        await decoded.wait()
        assert records.accept(record, IntakeCallback(), AckLevel.DELIVERED) is not None
        dead = [
            [lane.dead_lettered for lane in destination.lanes]
            for destination in whole.snapshot.destinations
        ]
    assert dead == [[], [{"too_large": 1}]]
