"""An import that is interrupted, or whose service is in trouble, by the command alone: nothing is
lost, and nothing is sent otherwise.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from forwarder.sources.imports.checkpoint import read_checkpoint
from tests.end_to_end.importing import KEY, manifest_of
from tests.sources.imports.samples.native import as_json, complete_events
from tests.support.commands import Running, forwarder, running
from tests.support.upstream import (
    OK,
    UNAUTHORIZED,
    Answer,
    Fault,
    Request,
    Upstream,
    failing,
    plain,
)

EVENTS = 2_000
INTERRUPTED = 130
UNREACHABLE = 3


def source(folder: Path) -> Path:
    """Events of a day and a half."""
    path = folder / "events.jsonl"
    path.write_bytes(b"".join(as_json(event) + b"\n" for event in complete_events(EVENTS, 1)))
    return path


def arguments(upstream: Upstream, path: Path, state: Path) -> tuple[str, ...]:
    """The same command each time."""
    target = ("--upstream", upstream.url, "--api-key", KEY, "--state", str(state))
    return ("import", "native", str(path), *target, "--rate", "unlimited", "--yes")


def importing(upstream: Upstream, path: Path, state: Path) -> AbstractAsyncContextManager[Running]:
    """The import in the background, in requests of a hundred events that are sent again soon."""
    env = {
        "FORWARDER_BATCH__MAX_EVENTS": "100",
        "FORWARDER_DELIVERY__RETRY__INITIAL": "10ms",
        "FORWARDER_DELIVERY__RETRY__MAX": "100ms",
    }
    return running(*arguments(upstream, path, state), env=env)


def times_delivered(upstream: Upstream) -> Counter[int]:
    """How many events were taken once, twice …"""
    deliveries = Counter(
        event["uuid"] for request in upstream.requests if request.ended for event in request.events
    )
    return Counter(deliveries.values())


async def test_sigterm_settles_what_is_in_flight_and_the_same_command_resumes(
    tmp_path: Path,
) -> None:
    """It ends with 130 once the requests that were in flight are answered; the next run sends
    all the others, and none of these.
    """
    path = source(tmp_path)
    state = tmp_path / "state"
    held = asyncio.Event()

    def hold_after_some(_: Request) -> Answer:
        return Answer(when=held) if len(upstream.requests) > 6 else OK

    async with Upstream(hold_after_some) as upstream:
        async with importing(upstream, path, state) as command:
            await upstream.until(lambda: len(upstream.requests) > 6)
            command.send(signal.SIGTERM)
            await command.line("events in flight are settled")
            held.set()
            assert await command.ended() == INTERRUPTED, command.lines
        before = len(upstream.requests)
        saved = read_checkpoint(state)
        assert saved is not None
        assert (
            saved.books.delivered
            == sum(len(request.events) for request in upstream.requests)
            < EVENTS
        )
        assert not saved.complete

        async with importing(upstream, path, state) as command:
            assert await command.ended() == 0, command.lines
        assert len(upstream.requests) > before
        assert times_delivered(upstream) == {1: EVENTS}
        assert manifest_of(state).books.delivered == EVENTS


async def test_a_state_folder_has_one_import_at_a_time(tmp_path: Path) -> None:
    """A second import with the folder of one that runs is refused in words, and
    disturbs nothing.
    """
    path = source(tmp_path)
    state = tmp_path / "state"
    held = asyncio.Event()
    async with Upstream(lambda _: Answer(when=held)) as upstream:
        async with importing(upstream, path, state) as command:
            await upstream.until(lambda: len(upstream.requests) > 0)
            second = await forwarder(*arguments(upstream, path, state))
            assert second.code == 2
            assert str(state) in second.err
            assert "is in use" in second.err
            held.set()
            assert await command.ended() == 0, command.lines
        assert times_delivered(upstream) == {1: EVENTS}


async def test_trouble_of_the_service_only_delays_an_import(tmp_path: Path) -> None:
    """Answers of 429 and 503, connections that break, and a service that is gone for a while: all
    arrives in the end, the same bytes.
    """
    path = source(tmp_path)
    state = tmp_path / "state"
    trouble = [
        plain(503, "not now"),
        failing(Fault.RESET),
        plain(429, "slow down", retry_after="0"),
        failing(Fault.TRUNCATE),
    ]
    async with Upstream() as upstream:
        upstream.script.extend([OK, *trouble, OK, *trouble])
        async with importing(upstream, path, state) as command:
            await upstream.until(lambda: len(upstream.delivered) > 300)
            await upstream.stop()
            await command.line("the service doesn't accept events now", "no connection")
            await upstream.__aenter__()
            assert await command.ended() == 0, command.lines
        sent: dict[str, set[str]] = {}
        for event in (
            event for request in upstream.requests if request.wire for event in request.events
        ):
            sent.setdefault(event["uuid"], set()).add(str(event))
        assert len(sent) == EVENTS
        assert {len(forms) for forms in sent.values()} == {1}
        assert manifest_of(state).books.delivered == EVENTS


async def test_an_unknown_key_and_an_unreachable_service(tmp_path: Path) -> None:
    """Both are said before anything is sent, with exit code 3; the key itself is not repeated."""
    path = source(tmp_path)
    state = tmp_path / "state"
    async with Upstream(decide=lambda _: UNAUTHORIZED) as upstream:
        refused = await forwarder(*arguments(upstream, path, state))
        assert (refused.code, upstream.requests) == (UNREACHABLE, [])
        assert "doesn't know the project key" in refused.err
        assert f"phc_…{KEY[-4:]}" in refused.err
        assert KEY not in refused.err + refused.out
    gone = await forwarder(*arguments(upstream, path, state))
    assert gone.code == UNREACHABLE
    assert "can't be reached" in gone.err
