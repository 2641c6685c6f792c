"""The commands beside a daemon with two destinations, two workers and disk buffers: each says of
which destination it speaks, and what it proposes can be typed as it stands.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp

from tests.support.commands import Finished, invoked, running
from tests.support.upstream import OK, Answer, Upstream, plain

SHOP: Final = "phc_us_shop1234567"
SHOP_EU: Final = "phc_eu_shop7654321"


class Installation:
    """A daemon that runs, and its configuration."""

    def __init__(self, file: Path, ingestion: str) -> None:
        self.file = file
        self.ingestion = ingestion

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
async def installed(folder: Path, us: str, eu: str) -> AsyncIterator[Installation]:
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
    }
    file.write_text(json.dumps(config))
    async with running("run", "--config", str(file)) as daemon:
        listening = json.loads(await daemon.line('"event": "listening"'))
        config["sources"]["http"]["listen"] = listening["ingestion"][0]
        config["admin"]["listen"] = listening["admin"]
        file.write_text(json.dumps(config))
        yield Installation(file, listening["ingestion"][0])


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
        found = json.loads(done.out)
        assert found["destinations"] == {"us": "delivered", "eu": "buffered"}
        assert found["where"] == "buffered"
        assert "the event wasn't delivered to eu within 3 s" in done.err
        found = await daemon.command("explain", found["uuid"])
        assert found.code == 0
        assert {
            line.partition(", lane")[0].partition(", for ")[2]
            for line in found.out.splitlines()
            if not line.startswith(" ")
        } == {"eu"}


def refusing_bad(request: Any) -> Answer:
    """Refuses a request that holds a bad event."""
    return plain(400, "bad") if b"bad" in request.body else OK


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
        assert sorted(Path(each["file"]).parent.name[-2:] for each in document["results"]) == [
            "eu",
            "us",
        ]
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
