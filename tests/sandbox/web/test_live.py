"""The stream of what arrives, over real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.web import live as module
from tests.sandbox.client import KEY, UUID, SandboxClient, batch, event, talking
from tests.sandbox.web.streams import LiveStream, ServerSentEvent, streaming
from tests.support.cases import cases
from tests.support.waiting import tick


def named(messages: list[ServerSentEvent], name: str) -> list[ServerSentEvent]:
    """Those of that name."""
    return [message for message in messages if message.name == name]


async def settled(stream: LiveStream, client: SandboxClient) -> str:
    """Read until the stream knows every arrival; the id to continue from."""
    arrivals = (await client.sandbox.summary()).arrivals
    while not (
        (last := await stream.until("summary")).number and last.data["arrivals"] == arrivals
    ):
        continue
    return last.number


async def test_arrivals_are_streamed() -> None:
    """An event, its request and the new figures come by themselves, and are what the
    listings show.
    """
    async with talking() as client, streaming(client.sandbox.url) as stream:
        await stream.batch()
        await client.post("/batch/", batch(event(uuid=UUID, properties={"n": 1.50})))
        reported = await stream.batch()
        shown = (await client.get("/sandbox/events"))["results"]
        assert [
            {**message.data, "person": shown[0]["person"]} for message in named(reported, "event")
        ] == shown
        assert [message.data for message in named(reported, "request")] == (
            await client.get("/sandbox/requests")
        )["results"]
        assert named(reported, "summary")[0].data["events"] == 1
        assert sum(named(reported, "rates")[0].data["events"]) == 1


async def test_a_new_reader_gets_what_is_here() -> None:
    """It begins with the newest that are here, in the order of arrival, and
    how many older there are.
    """
    async with talking() as client:
        await client.post(
            "/batch/", batch(*[event(event=f"e{number}") for number in range(module.FIRST + 7)])
        )
        async with streaming(client.sandbox.url) as stream:
            reported = await stream.batch()
    assert [message.data["event"] for message in named(reported, "event")] == [
        f"e{number}" for number in range(7, module.FIRST + 7)
    ]
    assert named(reported, "opened")[0].data == {"events": 7, "requests": 0}


async def test_a_reconnected_reader_resumes() -> None:
    """With the id of the last message it gets what came since, and nothing twice."""
    async with talking() as client:
        async with streaming(client.sandbox.url) as stream:
            await client.post("/batch/", batch(event(event="before")))
            last = await settled(stream, client)
        await client.post("/batch/", batch(event(event="meanwhile")))
        async with streaming(client.sandbox.url, last=last) as stream:
            reported = await stream.batch()
    assert [message.data["event"] for message in named(reported, "event")] == ["meanwhile"]
    assert not named(reported, "opened") + named(reported, "cleared")


async def test_a_reader_that_missed_much_learns_how_much() -> None:
    """What is too much to tell is counted, and the newest are streamed."""
    async with talking() as client:
        async with streaming(client.sandbox.url) as stream:
            await client.post("/batch/", batch(event(event="before")))
            last = await settled(stream, client)
        await client.post("/batch/", batch(*[event(event=f"e{number}") for number in range(1000)]))
        async with streaming(client.sandbox.url, last=last) as stream:
            reported = await stream.batch()
    assert named(reported, "skipped")[0].data == {"events": 1000 - module.MOST, "requests": 0}
    assert [message.data["event"] for message in named(reported, "event")] == [
        f"e{number}" for number in range(1000 - module.MOST, 1000)
    ]


async def test_clearing_is_streamed() -> None:
    """Anyone who watches learns that everything is gone, and sees what comes after it."""
    async with talking() as client, streaming(client.sandbox.url) as stream:
        await client.post("/batch/", batch(event(event="before")))
        await settled(stream, client)
        await client.sandbox.clear()
        await client.post("/batch/", batch(event(event="after")))
        await stream.until("cleared")
        assert (await stream.until("event")).data["event"] == "after"


async def test_a_reader_of_another_history_begins_anew() -> None:
    """An id from before a restart that forgot everything counts for nothing;
    with a file it still does.
    """
    async with talking() as client, streaming(client.sandbox.url) as stream:
        await client.post("/batch/", batch(event(event="before")))
        last = await settled(stream, client)
    async with talking() as client:
        await client.post("/batch/", batch(event(event="after")))
        async with streaming(client.sandbox.url, last=last) as stream:
            reported = await stream.batch()
    assert [message.name for message in reported if message.name in ("cleared", "event")] == [
        "cleared",
        "event",
    ]


async def test_a_file_remembers_how_far_a_reader_was(tmp_path: Path) -> None:
    """After a restart on the same file a reader continues where it was."""
    options = SandboxOptions(database=tmp_path / "events.db")
    async with talking(options) as client, streaming(client.sandbox.url) as stream:
        await client.post("/batch/", batch(event(event="before")))
        last = await settled(stream, client)
    async with talking(options) as client:
        await client.post("/batch/", batch(event(event="after")))
        async with streaming(client.sandbox.url, last=last) as stream:
            reported = await stream.batch()
    assert [message.data["event"] for message in named(reported, "event")] == ["after"]


@cases(
    ("query", "events", "requests"),
    [
        ("?event=seen", ["seen", "seen"], 2),
        ("?distinct_id=bob", ["bought"], 1),
        (f"?api_key={KEY}", ["seen", "bought", "seen"], 3),
        (f"?api_key=phc_…{KEY[-4:]}", ["seen", "bought", "seen"], 3),
        ("?api_key=phc_another_key_here_1", [], 0),
        ("?text=PRICE", ["bought"], 0),
        ("?text=%25", [], 0),
        ("?text=not+json", [], 1),
        ("?problems=1", ["seen"], 2),
    ],
)
async def test_a_view_gets_what_it_subscribes_to(
    query: str, events: list[str], requests: int
) -> None:
    """Each filter lets through what it says, of events and of requests."""
    async with talking() as client:
        await client.post("/batch/", batch(event(uuid=UUID)))
        await client.post(
            "/batch/", batch(event(event="bought", distinct_id="bob", properties={"price": 3}))
        )
        await client.post("/batch/", batch(event(uuid=UUID, properties={"n": 2})))
        await client.post("/batch/", b"{not json")
        async with streaming(client.sandbox.url, query) as stream:
            reported = await stream.batch()
    assert [message.data["event"] for message in named(reported, "event")] == events
    assert len(named(reported, "request")) == requests


async def test_a_large_event_is_streamed_without_its_bytes() -> None:
    """A stream stays light: a large event is streamed without its parts, which the
    listing has.
    """
    async with talking() as client:
        await client.post(
            "/batch/",
            batch(
                event(properties={"p": "x" * 70_000}),
                event(event="", properties={"p": "y" * 70_000}),
            ),
        )
        async with streaming(client.sandbox.url) as stream:
            reported = await stream.batch()
        shown = (await client.get("/sandbox/events"))["results"]
    data = named(reported, "event")[0].data
    assert (data["event"], data["raw"], data["properties"]) == ("seen", "", None)
    assert [
        (rejected_event["index"], rejected_event["raw"])
        for rejected_event in named(reported, "request")[0].data["not_ingested"]
    ] == [(1, "")]
    assert len(shown[0]["raw"]) > 70_000


async def test_properties_with_line_breaks_stay_one_message() -> None:
    """Line breaks between the tokens of an event, as a sender may have put
    them, don't end a message.
    """
    body = (
        b'{"api_key":"%b","batch":[{"event":"e","distinct_id":"d","properties":{\r\n"a":\r1,\n'
        b'\n"b":2}}]}'
    ) % KEY.encode()
    async with talking() as client:
        await client.post("/batch/", body)
        async with streaming(client.sandbox.url) as stream:
            assert (await stream.until("event")).data["properties"] == {"a": 1, "b": 2}


async def test_silence_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream on which nothing happens says so now and then, so that no one takes it for dead."""
    monkeypatch.setattr(module, "HEARTBEAT", 0.0)
    monkeypatch.setattr(module, "GONE", 0.01)
    async with talking() as client, streaming(client.sandbox.url) as stream:
        await stream.until("comment")


