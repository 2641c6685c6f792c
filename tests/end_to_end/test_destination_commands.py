"""The commands beside a daemon with two destinations, two workers and disk buffers: each says of
which destination it speaks, and what it proposes can be typed as it stands.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp

from forwarder.telemetry.labels import key_label
from tests.support.commands import Finished, Running, forwarder, invoked, running
from tests.support.upstream import OK, UNAUTHORIZED, Answer, Request, Upstream, plain

SHOP: Final = "phc_us_shop1234567"
SHOP_EU: Final = "phc_eu_shop7654321"
NOWHERE: Final = "http://127.0.0.1:9"


class Installation:
    """A daemon that runs, and its configuration."""

    def __init__(self, file: Path, ingestion: str, process: Running) -> None:
        self.file = file
        self.ingestion = ingestion
        self.process = process

    async def command(self, *args: str) -> Finished:
        """What a user gets who types this with `--config`."""
        return await invoked(*args, "--config", str(self.file))

    async def post(self, *events: dict[str, Any]) -> None:
        """Send events of the shop."""
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                f"http://{self.ingestion}/batch/", json={"api_key": SHOP, "batch": events}
            ) as response,
        ):
            assert response.status == 200


@contextlib.asynccontextmanager
async def installed(folder: Path, us: str, eu: str, **more: Any) -> AsyncIterator[Installation]:
    """`forwarder run` with the destinations `us` and `eu`, which get all events of the shop."""
    file = folder / "forwarder.yaml"
    config: dict[str, Any] = {
        "upstreams": {
            "us": {"url": us, "verify_keys": False},
            "eu": {"url": eu, "verify_keys": False, "api_keys": {SHOP: SHOP_EU}},
        },
        "routes": [{"match": {"api_key": SHOP}, "to": ["us", "eu"]}],
        "workers": 2,
        "buffer": {"kind": "disk", "path": str(folder / "state"), "max_bytes": "64MiB"},
        "sources": {"http": {"listen": "127.0.0.1:0", "api_keys": [SHOP]}},
        "admin": {"listen": "127.0.0.1:0"},
        "batch": {"max_age": "20ms"},
        "delivery": {"retry": {"initial": "50ms", "max": "200ms"}},
        "shutdown": {"drain_timeout": "100ms"},
        "log": {"format": "json"},
        **more,
    }
    file.write_text(json.dumps(config))
    async with running("run", "--config", str(file)) as daemon:
        listening = json.loads(await daemon.line('"event": "listening"'))
        config["sources"]["http"]["listen"] = listening["ingestion"][0]
        config["admin"]["listen"] = listening["admin"]
        file.write_text(json.dumps(config))
        yield Installation(file, listening["ingestion"][0], daemon)


async def test_send_follows_the_event_to_each_destination(tmp_path: Path) -> None:
    """It is delivered once both have it; while one is down, that one is named."""
    answers = [OK]
    async with (
        Upstream() as us,
        Upstream(lambda _: answers[0]) as eu,
        installed(tmp_path, us.url, eu.url) as daemon,
    ):
        done = await daemon.command("send", "signed up")
        assert (done.code, done.err) == (0, "")
        assert {line.split(" after")[0] for line in done.out.splitlines()[-2:]} == {
            "delivered  to us",
            "delivered  to eu",
        }
        assert us.delivered == eu.delivered == ["signed up"]
        answers[0] = plain(503)
        done = await daemon.command("send", "signed up", "--timeout", "3s", "--output", "json")
        assert done.code == 1
        result = json.loads(done.out)
        assert result["destinations"] == {"us": "delivered", "eu": "buffered"}
        assert result["where"] == "buffered"
        assert "the event wasn't delivered to eu within 3 s" in done.err
        result = await daemon.command("explain", result["uuid"])
        assert result.code == 0
        assert {
            line.partition(", lane")[0].partition(", for ")[2]
            for line in result.out.splitlines()
            if not line.startswith(" ")
        } == {"eu"}


async def test_letters_are_named_as_they_can_be_shown(tmp_path: Path) -> None:
    """`explain` proposes commands that name one letter; a uuid of two is one JSON document."""
    uuid = str(uuid4())
    async with (
        Upstream() as us,
        Upstream() as eu,
        installed(tmp_path, us.url, eu.url) as daemon,
    ):
        await daemon.post({"event": f"of {SHOP}", "uuid": uuid, "distinct_id": ""})
        explained = await daemon.command("explain", uuid)
        assert explained.code == 0
        lines = [line for line in explained.out.splitlines() if not line.startswith(" ")]
        assert sorted(re.findall(r"^dead letter (\S+), for (\S+), lane", explained.out, re.M)) == [
            (f"{worker}/1", worker.partition("-")[2])
            for worker in sorted(re.findall(r"^dead letter (\S+)/1", explained.out, re.M))
        ], lines
        proposals = re.findall(r"`forwarder (dead-letters show .*)` shows it", explained.out)
        assert len(proposals) == 2
        for proposal in proposals:
            shown = await invoked(*shlex.split(proposal), "--output", "json")
            assert (shown.code, json.loads(shown.out)["uuid"]) == (0, uuid)
        both = await daemon.command("dead-letters", "show", uuid, "--output", "json")
        document = json.loads(both.out)
        assert document["count"] == 2
        assert sorted(Path(letter["file"]).parent.name[-2:] for letter in document["results"]) == [
            "eu",
            "us",
        ]
        at_eu = await daemon.command("dead-letters", "ls", "--lane", f"{key_label(SHOP_EU)}@eu")
        assert "1 dead letter" in at_eu.out.splitlines()[-1]
        at_us = await daemon.command("dead-letters", "ls", "--lane", f"{key_label(SHOP_EU)}@us")
        assert "No dead letters." in at_us.out
        raw = await daemon.command("dead-letters", "show", uuid, "--raw")
        assert (raw.code, raw.out) == (2, "")
        assert "2 dead letters have this uuid" in raw.err
        elsewhere = await invoked("explain", uuid, "--path", str(tmp_path / "state"))
        for proposal in re.findall(r"`forwarder (.*)` shows it", elsewhere.out):
            assert uuid in (await invoked(*shlex.split(proposal))).out


async def test_no_command_prints_a_key(tmp_path: Path) -> None:
    """Neither the sender's nor the destination's, wherever they stand in an event."""
    uuid = str(uuid4())
    async with (
        Upstream() as us,
        Upstream() as eu,
        installed(tmp_path, us.url, eu.url) as daemon,
    ):
        await daemon.post(
            {"event": f"of {SHOP}", "uuid": uuid, "distinct_id": "", "properties": {SHOP_EU: SHOP}},
            {"event": "x", "distinct_id": f" {SHOP_EU}", "uuid": "\ud800"},
        )
        for command in (
            ("dead-letters", "ls"),
            ("dead-letters", "ls", "--output", "json"),
            ("dead-letters", "show", uuid),
            ("dead-letters", "show", uuid, "--output", "json"),
            ("dead-letters", "replay", "--dry-run"),
            ("explain", uuid),
            ("status",),
            ("status", "--output", "json"),
            ("audit",),
            ("buffer", "ls"),
            ("config", "show"),
            ("config", "show", "--output", "json"),
        ):
            done = await daemon.command(*command)
            assert done.out, command
            assert not {SHOP, SHOP_EU} & set(re.findall(r"phc_\w+", done.out + done.err)), command


async def left_behind(folder: Path) -> Installation:
    """A daemon that ended while no service answered; it left three events for each."""
    async with installed(folder, NOWHERE, NOWHERE) as daemon:
        for number in range(3):
            await daemon.post({"event": f"e{number}", "distinct_id": "a", "uuid": str(uuid4())})
        daemon.process.send(signal.SIGTERM)
        await daemon.process.ended()
    return daemon


async def test_a_buffer_of_any_destination_is_drained_to_a_named_service(tmp_path: Path) -> None:
    """With the configuration and without it, of all workers; --upstream alone, where there are
    several destinations, asks whose events are meant.
    """
    daemon = await left_behind(tmp_path)
    state = str(tmp_path / "state")
    async with Upstream() as us, Upstream() as eu:
        unclear = await daemon.command("buffer", "drain", "--upstream", us.url)
        assert (unclear.code, us.requests) == (2, [])
        assert "buffers of several destinations (eu, us)" in unclear.err
        options = ("--destination", "eu", "--upstream", eu.url)
        done = await daemon.command("buffer", "drain", *options)
        assert (done.code, done.err) == (0, "")
        assert sorted(eu.delivered) == ["e0", "e1", "e2"]
        assert {request.api_key for request in eu.requests} == {SHOP_EU}
        assert us.requests == []
        exported = await invoked("buffer", "export", state, "--destination", "us")
        assert len(exported.out.splitlines()) == 3
        done = await invoked("buffer", "drain", state, "--destination", "us", "--upstream", us.url)
        assert (done.code, done.err) == (0, "")
        assert sorted(us.delivered) == ["e0", "e1", "e2"]
    nothing = await daemon.command("buffer", "drain", "--destination", "asia")
    assert nothing.code == 2
    assert "There are buffers for eu, us." in nothing.err


async def test_a_destination_that_is_down_keeps_no_other_from_being_drained(
    tmp_path: Path,
) -> None:
    """Its events stay, which the exit code says."""
    daemon = await left_behind(tmp_path)
    async with Upstream() as eu:
        config = json.loads(daemon.file.read_text())
        config["upstreams"]["eu"]["url"] = eu.url
        daemon.file.write_text(json.dumps(config))
        done = await daemon.command("buffer", "drain")
        assert done.code == 3
        assert "127.0.0.1:9 can't be reached" in done.err
        assert sorted(eu.delivered) == ["e0", "e1", "e2"]
    assert "3 events in total" in (await daemon.command("buffer", "ls")).out


def knowing(key: str) -> Callable[[Request], Answer]:
    """What a service answers to `/decide` that has this project alone."""
    return lambda request: OK if request.json.get("api_key") == key else UNAUTHORIZED


async def test_calls_and_imports_use_the_key_of_their_destination(tmp_path: Path) -> None:
    """With `passthrough.destination` flags continue for senders that know the old key; an import
    reaches each service directly, and both through the daemon.
    """
    source = tmp_path / "export.jsonl"
    source.write_text(
        "".join(
            json.dumps(
                {
                    "uuid": str(uuid4()),
                    "event": f"e{number}",
                    "distinct_id": "a",
                    "timestamp": f"2026-01-0{number + 1}T00:00:00Z",
                }
            )
            + "\n"
            for number in range(3)
        )
    )
    async with (
        Upstream(decide=knowing(SHOP)) as us,
        Upstream(decide=knowing(SHOP_EU)) as eu,
        installed(
            tmp_path, us.url, eu.url, passthrough={"destination": "eu", "connect_timeout": "10s"}
        ) as daemon,
    ):
        async with (
            aiohttp.ClientSession() as client,
            client.post(
                f"http://{daemon.ingestion}/decide/?v=3",
                json={"api_key": SHOP, "distinct_id": "a"},
            ) as response,
        ):
            assert response.status == 200
        assert us.decides == []
        for number, way in enumerate(
            (
                ("--upstream", us.url),
                ("--upstream", eu.url),
                ("--via", f"http://{daemon.ingestion}"),
            )
        ):
            done = await forwarder(
                *("import", "native", str(source), "--api-key", SHOP, "--yes", *way),
                *("--state", str(tmp_path / f"import-{number}"), "--config", str(daemon.file)),
            )
            assert done.code == 0, done.err
        await eu.until(lambda: len(eu.delivered) == 6)
        await us.until(lambda: len(us.delivered) == 6)
        assert {request.api_key for request in us.requests} == {SHOP}
        assert {request.api_key for request in eu.requests} == {SHOP_EU}
