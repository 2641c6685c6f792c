"""Files of people: one distinct_id, or one keyed hash of an id, a line; millions of lines, read
again when the file changes.

An id is known by the first 16 bytes of a digest (SHA-256 of its UTF-8, or HMAC-SHA256 with the
file's key), in two sorted arrays of numbers: 16 bytes an id, found by bisection. A file is read by
a process of its own, which sorts and returns the arrays, so that the loop isn't held and the
memory that sorting needs is free again.

Invariants:
- An `IdFile` always holds one whole content. A file that can't be read any more, or not in time,
  leaves the last one in force, which is reported.
- Each file is looked at by a task of its own: what one does holds up no other.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
import stat
import subprocess
import sys
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from forwarder.core.clock import Clock
from forwarder.core.configured_files import check_file, in_thread, open_file
from forwarder.core.error_text import error_text
from forwarder.core.processes import send_signal
from forwarder.mapping.privacy import read_salt
from forwarder.mapping.problems import misconfigured
from forwarder.wire.identity import canonical_id

POLL_SECONDS: Final = 1.0
"""How often files are looked at."""
LOOK_SECONDS: Final = 10.0
"""How long a file system may take to say whether a file has changed."""
READ_SECONDS: Final = 300.0
"""How long a file may take to be read; ten million lines take half a minute."""
_KEPT: Final = 16
"""Bytes of a digest that are kept."""
_HEX: Final = 64
_HASH_HINT: Final = (
    "Write one hash a line, 64 hex digits: HMAC-SHA256 of a distinct_id, with the content of "
    "salt_file as key."
)
_HINT: Final = (
    "Write one distinct_id a line, in UTF-8; replace the file by renaming another to its name."
)

_log = structlog.get_logger(__name__)

Version = tuple[int, int, int]
"""What tells one content of a file from another: time of its last change, inode, size."""


def digest_of(distinct_id: str, key: bytes) -> bytes:
    """What an id is known by; `key`: that of the hashes, empty where ids stand in the file."""
    text = canonical_id(distinct_id).encode("utf-8", "surrogatepass")
    return hmac.digest(key, text, "sha256") if key else sha256(text).digest()


class IdFile:
    """The ids of one file. `id in file` takes about a microsecond, however many there are."""

    def __init__(self, path: Path, salt_file: Path | None, key: str) -> None:
        """Reads the file, which takes seconds for millions of lines. Raises `ConfigurationError`;
        `key` is the setting of the match.
        """
        self.path = path
        self._key = b"" if salt_file is None else read_salt(salt_file, f"{key}.salt_file")
        self.failing = ""
        """Why the last change couldn't be read; empty if it was."""
        self._look: asyncio.Future[Version] | None = None
        """The look that hasn't returned: a file system that hangs has one at a time."""
        try:
            self._version = _version(path)
            # S603: the command is this program itself.
            answer = subprocess.run(  # noqa: S603
                self._command(), capture_output=True, check=False, timeout=READ_SECONDS
            )
        except subprocess.TimeoutExpired as error:
            why = f"{path} wasn't read within {READ_SECONDS:.0f} seconds"
            raise misconfigured(f"{key}.distinct_id_file", why, _HINT) from error
        except (OSError, ValueError) as error:
            raise misconfigured(
                f"{key}.distinct_id_file", f"{path} can't be read: {error_text(error)}", _HINT
            ) from error
        if answer.returncode:
            hint = _HASH_HINT if self._key else _HINT
            raise misconfigured(f"{key}.distinct_id_file", f"{path}: {_said(answer.stderr)}", hint)
        self._use(answer.stdout)

    def _command(self) -> Sequence[str]:
        return [
            sys.executable,
            "-m",
            "forwarder.rules.id_files",
            "hashes" if self._key else "ids",
            str(self.path),
        ]

    def _use(self, data: bytes) -> None:
        half = len(data) // 2
        first = array("Q")
        second = array("Q")
        view = memoryview(data)
        first.frombytes(view[:half])
        second.frombytes(view[half:])
        self._first = first
        self._second = second

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, distinct_id: object) -> bool:
        if not isinstance(distinct_id, str):
            return False
        digest = digest_of(distinct_id, self._key)
        high = int.from_bytes(digest[:8])
        low = int.from_bytes(digest[8:_KEPT])
        first = self._first
        at = bisect_left(first, high)
        while at < len(first) and first[at] == high:
            if self._second[at] == low:
                return True
            at += 1
        return False

    # it looks up each id when it is asked for it
    def among(self, ids: Collection[str]) -> IdFile:  # noqa: ARG002
        return self

    async def refresh(self) -> bool:
        """Read the file again if it has changed; whether it was. Cancelled, it ends the process
        that reads, and changes nothing.
        """
        try:
            version = await self._changed()
            if version == self._version:
                self.failing = ""
                return False
            data = await self._read()
        except (OSError, ValueError) as error:
            self._fail(error_text(error))
            return False
        self._use(data)
        self._version = version
        self.failing = ""
        _log.info("the ids of a rule were read again", path=str(self.path), ids=len(self))
        return True

    async def _changed(self) -> Version:
        """What the file is now. Raises `OSError`, or `ValueError` if it isn't known in time."""
        if self._look is None:
            self._look = in_thread(partial(_version, self.path))
        done, _ = await asyncio.wait({self._look}, timeout=LOOK_SECONDS)
        if not done:
            raise ValueError(f"its file system didn't answer within {LOOK_SECONDS:g} seconds")
        look = self._look
        self._look = None
        return look.result()

    async def _read(self) -> bytes:
        """What the process returns. Raises `ValueError` with what it says."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*self._command(), stdout=pipe, stderr=pipe)
        try:
            async with asyncio.timeout(READ_SECONDS):
                out, err = await process.communicate()
        except TimeoutError:
            send_signal(process, signal.SIGKILL)
            raise ValueError(f"it wasn't read within {READ_SECONDS:.0f} seconds") from None
        except BaseException:
            send_signal(process, signal.SIGKILL)
            raise
        if process.returncode:
            raise ValueError(_said(err))
        return out

    def _fail(self, why: str) -> None:
        if why != self.failing:
            self.failing = why
            _log.error(
                "the ids of a rule can't be read again; the last ones stay in force",
                path=str(self.path),
                why=why,
                hint=_HINT,
            )


class IdFiles:
    """All files of ids that rules and routes name; each is read once, and looked at every second
    from `start` to `close`.
    """

    def __init__(self, clock: Clock, known: IdFiles | None = None) -> None:
        """`known`: files that are open already, and needn't be read again."""
        self._clock = clock
        self._known = {} if known is None else known.files
        self.files: dict[tuple[Path, Path | None], IdFile] = {}
        self._tasks: Sequence[asyncio.Task[None]] = ()

    def open(self, path: Path, salt_file: Path | None, key: str) -> IdFile:
        found = self.files.get((path, salt_file)) or self._known.get((path, salt_file))
        if found is None:
            found = IdFile(path, salt_file, key)
        self.files[path, salt_file] = found
        return found

    def start(self) -> None:
        """Look at the files from now on, on the running loop."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [
                loop.create_task(self._watch(file), name=f"ids of {file.path}")
                for file in self.files.values()
            ]

    def stop(self) -> None:
        """Look at them no more."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """The same; returns when no process reads any more."""
        self.stop()
        tasks = self._tasks
        self._tasks = ()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, file: IdFile) -> None:
        while True:
            await self._clock.sleep(POLL_SECONDS)
            await file.refresh()


def _version(path: Path) -> Version:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        check_file(path)
    return found.st_mtime_ns, found.st_ino, found.st_size


def _said(err: bytes) -> str:
    lines = err.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it can't be read"


def sorted_arrays(lines: Iterable[bytes], *, hashed: bool) -> tuple[array[int], array[int]]:
    """The digests of a file's lines, sorted, as their first and second halves. Raises `ValueError`
    with the number of a wrong line.

    Takes little more memory than the arrays: each first byte's digests are sorted by themselves.
    """
    buckets = [bytearray() for _ in range(256)]
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if not text:
            continue
        try:
            digest = _hash_of(text) if hashed else digest_of(text.decode(), b"")
        except ValueError:
            digest = b""
        if not digest:
            raise ValueError(
                f"line {number} is {'no hash of 64 hex digits' if hashed else 'no UTF-8'}"
            )
        buckets[digest[0]] += digest[:_KEPT]
    first = array("Q")
    second = array("Q")
    for bucket in buckets:
        both = array("Q")
        both.frombytes(
            b"".join(sorted([bucket[at : at + _KEPT] for at in range(0, len(bucket), _KEPT)]))
        )
        if sys.byteorder == "little":
            both.byteswap()
        first.extend(both[0::2])
        second.extend(both[1::2])
        bucket.clear()
    return first, second


def _hash_of(text: bytes) -> bytes:
    return bytes.fromhex(text.decode("ascii")) if len(text) == _HEX else b""


def _main(kind: str, path: str, write: Callable[[array[int]], object]) -> int:
    try:
        with open_file(Path(path)) as lines:
            arrays = sorted_arrays(lines, hashed=kind == "hashes")
        for identifiers in arrays:
            write(identifiers)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error_text(error)}\n")
        return 1
    return 0


if __name__ == "__main__":
    os.nice(5)  # the daemon's loop comes first
    sys.exit(_main(sys.argv[1], sys.argv[2], sys.stdout.buffer.write))
