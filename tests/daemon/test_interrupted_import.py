"""State folders that version 1 of the formats on disk left behind: an import that was killed
midway is resumed, not started again.

`interrupted/` holds what was there after a SIGKILL: the source, both state folders, and the events
that had been sent.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import tarfile
import urllib.request
from pathlib import Path
from typing import Final

import pytest
import uvloop

from tests.end_to_end.importing import RunningSandbox, manifest_of, sandbox
from tests.support.commands import LIMIT, invoke

INTERRUPTED: Final = Path(__file__).parent / "interrupted"
KEY: Final = "phc_imports_of_an_older_version"
SOURCE: Final = "/tmp/old-import/events.jsonl.gz"
UPSTREAM: Final = "http://127.0.0.1:8397"
"""What the source and the service were called there."""
RECORDS: Final = 365
REASONS: Final = {"illegal_distinct_id", "undecodable", "missing_timestamp"}
REFUSED: Final = {
    "unsorted": {"undecodable": 1, "missing_timestamp": 1},
    "sorted": {"illegal_distinct_id": 1, "undecodable": 1, "missing_timestamp": 1},
}
"""An event of an id that many share was refused by the older version: what had been sorted keeps
that, what had yet to be read is sent.
"""


@pytest.fixture(scope="module", autouse=True)
def first_loop() -> None:
    """libuv keeps a pipe of its own from the first loop on."""
    uvloop.run(asyncio.sleep(0))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["unsorted", "sorted"])
def test_an_interrupted_import_of_an_older_version_is_resumed_and_verified(
    tmp_path: Path, order: str
) -> None:
    """The counts continue from the old checkpoint, what was delivered is not sent again, and the
    service has every event once.
    """
    state = tmp_path / "state"
    source = tmp_path / "events.jsonl.gz"
    source.write_bytes((INTERRUPTED / source.name).read_bytes())
    with sandbox() as service:
        settled = unpack(order, state, source, service)
        sent = send_again(order, service)
        options = ["--sort"] * (order == "sorted") + [
            "--accept",
            "illegal-merges",
            "--accept",
            "many-refused",
            "--rate",
            "unlimited",
            "--yes",
        ]
        target = ("--upstream", service.url, "--api-key", KEY, "--state", str(state))
        done = invoke("import", "native", str(source), *target, *options)
        manifest = manifest_of(state)
        events, repeats, conflicts = service.counts(manifest.job.id)
        verified = invoke("import", "verify", "--state", str(state), "--sandbox", service.url)

    assert done.code == 1, done.out + done.err  # some records are refused
    books = manifest.books
    assert manifest.complete
    refused = REFUSED[order]
    assert (books.read, books.refused, books.repeats, books.difference) == (RECORDS, refused, 1, 0)
    assert books.delivered == manifest.events == events == RECORDS - len(refused) - 1
    assert (repeats, conflicts) == (sent - settled, 0), (
        "only what was in flight was sent again, with the same bytes"
    )
    assert verified.code == 0, verified.out + verified.err
    letters = invoke("dead-letters", "ls", "--path", str(state), "--output", "json")
    assert {letter["reason"] for letter in json.loads(letters.out)["results"]} == REASONS, (
        letters.out
    )


def unpack(order: str, state: Path, source: Path, service: RunningSandbox) -> int:
    """Put a state folder in its place, with today's names of source and service; how many records
    its checkpoint counts as delivered.
    """
    with tarfile.open(INTERRUPTED / f"{order}.tar.gz") as archive:
        archive.extractall(state, filter="data")
    state.chmod(0o700)
    delivered = 0
    for name, content in (("checkpoint.json", "checkpoint"), ("sorted.json", "sorted")):
        if (state / name).exists():
            saved = json.loads((state / name).read_bytes())[content]
            body = json.dumps(saved, separators=(",", ":"), ensure_ascii=False)
            body = body.replace(SOURCE, str(source)).replace(UPSTREAM, service.url)
            digest = hashlib.sha256(body.encode()).hexdigest()
            (state / name).write_text(f'{{"version":1,"sha256":"{digest}","{content}":{body}}}\n')
            delivered = (
                sum(file["books"]["delivered"] for file in saved["files"])
                if content == "checkpoint"
                else delivered
            )
    return delivered


def send_again(order: str, service: RunningSandbox) -> int:
    """Give the service what it was sent before; how many events."""
    with gzip.open(INTERRUPTED / f"{order}-sent.jsonl.gz") as file:
        events = file.read().splitlines()
    body = b'{"api_key":"%b","historical_migration":true,"batch":[%b]}' % (
        KEY.encode(),
        b",".join(events),
    )
    request = urllib.request.Request(
        f"{service.url}/batch/", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        assert answer.status == 200
    return len(events)
