"""What the user names, as files that can be opened: addresses checked, folders, patterns and
prefixes resolved, in a stable order.

The order is that of the names, with numbers in them compared by value: exports are named by their
time, and `…_9.json` comes before `…_10.json`. An address that holds credentials is rejected and
never repeated: names of files stand in messages and in saved state.

Objects of stores are read in ranges rather than as one long answer: to read a file may take hours,
and no store holds a connection that long. Each range asks for the same ETag, so that an object
that is replaced meanwhile fails instead of giving two halves.
"""

from __future__ import annotations

import glob
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra
from forwarder.core.secrets import mask_secrets
from forwarder.sources.files.record_blocks import DamagedContent, ReadOptions, reason

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ObjectStore, RetryConfig

SCHEMES: Final = ("s3://", "s3a://", "gs://", "az://", "azure://", "abfs://", "abfss://")
_WITH_CONTAINER: Final = ("abfs://", "abfss://")
"""`abfss://container@account…`: what stands before the @ is no secret."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_PAIR: Final = re.compile(r"(.*?)[^/\s]*:.*@", re.DOTALL)
"""Text, then `user:password@`; passwords may have slashes in them."""
_USER: Final = re.compile(r"()[^/\s]*@")
"""Behind `://` a user alone is hidden, too."""
_HINT: Final = (
    "Write s3://bucket/path, gs://bucket/path or az://container/path. Credentials come from the "
    "environment or the store's own tools "
    "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …)."
)
_SHOWN: Final = 5
"""Names that a hint lists."""
ENDS: Final = 64 << 10
"""Bytes at each end of a file that tell it from others."""
_FOREIGN: Final = frozenset({"__MACOSX", "lost+found"})
_RANGE: Final = 4 << 20
_CLIENT: Final = re.compile(
    "(?:aws_|google_|azure_)?"
    "(allow_http|allow_invalid_certificates|connect_timeout|default_content_type|http1_only|"
    "http2_only|pool_idle_timeout|pool_max_idle_per_host|proxy_ca_certificate|proxy_excludes|"
    "proxy_url|randomize_addresses|read_timeout|root_certificate|timeout|user_agent)",
    re.IGNORECASE,
).fullmatch
"""Options of the way to a store. obstore takes them apart from those of the store, and panics
where they stand among these.
"""


def redact(path: str) -> str:
    """A path or an address as it may be shown: without what looks like user and password."""
    if "@" not in path or path.startswith(_WITH_CONTAINER):
        return path
    scheme, separator, rest = path.partition("://")
    return f"{scheme}://{_hidden(rest)}" if separator else _PAIR.sub(r"\1…@", path, count=1)


def _hidden(rest: str) -> str:
    match = _PAIR.match(rest) or _USER.match(rest)
    return rest if match is None else f"{match[1]}…@{rest[match.end() :]}"


def check_addresses(paths: Iterable[str]) -> None:
    """Raises `ConfigurationError` for an address that holds credentials, or that is none of a
    store and no file either.
    """
    for path in paths:
        if path.startswith(SCHEMES):
            scheme, _, rest = path.partition("://")
            bucket = rest.partition("/")[0]
            if ":" in bucket or ("@" in bucket and not path.startswith(_WITH_CONTAINER)):
                shown = _hidden(rest) if "@" in rest else "…"
                raise ConfigurationError(
                    f"{scheme}://{shown}: the address holds credentials, or a port", hint=_HINT
                )
        elif path.startswith(("http://", "https://")):
            hint = (
                "Download it first, and name the file; or pipe it in: curl -sf ADDRESS | "
                "forwarder import FORMAT -"
            )
            raise ConfigurationError(f"{redact(path)}: files aren't read over HTTP", hint=hint)
        elif _URL.match(path) and not os.path.lexists(path.partition("/")[0]):
            raise ConfigurationError(
                f"{redact(path)}: it is not the address of an object store that can be read",
                hint=_HINT,
            )


class Fingerprint(NamedTuple):
    """What a reader remembers of a file, to recognise it later."""

    size: int
    digest: str
    """Of size, first and last 64 KiB; of an object its size and ETag."""
    modified: int = 0
    """Nanoseconds since 1970; 0 where it says nothing, as of standard input."""


def digest_of_ends(size: int, first: bytes, last: bytes) -> str:
    """What tells a file from others, in hex: its size, and its first and last `ENDS` bytes."""
    digest = blake2b(b"%d " % size, digest_size=20)
    digest.update(first)
    digest.update(last)
    return digest.hexdigest()


class LocalFile:
    """A file of this machine, not looked into.

    Standard input or a pipe is kept on disk until it is closed, for it is read more than once, and
    archives need to be sought in. It has the fingerprint of the same bytes in a file.
    """

    def __init__(self, path: Path | str, pipe: BinaryIO | None = None) -> None:
        self._path = path
        self._pipe = pipe
        self.name = plain_name(str(path))
        self._spool: BinaryIO | None = None

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of size, time of change, and both ends of the content."""
        with self.open() as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            first = file.read(ENDS)
            file.seek(max(0, size - ENDS))
            digest = digest_of_ends(size, first, file.read(ENDS))
            return Fingerprint(
                size, digest, os.fstat(file.fileno()).st_mtime_ns if self._pipe is None else 0
            )

    def open(self) -> BinaryIO:
        """The file, at its beginning. A pipe is received to its end the first time; what is opened
        of one shares its position.
        """
        if self._pipe is None:
            try:
                return Path(self._path).open("rb")
            except OSError as error:
                raise _unreadable(self.name, error_text(error)) from None
        if self._spool is None:
            self._spool = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with it
            shutil.copyfileobj(self._pipe, self._spool, 1 << 20)
            self._spool.flush()
        opened = os.fdopen(os.dup(self._spool.fileno()), "rb")
        opened.seek(0)
        return opened

    def close(self) -> None:
        """Give the disk's space back."""
        if self._pipe is not None and self._pipe is not sys.stdin.buffer:
            self._pipe.close()
        if self._spool is not None:
            self._spool.close()
            self._spool = None


