"""`POST /i/v0/ai`: an event of a language model as a form of several parts."""

from __future__ import annotations

import gzip
import json
from typing import Any

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import KEY, SandboxClient, SandboxReply, talking
from tests.support.cases import cases

EVENT = {"event": "$ai_generation", "distinct_id": "ann"}
PROPERTIES = '{"$ai_model": "m", "big": 12345678901234567890123}'


def form(**parts: Any) -> bytes:
    """A form of these parts: bytes and text as they are, anything else as JSON. `__` in a name is
    a point.
    """
    pieces = []
    for name, content in parts.items():
        data = (
            content
            if isinstance(content, bytes)
            else (content if isinstance(content, str) else json.dumps(content)).encode()
        )
        head = (
            f'--B\r\nContent-Disposition: form-data; name="{name.replace("__", ".")}"\r\n'
            "Content-Type: application/json\r\n\r\n"
        )
        pieces.append(head.encode() + data + b"\r\n")
    return b"".join(pieces) + b"--B--\r\n"


async def send(client: SandboxClient, body: bytes, **headers: str) -> SandboxReply:
    """Send a form."""
    usual = {"Content_Type": "multipart/form-data; boundary=B", "Authorization": f"Bearer {KEY}"}
    return await client.post("/i/v0/ai/", body, **{**usual, **headers})


async def test_an_event_in_parts() -> None:
    """The event gets the properties of the second part, as they were sent; the others are counted
    and not kept.
    """
    async with talking() as client:
        content = form(
            event=EVENT, event__properties=PROPERTIES, event__properties__large=b"\x00\xff" * 500
        )
        for body, headers in (
            (content, {}),
            (gzip.compress(content), {"Content_Encoding": "gzip"}),
        ):
            reply = await send(client, body, **headers)
            assert reply.status == 200
            parts = [(part["name"], part["length"]) for part in reply.json["accepted_parts"]]
            assert parts == [
                ("event", len(json.dumps(EVENT))),
                ("event.properties", len(PROPERTIES)),
                ("event.properties.large", 1000),
            ]
        stored_events = await client.sandbox.events()
        assert [
            (one.event, one.distinct_id, one.api_key, one.properties) for one in stored_events
        ] == [("$ai_generation", "ann", KEY, PROPERTIES)] * 2


async def test_properties_in_the_event() -> None:
    """Without a second part the event has its own properties, or none."""
    async with talking() as client:
        for event in ({**EVENT, "properties": {"a": 1}}, EVENT):
            assert (await send(client, form(event=event))).status == 200
        assert [one.properties for one in await client.sandbox.events()] == ['{"a": 1}', "{}"]


@cases(
    ("body", "headers", "status"),
    [
        (form(event__properties=PROPERTIES, event=EVENT), {}, 400),
        (form(event=EVENT, x=1) + form(x=2), {}, 200),
        (form(event=EVENT).replace(b"--B--\r\n", form(event=EVENT)), {}, 400),
        (form(event={**EVENT, "properties": {}}, event__properties=PROPERTIES), {}, 400),
        (form(event="[1]"), {}, 400),
        (form(event=b"\xff"), {}, 400),
        (form(event=EVENT), {"Content_Type": "application/json"}, 400),
        (form(event=EVENT), {"Content_Type": "multipart/form-data"}, 400),
        (form(event=EVENT), {"Content_Encoding": "gzip"}, 400),
        (b"", {}, 400),
        (form(event=EVENT), {"Authorization": "Basic x"}, 401),
        (form(event=EVENT), {"Authorization": "Bearer phc_unknown"}, 401),
    ],
)
async def test_what_is_refused(body: bytes, headers: dict[str, str], status: int) -> None:
    """A form that isn't one, has no event first, or a part twice, is 400; a key that isn't there
    401; what follows the end is nothing.
    """
    async with talking(SandboxOptions(api_keys=frozenset({KEY}))) as client:
        assert (await send(client, body, **headers)).status == status
        assert (await client.sandbox.summary()).events == (1 if status == 200 else 0)
