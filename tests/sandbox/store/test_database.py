"""What a repeat is: a duplicate if every byte is equal, else a conflict (wire facts: the service
de-duplicates on four fields).
"""

from __future__ import annotations

import json
import re
from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox import SandboxOptions
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import (
    ArrivalKind,
    EventFilter,
    IngestedEvent,
    ListingPage,
    RequestRecord,
)
from tests.sandbox.client import KEY, UUID, batch, event, talking
from tests.support.cases import cases

OTHER = "phc_another_key_000000002"
ALL = EventFilter(arrivals=True)
FIRST = (
    f'{{"event":"seen","distinct_id":"ann","uuid":"{UUID}","timestamp":"2026-01-01T00:00:00Z","pro'
    f'perties":{{"n": '
    f"1.0}}}}"
)


def body(*raws: str, key: str = KEY) -> bytes:
    """A batch of events given as text."""
    return f'{{"api_key":"{key}","batch":[{",".join(raws)}]}}'.encode()


@pytest.mark.slow
@cases("at", [match.start() for match in re.finditer(r"\w+", FIRST)])
async def test_one_byte_that_differs_is_a_conflict(at: int) -> None:
    """Change the first letter or digit of any word or number: it is shown, counted, and both
    versions are kept; a change of the uuid makes another event.
    """
    changed = FIRST[:at] + ("1" if FIRST[at] != "1" else "2") + FIRST[at + 1 :]
    async with talking() as client:
        await client.post("/batch/", body(FIRST))
        assert (await client.post("/batch/", body(changed))).status == 200
        summary = await client.sandbox.summary()
        conflicts = await client.sandbox.conflicts()
        raw_events = [one.raw.decode() for one in await client.sandbox.events(ALL)]
        listed = await client.get("/sandbox/conflicts")
    if summary.not_ingested:  # the change was in the word `event` or `distinct_id`
        assert raw_events == [FIRST]
        return
    same = f'"uuid":"{UUID}"' in changed
    assert raw_events == [FIRST, changed]
    assert (summary.arrivals, summary.events, summary.conflicts, summary.duplicates) == (
        2,
        1 if same else 2,
        int(same),
        0,
    )
    assert listed["count"] == len(conflicts) == int(same)
    if same:
        assert [
            listed["results"][0][version]["raw"] for version in ("first", "second")
        ] == raw_events


@cases(
    "changed",
    [
        FIRST.replace("00:00:00Z", "00:00:00.001Z"),
        FIRST.replace("00:00:00Z", "00:00:00+00:00"),
        FIRST.replace("1.0", "1"),
        FIRST.replace('"n": ', '"n":'),
        FIRST.replace("seen", "\\u0073een"),
        FIRST.replace(UUID, UUID.upper()),
        FIRST.replace('{"event":"seen",', "{")[:-1] + ',"event":"seen"}',
        FIRST[:-1] + " }",
    ],
)
async def test_the_same_meaning_in_other_bytes_is_a_conflict(changed: str) -> None:
    """Another time, another spelling of it, of a number, of the uuid, another order or a space:
    each is a conflict.
    """
    async with talking() as client:
        await client.post("/batch/", body(FIRST, changed))
        summary = await client.sandbox.summary()
    assert (summary.events, summary.conflicts) == (1, 1)


async def test_equal_bytes_are_a_duplicate() -> None:
    """In another request, in the same one, in another encoding, of either version of a conflict:
    the same bytes count as a repeat.
    """
    changed = FIRST.replace("ann", "bob")
    async with talking() as client:
        await client.post("/batch/", body(FIRST, FIRST))
        await client.post("/capture/", f'[{FIRST[:-1]},"token":"{KEY}"}}]'.encode())
        await client.post("/batch/", body(changed, FIRST, changed))
        kinds = [(one.kind, one.first) for one in await client.sandbox.events(ALL)]
    new = (ArrivalKind.NEW, None)
    again = (ArrivalKind.DUPLICATE, 1)
    assert kinds == [
        new,
        again,
        (ArrivalKind.CONFLICT, 1),
        (ArrivalKind.CONFLICT, 1),
        again,
        (ArrivalKind.DUPLICATE, 4),
    ]


async def test_projects_are_apart() -> None:
    """The same uuid in two projects is two events."""
    async with talking() as client:
        await client.post("/batch/", body(FIRST))
        await client.post("/batch/", body(FIRST.replace("ann", "bob"), key=OTHER))
        summary = await client.sandbox.summary()
    assert (summary.events, summary.conflicts) == (2, 0)


@cases("uuid", [..., None, "", "no uuid"])
async def test_an_event_without_a_uuid_is_always_new(uuid: Any) -> None:
    """The service gives it one, a different one each time, so it can't be de-duplicated."""
    async with talking(SandboxOptions()) as client:
        for _ in range(2):
            await client.post("/batch/", batch(event(uuid=uuid)))
        stored_events = await client.sandbox.events()
    assert len({one.uuid for one in stored_events}) == 2


def stored(number: int, version: int) -> IngestedEvent:
    """A version of one of a few events."""
    uuid = f"0190a0a0-1111-7222-8333-{number:012}"
    raw = json.dumps({"uuid": uuid, "v": version}).encode()
    return IngestedEvent(0, uuid, "e", "a", None, "2026-01-01T00:00:00.000000Z", "{}", raw)


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4), max_size=8))
def test_kinds_follow_the_model(requests: list[list[tuple[int, int]]]) -> None:
    """Whatever comes in whatever order: the figures, the kinds and the listings are those of a
    plain dictionary of versions.
    """
    store = Store(None)
    versions: dict[int, set[int]] = {}
    expected: list[ArrivalKind] = []
    for request in requests:
        for number, version in request:
            seen = versions.setdefault(number, set())
            expected.append(
                ArrivalKind.DUPLICATE
                if version in seen
                else ArrivalKind.CONFLICT
                if seen
                else ArrivalKind.NEW
            )
            seen.add(version)
        events = [stored(*one) for one in request]
        store.add(
            RequestRecord(
                "2026-01-01T00:00:00.000000Z",
                "/batch/",
                "",
                {},
                200,
                "",
                api_key=KEY,
                events=events,
            )
        )
    summary = store.summary()
    assert [one.kind for one in store.events(ALL, ListingPage(None))[1]] == expected
    assert astuple(summary)[1:6] == (
        len(expected),
        *[expected.count(kind) for kind in ArrivalKind],
        0,
    )
    assert store.events(EventFilter(), ListingPage(0))[0] == summary.events
    assert store.conflicts(ListingPage(0))[0] == summary.conflicts
    store.close()