def _unreadable(name: str, why: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"{name}: can't be read: {why}", hint="Make it readable, or leave it out."
    )


def local_files(path: str, options: ReadOptions) -> Iterator[LocalFile]:
    """The files that a path, a folder or a pattern stands for. Raises `ConfigurationError` if
    there are none, or they can't be found.
    """
    hint = "Name files, folders, patterns, URLs of object stores, or - for standard input."
    try:
        if path == "-":
            if sys.stdin.buffer.isatty():
                hint = "Pipe the export into the command, or name its files."
                raise ConfigurationError(
                    "-: standard input is a terminal, not an export", hint=hint
                )
            yield LocalFile("-", sys.stdin.buffer)
        elif Path(path).is_dir():
            files = _folder(Path(path), options)
            if not files:
                raise ConfigurationError(
                    f"{redact(path)}: there is no file in it",
                    hint="Hidden files are left out. Is it mounted?",
                )
            yield from map(LocalFile, files)
        elif Path(path).is_file():
            yield LocalFile(Path(path))
        elif Path(path).is_fifo():
            yield LocalFile(path, Path(path).open("rb"))  # noqa: SIM115 -- closed with it
        elif Path(path).exists():
            raise ConfigurationError(f"{path}: it is neither a file nor a pipe", hint=hint)
        elif glob.has_magic(path):
            yield from map(LocalFile, _matching(path, options))
        else:
            raise ConfigurationError(
                f"{redact(path)}: there is no such file or folder", hint=_nearby(path)
            )
    except OSError as error:
        raise _unreadable(
            redact(plain_name(str(error.filename or path))), error_text(error)
        ) from None


def _nearby(path: str) -> str:
    """What there is in place of a path or a pattern that stands for nothing: a similar name, or
    the names beside it.
    """
    missing = Path(path)
    while not missing.parent.is_dir():
        missing = missing.parent
    folder = missing.parent
    name = missing.name
    try:
        names = sorted(
            (entry.name for entry in folder.iterdir() if is_wanted(entry.name)), key=natural
        )
    except OSError:
        names = []
    if not names:
        return f"{redact(str(folder))} has no files that can be seen."
    for close in get_close_matches(name, names, n=1, cutoff=0.7):
        return f"Did you mean {redact(plain_name(str(folder / close)))}?"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return (
        f"{redact(plain_name(str(folder)))} has "
        f"{', '.join(plain_name(shown) for shown in names[:_SHOWN])}{more}."
    )


