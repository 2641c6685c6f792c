"""Where files of an archive go: whole or not at all, in a folder and in an object store; and what
is wrong when they don't.
"""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forwarder.archive.folders import (
    LocalFolder,
    PublishFailed,
    _failure,
    archive_identity,
    open_folder,
)
from forwarder.core.errors import ConfigurationError
from forwarder.storage import failpoints
from tests.support.buckets import ACCESS_KEY, SECRET, Bucket

NAME = "date=2026-01-01/phc_a-20260101T000000Z-0123abffffff-000001.jsonl.zst"


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    """For what blocks."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture(autouse=True)
async def no_failpoints() -> AsyncIterator[None]:
    """None stays armed."""
    yield
    failpoints.arm("")


def files_below(root: Path) -> dict[str, bytes]:
    """The files, hidden ones too."""
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


async def test_a_folder_gets_the_whole_file(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    """The folder and the partition's are created; publishing it again changes nothing."""
    folder = open_folder((tmp_path / "new" / "archive").as_uri(), {}, "0123ab", thread)
    content = io.BytesIO(b"x" * 3_000_000)
    for _ in range(2):
        content.read(100)
        await folder.publish(NAME, content)
        assert files_below(tmp_path / "new" / "archive") == {NAME: content.getvalue()}


async def test_names_are_synced_that_a_killed_process_may_have_left(
    tmp_path: Path, thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition's folder is there, but its name may never have been synced: it is before the
    first file in it counts, and once.
    """
    root = tmp_path / "archive"
    (root / NAME).parent.mkdir(parents=True)
    synced: list[Path] = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()),
    )
    folder = LocalFolder(root, "0123ab", thread)
    for number in range(3):
        await folder.publish(f"{NAME}{number}", io.BytesIO(b"1"))
    assert synced.count(root) == 1


async def test_unfinished_files_of_the_same_archive_are_removed(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    """Those of another one, and everything else, stay."""
    day = tmp_path / "date=2025-12-31"
    day.mkdir()
    ours = day / ".phc_a-20251231T000000Z-0123abeeeeee-000009.jsonl.zst.part"
    others = [
        day / ".phc_a-20251231T000000Z-9999abeeeeee-000009.jsonl.zst.part",
        day / "phc_a-0123ab.part",
        day / ".notes",
    ]
    for path in [ours, *others]:
        path.write_bytes(b"1")
    await LocalFolder(tmp_path, "0123ab", thread).publish(NAME, io.BytesIO(b"2"))
    assert not ours.exists()
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("failpoint", ["archive.copied=enospc@1", "archive.renamed=eio@1"])
async def test_a_failure_leaves_no_torn_file(
    failpoint: str, tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    """What is there under the name is whole, and the next attempt succeeds."""
    folder = LocalFolder(tmp_path, "0123ab", thread)
    failpoints.arm(failpoint)
    with pytest.raises(PublishFailed) as failed:
        await folder.publish(NAME, io.BytesIO(b"whole"))
    assert failed.value.refused is ("enospc" in failpoint)
    assert set(files_below(tmp_path).values()) <= {b"whole"}
    await folder.publish(NAME, io.BytesIO(b"whole"))
    assert files_below(tmp_path) == {NAME: b"whole"}


async def test_a_folder_that_is_gone_is_not_made_again(
    tmp_path: Path, thread: ThreadPoolExecutor
) -> None:
    """It may be a mount that was lost: events would fill the disk behind it."""
    root = tmp_path / "mounted"
    folder = LocalFolder(root, "0123ab", thread)
    await folder.publish(NAME, io.BytesIO(b"1"))
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(PublishFailed, match="No such file or directory") as failed:
        await folder.publish(NAME.replace("01-01", "01-02"), io.BytesIO(b"2"))
    assert failed.value.refused
    assert not root.exists()


async def test_a_file_in_the_way_is_said(tmp_path: Path, thread: ThreadPoolExecutor) -> None:
    """The folder's name is a file's."""
    (tmp_path / "archive").write_text("")
    with pytest.raises(PublishFailed) as failed:
        await LocalFolder(tmp_path / "archive", "0123ab", thread).publish(NAME, io.BytesIO(b"1"))
    assert failed.value.refused


def store_of(bucket: Bucket, **changes: str) -> dict[str, str]:
    """What a user writes as `store`."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET}
    return {
        "endpoint": bucket.endpoint,
        "region": "us-east-1",
        "allow_http": "true",
        **keys,
        **changes,
    }


async def test_a_bucket_gets_the_whole_file(bucket: Bucket, thread: ThreadPoolExecutor) -> None:
    """Under its prefix; a large file goes in parts."""
    folder = open_folder(f"s3://{bucket.name}/events", store_of(bucket), "0123ab", thread)
    large = os.urandom(20_000_000)
    for content in (b"small", large):
        await folder.publish(NAME, io.BytesIO(content))
        assert bucket.contents() == {f"events/{NAME}": content}


async def test_a_bucket_that_is_missing_is_refused(
    bucket: Bucket, thread: ThreadPoolExecutor
) -> None:
    """An operator has to create it, or to correct its name."""
    folder = open_folder(f"s3://{bucket.name}-missing/", store_of(bucket), "0123ab", thread)
    with pytest.raises(
        PublishFailed, match="404 Not Found: NoSuchBucket: The specified bucket does not exist"
    ) as failed:
        await folder.publish(NAME, io.BytesIO(b"1"))
    assert failed.value.refused
    assert SECRET not in failed.value.why


DOING = (
    "Generic S3 error: Error performing PUT http://s3/k in 100.6ms, after 1 retries, "
    "max_retries: 1, retry_timeout: 180s  - "
)
STATUS = "Server returned non-2xx status code: "
DEBUG = "\n\nDebug source:\nPermissionDenied {…"
DENIED = (
    '<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code><Message>Access '
    "Denied</Message></Error>"
)
SAID = {
    "403 Forbidden: AccessDenied: Access Denied": (
        "It lacked the privileges: Error performing PUT http://s3/k in 842.675µs - "
        f"{STATUS}403 Forbidden: {DENIED}{DEBUG}"
    ),
    "500 Internal Server Error: oops": f"{DOING}{STATUS}500 Internal Server Error: oops{DEBUG}",
    "429 Too Many Requests": f"{DOING}{STATUS}429 Too Many Requests: ",
    "HTTP error: error sending request": f"{DOING}HTTP error: error sending request{DEBUG}",
    "some other words": "some other words",
}


@pytest.mark.parametrize("why", SAID)
def test_a_failure_says_what_the_store_answered(why: str) -> None:
    """Nothing that differs from attempt to attempt, and what only an operator can change is
    distinguished from what may pass.
    """
    failure = _failure("s3://b/", SAID[why])
    assert failure.why == f"s3://b/: {why}"
    assert failure.refused is why.startswith("403")


async def test_a_store_that_does_not_answer_is_an_outage(
    bucket: Bucket, thread: ThreadPoolExecutor
) -> None:
    """It is retried, and no one has to do anything."""
    folder = open_folder(
        f"s3://{bucket.name}/", store_of(bucket, endpoint="http://127.0.0.1:1"), "0123ab", thread
    )
    with pytest.raises(PublishFailed) as failed:
        await folder.publish(NAME, io.BytesIO(b"1"))
    assert not failed.value.refused


@pytest.mark.parametrize(
    "url",
    ["http://bucket/", "file://relative", "/var/lib/archive", "s3://user:password@bucket/", ""],
)
def test_other_addresses_are_rejected(url: str, thread: ThreadPoolExecutor) -> None:
    """With what to write instead, and never repeating credentials."""
    with pytest.raises(ConfigurationError) as rejected:
        open_folder(url, {}, "0123ab", thread)
    assert "password" not in rejected.value.message
    assert "s3://" in (rejected.value.hint or "")


def test_an_archive_keeps_its_identity(tmp_path: Path) -> None:
    """It is chosen once for a state directory."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = archive_identity(tmp_path / "a")
    assert len(first) == 6
    assert archive_identity(tmp_path / "a") == first
    assert archive_identity(tmp_path / "b") != first
