"""The files of a log source: found, recognized, read in turn, and their positions stored.

Invariants:
- A position is stored only for what is settled, and an identity before anything is read under it:
  after a kill at any moment nothing is lost, and what is read again has the same identity,
  generation and offsets. While the store can't be written, positions stay in memory; nothing is
  read of files whose identity isn't stored, and nothing is handed over whose time of reading has
  to be stored first.
- A file that was renamed or removed is read to its end, as long as it is open or found in its
  directory, and is closed when it hasn't changed for `rotate_wait` and all of it is settled.
- At most `max_open_files` are open (and two while files are recognized). What may be read waits in
  turn for a part of at most `PART` bytes; of compressed files one is read after the other, since
  they can't be resumed without decompressing them from the beginning.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from heapq import nsmallest
from typing import Final

import structlog

from forwarder.core.error_text import error_text
from forwarder.sources.logs.discovery import Discovery, FoundFile, find_file
from forwarder.sources.logs.followed import Block, FileKey, FollowedFile
from forwarder.sources.logs.identity import Recognition
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.positions import FAILURES, KEPT_SECONDS, PositionStore, ReadTime
from forwarder.sources.logs.reading import FileReader, ReadTroubles
from forwarder.sources.logs.splitting import LogRecords
from forwarder.telemetry.snapshot import LOG_FILES, LogSourceState

PART: Final = 256 << 10
"""Bytes that are read of a file before the next one has its turn."""

_LONGEST: Final = 64 << 20
"""Bytes that are read at once if nothing comes of them: they are of a line that is far too long."""
_EXCERPT: Final = 201
"""Bytes of the last line that are kept."""
_HELD_SECONDS: Final = 60.0
"""A file that was closed with the beginning of a record is opened again by the next look, if it
has changed since then.
"""
_DAY: Final = 86400.0
_STORE_HINT: Final = (
    "Make room on that disk, or let this user write there. Until then a restart reads again "
    "what was read since."
)
_log = structlog.get_logger(__name__)


class Follower:
    """All files of one source. Blocking; called by one thread at a time."""

    def __init__(
        self,
        policy: LogPolicy,
        store: PositionStore,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """Nothing is opened yet. `now`: wall-clock seconds."""
        self._policy = policy
        self._store = store
        self._now = now
        self._monotonic = monotonic
        self._troubles = ReadTroubles(policy.name)
        self._discovery = Discovery(policy.paths, policy.exclude, self._troubles.report)
        self._known = Recognition(
            policy, store, monotonic, troubles=self._troubles, on_close=self._close
        )
        self._paths: dict[str, FollowedFile] = {}
        self._open: dict[FollowedFile, None] = {}
        """Open files, the one that was read least recently first."""
        self._queue: deque[FollowedFile] = deque()
        self._ready: list[Block] = []
        """What became whole while nothing was read."""
        self._new_times: list[tuple[str, int, ReadTime]] = []
        self._begun = False
        self._failing = ""
        self._bytes = 0
        self._commits: Counter[str] = Counter()
        self._last_commit: float | None = None
        self._forgotten_at: float | None = None

    # Looking

    def look(self, changed: Collection[str] | None) -> None:
        """Look at the files of these paths, or at everything."""
        if changed is None or not self._begun or not self._look_at(changed):
            self._look_at_all()

    def _look_at(self, paths: Collection[str]) -> bool:
        """Whether these are known files that are where they were; then they are queued if they
        have grown.
        """
        for path in paths:
            file = self._paths.get(path)
            (key, there) = find_file(path)
            if file is None and not self._discovery.concerns(path):
                continue
            if file is None or not file.identity or key != file.key:
                return False
            self._update(file, there._replace(path=file.path))
        return True

    def _look_at_all(self) -> None:
        known = self._known.files
        now = self._monotonic()
        present = self._discovery.scan(lambda key: known[key].path if key in known else None)
        self._troubles.keep(self._paths.keys() | self._discovery.unreadable)
        missing = [file for key, file in known.items() if key not in present]
        moved = bool(missing)
        for key, current in present.items():
            if (file := known.get(key)) is None:
                known[key] = FollowedFile(key, *current, now)
                moved = True
            elif (
                file.left is not None
                or (file.path, file.size, file.modified) != current
                or file.unread
            ):
                moved = moved or file.path != current.path
                file.left = None
                self._update(file, current)
        try:
            if not self._begun:
                self._begin(present)
            self._look_for(missing)
            truncated = self._known.rotations["truncate"]
            recognized = self._known.recognize(
                [file for file in known.values() if not file.identity]
            )
            if self._known.rotations["truncate"] > truncated:  # what is in those files now?
                recognized += self._known.recognize(
                    [file for file in known.values() if not file.identity]
                )
        except FAILURES as error:
            self._store_failed(error)
            recognized = []
        for file in recognized:
            self._enqueue(file)
        for file in list(known.values()):
            if file.left is not None or file.renamed or file.reader is not None:
                self._finish(file)
            elif not file.fingerprint and file.size:
                self._hold(file)
        self._report_lost()
        if moved or recognized:
            self._paths = {file.path: file for file in known.values()}
            self._paths.update({self._discovery.real(file.path): file for file in known.values()})
        if recognized or self._known.dirty or self._last_commit is None:
            self._store_rows()

    def _begin(self, present: Collection[FileKey]) -> None:
        """The first look: files that were renamed while nothing was followed are looked for.
        Raises what the store raises.
        """
        known = self._known.files
        now = self._monotonic()
        if self._policy.from_end and self._store.is_new(self._policy.name):
            for file in known.values():
                file.initial = file.size
        rows = [
            row
            for row in self._store.present(self._policy.name)
            if (row.device, row.inode) not in present
        ]
        absent: dict[str, list[FollowedFile]] = {}
        for row in rows:
            if not self._discovery.may_be_there(row.path):
                absent.setdefault(os.path.dirname(row.path), []).append(  # noqa: PTH120
                    FollowedFile.from_row(row, now)
                )
        for directory, files in absent.items():
            there = self._discovery.search(directory, {file.key for file in files})
            for file in files:
                file.gone = file.key not in there or (
                    there[file.key].path == file.path and file.left is None
                )
                if not file.gone:
                    known[file.key] = FollowedFile(file.key, *there[file.key], now, left=now)
                elif file.key in there:
                    # it is where it was: the configuration doesn't name it any more
                    self._known.mark(file)
                else:
                    self._known.lose(file)
        self._begun = True

    def _look_for(self, missing: Iterable[FollowedFile]) -> None:
        """Files that no longer match: were they renamed or removed?"""
        now = self._monotonic()
        absent: dict[str, list[FollowedFile]] = {}
        for file in missing:
            if not self._discovery.may_be_there(file.path) and not self._is_at(file):
                absent.setdefault(os.path.dirname(file.path), []).append(file)  # noqa: PTH120
        for directory, files in absent.items():
            there = self._discovery.search(directory, {file.key for file in files})
            for file in files:
                if file.left is None:
                    file.left = file.changed_at = now
                if file.key in there:
                    self._update(file, there[file.key])
                elif file.reader is not None:
                    status = file.reader.content.status()
                    self._update(file, FoundFile(file.path, status.st_size, status.st_mtime_ns))
                else:
                    self._drop(file)

    def _is_at(self, file: FollowedFile) -> bool:
        """Whether a file that no longer matches was found before, and is where it was then."""
        key, there = find_file(file.path)
        if file.left is None or key != file.key:
            return False
        self._update(file, there)
        return True

    def _update(self, file: FollowedFile, status: FoundFile) -> None:
        """This is what a known file is like now."""
        if file.path != status.path:
            if (file.size, file.modified) != (status.size, status.modified):
                # perhaps another file, to which the system gave the inode of one that was removed
                file.examined = None
            file.path = status.path
            file.renamed = True
            file.changed_at = self._monotonic()
            self._known.rotations["rename"] += 1
            if file.identity:
                self._known.mark(file)
        if file.identity and not file.packed and not file.done and status.size < file.boundary:
            self._known.replace(file, status.size, status.modified)
            return
        if (file.size, file.modified) != (status.size, status.modified):
            file.size = status.size
            file.modified = status.modified
            file.changed_at = self._monotonic()
            file.finished = False
        if file.identity and file.unread:
            quiet = self._monotonic() - file.changed_at >= self._policy.rotate_wait
            # else it is being written: reading it begins at its beginning
            if not file.packed or file.examined is None or quiet:
                file.done = False
                self._enqueue(file)

    def _finish(self, file: FollowedFile) -> None:
        """Read what is overdue; of a file to which no more is written, the rest; close what was
        read to its end and no longer matches.
        """
        reader = file.reader
        now = self._monotonic()
        if reader is not None and file.identity and reader.splitter.held:
            self._add(file, reader, reader.splitter.overdue(now))
        if (
            file.left is None and not file.renamed
        ) or now - file.changed_at < self._policy.rotate_wait:
            return
        if file.identity and not (file.unread or file.finished or file.packed or file.done):
            file.finished = file.boundary >= file.size or (
                reader is not None and reader.read >= file.size
            )
            if reader is not None and file.finished:
                self._add(file, reader, reader.splitter.finish())
            elif not file.finished:
                file.examined = None
                self._enqueue(file)
        if (
            file.left is not None
            and not file.outstanding
            and (not file.identity or not file.unread)
        ):
            self._drop(file)

    def _drop(self, file: FollowedFile) -> None:
        """The file is gone, or nothing more is to be read of it."""
        file.gone = True
        self._known.remove(file)
        if file.identity and (file.unread or file.outstanding):
            self._known.lose(file)

    def _report_lost(self) -> None:
        """Log what can't be read any more, unless a copy was found."""
        lost = self._known.lost
        self._known.lost = []
        for file in lost:
            if self._known.is_in_file(file):
                continue
            if not file.done and file.size > max(file.position, file.boundary):
                _log.warning(
                    "logs: a file was truncated or removed before it was read to its end",
                    source=self._policy.name,
                    path=file.path,
                    bytes=file.size - file.boundary,
                    hint=(
                        "Let the log's rotation keep the last file under a name that matches, "
                        "and rotate less often."
                    ),
                )
            self._known.release(file)

    def directories(self) -> set[str]:
        """The directories to be watched."""
        return set(self._discovery.directories)

    # Reading

    def read(self, budget: int) -> list[Block]:
        """About so many bytes, from files in turn; empty if there is nothing to be read now."""
        if self._failing and self._waits_for_store() and not self._store_rows() and self._new_times:
            return []
        turns = len(self._queue)
        until = self._bytes + budget
        limit = self._bytes + max(budget, _LONGEST)
        packed = next(
            (file for file in self._queue if file.packed and file.reader is not None), None
        )
        while self._queue and turns and self._bytes < (until if self._ready else limit):
            file = self._queue.popleft()
            file.queued = False
            if not file.identity or not self._known.is_in_file(file):
                turns -= 1
            elif not file.seen or (file.packed and packed not in (None, file)):
                turns -= 1
                self._enqueue(file)
            elif self._read_part(file):
                self._enqueue(file)
                packed = file if file.packed and file.reader is not None else packed
            else:
                turns -= 1
                packed = None if packed is file else packed
        if self._known.lost:  # a file was truncated: what has it now, and where is the copy?
            self._look_at_all()
        if self._new_times and not self._store_rows():
            return []
        blocks = self._ready
        self._ready = []
        return blocks

    def _waits_for_store(self) -> bool:
        """Whether something has to be stored before records are handed over: when they were read,
        or whose they are.
        """
        return bool(self._new_times) or any(not file.seen for file in self._known.dirty)

    def _read_part(self, file: FollowedFile) -> bool:
        """Read the next part of a file; whether there may be more."""
        try:
            reader = file.reader or self._open_file(file)
            if reader is None:
                return False
            data = reader.next(PART)
            if data is None:
                status = reader.content.status()
                self._known.replace(file, status.st_size, status.st_mtime_ns)
                return False
            self._bytes += len(data)
            self._open[file] = self._open.pop(file, None)
            if data:
                self._troubles.over(file.path)
                file.last_read = self._now()
                self._add(file, reader, reader.splitter.feed(data, file.changed_at))
            if len(data) == PART or not self._is_at_end(file, reader):
                return True
            reader.forget()
        except OSError as error:
            self._troubles.report(file.path, error)
            self._close(file)
        return False

    def _is_at_end(self, file: FollowedFile, reader: FileReader) -> bool:
        """Whether there is nothing more to be read now, as far as is known."""
        content = reader.content
        status = reader.content.status()
        if content.packed and not content.ended and not content.failure:
            return False
        if not content.packed and status.st_size != reader.read:
            return False
        if (file.size, file.modified) != (status.st_size, status.st_mtime_ns):
            file.size = status.st_size
            file.modified = status.st_mtime_ns
            file.changed_at = self._monotonic()
        file.examined = file.size, file.modified
        if content.ended:
            self._add(file, reader, reader.splitter.finish())
            file.done = True
            self._known.mark(file)
        if content.failure:
            self._troubles.report(file.path, OSError(0, content.failure))
        else:
            self._troubles.over(file.path)
        if content.packed:
            content.begin_again() if file.left is not None else self._close(file)
        return True

    def _open_file(self, file: FollowedFile) -> FileReader | None:
        """Open a file where the next block begins; None if that isn't
        possible now. Raises `OSError`.
        """
        if len(self._open) >= self._policy.max_open_files and not self._close_one():
            file.examined = None
            return None
        content = self._known.open(file)
        if content is None:
            return None
        try:
            file.packed = content.packed
            if self._known.was_replaced(file, content):
                status = content.status()
                self._known.replace(file, status.st_size, status.st_mtime_ns)
                content.close()
                return None
            file.reader = FileReader(content, self._policy.split(file.boundary), file.boundary)
        except BaseException:
            content.close()
            raise
        self._open[file] = None
        return file.reader

    def _hold(self, file: FollowedFile) -> None:
        """Keep a file open that has no complete line yet, as long as there is room: it may be
        removed before it has one.
        """
        if len(self._open) >= self._policy.max_open_files:
            return
        content = self._known.open(file)
        if content is None:
            return
        try:
            file.reader = FileReader(content, self._policy.split(0), 0)
        except OSError as error:
            self._troubles.report(file.path, error)
            content.close()
            return
        self._open[file] = None
        if not file.unread:  # else its beginning can't be read
            self._troubles.over(file.path)

    def _close_one(self) -> bool:
        """Close the file that was read least recently and has nothing to be read; else one that
        can be opened again.
        """
        for idle in (True, False):
            for file in self._open:
                if file.left is None and not (file.packed and file.queued):
                    held = file.reader is not None and file.reader.splitter.held
                    if not idle or not (file.queued or held):
                        self._close(file)
                        return True
        for file in self._open:
            if file.left is not None and not file.unread and not file.outstanding:
                self._drop(file)
                return True
        return False

    def _close(self, file: FollowedFile) -> None:
        reader = file.reader
        file.reader = None
        self._open.pop(file, None)
        if reader is not None:
            if reader.splitter.held and self._monotonic() - file.changed_at < _HELD_SECONDS:
                file.examined = None
            reader.close()
        file.release()

    def _enqueue(self, file: FollowedFile) -> None:
        if not file.queued and file.identity and not file.done:
            file.queued = True
            self._queue.append(file)

    def _add(self, file: FollowedFile, reader: FileReader, records: LogRecords) -> None:
        """Make blocks of records, cut where the time changes at which they were read
        first. Raises `OSError`.
        """
        if records.end <= file.boundary:
            return
        if records.values:
            file.last_line = records.values[-1][:_EXCERPT]
        parts = [(self._now(), records)]
        if self._policy.stores_times:
            parts, new = file.split_by_time(records, self._now())
            self._new_times += [(file.identity, file.generation, time) for time in new]
        for at, part in parts:
            block = file.add_block(part, at, reader.check_before(part.end))
            if block.span.count:
                self._ready.append(block)
            else:
                self.settle(block)

    # What becomes of blocks

    def rewind(self, block: Block) -> None:
        """Read the block again, and what was read after it of its file: those blocks
        count no more.
        """
        file = block.file
        gone = file.rewind(block.span, block.first)
        self._ready = [batch for batch in self._ready if batch.span not in gone]
        if not self._known.is_in_file(file):
            self._known.lose(file)
            return
        try:
            if (reader := file.reader) is not None:
                if self._known.was_replaced(file, reader.content):
                    status = reader.content.status()
                    self._known.replace(file, status.st_size, status.st_mtime_ns)
                else:
                    file.reader = FileReader(
                        reader.content, self._policy.split(block.first), block.first
                    )
        except OSError as error:
            self._troubles.report(file.path, error)
            self._close(file)
        self._enqueue(file)

    def settle(self, block: Block) -> None:
        """The block's records are settled."""
        block.file.settle(block.span)
        self._known.mark(block.file)

    def save(self) -> None:
        """Store the positions that moved, durably. A failure is logged, reported by `statistics`,
        and repaired by the next call.
        """
        now = self._now()
        daily = self._begun and (self._forgotten_at is None or now - self._forgotten_at >= _DAY)
        if daily:
            for file in self._known.files.values():
                if file.identity and now - file.seen >= _DAY:
                    self._known.mark(file)
        if (self._known.dirty or self._new_times) and not self._store_rows():
            return
        if daily:
            try:
                self._store.forget(self._policy.name, now - KEPT_SECONDS)
                self._forgotten_at = now
            except FAILURES as error:
                self._store_failed(error)

    def close(self) -> None:
        """Store what is settled, and close all files."""
        self.save()
        for file in list(self._open):
            self._close(file)

    def _store_rows(self) -> bool:
        """Store what changed, all of it or nothing; whether that was possible."""
        now = self._now()
        dirty = list(self._known.dirty)
        try:
            self._store.save(
                self._policy.name, [file.row(now) for file in dirty], self._new_times, now
            )
        except FAILURES as error:
            self._store_failed(error)
            return False
        self._known.dirty.clear()
        self._new_times.clear()
        for file in dirty:
            file.seen = now
            self._known.release(file)
        self._commits["ok"] += 1
        self._last_commit = now
        if self._failing:
            self._failing = ""
            _log.info(
                "logs: positions are stored again",
                source=self._policy.name,
                path=str(self._store.path),
            )
        return True

    def _store_failed(self, error: Exception) -> None:
        self._commits["failed"] += 1
        words = error_text(error)
        why = f"{self._store.path}: {words}"
        if why != self._failing:
            _log.error(
                "logs: positions can't be stored",
                source=self._policy.name,
                path=str(self._store.path),
                why=words,
                hint=_STORE_HINT,
            )
        self._failing = why

    # What is known

    def statistics(self) -> LogSourceState:
        """All files, what was counted since the start, and how the source is as far as its files
        and positions go.
        """
        files = list(self._known.files.values())
        lags = {file: file.lag for file in files}
        listed = nsmallest(
            LOG_FILES, files, key=lambda file: (-lags[file], -(file.last_read or 0.0), file.path)
        )
        why, hint = self._troubles.first
        state = "reading" if files else "waiting"
        if self._failing:
            state = "down"
            why = f"positions can't be stored: {self._failing}"
            hint = _STORE_HINT
        elif not files:
            why = why or f"no file matches {', '.join(self._policy.paths)}"
        return LogSourceState(
            name=self._policy.name,
            state=state,
            why=why,
            hint=hint,
            files=tuple([file.statistics() for file in listed]),
            followed=len(files),
            open=len(self._open),
            unreadable=self._troubles.count,
            lag=sum(lags.values()),
            bytes=self._bytes,
            rotations=dict(self._known.rotations),
            commits=dict(self._commits),
            last_commit=self._last_commit,
        )
