"""`forwarder sandbox`, as a process."""

from __future__ import annotations

import signal
from pathlib import Path

import aiohttp
import pytest

from tests.sandbox.client import KEY, batch, event, names
from tests.support.cases import cases
from tests.support.commands import invoke, running


@pytest.mark.slow
async def test_it_serves_until_a_signal(tmp_path: Path) -> None:
    """It says where it listens, knows its keys and its mode, keeps its file, and ends with 0 at
    SIGTERM.
    """
    path = tmp_path / "events.db"
    async with running(
        "sandbox", "--listen", "127.0.0.1:0", "--database", str(path), "--strict", "--api-key", KEY
    ) as command:
        url = (await command.line("listening on")).split()[-1]
        async with aiohttp.ClientSession() as session:
            for body, status in (
                (batch(event()), 200),
                (batch(event(event="")), 400),
                ({"api_key": "x"}, 400),
            ):
                async with session.post(f"{url}/batch/", json=body) as response:
                    assert response.status == status
        command.send(signal.SIGTERM)
        assert await command.ended() == 0
    assert "The management API has no organizations yet" in "\n".join(command.lines)
    assert KEY not in "\n".join(command.lines)
    assert "Traceback" not in "\n".join(command.lines)
    assert names(tmp_path) == ["events.db"]


@pytest.mark.slow
async def test_it_begins_with_a_seed() -> None:
    """What the shipped example holds is there at once, and its project exists; its organization is
    counted, and no key is shown. It ends with 0 at Ctrl-C.
    """
    async with running("sandbox", "--listen", "127.0.0.1:0", "--seed", "example") as command:
        url = (await command.line("listening on")).split()[-1]
        assert "1 organization;" in await command.line("management API")
        assert "phx_" not in "\n".join(command.lines)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{url}/sandbox/persons") as response,
        ):
            assert [person["distinct_id"] for person in (await response.json())["results"]] == [
                "ann@example.com",
                "bob@example.com",
            ]
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/batch/", json=batch(event())) as response,
        ):
            assert response.status == 401
        command.send(signal.SIGINT)
        assert await command.ended() == 0


@cases(
    ("args", "words"),
    [
        (("--listen", "nowhere"), "nowhere"),
        (("--listen", "192.0.2.1:1"), "192.0.2.1:1"),
        (("--database", "/nonexistent/events.db"), "/nonexistent/events.db"),
        (("--api-key", "phx_personal_secret"), "personal key"),
        (("--seed", "/nonexistent/seed.yaml"), "/nonexistent/seed.yaml"),
        (("--dns", "/nonexistent/dns.yaml"), "/nonexistent/dns.yaml"),
        (("--geoip", "/nonexistent/places.mmdb"), "/nonexistent/places.mmdb"),
    ],
)
def test_wrong_usage_is_said(args: tuple[str, ...], words: str) -> None:
    """What can't be is exit code 2 and a sentence on stderr, without a traceback or the key."""
    finished = invoke("sandbox", *args)
    assert finished.code == 2
    assert words in finished.err
    assert "Traceback" not in finished.err
    assert "personal_secret" not in finished.err
