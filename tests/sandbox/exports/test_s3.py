"""Buckets as destinations, at a store that speaks S3: objects, and every way in which
it can fail.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest
from aiohttp import web

from forwarder.sandbox.exports import s3
from forwarder.sandbox.exports.jobs import DestinationFailed, DestinationPolicy, ExportMisconfigured
from forwarder.sandbox.exports.s3 import S3Destination
from tests.sandbox.exports.test_http import service
from tests.sandbox.shipped import job
from tests.support.buckets import ACCESS_KEY, SECRET, Bucket


@pytest.fixture
def executor() -> Iterator[Executor]:
    """For what blocks."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def destination(
    config: dict[str, Any], executor: Executor, *, private: bool = True
) -> S3Destination:
    """A bucket."""
    return S3Destination(job(), config, DestinationPolicy(None, private), executor)


async def test_objects_are_written_and_replaced(bucket: Bucket, executor: Executor) -> None:
    """Below the prefix, however its slashes are written."""
    written = [
        ("/exports//hourly/", b"first"),
        ("exports/hourly", b"second"),
        ("", bytes(3_000_000)),
        (None, b"fourth"),
        ("ä b+c=%2F#?", b"fifth"),
    ]
    for prefix, content in written:
        await destination(bucket.config(prefix=prefix), executor).write("x.jsonl", content)
    assert bucket.contents() == {
        "exports/hourly/x.jsonl": b"second",
        "x.jsonl": b"fourth",
        "ä b+c=%2F#?/x.jsonl": b"fifth",
    }


async def test_variables_of_the_prefix(bucket: Bucket, executor: Executor) -> None:
    """The service's own; others stay as they are."""
    prefix = "{table}/{year}-{month}-{day}/{hour}{minute}{second}/{other}"
    await destination(bucket.config(prefix=prefix), executor).write("x", b"1")
    assert bucket.contents() == {"events/2026-01-01/010000/{other}/x": b"1"}


async def test_only_the_config_counts(
    bucket: Bucket, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment's endpoints, credentials and proxies are the operator's."""
    for name in (
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_S3_EXPRESS", "AWS_SKIP_SIGNATURE"):
        monkeypatch.setenv(name, "true")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "operators-token")
    await destination(bucket.config(), executor).write("x", b"1")
    monkeypatch.undo()
    assert bucket.contents() == {"x": b"1"}


async def test_virtual_addressing(
    bucket: Bucket, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bucket is in the host's name, and it is this name whose addresses are checked."""
    asked = list[str]()

    def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    port = bucket.endpoint.rpartition(":")[2]
    config = bucket.config(
        endpoint_url=f"http://store.example:{port}", use_virtual_style_addressing=True
    )
    with pytest.raises(
        ExportMisconfigured,
        match=f"http://{bucket.name}.store.example:{port} is at a private address",
    ):
        await destination(config, executor, private=False).write("x", b"1")
    assert asked == [f"{bucket.name}.store.example"]


async def test_a_bucket_that_is_not_there(object_store: str, executor: Executor) -> None:
    """It may be created meanwhile: an error that passes, in the service's words,
    without secrets.
    """
    said = (
        r"The bucket missing at http://127\.0\.0\.1:\d+ can't be written to: NoSuchBucket: "
        r"The specified bucket"
    )
    with pytest.raises(DestinationFailed, match=said) as raised:
        await destination(Bucket(object_store, "missing").config(), executor).write("x", b"1")
    assert not any(secret in str(raised.value) for secret in (ACCESS_KEY, SECRET))


async def test_a_store_that_is_away(executor: Executor) -> None:
    """No one listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DestinationFailed, match=f"127.0.0.1:{port} can't be reached"):
        await destination(Bucket(f"http://127.0.0.1:{port}", "b-1").config(), executor).write(
            "x", b"1"
        )


async def test_a_store_that_hangs(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections, and says nothing."""
    monkeypatch.setattr(s3, "TIMEOUT", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(DestinationFailed, match=r"didn't answer within 0\.3 seconds"),
    ):
        await destination(
            Bucket(f"http://127.0.0.1:{server.getsockname()[1]}", "b-1").config(), executor
        ).write("x", b"1")


@pytest.mark.parametrize("status", [301, 303, 307])
async def test_redirects_are_not_followed(executor: Executor, status: int) -> None:
    """They would lead to addresses that weren't checked."""
    asked = list[str]()

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status, headers={"Location": "/elsewhere"})

    async with service(elsewhere) as url:
        with pytest.raises(DestinationFailed, match=f"can't be written to: {status}"):
            await destination(Bucket(url, "b-1").config(), executor).write("x", b"1")
    assert asked == ["/b-1/x"]


async def test_a_private_store(bucket: Bucket, executor: Executor) -> None:
    """It isn't asked unless it may be."""
    with pytest.raises(ExportMisconfigured, match="private address"):
        await destination(bucket.config(), executor, private=False).write("x", b"1")
    assert bucket.contents() == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bucket_name": None}, "bucket_name of the destination is missing"),
        ({"bucket_name": "a/../b"}, "not the name of a bucket"),
        ({"bucket_name": 5}, "bucket_name of the destination is not text"),
        ({"region": "x.evil.example/"}, "region of the destination"),
        ({"prefix": "a/../b"}, "prefix of the destination"),
        ({"aws_access_key_id": ""}, "aws_access_key_id of the destination is missing"),
        ({"aws_secret_access_key": None}, "aws_secret_access_key of the destination is missing"),
        ({"endpoint_url": "minio:9000"}, "endpoint_url of the destination is not a URL"),
        (
            {"endpoint_url": f"http://{ACCESS_KEY}:{SECRET}@127.0.0.1:9"},
            "endpoint_url of the destination holds credentials",
        ),
    ],
)
def test_what_is_misconfigured(changes: dict[str, Any], message: str, executor: Executor) -> None:
    """Each setting by its name, and no secret."""
    with pytest.raises(ExportMisconfigured, match=message) as raised:
        destination(Bucket("http://127.0.0.1:9", "b-1").config(**changes), executor)
    assert SECRET not in str(raised.value)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, executor: Executor) -> None:
    """Says how to install it."""
    for name in ("obstore", "obstore.exceptions", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ExportMisconfigured, match=r"without obstore\. Install the extra import: "):
        destination(Bucket("http://127.0.0.1:9", "b-1").config(), executor)
