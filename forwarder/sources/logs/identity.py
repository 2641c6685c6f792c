"""Whose content a file has: a known one that was renamed or copied, or a new one.

A content is recognized by its first line (its fingerprint), and by the bytes before the offset up
to which it was read.
- A file that has the inode, the first line and those bytes of a stored row has that content. If it
  has the inode alone, it was truncated: its new content gets a generation of its own, or an
  identity.
- A content whose file is gone or was truncated is continued in another file that has its first
  line and those bytes: it was moved to another device, copied before the truncation, or compressed.
- A file that has nothing but what a followed one begins with may be a copy in the making. Nothing
  is read of it until that one is gone or truncated, or the two differ, or the copy has not changed
  for `rotate_wait`: then it is a file of its own. A compressed one with the name of the original
  and a suffix stays a copy, and so does one whose original is kept open though it was renamed or
  removed.

Invariants: no two contents have the same identity and generation, in memory or in the store; one
content is in one file at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from forwarder.sources.logs.contents import (
    NOTHING,
    FileContent,
    first_line,
    is_beginning,
    tail_digest,
)
from forwarder.sources.logs.followed import SKIPPED, FileKey, FollowedFile
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.positions import PositionStore, StoredPosition
from forwarder.sources.logs.reading import ReadTroubles

_LAST_LINE: Final = 1 << 20
"""How far the beginning of the last line is searched for, where reading begins at the end."""

_log = structlog.get_logger(__name__)


class Recognition:
    """The contents of a source, by file and by first line."""

    def __init__(
        self,
        policy: LogPolicy,
        store: PositionStore,
        monotonic: Callable[[], float],
        *,
        troubles: ReadTroubles,
        on_close: Callable[[FollowedFile], None],
    ) -> None:
        """`troubles`: gets the path of what can't be read, and of what can be read again.
        `on_close`: has to close the file, if it is open.
        """
        self.files: dict[FileKey, FollowedFile] = {}
        """What is in the files that are there."""
        self.dirty: set[FollowedFile] = set()
        """Whose rows have to be stored."""
        self.rotations: Counter[str] = Counter()
        self.lost: list[FollowedFile] = []
        """Contents whose files were removed or truncated, and are not found in others yet."""
        self._alike: dict[str, list[FollowedFile]] = {}
        """By fingerprint: what is in files, or is not stored or settled yet."""
        self._kin: dict[str, _Kin] = {}
        """By fingerprint, while contents are recognized: what is known of contents that begin
        alike, stored ones too.
        """
        self._policy = policy
        self._store = store
        self._monotonic = monotonic
        self._troubles = troubles
        self._close = on_close

    def is_in_file(self, file: FollowedFile) -> bool:
        """Whether a file has this content."""
        return self.files.get(file.key) is file

    def recognize(self, files: Iterable[FollowedFile]) -> list[FollowedFile]:
        """Find out whose contents these are; those that are known now. Raises what the store
        raises; then it has to be repeated.

        Contents that files had before come first, then possible copies, then the rest.
        """
        self._kin.clear()
        unknown = sorted(
            files,
            key=lambda candidate: (
                candidate.original is None,
                candidate.before == "",
                candidate.modified,
                candidate.path,
            ),
        )
        known = [file for file in unknown if not file.recalled and self._is_recalled(file)]
        recognized = [
            self._look_inside(file)
            for file in unknown
            if file.recalled and not file.identity and self.is_in_file(file)
        ]
        self._kin.clear()
        return known + [file for file in recognized if file is not None]

    def replace(self, file: FollowedFile, size: int, modified: int) -> None:
        """The file was truncated, or has another content of this size."""
        self._close(file)
        other = FollowedFile(file.key, file.path, size, modified, self._monotonic())
        other.unmatched_since = file.unmatched_since
        other.before = file.identity
        other.recalled = True
        self.files[file.key] = other
        file.replaced = True
        self.rotations["truncate"] += 1
        self.lose(file)

    def remove(self, file: FollowedFile) -> None:
        """The file is gone, or isn't followed any more."""
        self._close(file)
        self.files.pop(file.key, None)
        if file.identity:
            self.mark(file)

    def lose(self, file: FollowedFile) -> None:
        """No file has this content, unless a copy is found."""
        self._remember(file)
        self.mark(file)
        if file.fingerprint in self._kin:
            self._kin[file.fingerprint].absent[_name(file)] = file
        if file not in self.lost:
            self.lost.append(file)

    def mark(self, file: FollowedFile) -> None:
        """Its row has to be stored."""
        self.dirty.add(file)

    def release(self, file: FollowedFile) -> None:
        """Forget a content that is in no file, if it is stored and settled."""
        if (
            not self.is_in_file(file)
            and not file.outstanding
            and file not in self.dirty
            and file not in self.lost
        ):
            alike = self._alike.get(file.fingerprint, [])
            if file in alike:
                alike.remove(file)
                if not alike:
                    del self._alike[file.fingerprint]

    def was_replaced(self, file: FollowedFile, content: FileContent) -> bool:
        """Whether a file's content isn't the known one. Raises `OSError`.

        It may be shorter than it was when it was stored (after a loss of power), if more than its
        first line agrees.
        """
        line = None
        if content.packed or file.cut or file.boundary == 0 or not file.check:
            line = first_line(content, finished=file.last_line_complete)
            if line is None or line.fingerprint != file.fingerprint:
                return True
        if file.cut:
            return tail_digest(content, file.anchor) != file.anchor_check
        if (
            0 < file.boundary < SKIPPED
            and file.check
            and tail_digest(content, file.boundary) != file.check
        ):
            return True
        if file.anchor <= file.boundary:
            return False
        tail = tail_digest(content, file.anchor)
        if tail is None:
            line = line or first_line(content, finished=True)
            return line is None or file.boundary <= line.end
        return tail != file.anchor_check

    @contextmanager
    def opened(self, file: FollowedFile, *, apart: bool = False) -> Iterator[FileContent | None]:
        """Its open file, or another one for this purpose (`apart`: always); None if it can't be
        opened, or is another one by now.
        """
        if file.reader is not None and not apart:
            yield file.reader.content
            return
        content = self.open(file)
        try:
            yield content
        finally:
            if content is not None:
                content.close()

    def open(self, file: FollowedFile) -> FileContent | None:
        """Open its file; None if it can't be opened, or is another one by now."""
        try:
            content = FileContent(file.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._troubles.report(file.path, error)
            return None
        status = content.status()
        if (status.st_dev, status.st_ino) == file.key:
            return content
        content.close()
        return None

    def _is_recalled(self, file: FollowedFile) -> bool:
        """Whether a file has the content that is stored for it."""
        row = self._store.in_file(self._policy.name, *file.key)
        file.recalled = row is None
        try:
            return row is not None and self._recall(file, row)
        except OSError as error:
            self._troubles.report(file.path, error)
            return False

    def _recall(self, file: FollowedFile, row: StoredPosition) -> bool:
        """Whether a file has a stored content. If it has another one, that content is
        lost for now.
        """
        if any(
            _name(candidate) == (row.identity, row.generation)
            for candidate in self._alike.get(row.fingerprint, ())
        ):
            file.recalled = True
            return False  # it was moved since, and that isn't stored yet
        if (row.size, row.modified) == (file.size, file.modified):
            self._adopt(file, row)
            return True
        with self.opened(file) as content:
            if content is None:
                return False
            line = first_line(content)
            known = FollowedFile.from_row(row, file.changed_at)
            if (
                line is not None
                and line.fingerprint == row.fingerprint
                and not self.was_replaced(known, content)
            ):
                file.packed = content.packed
                file.head = line.head
                self._adopt(file, row)
                return True
        file.recalled = True
        if not known.gone:  # else the system has given its inode to another file
            known.replaced = True
            file.before = row.identity
            self.rotations["truncate"] += 1
            self.lose(known)
        return False

    def _adopt(self, file: FollowedFile, row: StoredPosition) -> None:
        self._close(file)  # it may have been kept open to be read from its beginning
        file.adopt(row)
        file.times = (
            self._store.times(self._policy.name, row.identity, row.generation)
            if self._policy.stores_times
            else ()
        )
        unchanged = (row.size, row.modified) == (file.size, file.modified)
        file.done = file.done and unchanged
        file.packed = file.packed or file.done
        if file.done or (unchanged and file.position == file.size):
            file.mark_read()
        if file.path != row.path:
            file.renamed = True
            self.rotations["rename"] += 1
        self._remember(file)
        self.mark(file)

    def _look_inside(self, file: FollowedFile) -> FollowedFile | None:
        """What a file has whose content isn't known, if that can be found out now."""
        due = self._monotonic() - file.changed_at >= self._policy.rotate_wait
        finished = due and (file.unmatched_since is not None or file.renamed)
        again = finished if file.original is None else due or not self.is_in_file(file.original)
        if not file.size or not (file.unread or again):
            return None
        with self.opened(file) as content:
            if content is None:
                return None
            try:
                recognized = self._compare(file, content, due=due, finished=finished)
            except OSError as error:
                self._troubles.report(file.path, error)
                file.mark_unread()
                return None
            if not content.failure:
                self._troubles.clear(file.path)
            return recognized

    def _compare(
        self, file: FollowedFile, content: FileContent, *, due: bool, finished: bool
    ) -> FollowedFile | None:
        """The known content that the file has, or a new one; None if that isn't known yet."""
        original = None if file.unread else file.original
        file.mark_read()
        line = first_line(content, finished=finished)
        if line is None:
            return None
        file.fingerprint = line.fingerprint
        file.head = line.head
        file.packed = content.packed
        file.original = None if file.size_at_start else self._original(file, content) or original
        if file.original is not None and self.is_in_file(file.original):
            stays = file.original.unmatched_since is not None or (
                file.packed and file.path.startswith(f"{file.original.path}.")
            )
            if stays or not due:
                file.changed_at = self._monotonic() if due else file.changed_at
                return None
        former = None if file.size_at_start else self._former(file, content)
        if former is not None:
            return self._move(former, file, content)
        self._name_content(file, content)
        return file

    def _original(self, file: FollowedFile, content: FileContent) -> FollowedFile | None:
        """The followed file that this one may be a copy of."""
        head = file.head or b""
        alike = [
            candidate
            for candidate in self._alike.get(file.fingerprint, ())
            if candidate.head is None or head.startswith(candidate.head[: len(head)])
        ]
        for other in alike:
            if other is file or not self.is_in_file(other):
                continue
            with self.opened(other, apart=other.packed) as whole:
                if whole is None:
                    continue
                if (other.unread or not whole.packed) and self.was_replaced(other, whole):
                    status = whole.status()
                    self.replace(other, status.st_size, status.st_mtime_ns)
                    continue
                size = content.status().st_size
                if (file.packed or whole.packed or size <= whole.status().st_size) and is_beginning(
                    content, size, whole
                ):
                    return other
        return None

    def _former(self, file: FollowedFile, content: FileContent) -> FollowedFile | None:
        """The content of a file that is gone or was truncated, if this file has it; of several,
        the one that was read furthest.
        """
        absent = self._alike_with(file.fingerprint).absent.values()
        former = [
            candidate
            for candidate in absent
            if not (candidate.replaced and candidate.key == file.key)
            and self._has(file, content, candidate)
        ]
        return max(
            former,
            key=lambda candidate: (
                candidate is file.original,
                file.path.startswith(candidate.path),
                candidate.position,
            ),
            default=None,
        )

    def _alike_with(self, fingerprint: str) -> _Kin:
        """What is known of contents with this first line."""
        if (kin := self._kin.get(fingerprint)) is not None:
            return kin
        kin = self._kin[fingerprint] = _Kin({}, {})
        for row in self._store.alike(self._policy.name, fingerprint):
            former = FollowedFile.from_row(row, self._monotonic())
            there = self.files.get(former.key)
            # Otherwise it isn't known whether the file is still there.
            if there is None or there.identity or former.replaced or former.gone:
                kin.absent[_name(former)] = former
            kin.add(former)
        for known in self._alike.get(fingerprint, ()):
            if known.identity:
                kin.absent.pop(_name(known), None)
                kin.add(known)
                if not self.is_in_file(known):
                    kin.absent[_name(known)] = known
        return kin

    def _has(self, file: FollowedFile, content: FileContent, former: FollowedFile) -> bool:
        """Whether the file has that content, as far as it was read; a copy may lack what was
        written after it was made.
        """
        if former is file.original:
            return True
        if former.position >= SKIPPED:
            return False
        could_lack = former.outstanding or bool(former.earlier)
        if could_lack and not former.cut and tail_digest(content, former.boundary) is None:
            line = first_line(content, finished=True)
            known = [*former.earlier]
            if former.outstanding:
                known.append((former.position, former.position_check))
            if line is not None and any(
                offset > line.end and tail_digest(content, offset) == check
                for offset, check in known
            ):
                return True
            if former.outstanding:
                return False
        return not self.was_replaced(former, content)

    def _move(self, former: FollowedFile, file: FollowedFile, content: FileContent) -> FollowedFile:
        """The former content is in this file now."""
        lacking = former.boundary < SKIPPED and tail_digest(content, former.boundary) is None
        self._close(file)
        former.key = file.key
        former.path = file.path
        former.size = file.size
        former.modified = file.modified
        former.packed = content.packed
        former.head = file.head
        former.changed_at = file.changed_at
        former.unmatched_since = file.unmatched_since
        former.renamed = True
        former.replaced = False
        former.gone = False
        former.last_line_complete = False
        former.done = lacking
        if lacking and not content.packed:
            former.anchor = content.status().st_size
            former.anchor_check = tail_digest(content, former.anchor) or NOTHING
        former.cut = lacking and (former.cut or not content.packed)
        if lacking:
            former.mark_read()
        else:
            former.mark_unread()
        if not former.times and self._policy.stores_times:
            former.times = self._store.times(self._policy.name, former.identity, former.generation)
        self.files[file.key] = former
        self._alike_with(former.fingerprint).absent.pop(_name(former), None)
        if former in self.lost:
            self.lost.remove(former)
        self._remember(former)
        self.mark(former)
        return former

    def _name_content(self, file: FollowedFile, content: FileContent) -> None:
        """It is a new content: give it an identity, and say where reading begins. Raises `OSError`;
        then it has none.
        """
        kin = self._alike_with(file.fingerprint)
        tail = None if content.packed else tail_digest(content, file.size)
        first, check = 0, NOTHING
        if file.size_at_start and not content.packed:
            first = _last_line(content, file.size_at_start)
            check = tail_digest(content, first) or NOTHING
        if file.before.startswith(file.fingerprint):
            file.identity = file.before
        elif (
            former := next(
                (
                    candidate
                    for candidate in kin.absent.values()
                    if candidate.replaced and candidate.key == file.key
                ),
                None,
            )
        ) is not None:
            file.identity = former.identity
        elif file.fingerprint not in kin.generations:
            file.identity = file.fingerprint
        else:
            file.identity = f"{file.fingerprint}-{file.key[0]}-{file.key[1]}"
        file.generation = kin.generations.get(file.identity, -1) + 1
        kin.add(file)
        file.original = None
        file.mark_unread()
        if tail is not None:
            file.anchor = file.size
            file.anchor_check = tail
        if file.size_at_start and content.packed:
            file.position = SKIPPED
            file.done = True
            file.mark_read()
        elif file.size_at_start:
            file.position = first
            file.check = file.position_check = check
            self._close(file)
        self._remember(file)
        self.mark(file)

    def _remember(self, file: FollowedFile) -> None:
        alike = self._alike.setdefault(file.fingerprint, [])
        if file not in alike:
            alike.append(file)


@dataclass
class _Kin:
    """Contents with the same first line."""

    generations: dict[str, int]
    """The latest generation of each identity."""
    absent: dict[tuple[str, int], FollowedFile]
    """Those that are in no file."""

    def add(self, file: FollowedFile) -> None:
        """This identity and generation are used."""
        self.generations[file.identity] = max(
            file.generation, self.generations.get(file.identity, 0)
        )


def _name(file: FollowedFile) -> tuple[str, int]:
    return file.identity, file.generation


def _last_line(content: FileContent, size: int) -> int:
    """Where the last line begins that isn't complete before that size; `size` if that
    is too far.
    """
    begin = max(0, size - _LAST_LINE)
    end = content.exactly(begin, size - begin).rfind(b"\n")
    return begin + end + 1 if end >= 0 or not begin else size