async def test_leaving_ends_streams_at_once() -> None:
    """A stream that no one closes doesn't hold up the sandbox's end."""
    loop = asyncio.get_running_loop()
    sandbox = await Sandbox().__aenter__()
    async with streaming(sandbox.url) as stream:
        await stream.batch()
        began = loop.time()
        await sandbox.__aexit__(None, None, None)
        assert loop.time() - began < 4
        await stream.ended()


async def test_too_many_readers_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a limit to streams; one that closes makes room."""
    monkeypatch.setattr(module, "READERS", 1)
    async with talking() as client:
        async with streaming(client.sandbox.url) as stream:
            await stream.batch()
            async with streaming(client.sandbox.url) as refused:
                assert refused.response.status == 503
        async with asyncio.timeout(60):
            while (await status(client)) == 503:
                await tick()


async def status(client: SandboxClient) -> int:
    """What a further reader is answered."""
    async with streaming(client.sandbox.url) as stream:
        return stream.response.status


@pytest.mark.slow
async def test_a_reader_that_leaves_while_it_rests_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long a reader gets nothing, its place is free soon after it has gone."""
    monkeypatch.setattr(module, "READERS", 1)
    monkeypatch.setattr(module, "PAUSE", 3600.0)
    monkeypatch.setattr(module, "GONE", 0.01)
    async with talking() as client:
        async with streaming(client.sandbox.url) as stream:
            await stream.batch()
        async with asyncio.timeout(60):
            while (await status(client)) == 503:
                await tick()


