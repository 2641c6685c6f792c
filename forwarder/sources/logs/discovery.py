"""The files that match a source's paths and globs, found by listing each directory once.

A glob is matched part by part, as by a shell: `*`, `?` and `[...]` match no `/` and no leading
dot, and `**` matches any number of directories. Only regular files count, and links to them;
nothing is opened. A file that is found under several names counts once. Links to directories are
followed, but not by `**`, which would meet some of them for ever.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from forwarder.sources.logs.followed import FileKey

_MAGIC: Final = re.compile(r"[*?[]")
_PIECE: Final = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_ABSENT: Final = (FileNotFoundError, NotADirectoryError)


class FoundFile(NamedTuple):
    """A file that was found."""

    path: str
    size: int
    modified: int
    """Nanoseconds since 1970."""


class Discovery:
    """What matches `paths` and none of `exclude`; an exclusion without `/` is
    matched with file names.
    """

    def __init__(
        self,
        paths: Collection[str],
        exclude: Collection[str],
        on_trouble: Callable[[str, OSError], None],
    ) -> None:
        """`on_trouble`: called with the path of what can't be listed or looked at, each time."""
        # PTH100: paths are strings here, as those that are listed are.
        absolute = [os.path.abspath(path) for path in paths]  # noqa: PTH100
        self._patterns = [tuple(path.split("/")[1:]) for path in absolute]
        self._exclude = _whole_path(exclude)
        self._match = _whole_path(absolute)
        self._on_trouble = on_trouble
        self._listings: dict[str, list[os.DirEntry[str]]] = {}
        self._links: dict[str, tuple[FileKey, str]] = {}
        """Where links lead."""
        self.directories: set[str] = set()
        """Those whose changes may change what was found by the last scan."""
        self.unreadable: set[str] = set()
        """Those that the last scan couldn't list, though they may be there."""

    def scan(self, path_of: Callable[[FileKey], str | None]) -> dict[FileKey, FoundFile]:
        """All files that match now. `path_of`: the path of a known file, which is kept while it is
        one of its names.
        """
        self.directories = set()
        self.unreadable = set()
        links = self._links
        self._links = {}
        files: dict[FileKey, FoundFile] = {}
        for parts in self._patterns:
            for path, entry in self._walk("", parts):
                status = self._status(path, entry)
                if (
                    status is None
                    or not stat.S_ISREG(status.st_mode)
                    or (self._exclude is not None and self._exclude.fullmatch(path))
                ):
                    continue
                key = status.st_dev, status.st_ino
                if entry is None or entry.is_symlink():
                    self._link(path, key, links)
                if key not in files or path_of(key) == path:
                    files[key] = FoundFile(path, status.st_size, status.st_mtime_ns)
        self._listings.clear()
        return files

    def concerns(self, path: str) -> bool:
        """Whether a change of this path may change what is found: it matches, or is a directory,
        or was one that was listed.
        """
        if path in self.directories or os.path.isdir(path):  # noqa: PTH112 - strings are fast
            return True
        excluded = self._exclude is not None and self._exclude.fullmatch(path)
        return self._match is not None and not excluded and self._match.fullmatch(path) is not None

    def real(self, path: str) -> str:
        """Where the path led at the last scan, through links."""
        return self._links[path][1] if path in self._links else path

    def search(self, directory: str, keys: Collection[FileKey]) -> dict[FileKey, FoundFile]:
        """Those files, wherever they are in the directory, whether they match or not."""
        inodes = {inode for _, inode in keys}
        files: dict[FileKey, FoundFile] = {}
        for entry in self._list(directory):
            if entry.inode() in inodes and (status := self._status(entry.path, entry)) is not None:
                key = status.st_dev, status.st_ino
                if key in keys and stat.S_ISREG(status.st_mode):
                    files[key] = FoundFile(entry.path, status.st_size, status.st_mtime_ns)
        self._listings.clear()
        return files

    def may_be_there(self, path: str) -> bool:
        """Whether the last scan couldn't list a directory on the way to this path, so that it
        isn't known whether it is still there.
        """
        return any(path == folder or path.startswith(f"{folder}/") for folder in self.unreadable)

    def _walk(
        self, directory: str, parts: Sequence[str]
    ) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
        plain = next((at for at, part in enumerate(parts) if _MAGIC.search(part)), len(parts) - 1)
        directory = "/".join([directory, *parts[:plain]])
        part = parts[plain]
        rest = parts[plain + 1 :]
        if part == "**":
            yield from self._walk(directory, rest or ("*",))
            for entry in self._list(directory):
                if not entry.name.startswith(".") and self._is_directory(entry, links=False):
                    yield from self._walk(entry.path, parts[plain:])
        elif not _MAGIC.search(part):
            self.directories.add(directory or "/")
            yield f"{directory}/{part}", None
        else:
            matches = _part(part).fullmatch
            for entry in self._list(directory):
                if matches(entry.name):
                    if not rest:
                        yield entry.path, entry
                    elif self._is_directory(entry, links=True):
                        yield from self._walk(entry.path, rest)

    def _list(self, directory: str) -> list[os.DirEntry[str]]:
        directory = directory or "/"
        self.directories.add(directory)
        if directory not in self._listings:
            self._listings[directory] = []
            try:
                with os.scandir(directory) as entries:
                    self._listings[directory] = list(entries)
            except _ABSENT:
                self.directories.discard(directory)
            except OSError as error:
                self.unreadable.add(directory)
                self._on_trouble(directory, error)
        return self._listings[directory]

    def _is_directory(self, entry: os.DirEntry[str], *, links: bool) -> bool:
        try:
            return entry.is_dir(follow_symlinks=links)
        except OSError as error:
            self._on_trouble(entry.path, error)
            return False

    def _status(self, path: str, entry: os.DirEntry[str] | None) -> os.stat_result | None:
        try:
            # PTH116: thousands of files are looked at, and strings are faster than `Path`.
            return os.stat(path) if entry is None else entry.stat()  # noqa: PTH116
        except _ABSENT:
            return None
        except OSError as error:
            self.unreadable.add(path)
            self._on_trouble(path, error)
            return None

    def _link(self, path: str, key: FileKey, known: dict[str, tuple[FileKey, str]]) -> None:
        """Remember where the path leads: changes are reported for the directory of that."""
        if path not in known or known[path][0] != key:
            known[path] = key, os.path.realpath(path)
        self._links[path] = known[path]
        self.directories.add(known[path][1].rpartition("/")[0] or "/")


