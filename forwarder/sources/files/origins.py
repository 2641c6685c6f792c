"""What the user names, as a list of files that can be opened: addresses checked, folders and patterns resolved, in a stable order.

The order is that of the names, with numbers in them compared by value: exports are named by their time, and `…_9.json` comes before
`…_10.json`. An address that holds credentials is rejected and never repeated: names of files stand in messages and in saved state.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.records import ReadOptions

SCHEMES: Final = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://")
_WITH_CONTAINER: Final = ("abfs://", "abfss://")
"""`abfss://container@account…`: what stands before the @ is no secret."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PAIR: Final = re.compile(r"(.*?)[^/\s]*:.*@", re.DOTALL)
"""Text, then `user:password@`; passwords may have slashes in them."""
_USER: Final = re.compile(r"()[^/\s]*@")
"""Behind `://` a user alone is hidden, too."""
_HINT: Final = (
    "Write s3://bucket/path, gs://bucket/path or az://container/path. Credentials come from the environment or the store's own tools "
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …)."
)
_END: Final = 64 << 10
_COPY: Final = 1 << 20


def redact(path: str) -> str:
    """A path or an address as it may be shown: without what looks like user and password."""
    if "@" not in path or path.startswith(_WITH_CONTAINER):
        return path
    scheme, separator, rest = path.partition("://")
    return f"{scheme}://{_hidden(rest)}" if separator else _PAIR.sub(r"\1…@", path, count=1)


def _hidden(rest: str) -> str:
    found = _PAIR.match(rest) or _USER.match(rest)
    return rest if found is None else f"{found[1]}…@{rest[found.end() :]}"


def check_addresses(paths: Iterable[str]) -> None:
    """Raises `ConfigurationError` for an address that holds credentials, or that is none of a store and no file either."""
    for path in paths:
        if path.startswith(SCHEMES):
            scheme, _, rest = path.partition("://")
            bucket = rest.partition("/")[0]
            if ":" in bucket or ("@" in bucket and not path.startswith(_WITH_CONTAINER)):
                shown = _hidden(rest) if "@" in rest else "…"
                raise ConfigurationError(f"{scheme}://{shown}: the address holds credentials, or a port", hint=_HINT)
        elif _URL.match(path) and not os.path.lexists(path.partition("/")[0]):
            raise ConfigurationError(f"{redact(path)}: it is not the address of an object store that can be read", hint=_HINT)


@dataclass(frozen=True)
class Fingerprint:
    """What a reader remembers of a file, to recognise it later."""

    size: int
    digest: str
    """Of size, first and last 64 KiB; of an object its size and ETag."""
    modified: int = 0
    """Nanoseconds since 1970; 0 where it says nothing, as of standard input."""


class LocalFile:
    """A file of this machine, not looked into."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = plain_name(str(path))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of size, time of change, and both ends of the content."""
        with self.open() as file:
            return fingerprint(file, os.fstat(file.fileno()).st_mtime_ns)

    def open(self) -> BinaryIO:
        """The file, at its beginning."""
        try:
            return self._path.open("rb")
        except OSError as error:
            raise ConfigurationError(f"{self.name}: can't be read: {error.strerror}", hint="Make it readable, or leave it out.") from None


class SpooledFile:
    """Standard input or a pipe: kept on disk until it is closed, for it is read more than once, and archives need to be sought in.

    It has the fingerprint of the same bytes in a file.
    """

    def __init__(self, name: str, source: BinaryIO) -> None:
        self.name = plain_name(name)
        self._source = source
        self._spool: BinaryIO | None = None

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of size and both ends."""
        with self.open() as file:
            return fingerprint(file, 0)

    def open(self) -> BinaryIO:
        """What came, from its beginning; the first time it is received, to its end. One at a time: what is opened shares its position."""
        if self._spool is None:
            self._spool = open_spool()
            shutil.copyfileobj(self._source, self._spool, _COPY)
            self._spool.flush()
        opened = os.fdopen(os.dup(self._spool.fileno()), "rb")
        opened.seek(0)
        return opened

    def close(self) -> None:
        """Give the disk's space back."""
        if self._source is not sys.stdin.buffer:
            self._source.close()
        if self._spool is not None:
            self._spool.close()
            self._spool = None


def open_spool() -> BinaryIO:
    """A file without a name, gone when it is closed."""
    return tempfile.TemporaryFile()


def fingerprint(file: BinaryIO, modified: int) -> Fingerprint:
    """Of a file that can be sought in."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest = blake2b(b"%d " % size, digest_size=20)
    digest.update(file.read(_END))
    file.seek(max(0, size - _END))
    digest.update(file.read(_END))
    return Fingerprint(size, digest.hexdigest(), modified)


def local_origins(path: str, options: ReadOptions) -> Iterator[LocalFile | SpooledFile]:
    """The files that a path, a folder or a pattern stands for. Raises `ConfigurationError` if there are none, or they can't be found."""
    try:
        yield from _local(path, options)
    except OSError as error:
        name, why = redact(plain_name(str(error.filename or path))), error.strerror or str(error)
        raise ConfigurationError(f"{name}: can't be read: {why}", hint="Make it readable, or leave it out.") from None