def _matching(pattern: str, options: ReadOptions) -> Iterator[Path]:
    # PTH207: a pattern may begin at the root, which `Path.glob` rejects.
    names = glob.glob(pattern, recursive=True)  # noqa: PTH207
    paths = [Path(name) for name in sorted(names, key=natural)]
    if not paths:
        raise ConfigurationError(f"{redact(pattern)}: nothing matches", hint=_nearby(pattern))
    parts = Path(pattern).parts
    _check_links(
        paths,
        Path(*parts[: next(index for index, part in enumerate(parts) if glob.has_magic(part))]),
        options,
    )
    for path in paths:
        yield from _folder(path, options) if path.is_dir() else [path]


def _folder(folder: Path, options: ReadOptions) -> list[Path]:
    """All files in it, in their order. Raises `OSError` if a folder can't be listed: its files
    aren't left out in silence.
    """

    def fail(error: OSError) -> None:
        try:
            raise error
        finally:
            del error

    names = []
    seen = {folder.resolve()}
    for root, folders, files in os.walk(folder, onerror=fail, followlinks=options.follow_links):
        # not even looked into: this user may not be allowed to
        folders[:] = filter(is_wanted, folders)
        links = [Path(root, name) for name in (*folders, *files) if Path(root, name).is_symlink()]
        _check_links([link for link in links if is_wanted(link.name)], folder, options)
        if options.follow_links:  # a folder once: links may lead around
            for name in list(folders):
                target = Path(root, name).resolve()
                if target in seen:
                    folders.remove(name)
                seen.add(target)
        names += [Path(root, name) for name in files]
    wanted = [path for path in names if is_wanted(path.name) and path.is_file()]
    return sorted(wanted, key=lambda path: natural(str(path)))


def _check_links(paths: Iterable[Path], root: Path, options: ReadOptions) -> None:
    """Raises `ConfigurationError` for a file or folder that a link outside of `root` stands for,
    unless such links are to be followed.
    """
    inside = root.resolve()
    for path in () if options.follow_links else paths:
        if path.exists() and not path.resolve().is_relative_to(inside):
            message = (
                f"{plain_name(str(path))}: a link that leads out of {root}, to "
                f"{plain_name(str(path.resolve()))}"
            )
            raise ConfigurationError(
                message,
                hint=(
                    "Set follow_links (`--follow-links`) to read what links lead to, or "
                    "remove the link."
                ),
            )


def is_wanted(name: str) -> bool:
    """Whether a file that was found rather than named belongs to the export: hidden
    files don't (snapshots of volumes are such), nor does what a Mac adds to archives, or
    a file system to its root.
    """
    return not any(
        part.startswith(".") or part in _FOREIGN
        for part in name.split("/")
        if part not in {".", ".."}
    )


def plain_name(name: str) -> str:
    """A name that can be written down also where its bytes aren't UTF-8, as old archives and disks
    have them.
    """
    return name.encode("utf-8", "backslashreplace").decode()


def natural(name: str) -> list[tuple[list[tuple[int, str]], str]]:
    """A key that orders names by their folders, and numbers in them by value: of two, the one with
    more digits is larger.
    """
    key = []
    for part in name.split("/"):
        pieces = []
        for index, piece in enumerate(re.split("([0-9]+)", part)):
            number = piece.lstrip("0") if index % 2 else ""
            pieces.append((len(number), number if index % 2 else piece))
        key.append((pieces, part))
    return key


def connect(
    bucket: str, options: Mapping[str, str], retries: RetryConfig | None = None
) -> ObjectStore:
    """The store of a URL's bucket. Credentials come from where the store's own tools have them:
    environment, instance, web identity.

    `options` of the way to it may have the store's name before them, as in the environment.
    `retries`: of single requests; None: the client's own.
    """
    try:
        from obstore.exceptions import BaseError  # noqa: PLC0415 -- an optional dependency
        from obstore.store import from_url  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError(
            "Object stores can't be used without obstore", hint=install_extra("import")
        ) from None
    store: dict[str, Any] = {name: value for name, value in options.items() if not _CLIENT(name)}
    if client := {
        match[1].lower(): value for name, value in options.items() if (match := _CLIENT(name))
    }:
        store["client_options"] = client
    if retries is not None:
        store["retry_config"] = retries
    try:
        return from_url(bucket, **store)
    except (BaseError, ValueError, TypeError) as error:
        why = mask_secrets(reason(error))
        raise ConfigurationError(
            f"{bucket}: {why}", hint="Check the URL and the options of the object store."
        ) from None


