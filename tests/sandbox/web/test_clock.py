"""`/sandbox/clock`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forwarder.sandbox import SandboxOptions
from tests.sandbox.client import batch, event, talking
from tests.support.cases import cases
from tests.support.clock import MIDNIGHT

OPTIONS = SandboxOptions(now=lambda: MIDNIGHT)


@cases(
    ("path", "body", "now"),
    [
        ("", {"advance": "1h"}, "2026-01-01T01:00:00.000000Z"),
        ("", {"advance": 1.5, "now": None}, "2026-01-01T00:00:01.500000Z"),
        ("?settle=true", {"advance": "90"}, "2026-01-01T00:01:30.000000Z"),
        ("", {"now": "2026-01-02T00:00:00+01:00", "settle": True}, "2026-01-01T23:00:00.000000Z"),
        ("?now=2026-01-02T00:00:00+01:00", b"", "2026-01-01T23:00:00.000000Z"),
        ("?advance=1d&settle=1", b"", "2026-01-02T00:00:00.000000Z"),
        ("", b"", "2026-01-01T00:00:00.000000Z"),
    ],
)
async def test_setting_the_clock_moves_the_sandboxs_time(path: str, body: Any, now: str) -> None:
    """Events are received at the new time."""
    async with talking(OPTIONS) as client:
        moved = await client.post(f"/sandbox/clock{path}", body)
        assert (moved.status, moved.json["now"]) == (200, now)
        assert await client.get("/sandbox/clock") == moved.json
        await client.post("/batch/", batch(event()))
        assert [stored_event.timestamp for stored_event in await client.sandbox.events()] == [now]


@cases(
    ("body", "field"),
    [
        ({"advance": "-1h"}, "advance"),
        ({"advance": -1}, "advance"),
        ({"advance": True}, "advance"),
        ({"advance": "tomorrow"}, "advance"),
        ({"advance": "nan"}, "advance"),
        ({"advance": 1e300}, "advance"),
        ({"advance": 10**400}, "advance"),
        ({"now": "2025-12-31T23:59:59Z"}, "now"),
        ({"now": "9999-12-31T23:59:59Z"}, "now"),
        ({"now": 1}, "now"),
        ({"advance": "1h", "now": "2026-01-02T00:00:00Z"}, "now"),
        ({"advanced": "1h"}, "advanced"),
        ({"setle": True}, "setle"),
        ([], None),
        (b"{", None),
        (b" " * 20_000, None),
    ],
)
async def test_invalid_times_leave_the_clock(body: Any, field: str | None) -> None:
    """With the field at fault; the clock stays."""
    async with talking(OPTIONS) as client:
        refused = await client.post("/sandbox/clock", body)
        assert (refused.status, refused.json["attr"]) == (400, field)
        assert await client.get("/sandbox/clock") == {
            "now": "2026-01-01T00:00:00.000000Z",
            "offset": 0,
        }


async def test_pages_of_other_sites_cannot_move_it() -> None:
    """As they can delete nothing."""
    async with talking(OPTIONS) as client:
        answer = await client.post(
            "/sandbox/clock", {"advance": "1h"}, Origin="https://elsewhere.example"
        )
        assert answer.status == 403
        assert (await client.get("/sandbox/clock"))["offset"] == 0


async def test_the_clock_survives_a_restart(tmp_path: Path) -> None:
    """With a database: times never go back, and schedules continue."""
    options = replace(OPTIONS, database=tmp_path / "x.db")
    for moved in (3600, 7200):
        async with talking(options) as client:
            assert (await client.post("/sandbox/clock", {"advance": "1h"})).json["offset"] == moved
