"""Requests that have been here before, or have passed too many forwarders."""

from __future__ import annotations

import json

from forwarder.core.path import MAX_HOPS, ForwarderPath
from tests.support.answered import get
from tests.support.cases import cases
from tests.support.clock import FakeClock
from tests.support.listening import listening, post
from tests.support.origin import origin, through

OWN = "a" * 12
OTHER = "b" * 12


def path() -> ForwarderPath:
    """This forwarder's."""
    return ForwarderPath(FakeClock(), OWN)


@cases("said", [f"1; {OWN}", f"2; {OTHER}, {OWN}", f"{MAX_HOPS}; {OTHER}"])
@cases("url", ["/batch/", "/e", "/i/v1/analytics/events"])
async def test_a_loop_is_answered_508(said: str, url: str) -> None:
    """With the header by which a forwarder knows whose 508 it is, and with what to do; the
    connection stays usable.
    """
    async with listening(path=path()) as to:
        client = await to.connect()
        reply = await client.ask(post(url, b"{}" * 1000, f"Forwarder-Path: {said}"))
        assert (reply.status, reply.headers["forwarder-error"]) == (508, "loop")
        assert b"Check upstream.url" in reply.body
        assert OWN.encode() not in reply.body
        if "v1" in url:
            assert json.loads(reply.body)["error"] == "loop_detected"
        assert (await client.ask(post("/batch/"))).status == 200
        assert len(to.intake.accepted) == 1


@cases("said", [f"1; {OTHER}", f"{MAX_HOPS - 1}; {OTHER}", "nonsense", ""])
async def test_others_are_accepted(said: str) -> None:
    """The intake learns the path; the head is known from then on."""
    async with listening(path=path()) as to:
        client = await to.connect()
        for _ in range(3):
            answer = await client.ask(post("/batch/", b"{}", f"Forwarder-Path: {said}"))
            assert answer.status == 200
        assert len(to.listener._state.heads[0]) == 1
        reported = [
            incoming.path.hops if incoming.path else None for incoming in to.intake.accepted
        ]
        assert reported == [int(said.partition(";")[0]) if ";" in said else None] * 3


async def test_a_loop_in_chunks_and_with_expectation() -> None:
    """A body that isn't needed isn't asked for."""
    async with listening(path=path()) as to:
        reply = await to.ask(
            post("/batch/", b"", f"Forwarder-Path: 1; {OWN}", "Expect: 100-continue").replace(
                b"Length: 0", b"Length: 9"
            )
        )
        assert reply.status == 508


async def test_calls_that_are_passed_through_carry_exactly_their_path() -> None:
    """Each one this forwarder's id before those that it came by; one that has been here isn't
    passed on.
    """
    async with origin() as upstream, listening(passthrough=through(upstream), path=path()) as to:
        assert (await to.ask(get("/flags"))).status == 200
        assert (await to.ask(get("/flags", f"Forwarder-Path: 3; {OTHER}"))).status == 200
        assert [asked.headers["forwarder-path"] for asked in upstream.asked] == [
            f"1; {OWN}",
            f"4; {OWN}, {OTHER}",
        ]
        for url in ("/flags", "/array/x/config.js", "/api/feature_flag/local_evaluation?token=t"):
            reply = await to.ask(get(url, f"Forwarder-Path: 2; {OTHER}, {OWN}"))
            assert (reply.status, reply.headers["forwarder-error"]) == (508, "loop")
        assert len(upstream.asked) == 2
