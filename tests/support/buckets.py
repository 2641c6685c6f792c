"""An object store for tests, as a process of its own: what it leaves open is no test's. A folder's
`conftest.py` imports the fixtures.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any, Final
from urllib.request import Request, urlopen

import obstore
import pytest
from obstore.store import MemoryStore, S3Store

ACCESS_KEY: Final = "AKIAEXPORTEXAMPLE01"
SECRET: Final = "wJalrXUtnFEMIEXPORTEXAMPLEKEY"
_buckets: Final = count()


async def _begin() -> None:
    await obstore.put_async(MemoryStore(), "x", b"1")


# its runtimes have files of their own, for the whole process: opened before any test
obstore.list(MemoryStore()).collect()
asyncio.run(_begin())
_SERVER: Final = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel("ERROR")
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass
class Bucket:
    """An empty bucket."""

    endpoint: str
    name: str = field(default_factory=lambda: f"exports-{os.getpid()}-{next(_buckets)}")

    def config(self, **changes: Any) -> dict[str, Any]:
        """The config of a destination that is this bucket."""
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET}
        return {
            "bucket_name": self.name,
            "region": "eu-west-1",
            "endpoint_url": self.endpoint,
            **keys,
            **changes,
        }

    def contents(self) -> dict[str, bytes]:
        """The objects, by their keys."""
        store = self._store()
        keys = sorted(meta["path"] for metas in obstore.list(store) for meta in metas)
        return {key: bytes(obstore.get(store, key).bytes()) for key in keys}

    def make(self) -> Bucket:
        """Create it at the store."""
        urlopen(Request(f"{self.endpoint}/{self.name}", method="PUT")).close()
        return self

    def _store(self) -> S3Store:
        return S3Store(self.name, endpoint=self.endpoint, **self._access())

    def _access(self) -> dict[str, Any]:
        client = {
            "allow_http": True,
            "pool_max_idle_per_host": "0",
            "timeout": timedelta(seconds=30),
        }
        return {
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET,
            "client_options": client,
        }


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """A server; its address."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()


@pytest.fixture
def bucket(object_store: str) -> Bucket:
    """A new bucket."""
    return Bucket(object_store).make()
