"""An archive as a destination: beside a service and alone, in a folder and in a bucket, and
replayed into a new project.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from forwarder.core.event import Lane
from tests.archive.rig import lines_in, lines_of
from tests.crash.imports.service import KEY
from tests.support.buckets import ACCESS_KEY, SECRET, Bucket, bucket, object_store
from tests.support.commands import Running, forwarder, invoked, running
from tests.support.waiting import eventually

__all__ = ["bucket", "object_store"]
SHOP = Lane("phc_shop_of_the_archive")
EVENTS = [
    {
        "event": "a",
        "distinct_id": "p1",
        "uuid": "00000000-0000-4000-8000-000000000001",
        "timestamp": "2026-03-01T10:00:00Z",
    },
    {
        "event": "b",
        "distinct_id": "p2",
        "uuid": "00000000-0000-4000-8000-000000000002",
        "timestamp": "2026-03-02T10:00:00.123Z",
    },
]


def body() -> bytes:
    """A request with numbers and escapes that a decoder would change."""
    first, second = (msgspec.json.encode(event)[:-1] for event in EVENTS)
    return (
        b'{"api_key":"%b","batch":[%b,"properties":{"price":1.10,"name":"\\u00e9\\/"}},%b,"pro'
        b'perties":{"$set":{"plan":"x"},"n":1E3}}]}'
    ) % (
        SHOP.api_key.encode(),
        first,
        second,
    )


def configuration(root: Path, upstreams: dict[str, Any], **more: Any) -> str:
    """A file with these destinations and a disk buffer; its path."""
    content = {
        "upstreams": upstreams,
        "buffer": {"kind": "disk", "path": str(root / "buffer")},
        "sources": {"http": {"listen": "127.0.0.1:0"}},
        "admin": {"listen": "127.0.0.1:0"},
        **more,
    }
    path = root / "forwarder.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


async def sent(daemon: Running) -> None:
    """Send the events, once the daemon listens."""
    said = msgspec.json.decode(await daemon.line('"listening"'))
    address = said["ingestion"][0] if isinstance(said["ingestion"], list) else said["ingestion"]
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"http://{address}/batch/", data=body()) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def test_an_archive_beside_a_service_is_replayed_into_a_new_project(tmp_path: Path) -> None:
    """Both have all events at once; the file, imported into another sandbox, gives the same bytes,
    and a stop leaves nothing behind.
    """
    archive = tmp_path / "archive"
    async with (
        running("sandbox", "--listen", "127.0.0.1:0") as service,
        running("sandbox", "--listen", "127.0.0.1:0") as new,
    ):
        url, other = [
            (await sandbox.line("listening on")).split()[-1] for sandbox in (service, new)
        ]
        own = {"archive": {"url": archive.as_uri(), "max_age": "1h", "partition": "hour"}}
        routes = [{"match": {"event": ["*"]}, "to": ["service", "own"]}]
        async with running(
            "run",
            "--config",
            configuration(tmp_path, {"service": {"url": url}, "own": own}, routes=routes),
        ) as daemon:
            await sent(daemon)
            daemon.send(signal.SIGTERM)  # which completes what waits
            assert await daemon.ended() == 0
        [path] = archive.rglob("*.jsonl.zst")
        assert path.parent.name.startswith("hour=")
        assert lines_of(path) == split(body())
        where = (
            "--upstream",
            other,
            "--api-key",
            KEY,
            "--state",
            str(tmp_path / "import"),
            "--yes",
        )
        options = ("--person-properties", "history", "--sort", "--geoip")
        done = await forwarder("import", "native", str(archive), *where, *options)
        assert done.code == 0, done.err
        delivered = await arrived(url)
        replayed = await arrived(other)
        assert (
            [event["uuid"] for event in replayed]
            == [event["uuid"] for event in delivered]
            == [event["uuid"] for event in EVENTS]
        )
        assert [event["properties"].pop("$import_job_id") for event in replayed]
        assert [event["properties"] for event in replayed] == [
            event["properties"] for event in delivered
        ]


def split(text: bytes) -> list[bytes]:
    """The events of a request, as they are in it."""
    decoded = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return [bytes(raw) for raw in msgspec.json.decode(decoded["batch"], type=list[msgspec.Raw])]


async def arrived(url: str) -> list[dict[str, Any]]:
    """The events of a sandbox, by name."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}/sandbox/events") as answer:
        return sorted((await answer.json())["results"], key=lambda event: str(event["event"]))


async def test_an_archive_alone_is_in_a_bucket(tmp_path: Path, bucket: Bucket) -> None:
    """Without a service there are no calls to pass through; the file comes when
    its events are old enough.
    """
    store = {"endpoint": bucket.endpoint, "region": "us-east-1", "allow_http": "true"}
    own = {"archive": {"url": f"s3://{bucket.name}/events/", "max_age": "1s", "store": store}}
    env = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    async with running("run", "--config", configuration(tmp_path, {"own": own}), env=env) as daemon:
        await sent(daemon)
        await eventually(bucket.contents)
        [(name, content)] = bucket.contents().items()
        assert name.startswith("events/date=20")
        assert f"/{SHOP.api_key}-20" in name
        assert lines_in(content) == split(body())


async def test_settings_that_do_not_fit_an_archive_are_reported(tmp_path: Path) -> None:
    """It needs a disk buffer, is no service at the same time, answers no calls, and confirms no
    delivery in time.
    """
    own = {"archive": "file:///srv/events", "url": "http://127.0.0.1:1"}
    buffer = {"kind": "memory", "ack": "delivered"}
    path = configuration(tmp_path, {"own": own}, buffer=buffer, passthrough={"destination": "own"})
    checked = await invoked("config", "check", "--config", path)
    assert checked.code == 2
    for words in (
        "needs a disk buffer",
        "can't be beside archive",
        "is an archive, which answers no calls",
        "archive.max_age of own (5m)",
    ):
        assert words in checked.err
