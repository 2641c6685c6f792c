"""Project keys with names: what people see of their lanes, live and in files."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import aiohttp

from forwarder.telemetry.labels import key_label
from tests.support.commands import Finished, Running, invoked, running
from tests.support.upstream import OK, UNAUTHORIZED, Upstream

SHOP: Final = "phc_theshopskey0001"
BLOG: Final = "phc_theblogskey0001"
LABELS: Final = (key_label(SHOP), key_label(BLOG))


class NamedDaemon:
    """A daemon that runs, with its configuration."""

    def __init__(self, file: Path, process: Running, config: dict[str, Any]) -> None:
        self._file = file
        self.process = process
        self._config = config
        self.admin = config["admin"]["listen"]

    async def command(self, *args: str) -> Finished:
        """What a user gets who types this with `--config`."""
        return await invoked(*args, "--config", str(self._file))

    async def post(self, key: str, *events: dict[str, Any], **more: Any) -> None:
        """Send events with this key."""
        url = f"http://{self._config['sources']['http']['listen']}/batch/"
        async with (
            aiohttp.ClientSession() as client,
            client.post(url, json={"api_key": key, "batch": events, **more}) as response,
        ):
            assert response.status == 200

    async def get(self, path: str, accept: str = "*/*") -> str:
        """What the admin address answers."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://{self.admin}{path}", headers={"Accept": accept}) as response,
        ):
            return await response.text()

    async def rename(self, keys: object) -> None:
        """Give keys other names, as an operator does."""
        self._config["sources"]["http"]["api_keys"] = keys
        self._file.write_text(json.dumps(self._config))
        self.process.send(signal.SIGHUP)
        await self.process.line('"event": "configuration read again"')


@contextlib.asynccontextmanager
async def named(folder: Path, url: str) -> AsyncIterator[NamedDaemon]:
    """`forwarder run` with names for the two keys."""
    file = folder / "forwarder.yaml"
    config: dict[str, Any] = {
        "upstream": {"url": url, "verify_keys": False},
        "buffer": {"kind": "disk", "path": str(folder / "state"), "max_bytes": "64MiB"},
        "sources": {"http": {"listen": "127.0.0.1:0", "api_keys": {"shop": SHOP, "blog": BLOG}}},
        "admin": {"listen": "127.0.0.1:0"},
        "batch": {"max_age": "20ms"},
        "shutdown": {"drain_timeout": "100ms"},
        "log": {"format": "json"},
    }
    file.write_text(json.dumps(config))
    async with running("run", "--config", str(file)) as process:
        listening = json.loads(await process.line('"event": "listening"'))
        config["sources"]["http"]["listen"] = listening["ingestion"][0]
        config["admin"]["listen"] = listening["admin"]
        file.write_text(json.dumps(config))
        yield NamedDaemon(file, process, config)


def shows(text: str, *names: str) -> bool:
    """Whether a text has these names, and the label of no lane."""
    return all(name in text for name in names) and not any(label in text for label in LABELS)


async def test_people_see_names(tmp_path: Path) -> None:
    """In every command, on the page and in the log; programs have them beside the labels."""
    uuid = str(uuid4())
    async with (
        Upstream(lambda request: UNAUTHORIZED if request.api_key == BLOG else OK) as upstream,
        named(tmp_path, upstream.url) as daemon,
    ):
        await daemon.post(SHOP, {"event": "order", "distinct_id": "a"}, {"distinct_id": "b"})
        await daemon.post(BLOG, {"event": "read", "distinct_id": "a", "uuid": uuid})
        halted = json.loads(await daemon.process.line('"event": "lane halted"'))
        assert (halted["lane"], halted["lane_name"]) == (LABELS[1], "blog")
        await upstream.until(lambda: upstream.delivered == ["order"])

        shown = await daemon.command("status")
        assert shows(shown.out, "\n  shop ", "! lane blog is halted: ")
        lanes = json.loads((await daemon.command("status", "--output", "json")).out)["lanes"]
        assert {lane["label"]: lane["name"] for lane in lanes} == dict(
            zip(LABELS, ("shop", "blog"), strict=True)
        )
        page = await daemon.get("/status", "text/html")
        assert f'<code title="{LABELS[0]}">shop</code>' in page
        assert "Lane <code>blog</code> is halted" in page
        metrics = await daemon.get("/metrics")
        assert f'lane="{LABELS[0]}"' in metrics
        assert "shop" not in metrics

        assert shows((await daemon.command("audit")).out, " shop ", " blog ")
        letters = (await daemon.command("dead-letters", "ls", "--lane", "shop")).out
        assert shows(letters, " shop ", "1 dead letter")
        assert (
            "No dead letters" in (await daemon.command("dead-letters", "ls", "--lane", "blog")).out
        )
        shown = await daemon.command("dead-letters", "ls", "--output", "json")
        (letter,) = json.loads(shown.out)["results"]
        assert (letter["lane"], letter["lane_name"]) == (LABELS[0], "shop")
        assert shows((await daemon.command("buffer", "ls")).out, " blog ")
        exported = await daemon.command("buffer", "export", "--lane", "blog")
        assert json.loads(exported.out)["api_key"] == BLOG
        explained = await daemon.command("explain", uuid)
        assert shows(explained.out, "lane blog, since ")


async def test_a_reload_changes_names(tmp_path: Path) -> None:
    """Without a restart; a key without a name has its label again."""
    async with Upstream() as upstream, named(tmp_path, upstream.url) as daemon:
        await daemon.post(SHOP, {"event": "order", "distinct_id": "a"}, historical_migration=True)
        assert shows((await daemon.command("status")).out, " shop/historical ")
        await daemon.rename({"store": SHOP, "blog": BLOG})
        assert shows((await daemon.command("status")).out, " store/historical ")
        await daemon.rename([SHOP, BLOG])
        assert f" {LABELS[0]}/historical " in (await daemon.command("status")).out