def _local(path: str, options: ReadOptions) -> Iterator[LocalFile | SpooledFile]:
    if path == "-":
        yield SpooledFile("-", sys.stdin.buffer)
    elif Path(path).is_dir():
        found = list(_folder(Path(path), options))
        if not found:
            raise ConfigurationError(f"{redact(path)}: there is no file in it", hint="Hidden files are left out. Is it mounted?")
        yield from found
    elif Path(path).is_file():
        yield LocalFile(Path(path))
    elif Path(path).is_fifo():
        yield SpooledFile(path, Path(path).open("rb"))  # noqa: SIM115 -- closed with it
    elif Path(path).exists():
        raise ConfigurationError(f"{path}: it is neither a file nor a pipe", hint="Name files, folders, patterns, or - for standard input.")
    elif glob.has_magic(path):
        yield from _pattern(path, options)
    else:
        hint = "Name files, folders, patterns, URLs of object stores, or - for standard input."
        raise ConfigurationError(f"{redact(path)}: there is no such file or folder", hint=hint)


def _pattern(pattern: str, options: ReadOptions) -> Iterator[LocalFile]:
    found = sorted(glob.glob(pattern, recursive=True), key=natural)  # noqa: PTH207 -- the pattern may begin at the root
    if not found:
        raise ConfigurationError(f"{redact(pattern)}: nothing matches", hint="Try `ls` with the same pattern.")
    parts = Path(pattern).parts
    root = Path(*parts[: next(index for index, part in enumerate(parts) if glob.has_magic(part))])
    _check_links(map(Path, found), root, options)
    for each in found:
        if Path(each).is_dir():
            yield from _folder(Path(each), options)
        else:
            yield LocalFile(Path(each))


def _folder(folder: Path, options: ReadOptions) -> Iterator[LocalFile]:
    names = []
    seen = {folder.resolve()}
    for root, folders, files in os.walk(folder, onerror=_raise, followlinks=options.follow_links):
        links = [Path(root, name) for name in (*folders, *files) if Path(root, name).is_symlink()]
        _check_links([link for link in links if is_wanted(str(link.relative_to(folder)))], folder, options)
        if options.follow_links:  # a folder once: links may lead around
            folders[:] = [name for name in folders if _is_new(Path(root, name), seen)]
        names += [Path(root, name) for name in files]
    wanted = [path for path in names if is_wanted(str(path.relative_to(folder))) and path.is_file()]
    for path in sorted(wanted, key=lambda each: natural(str(each))):
        yield LocalFile(path)


def _is_new(folder: Path, seen: set[Path]) -> bool:
    target = folder.resolve()
    if target in seen:
        return False
    seen.add(target)
    return True


def _check_links(found: Iterable[Path], root: Path, options: ReadOptions) -> None:
    """Raises `ConfigurationError` for a file or folder that a link outside of `root` stands for, unless such links are to be followed."""
    if options.follow_links:
        return
    inside = root.resolve()
    for path in found:
        if path.exists() and not path.resolve().is_relative_to(inside):
            message = f"{plain_name(str(path))}: a link that leads out of {root}, to {plain_name(str(path.resolve()))}"
            raise ConfigurationError(message, hint="Set follow_links (`--follow-links`) to read what links lead to, or remove the link.")


def _raise(error: OSError) -> None:
    """A folder that can't be listed isn't left out in silence."""
    raise error


def is_wanted(name: str) -> bool:
    """Whether a file that was found rather than named belongs to the export: hidden files and what a Mac adds to archives don't."""
    return not any(part.startswith(".") or part == "__MACOSX" for part in name.split("/") if part not in {".", ".."})


def plain_name(name: str) -> str:
    """A name that can be written down also where its bytes aren't UTF-8, as old archives and disks have them."""
    return name.encode("utf-8", "backslashreplace").decode()


def natural(name: str) -> list[tuple[list[tuple[int, str]], str]]:
    """A key that orders names by their folders, and numbers in them by value."""
    return [(_texts_and_numbers(part), part) for part in name.split("/")]


def _texts_and_numbers(part: str) -> list[tuple[int, str]]:
    """In turn, beginning with a text, which may be empty. Of two numbers the one with more digits is larger, however many they have."""
    pieces = re.split("([0-9]+)", part)
    numbers = (piece.lstrip("0") for piece in pieces[1::2])
    pieces[1::2] = numbers
    return [(len(piece) if place % 2 else 0, piece) for place, piece in enumerate(pieces)]