def find_file(path: str) -> tuple[FileKey | None, FoundFile]:
    """The file that is at a path; no key if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - strings are fast
    except OSError:
        return None, FoundFile(path, 0, 0)
    return (status.st_dev, status.st_ino), FoundFile(path, status.st_size, status.st_mtime_ns)


@cache
def _part(part: str) -> re.Pattern[str]:
    """One part of a glob."""
    return re.compile(_expression(part), re.DOTALL)


def _expression(part: str) -> str:
    """One part of a glob as a regular expression, which matches no `/`."""
    texts = []
    for piece in _PIECE.findall(part):
        if piece[0] == "*":
            texts.append("[^/]*")
        elif piece == "?":
            texts.append("[^/]")
        elif piece[0] == "[" and len(piece) > 2:
            negated = piece[1] == "!"
            members = piece[1:-1].removeprefix("!")
            texts.append(
                ("[^/" if negated else "[") + re.sub(r"([\\\[\]^&~|])", r"\\\1", members) + "]"
            )
        else:
            texts.append(re.escape(piece))
    return ("" if part.startswith(".") else r"(?!\.)") + "".join(texts)


def _whole_path(globs: Collection[str]) -> re.Pattern[str] | None:
    """What matches the whole path of a file that one of these globs means; one
    without `/` means a name.
    """
    whole = []
    for glob in globs:
        if "/" not in glob:
            whole.append(f"(?:.*/){_expression(glob)}")
            continue
        parts = os.path.abspath(glob).split("/")[1:]  # noqa: PTH100 - strings are fast
        folders = [
            "(?:[^/]+/)*" if part == "**" else f"{_expression(part)}/" for part in parts[:-1]
        ]
        whole.append(
            "/" + "".join(folders) + (".*" if parts[-1] == "**" else _expression(parts[-1]))
        )
    return re.compile("|".join(f"(?:{branch})" for branch in whole), re.DOTALL) if whole else None
