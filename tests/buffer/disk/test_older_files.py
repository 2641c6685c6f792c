"""Files that an older version wrote are read and continued.

The archives in `files/0.1.0` were written by version 0.1.0, commit 3bab0bf31ad0, whose disk
buffer, dead letters and known keys were then opened by none but itself:

    git worktree add ../older 3bab0bf31ad0 && python3 -m venv ../older/.venv &&
    ../older/.venv/bin/pip install ../older python -m tests.buffer.disk.write_files
    ../older/.venv/bin/forwarder tests/buffer/disk/files/0.1.0

`write_files.py` says what it does. The log in `one.tar.gz` was left by a kill, with a record of
which a part is settled; those in `two.tar.gz` were closed. To keep a further version's files, run
the second line with that version and another folder.
"""

from __future__ import annotations

import json
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.core.ports import Reason
from forwarder.deadletter.schema import open_writable
from forwarder.deadletter.selection import DeadLetterFilter, mark_for_replay, numbers_of
from forwarder.storage.directory import DEAD_LETTERS, worker_directories, worker_directory
from forwarder.storage.key_file import KNOWN_KEYS, read_keys
from tests.buffer.disk.write_files import KEYS
from tests.support.supervised import supervised
from tests.support.upstream import Upstream
from tests.support.whole import Whole, event

FILES: Final = Path(__file__).with_name("files")


def unpack(archive: Path, target: Path) -> dict[str, Any]:
    """Unpack an archive; what is expected of it."""
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    expected: dict[str, Any] = json.loads((target / "expected.json").read_bytes())
    return expected


def arrived(upstream: Upstream) -> list[str]:
    """The uuids of all events that were delivered, as often as they were."""
    return sorted(
        event["uuid"]
        for request in upstream.requests
        if request.path.startswith("/batch/")
        for event in request.events
    )


def archives(name: str) -> list[Path]:
    """The archives of that name, of each version."""
    return sorted(FILES.glob(f"*/{name}"))


def whole(upstream: Upstream, state: Path) -> Whole:
    """A pipeline on those files."""
    buffer = {"kind": "disk", "path": str(state), "max_bytes": "8MiB"}
    limits = {"url": upstream.url, "max_event": "40KiB", "verify_keys": False}
    return Whole(
        upstream.url,
        buffer=buffer,
        upstream=limits,
        batch={"max_bytes": "1MiB"},
        http={"max_body": "1MiB"},
    )


@pytest.mark.parametrize("archive", archives("one.tar.gz"), ids=lambda path: path.parent.name)
async def test_a_buffer_of_an_older_version_is_continued(tmp_path: Path, archive: Path) -> None:
    """What was unsettled is delivered, once and unchanged; dead letters are there and can be
    replayed; the books continue.
    """
    expected = unpack(archive, tmp_path)
    async with Upstream() as upstream, whole(upstream, tmp_path) as daemon:
        await daemon.emptied()
        assert arrived(upstream) == expected["pending"]
        assert daemon.total(lambda lane: lane.total_received) == expected["received"]
        assert daemon.total(lambda lane: lane.delivered) == expected["delivered"] + len(
            expected["pending"]
        )
        dead: dict[str, int] = {}
        for lane in daemon.snapshot.lanes:
            for reason, count in lane.dead_lettered.items():
                dead[reason] = dead.get(reason, 0) + count
        assert dead == {reason: len(expected[reason]) for reason in ("refused", "missing_event")}
        assert not any(lane.difference or lane.dropped for lane in daemon.snapshot.lanes)
        letters = await daemon.letters()
        assert sorted(json.loads(data)["uuid"] for data, _ in letters) == sorted(
            expected["refused"] + expected["missing_event"]
        )

        with closing(open_writable(worker_directory(tmp_path, 0) / DEAD_LETTERS)) as connection:
            refused = numbers_of(connection, DeadLetterFilter(reason=Reason.REFUSED.value))
            assert (
                mark_for_replay(
                    connection, [(number, None) for number in refused], 1000.0, lambda _: None
                )
                == refused
            )
        await daemon.until(
            lambda: len(arrived(upstream)) == len(expected["pending"]) + len(refused)
        )
        assert arrived(upstream) == sorted(expected["pending"] + expected["refused"])
        await daemon.take([event("new")])
        await daemon.emptied()
        await daemon.written()

        before = len(upstream.requests)
        await daemon.restart()
        await daemon.emptied()
        assert len(upstream.requests) == before
        assert daemon.total(lambda lane: lane.total_received) == expected["received"] + 1
        assert daemon.total(lambda lane: lane.total_dead) == len(expected["missing_event"])
        assert not any(lane.difference for lane in daemon.snapshot.lanes)


@pytest.mark.slow
@pytest.mark.parametrize("archive", archives("two.tar.gz"), ids=lambda path: path.parent.name)
async def test_two_workers_of_an_older_version_are_continued(tmp_path: Path, archive: Path) -> None:
    """Each worker opens its directory; together they deliver all that was unsettled."""
    expected = unpack(archive, tmp_path)
    assert len(worker_directories(tmp_path)) == 2
    env = {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(tmp_path),
        "FORWARDER_BUFFER__MAX_BYTES": "8MiB",
        "FORWARDER_UPSTREAM__MAX_EVENT": "40KiB",
        "FORWARDER_BATCH__MAX_BYTES": "1MiB",
        "FORWARDER_SOURCES__HTTP__MAX_BODY": "1MiB",
    }
    async with Upstream() as upstream, supervised(upstream.url, unix=None, **env) as daemon:
        await upstream.until(lambda: arrived(upstream) == expected["pending"])
        snapshot = await daemon.until(lambda now: not any(lane.buffered for lane in now.lanes))
        assert sum(lane.total_received for lane in snapshot.lanes) == expected["received"]
        assert sum(lane.delivered for lane in snapshot.lanes) == expected["delivered"] + len(
            expected["pending"]
        )
        assert sum(lane.total_dead for lane in snapshot.lanes) == len(expected["refused"]) + len(
            expected["missing_event"]
        )


@pytest.mark.parametrize("archive", archives("one.tar.gz"), ids=lambda path: path.parent.name)
def test_known_keys_of_an_older_version_are_known(tmp_path: Path, archive: Path) -> None:
    """The keys that it verified are known, and no others."""
    unpack(archive, tmp_path)
    known = read_keys(tmp_path / KNOWN_KEYS)
    assert known is not None
    assert all(key in known for key in KEYS)
    assert "phc_never" not in known
