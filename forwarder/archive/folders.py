"""Where files of an archive go: a folder of this machine, or a prefix of an object store.

Invariants: a file has its name only while it is complete and durable. In a folder it is written as
`.NAME.part`, synced, renamed, and then the folder is synced; an object store shows an object only
once all of it is there. `publish` may be called again for the same name and content, whatever
became of the call before. Nothing else in a folder or a bucket is changed or removed but
unfinished files of the same archive, which its identity, a part of each name, shows.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol
from urllib.parse import unquote

import structlog

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.secrets import mask_secrets
from forwarder.sources.files.origins import SCHEMES, check_addresses, connect
from forwarder.storage import failpoints
from forwarder.storage.private import atomic_file, sync_directory

if TYPE_CHECKING:
    from obstore.store import ObjectStore, RetryConfig

IDENTITY_FILE: Final = "archive-identity"
UNFINISHED: Final = ".part"
_PART_BYTES: Final = 8 << 20
"""Of an upload: a larger file goes in parts of this size, so that memory is bounded."""
_PARTS_AT_ONCE: Final = 2
_RETRY: Final[RetryConfig] = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
"""Of the store's client, for single requests of an upload; beyond that the archiver retries the
whole file.
"""
_REFUSED: Final = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENAMETOOLONG,
    }
)
"""Errors of a folder that stay until an operator does something."""
_FILE: Final = "file://"
_ATTEMPT: Final = re.compile(r".*?Error performing .*? in [0-9.]+\S*s\b.*? - ", re.DOTALL)
"""How the client of object stores begins an error: what it did, for how long, how often."""
_STATUS: Final = re.compile(r"Server returned .*?: ([0-9]{3}) ([^:]*):?(.*)", re.DOTALL)
_DETAIL: Final = re.compile(r"<(?:Code|Message)>(.*?)</", re.DOTALL)
_LATER: Final = frozenset({"408", "409", "425", "429"})
_SHOWN: Final = 300
_REMEMBERED: Final = 1000
"""Folders whose names are known to be synced; one of them costs a sync more if it is forgotten."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PublishFailed(Exception):
    """A file couldn't be put where it belongs. `refused`: an operator has to change something;
    otherwise it may work later by itself.
    """

    why: str
    refused: bool

    def __str__(self) -> str:
        return self.why


def archive_identity(directory: Path) -> str:
    """What tells the files of the archive that is made from this state directory from those of
    others; chosen at the first call.

    Raises `ConfigurationError` if it can't be kept. A file that holds something else is replaced,
    and that is logged.
    """
    path = directory / IDENTITY_FILE
    try:
        text: str | None = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        text = None
    except OSError as error:
        raise ConfigurationError(
            f"the identity of an archive in {path} can't be read: {error_text(error)}",
            hint="Let this user read it; or move it away: then another one is chosen, and files of "
            "the archive that aren't complete stay as they are.",
        ) from error
    if text is not None:
        if re.fullmatch("[0-9a-f]{6}", text):
            return text
        _log.error(
            "the identity of an archive is damaged; another one is chosen",
            path=str(path),
            found=text[:_SHOWN],
            meaning=f"Files `.…{UNFINISHED}` of the old one stay in the archive's folder.",
        )
    with atomic_file(path, replace=True) as file:
        identity = os.urandom(3).hex()
        file.write(f"{identity}\n".encode())
    return identity


class ArchiveFolder(Protocol):
    """The destination of an archive's files."""

    url: str
    """As the user named it."""

    async def publish(self, name: str, content: BinaryIO) -> None:
        """Have `content`, from its beginning, at `name`, a relative path: complete and durable on
        return. Raises `PublishFailed`.

        Cancelled, the file is there or it isn't; the name is never that of a part.
        """


