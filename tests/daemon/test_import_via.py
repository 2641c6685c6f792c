"""An import through a running daemon: a real listener, a real pipeline behind it, and a service
that isn't always there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from forwarder.config.settings import Settings
from forwarder.core.clock import SystemClock
from forwarder.daemon.imports import ImportRun
from forwarder.sources.imports.format import ChosenFormat
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.job import ImportRequest
from tests.daemon.imports import line, uuid_of, write
from tests.support.upstream import Answer, Request, Upstream, plain
from tests.support.whole import KEY, Whole

NATIVE = ChosenFormat("native", {}, lambda _: NativeConverter("oldest"), ("timestamp",))


def days_of(request: Request) -> set[str]:
    """The UTC days of a request's events."""
    return {str(event["timestamp"])[:10] for event in request.events}


@pytest.mark.slow
async def test_all_arrives_though_the_daemon_says_503_meanwhile(tmp_path: Path) -> None:
    """It waits for the service longer than the daemon does, and is asked to come again: nothing is
    lost or changed, and no two days meet in a request that the daemon joins.
    """
    path = write(
        tmp_path / "a.jsonl", [line(n, day=n // 25, person=f"p{n % 9}") for n in range(100)]
    )
    delivered_uuids: list[str] = []
    requests = 0

    def answer(request: Request) -> Answer:
        nonlocal requests
        requests += 1
        if requests % 3 == 1 and requests < 12:
            return plain(503, "later", retry_after="1")
        delivered_uuids.extend(event["uuid"] for event in request.events)
        return plain(200)

    async with (
        Upstream(answer) as upstream,
        Whole(upstream.url, SystemClock(), buffer={"ack_timeout": "300ms"}) as daemon,
    ):
        settings = Settings.parse(
            {
                "upstream": {"url": upstream.url},
                "batch": {"max_events": 5},
                "delivery": {"retry": {"initial": "50ms", "max": "200ms"}},
            }
        )
        url = f"http://{daemon.address}"
        wanted = ImportRequest(
            NATIVE, (str(path),), settings, KEY, tmp_path / "state", via=url, rate=None
        )
        it = ImportRun(wanted, SystemClock())
        try:
            await it.check_key()
            manifest = await it.run(lambda _: None)
        finally:
            it.close()
    assert manifest.complete
    assert manifest.books.delivered == 100
    # what was on its way when the daemon gave up comes twice, the same
    assert set(delivered_uuids) == {uuid_of(n) for n in range(100)}
    assert all(len(days_of(request)) == 1 for request in upstream.requests)
    assert all(request.json["historical_migration"] for request in upstream.requests)
    same: dict[str, bytes] = {}
    for event in [event for request in upstream.requests for event in request.events]:
        assert same.setdefault(event["uuid"], _text(event)) == _text(event)
        assert "$ip" not in event["properties"]


def _text(event: dict[str, Any]) -> bytes:
    return msgspec.json.encode(event)