@pytest.mark.slow
async def test_a_reader_that_reads_nothing_delays_no_other() -> None:
    """Nothing is queued for it: while it doesn't read, events are taken and kept as ever, and
    afterwards it learns what it missed.
    """
    async with talking() as client, streaming(client.sandbox.url) as stream:
        await stream.batch()
        # The stream is connected, so there is a connection with a transport.
        stream.response.connection.transport.pause_reading()  # type: ignore[union-attr]
        for _ in range(30):
            await client.post(
                "/batch/", batch(*[event(properties={"p": "x" * 4000}) for _ in range(400)])
            )
        assert (await client.sandbox.summary()).events == 12_000
        stream.response.connection.transport.resume_reading()  # type: ignore[union-attr]
        await settled(stream, client)
    reported = len(named(stream.seen, "event"))
    left = sum(message.data["events"] for message in named(stream.seen, "skipped"))
    assert reported + left == 12_000
    assert left > 0


async def test_rates() -> None:
    """Events, conflicts and refusals are counted in the second in which they came, up to the
    second that is now.
    """
    clock = [1_800_000_000.5]
    async with talking(SandboxOptions(now=lambda: clock[0])) as client:
        await client.post("/batch/", batch(event(uuid=UUID), event()))
        clock[0] += 2
        await client.post("/batch/", batch(event(uuid=UUID, distinct_id="bob")))
        await client.post("/batch/", b"rubbish")
        clock[0] += 1
        rates = await client.get("/sandbox/rates?seconds=5")
        assert (rates["start"], rates["step"], rates["events"]) == (
            1_799_999_999,
            1,
            [0, 2, 0, 1, 0],
        )
        assert (rates["conflicts"], rates["refused"]) == ([0, 0, 0, 1, 0], [0, 0, 0, 1, 0])
        assert len((await client.get("/sandbox/rates"))["events"]) == 300
        assert len((await client.get("/sandbox/rates?seconds=999999"))["events"]) == 3600
        clock[0] += 10_000
        assert sum((await client.get("/sandbox/rates"))["events"]) == 0


async def test_rates_of_requests_that_came_out_of_order() -> None:
    """A request whose body took a while is counted in its own second, though others were kept
    before it.
    """
    clock = [1_800_000_010.0]
    async with talking(SandboxOptions(now=lambda: clock[0])) as client:
        for clock[0] in (1_800_000_010.0, 1_800_000_003.0, 1_800_000_011.0):
            await client.post("/batch/", batch(event()))
        rates = await client.get("/sandbox/rates?seconds=10")
    assert rates["events"] == [0, 1, 0, 0, 0, 0, 0, 0, 1, 1]


@cases(
    ("headers", "status"),
    [
        ({}, 204),
        ({"Sec-Fetch-Site": "same-origin"}, 204),
        ({"Sec-Fetch-Site": "none"}, 204),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "OWN"}, 204),
        ({"Origin": "OWN", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_pages_of_other_sites_cant_clear(headers: dict[str, str], status: int) -> None:
    """Only the sandbox's own page, and what is no browser, may forget everything."""
    async with talking() as client:
        await client.post("/batch/", batch(event()))
        own = {name: value.replace("OWN", client.sandbox.url) for name, value in headers.items()}
        assert (await client.ask("DELETE", "/sandbox/events", headers=own)).status == status
        assert (await client.sandbox.summary()).events == (1 if status == 403 else 0)


async def test_the_page_is_for_browsers() -> None:
    """Who asks for HTML gets the page, with a policy that lets it load and run nothing but its own
    files; others get the list.
    """
    async with talking() as client:
        text = await client.ask("GET", "/")
        page = await client.ask("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"})
        assert text.text.startswith("This is forwarder's sandbox")
        assert page.text.startswith("<!doctype html>")
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert (text.headers["Vary"], page.headers["Vary"]) == ("Accept", "Accept")
        files = [part.split('"')[0] for part in page.text.split('"page/')[1:]]
        for name in {"main.js", "style.css", "base.css", "icon.svg"} & set(files):
            assert (await client.ask("GET", f"/page/{name}")).status == 200
        assert {"main.js", "style.css", "base.css", "icon.svg"} <= set(files)


async def test_ids_that_are_none() -> None:
    """An id that no stream gave is no place to continue from."""
    async with talking() as client:
        await client.post("/batch/", batch(event()))
        for last in ("", "7", "1.2", "a.b.c", "9" * 40 + ".1.x", "-1.-1.x"):
            async with streaming(client.sandbox.url, last=last) as stream:
                reported = await stream.batch()
            assert len(named(reported, "event")) == 1