class LocalFolder:
    """A folder of this machine. It is created if it is missing, at the first file only: later that
    is an error, such as a lost mount.
    """

    def __init__(self, root: Path, identity: str, executor: Executor) -> None:
        """`identity`: part of the names of this archive's files, and of no others'."""
        self.url = str(root)
        self._root = root
        self._unfinished = re.compile(rf"\..*-{re.escape(identity)}[^/]*{re.escape(UNFINISHED)}")
        self._executor = executor
        self._ready = False
        self._durable: set[Path] = set()
        """Folders whose names this process has synced."""

    async def publish(self, name: str, content: BinaryIO) -> None:
        """Cancellation waits for the copy, which is of one file."""
        copying = asyncio.get_running_loop().run_in_executor(
            self._executor, self._publish, name, content
        )
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:
            await asyncio.wait([copying])
            raise
        except OSError as error:
            raise PublishFailed(
                f"{self._root}: {error_text(error)}", error.errno in _REFUSED
            ) from error

    def _publish(self, name: str, content: BinaryIO) -> None:
        if not self._ready:
            self._prepare()
        target = self._root / name
        self._make_folder(target.parent)
        part = target.with_name(f".{target.name}{UNFINISHED}")
        try:
            with part.open("wb") as file:
                content.seek(0)
                shutil.copyfileobj(content, file, 1 << 20)
                if failpoints.ARMED:
                    failpoints.hit("archive.copied")
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if failpoints.ARMED:
            failpoints.hit("archive.renamed")
        sync_directory(target.parent)

    def _prepare(self) -> None:
        """Create the folder, and remove unfinished files that an earlier process left."""
        missing = [path for path in (self._root, *self._root.parents) if not path.is_dir()]
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)
        for folder, _, names in os.walk(self._root):
            for name in filter(self._unfinished.fullmatch, names):
                Path(folder, name).unlink(missing_ok=True)
        self._ready = True

    def _make_folder(self, folder: Path) -> None:
        """Have a folder below the root, durably: a process that was killed may have left one whose
        name it hadn't synced yet.
        """
        if folder == self._root or (folder in self._durable and folder.is_dir()):
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)
        if len(self._durable) >= _REMEMBERED:
            self._durable.clear()
        self._durable.add(folder)


class ObjectFolder:
    """A prefix in a bucket of an object store."""

    def __init__(self, url: str, prefix: str, store: ObjectStore) -> None:
        self.url = url
        self._prefix = prefix
        self._store = store

    async def publish(self, name: str, content: BinaryIO) -> None:
        """Cancellation drops the connection; uploaded parts stay invisible in the store."""
        import obstore  # noqa: PLC0415 -- `open_folder` has seen that it is there
        from obstore.exceptions import BaseError  # noqa: PLC0415

        content.seek(0)
        try:
            await obstore.put_async(
                self._store,
                f"{self._prefix}{name}",
                content,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except (BaseError, OSError) as error:
            raise _failure(self.url, _said(error)) from error


def _said(error: Exception) -> str:
    """All that the client of an object store says, which raises errors of the system too; those of
    the system itself in our words.
    """
    return (
        error_text(error) if isinstance(error, OSError) and error.errno is not None else str(error)
    )


def _failure(url: str, said: str) -> PublishFailed:
    """What the client of an object store said: only what the store answered, or why it didn't, so
    that the same failure has the same text.

    A store that answers 4xx refuses, except where it asks for a later attempt.
    """
    text = said.partition("\n\nDebug source")[0]
    text = _ATTEMPT.sub("", text, count=1)
    answered = _STATUS.match(text)
    if answered is None:
        return PublishFailed(f"{url}: {mask_secrets(text)[:_SHOWN]}", refused=False)
    status, words, body = answered.groups()
    details = ": ".join(_DETAIL.findall(body)) or " ".join(body.split())
    why = mask_secrets(f"{status} {words}: {details}".removesuffix(": "))[:_SHOWN]
    return PublishFailed(f"{url}: {why}", refused=status[0] in "34" and status not in _LATER)


def open_folder(
    url: str, store: Mapping[str, str], identity: str, executor: Executor
) -> LocalFolder | ObjectFolder:
    """The folder or the prefix of this address: `file:///…`, `s3://bucket/…` or that of another
    object store. Nothing is connected to yet.

    `store` are options of the object store, in addition to its environment variables. Raises
    `ConfigurationError` for an address that is neither, one with credentials, and where the client
    of object stores is missing.
    """
    if url.startswith(_FILE):
        path = Path(unquote(url.removeprefix(_FILE)))
        if path.is_absolute():
            return LocalFolder(path, identity, executor)
    if not url.startswith(SCHEMES):
        raise ConfigurationError(
            f"{url!r} isn't the address of an archive",
            hint="Write file:///folder or s3://bucket/prefix/.",
        )
    check_addresses([url])
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if prefix and not prefix.endswith("/"):
        prefix += "/"
    return ObjectFolder(url, prefix, connect(f"{scheme}://{bucket}", store, retries=_RETRY))