def stored_objects(url: str, options: ReadOptions) -> Iterator[StoredObject]:
    """The objects that a URL stands for: one object, all under a prefix, or
    those that match a pattern.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    store = connect(f"{scheme}://{bucket}", options.store)
    import obstore  # noqa: PLC0415 -- `connect` has seen that it is there
    from obstore.exceptions import BaseError  # noqa: PLC0415

    objects: list[ObjectMeta] = []
    parts = key.split("/")
    fixed = next((index for index, part in enumerate(parts) if glob.has_magic(part)), None)
    try:
        if fixed is None and key and not key.endswith("/"):
            with suppress(FileNotFoundError):  # it may be a prefix
                objects = [obstore.head(store, key)]
        if not objects:
            prefix = key if fixed is None else "/".join(parts[:fixed])
            objects = [
                meta for metas in obstore.list(store, prefix=prefix or None) for meta in metas
            ]
            if fixed is None:
                objects = [
                    meta
                    for meta in objects
                    if is_wanted(meta["path"].removeprefix(key)) and not meta["path"].endswith("/")
                ]
            else:
                objects = [meta for meta in objects if _matches(meta["path"].split("/"), parts)]
    except (BaseError, OSError) as error:
        raise ConfigurationError(
            f"{url}: {mask_secrets(reason(error))}", hint="Check bucket, credentials and region."
        ) from None
    if not objects:
        raise ConfigurationError(
            f"{url}: there is no such object, and nothing under this prefix",
            hint="Prefixes end at a `/`.",
        )
    for meta in sorted(objects, key=lambda entry: natural(entry["path"])):
        yield StoredObject(f"{scheme}://{bucket}/{meta['path']}", store, meta)


def _matches(path: list[str], pattern: list[str]) -> bool:
    """Whether a path fits a pattern as a shell's does: `*` stays in a folder, `**` is any number
    of them, and hidden parts are named.
    """
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or (
            not path[0].startswith(".") and _matches(path[1:], pattern)
        )
    is_hidden = path[0].startswith(".") and not pattern[0].startswith(".")
    return not is_hidden and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


class StoredObject:
    """An object of a store, not looked into."""

    def __init__(self, name: str, store: ObjectStore, meta: ObjectMeta) -> None:
        self.name = name
        self._store = store
        self._meta = meta

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """Of size and ETag; where a store has none, the time of its last change stands for it."""
        size = self._meta["size"]
        tag = self._meta.get("e_tag") or self._meta["last_modified"].isoformat()
        return Fingerprint(size, blake2b(f"{size} {tag}".encode(), digest_size=20).hexdigest())

    def open(self) -> BinaryIO:
        """The object's bytes, read as they are asked for."""
        return io.BufferedReader(_Ranges(self._store, self._meta), buffer_size=_RANGE)


class _Ranges(io.RawIOBase):
    """The bytes of an object, one request a range."""

    def __init__(self, store: ObjectStore, meta: ObjectMeta) -> None:
        self._store = store
        self._meta = meta
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self._meta["size"])[whence])
        return self._position

    def readinto(self, buffer: object, /) -> int:
        import obstore  # noqa: PLC0415 -- an optional dependency
        from obstore.exceptions import BaseError, PreconditionError  # noqa: PLC0415

        with memoryview(buffer) as view:  # type: ignore[arg-type]
            end = min(self._position + min(len(view), _RANGE), self._meta["size"])
            if end <= self._position:
                return 0
            options: GetOptions = {
                "range": (self._position, end),
                "if_match": self._meta.get("e_tag"),
            }
            try:
                data = obstore.get(self._store, self._meta["path"], options=options).bytes()
            except PreconditionError:
                raise DamagedContent("the object was replaced while it was read") from None
            except (BaseError, OSError) as error:
                raise DamagedContent(mask_secrets(reason(error))) from None
            view[: len(data)] = memoryview(data)
        self._position += len(data)
        return len(data)
