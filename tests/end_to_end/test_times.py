"""Times as senders write them: what the service reads leaves byte for byte, what only we read as
RFC 3339, and what is not a time as that of receipt.
"""

from __future__ import annotations

import json
from typing import Final

import pytest

from tests.support.clock import MIDNIGHT, FakeClock
from tests.support.listening import post
from tests.support.upstream import Upstream
from tests.support.whole import KEY, Whole

RECEIPT: Final = "2026-01-01T00:00:00.000Z"
KEPT: Final = (
    "2023-03-16T20:53:20Z",
    "2023-03-16T20:53:20+03",
    "2023-03-16T20:53:60Z",
    "2023-03-16 20:53:20 UTC",
    "2023-03-16 08:53:20 PM",
    "2023/03/16 20:53:20",
    "2023-05-27 22:00 CEST",
    "03/16/2023 8:53 PM",
    "2023.03.16",
    "2023-03-16",
    "1679000000",
    "1679000000000",
    "May 27, 2023 10:00 pm",
    "May 26, 2021, 12:49 AM PDT",
    "14 May 2019 19:11:40.164",
    "Thu, 16 Mar 2023 20:53:20 GMT",
)
WRITTEN: Final = {
    "20230316T205320Z": "2023-03-16T20:53:20.000Z",
    " 2023-03-16T20:53:20Z": "2023-03-16T20:53:20.000Z",
    "2023-W11-4": "2023-03-16T00:00:00.000Z",
    "Thu Mar 16 2023 20:53:20 GMT+0200 (CEST)": "2023-03-16T18:53:20.000Z",
    "Thu, 16 Mar 2023 20:53:20 UTC": "2023-03-16T20:53:20.000Z",
}
NO_TIMES: Final = ("soon", "", "Thu, 16 Mar 2023 20:53:20 CEST", "2023-02-30T00:00:00Z")
EXPECTED: Final = {
    **{text: text for text in KEPT},
    **WRITTEN,
    **dict.fromkeys(NO_TIMES, RECEIPT),
}


def event(text: str, number: int) -> dict[str, object]:
    """One with that time."""
    return {"event": "e", "distinct_id": "u", "timestamp": text, "properties": {"n": number}}


@pytest.mark.parametrize("way", ["batch", "alone"])
async def test_each_form_leaves_as_it_should(way: str) -> None:
    """In a batch, and each by itself."""
    clock = FakeClock()
    assert clock.now() == MIDNIGHT
    events = [event(text, number) for number, text in enumerate(EXPECTED)]
    path, bodies = (
        ("/batch/", [{"api_key": KEY, "batch": events}])
        if way == "batch"
        else ("/e/", [{"api_key": KEY, **fields} for fields in events])
    )
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        for body in bodies:
            assert (await whole.send(post(path, json.dumps(body).encode()))).status == 200
        await whole.emptied()
    arrived = [arrival for sent in upstream.requests for arrival in sent.events]
    came = {arrival["properties"]["n"]: arrival["timestamp"] for arrival in arrived}
    assert [came[number] for number in range(len(EXPECTED))] == list(EXPECTED.values())


async def test_a_clock_that_is_corrected_moves_what_the_service_reads() -> None:
    """By as much as it moves any time; nothing is invented for what is none."""
    clock = FakeClock()
    texts = ("2023-03-16 08:53:20 PM", "May 27, 2023 10:00 pm", "2023/05/27 22:00:00", "soon")
    body = {
        "api_key": KEY,
        "sent_at": "2026-01-01T01:00:00Z",
        "batch": [event(text, number) for number, text in enumerate(texts)],
    }
    async with Upstream() as upstream, Whole(upstream.url, clock) as whole:
        assert (await whole.send(post("/batch/", json.dumps(body).encode()))).status == 200
        await whole.emptied()
    assert [arrival["timestamp"] for sent in upstream.requests for arrival in sent.events] == [
        "2023-03-16T19:53:20.000Z",
        "2023-05-27T21:00:00.000Z",
        "2023-05-27T21:00:00.000Z",
        RECEIPT,
    ]
