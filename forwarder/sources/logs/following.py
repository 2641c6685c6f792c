"""Follows the files of a log source: finds, recognizes and reads them, and stores their positions.

Invariants:
- The position of a file is stored only after everything before it is settled, and its identity
  before any of it is read. After a kill at any moment nothing is lost, and what is read again has
  the same identity, generation and offsets.
- While the store can't be written, positions stay in memory, and files whose identity isn't stored
  aren't read. If the policy stores times, no records are handed over before the times when they
  were read are stored.
- A file that was renamed or removed is read to its end, as long as it is open or found in its
  directory. It is closed when it hasn't changed for `rotate_wait` and all of it is settled.
- At most `max_open_files` are open, and up to two more while files are recognized.
- Files are read in turns of at most `TURN_BYTES`. Compressed files are read one after another:
  one that was closed in between would have to be decompressed from its beginning again.
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

TURN_BYTES: Final = 256 << 10
"""Bytes that are read of a file in one turn."""

_MAX_BYTES_WITHOUT_RECORD: Final = 64 << 20
"""Bytes that one call of `read` may read before a record is complete: more than its budget, so that
an overlong line doesn't look like a source that has nothing to read.
"""
_EXCERPT_BYTES: Final = 201
"""Bytes of the last line that are kept for the statistics: one more than `line_excerpt` shows, so
that it knows whether the line was cut.
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
        self._recognition = Recognition(
            policy, store, monotonic, troubles=self._troubles, on_close=self._close
        )
        self._by_path: dict[str, FollowedFile] = {}
        """Files by the path that matches and, where that is a link, by the path it leads to."""
        self._open_files: dict[FollowedFile, None] = {}
        """Files that have a reader; the one that was read least recently is first."""
        self._queue: deque[FollowedFile] = deque()
        self._ready: list[Block] = []
        """Blocks that `read` hasn't returned yet."""
        self._unstored_times: list[tuple[str, int, ReadTime]] = []
        """When records were read first, with the identity and generation of their file."""
        self._first_look_done = False
        self._store_error = ""
        """Why the store couldn't be written the last time; empty if it could."""
        self._bytes_read = 0
        self._commits: Counter[str] = Counter()
        self._last_commit: float | None = None
        self._maintained_at: float | None = None
        """When `save` did its daily work the last time."""

    # Finding files

    def look(self, changed: Collection[str] | None) -> None:
        """Queue files that have something to be read: those that are new or have changed.

        `changed`: the paths that may have changed; None: look at everything.
        """
        if changed is None or not self._first_look_done or not self._update_in_place(changed):
            self._look_at_everything()

    def _update_in_place(self, paths: Collection[str]) -> bool:
        """Update the files at these paths; False if a file appeared, moved or was removed, which
        only a look at everything can follow.
        """
        for path in paths:
            file = self._by_path.get(path)
            key, current = find_file(path)
            if file is None and not self._discovery.concerns(path):
                continue
            if file is None or not file.identity or key != file.key:
                return False
            # `path` may be where a link leads: the file keeps the path that matches.
            self._update(file, current._replace(path=file.path))
        return True

    def _look_at_everything(self) -> None:
        known = self._recognition.files
        now = self._monotonic()
        present = self._discovery.scan(lambda key: known[key].path if key in known else None)
        self._troubles.keep(self._by_path.keys() | self._discovery.unreadable)
        missing = [file for key, file in known.items() if key not in present]
        paths_changed = bool(missing)
        for key, current in present.items():
            if (file := known.get(key)) is None:
                known[key] = FollowedFile(key, *current, now)
                paths_changed = True
            elif (
                file.unmatched_since is not None
                or (file.path, file.size, file.modified) != current
                or file.unread
            ):
                paths_changed = paths_changed or file.path != current.path
                file.unmatched_since = None
                self._update(file, current)
        try:
            if not self._first_look_done:
                self._resume(present)
            self._search_unmatched(missing)
            truncated = self._recognition.rotations["truncate"]
            recognized = self._recognition.recognize(
                [file for file in known.values() if not file.identity]
            )
            if self._recognition.rotations["truncate"] > truncated:
                # Truncated files were found meanwhile: their new contents are recognized, too.
                recognized += self._recognition.recognize(
                    [file for file in known.values() if not file.identity]
                )
        except FAILURES as error:
            self._report_store_failure(error)
            recognized = []
        for file in recognized:
            self._enqueue(file)
        for file in list(known.values()):
            if file.unmatched_since is not None or file.renamed or file.may_hold_records:
                self._apply_timeouts(file)
            elif not file.fingerprint and file.size:
                self._open_without_first_line(file)
        self._report_lost()
        if paths_changed or recognized:
            self._by_path = {file.path: file for file in known.values()}
            self._by_path.update({self._discovery.real(file.path): file for file in known.values()})
        if recognized or self._recognition.dirty or self._last_commit is None:
            self._store_changes()

    def _resume(self, present: Collection[FileKey]) -> None:
        """Part of the first look: search for files that were renamed or removed while nothing was
        followed. Raises what the store raises.
        """
        known = self._recognition.files
        now = self._monotonic()
        if self._policy.from_end and self._store.is_new(self._policy.name):
            for file in known.values():
                file.size_at_start = file.size
        missing: dict[str, list[FollowedFile]] = {}
        """By directory, which is listed once."""
        for row in self._store.present(self._policy.name):
            if (row.device, row.inode) not in present and not self._discovery.may_be_there(
                row.path
            ):
                missing.setdefault(os.path.dirname(row.path), []).append(  # noqa: PTH120
                    FollowedFile.from_row(row, now)
                )
        for directory, files in missing.items():
            found = self._discovery.search(directory, {file.key for file in files})
            for file in files:
                current = found.get(file.key)
                if current is None:
                    file.gone = True
                    self._recognition.lose(file)
                elif current.path == file.path and file.unmatched_since is None:
                    # It matched at this path and doesn't now: the configuration has changed.
                    file.gone = True
                    self._recognition.mark(file)
                else:
                    known[file.key] = FollowedFile(file.key, *current, now, unmatched_since=now)
        self._first_look_done = True

    def _search_unmatched(self, unmatched: Iterable[FollowedFile]) -> None:
        """Follow files that no longer match: renamed ones by their new path, removed ones while
        they are open.
        """
        now = self._monotonic()
        missing: dict[str, list[FollowedFile]] = {}
        """By directory, which is listed once."""
        for file in unmatched:
            if not self._discovery.may_be_there(file.path) and not self._update_if_still_there(
                file
            ):
                missing.setdefault(os.path.dirname(file.path), []).append(file)  # noqa: PTH120
        for directory, files in missing.items():
            found = self._discovery.search(directory, {file.key for file in files})
            for file in files:
                if file.unmatched_since is None:
                    file.unmatched_since = file.changed_at = now
                if file.key in found:
                    self._update(file, found[file.key])
                elif file.reader is not None:
                    status = file.reader.content.status()
                    self._update(file, FoundFile(file.path, status.st_size, status.st_mtime_ns))
                else:
                    self._drop(file)

    def _update_if_still_there(self, file: FollowedFile) -> bool:
        """Update a file whose new path is known from an earlier search, if it is still there;
        whether it is. That saves listing its directory again.
        """
        key, current = find_file(file.path)
        if file.unmatched_since is None or key != file.key:
            return False
        self._update(file, current)
        return True

    def _update(self, file: FollowedFile, current: FoundFile) -> None:
        """Note where a file is now, and its size and time; queue it if it may have more to be
        read.
        """
        if file.path != current.path:
            if (file.size, file.modified) != (current.size, current.modified):
                # This may be another file that got the inode of a removed one.
                file.mark_unread()
            file.path = current.path
            file.renamed = True
            file.changed_at = self._monotonic()
            self._recognition.rotations["rename"] += 1
            if file.identity:
                self._recognition.mark(file)
        if file.identity and not file.packed and not file.done and current.size < file.boundary:
            self._recognition.replace(file, current.size, current.modified)
            return
        if (file.size, file.modified) != (current.size, current.modified):
            file.size = current.size
            file.modified = current.modified
            file.changed_at = self._monotonic()
            file.last_line_complete = False
        if file.identity and file.unread:
            quiet = self._monotonic() - file.changed_at >= self._policy.rotate_wait
            # A compressed file that was read and grows is read again when it is written
            # completely: each attempt decompresses it from the beginning.
            if not file.packed or file.read_status is None or quiet:
                file.done = False
                self._enqueue(file)

    def _apply_timeouts(self, file: FollowedFile) -> None:
        """Do what is due because time has passed: release records that have waited too long for
        their rest and, after `rotate_wait`, read the last line of a file to which no more is
        written, and stop following one that no longer matches and is settled.
        """
        try:
            self._release_records(file)
        except OSError as error:
            # What the splitter has released is read again.
            self._troubles.report(file.path, error)
            self._close(file)
            file.last_line_complete = False
            file.mark_unread()
            self._enqueue(file)
            return
        if (
            file.unmatched_since is not None
            and self._has_waited(file)
            and not file.outstanding
            and (not file.identity or not file.unread)
        ):
            self._drop(file)

    def _release_records(self, file: FollowedFile) -> None:
        """Release records that have waited too long for their rest and, after `rotate_wait`, the
        last line of a file to which no more is written. Raises `OSError`.
        """
        reader = file.reader
        if reader is not None and file.identity:
            self._release_overdue(file, reader)
        elif file.record_due is not None and self._monotonic() >= file.record_due:
            file.record_due = None
            file.mark_unread()
            self._enqueue(file)
        if (file.unmatched_since is None and not file.renamed) or not self._has_waited(file):
            return
        if file.identity and not (
            file.unread or file.last_line_complete or file.packed or file.done
        ):
            file.last_line_complete = file.boundary >= file.size or (
                reader is not None and reader.read >= file.size
            )
            if reader is not None and file.last_line_complete:
                self._add_blocks(file, reader, reader.splitter.finish())
            elif not file.last_line_complete:
                # It was closed before its last line was complete: that is read again first.
                file.mark_unread()
                self._enqueue(file)

    def _release_overdue(self, file: FollowedFile, reader: FileReader) -> None:
        """Release records that have waited too long for their rest. Raises `OSError`."""
        now = self._monotonic()
        due = reader.splitter.due
        if due is not None and now >= due:
            self._add_blocks(file, reader, reader.splitter.overdue(now))

    def _has_waited(self, file: FollowedFile) -> bool:
        """Whether a file hasn't changed for `rotate_wait`."""
        return self._monotonic() - file.changed_at >= self._policy.rotate_wait

    def _drop(self, file: FollowedFile) -> None:
        """Stop following a file that was removed or has nothing more to be read."""
        file.gone = True
        self._recognition.remove(file)
        if file.identity and (file.unread or file.outstanding):
            self._recognition.lose(file)

    def _report_lost(self) -> None:
        """Log which contents were lost before they were read, unless a copy was found."""
        lost = self._recognition.lost
        self._recognition.lost = []
        for file in lost:
            if self._recognition.is_in_file(file):
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
            self._recognition.release(file)

    def directories(self) -> set[str]:
        """The directories to watch for changes."""
        return set(self._discovery.directories)

    # Reading

    def read(self, budget: int) -> list[Block]:
        """Read about `budget` bytes, from files in turn. Empty if there is nothing to be read, or
        if the store can't be written and the blocks have to wait for it.
        """
        if self._store_error and self._waits_for_store():
            stored = self._store_changes()
            # Otherwise more would be read than can be handed over. Files without a row need no
            # such care: they are skipped below.
            if not stored and self._unstored_times:
                return []
        candidates = len(self._queue)
        """Files that may have something to be read in this call."""
        until = self._bytes_read + budget
        limit = self._bytes_read + max(budget, _MAX_BYTES_WITHOUT_RECORD)
        unpacking = next(
            (file for file in self._queue if file.packed and file.reader is not None), None
        )
        """The compressed file that is read to its end before another one is begun."""
        while self._queue and candidates and self._bytes_read < (until if self._ready else limit):
            file = self._queue.popleft()
            file.queued = False
            if not file.identity or not self._recognition.is_in_file(file):
                candidates -= 1
            elif not file.has_row or (file.packed and unpacking not in (None, file)):
                candidates -= 1
                self._enqueue(file)
            elif self._read_turn(file):
                self._enqueue(file)
                unpacking = file if file.packed and file.reader is not None else unpacking
            else:
                candidates -= 1
                unpacking = None if unpacking is file else unpacking
        if self._recognition.lost:
            # Files were truncated: recognize their new contents, and copies of the lost ones.
            self._look_at_everything()
        if self._unstored_times and not self._store_changes():
            return []
        blocks = self._ready
        self._ready = []
        return blocks

    def _waits_for_store(self) -> bool:
        """Whether records can't be read or handed over before the store was written: because of
        their times, or because their file has no row yet.
        """
        return bool(self._unstored_times) or any(
            not file.has_row for file in self._recognition.dirty
        )

    def _read_turn(self, file: FollowedFile) -> bool:
        """Read at most `TURN_BYTES` of a file; whether it may have more."""
        try:
            reader = file.reader or self._open_file(file)
            if reader is None:
                return False
            data = reader.next(TURN_BYTES)
            if data is None:
                status = reader.content.status()
                self._recognition.replace(file, status.st_size, status.st_mtime_ns)
                return False
            self._bytes_read += len(data)
            self._open_files[file] = self._open_files.pop(file, None)  # now the last one
            if data:
                self._troubles.clear(file.path)
                file.last_read = self._now()
                self._add_blocks(file, reader, reader.splitter.feed(data, file.changed_at))
            if len(data) == TURN_BYTES:
                return True
            status = reader.content.status()
            if not _is_at_end(reader, status):
                return True
            self._leave_at_end(file, reader, status)
            if file.reader is not None:  # another may need its descriptor before the next look
                self._release_overdue(file, reader)
            reader.forget()
        except OSError as error:
            self._troubles.report(file.path, error)
            self._close(file)
        return False

    def _leave_at_end(self, file: FollowedFile, reader: FileReader, status: os.stat_result) -> None:
        """Leave a file that has nothing more to be read while its status is this one; close it if
        it is compressed. Raises `OSError`.
        """
        content = reader.content
        if (file.size, file.modified) != (status.st_size, status.st_mtime_ns):
            file.size = status.st_size
            file.modified = status.st_mtime_ns
            file.changed_at = self._monotonic()
        file.mark_read()
        if content.ended:
            self._add_blocks(file, reader, reader.splitter.finish())
            file.done = True
            self._recognition.mark(file)
        if content.failure:
            self._troubles.report(file.path, OSError(0, content.failure))
        else:
            self._troubles.clear(file.path)
        if content.packed:
            if file.unmatched_since is None:
                self._close(file)
            else:
                # Once closed, a removed file couldn't be read again if a block has to be.
                content.begin_again()

    def _open_file(self, file: FollowedFile) -> FileReader | None:
        """Open a file where the next block begins; None if too many are open, if it can't be
        opened, or if it has another content by now. Raises `OSError`.
        """
        if len(self._open_files) >= self._policy.max_open_files and not self._free_descriptor():
            file.mark_unread()  # so that the next look queues it again
            return None
        content = self._recognition.open(file)
        if content is None:
            return None
        try:
            file.packed = content.packed
            if self._recognition.was_replaced(file, content):
                status = content.status()
                self._recognition.replace(file, status.st_size, status.st_mtime_ns)
                content.close()
                return None
            file.reader = FileReader(content, self._policy.split(file.boundary), file.boundary)
            file.record_due = None
        except BaseException:
            content.close()
            raise
        self._open_files[file] = None
        return file.reader

    def _open_without_first_line(self, file: FollowedFile) -> None:
        """Open a file that can't be recognized yet, unless too many are open, and keep it open:
        it may be removed before its first line is complete.
        """
        if len(self._open_files) >= self._policy.max_open_files:
            return
        content = self._recognition.open(file)
        if content is None:
            return
        try:
            file.reader = FileReader(content, self._policy.split(0), 0)
        except OSError as error:
            self._troubles.report(file.path, error)
            content.close()
            return
        self._open_files[file] = None
        if not file.unread:  # recognition could read it, though it found no complete line
            self._troubles.clear(file.path)

    def _free_descriptor(self) -> bool:
        """Close an open file so that another one can be opened; whether that was possible.

        First choice is the file that was read least recently and has nothing to be read, then any
        other that matches, so that it can be opened again, then one that is read and settled.
        """
        choice = next(filter(_is_idle, filter(_can_be_reopened, self._open_files)), None)
        if choice is None:
            choice = next(filter(_can_be_reopened, self._open_files), None)
        if choice is not None:
            self._close(choice)
            return True
        for file in self._open_files:
            if file.unmatched_since is not None and not file.unread and not file.outstanding:
                self._drop(file)
                return True
        return False

    def _close(self, file: FollowedFile) -> None:
        reader = file.reader
        file.reader = None
        self._open_files.pop(file, None)
        if reader is not None:
            file.record_due = reader.splitter.due
            reader.close()
        file.release()

    def _enqueue(self, file: FollowedFile) -> None:
        if not file.queued and file.identity and not file.done:
            file.queued = True
            self._queue.append(file)

    def _add_blocks(self, file: FollowedFile, reader: FileReader, records: LogRecords) -> None:
        """Make blocks of records, which begin at the file's boundary: one, or one for each time at
        which some of them were read first. Raises `OSError`.
        """
        if records.end <= file.boundary:
            return
        if records.values:
            file.last_line = records.values[-1][:_EXCERPT_BYTES]
        parts = [(self._now(), records)]
        if self._policy.stores_times:
            parts, new = file.split_by_time(records, self._now())
            self._unstored_times += [(file.identity, file.generation, time) for time in new]
        for at, part in parts:
            block = file.add_block(part, at, reader.check_before(part.end))
            if block.span.count:
                self._ready.append(block)
            else:
                self.settle(block)  # there are only empty lines in it

    # Settling and rewinding blocks

    def rewind(self, block: Block) -> None:
        """Have a block read again, with all later blocks of its file; these become invalid."""
        file = block.file
        invalid = file.rewind(block.span, block.first)
        self._ready = [pending for pending in self._ready if pending.span not in invalid]
        if not self._recognition.is_in_file(file):
            self._recognition.lose(file)
            return
        try:
            if (reader := file.reader) is not None:
                if self._recognition.was_replaced(file, reader.content):
                    status = reader.content.status()
                    self._recognition.replace(file, status.st_size, status.st_mtime_ns)
                else:
                    file.reader = FileReader(
                        reader.content, self._policy.split(block.first), block.first
                    )
        except OSError as error:
            self._troubles.report(file.path, error)
            self._close(file)
        self._enqueue(file)

    def settle(self, block: Block) -> None:
        """Note that the block's records are settled; `save` stores the position."""
        block.file.settle(block.span)
        self._recognition.mark(block.file)

    # Storing positions

    def save(self) -> None:
        """Store the positions that moved, durably; once a day also store which files are still
        there, and remove the rows of files that aren't. A failure is logged and reported by
        `statistics`, and the next call tries again.
        """
        now = self._now()
        daily = self._first_look_done and (
            self._maintained_at is None or now - self._maintained_at >= _DAY
        )
        if daily:
            for file in self._recognition.files.values():
                if file.identity and now - file.seen >= _DAY:
                    self._recognition.mark(file)
        if (self._recognition.dirty or self._unstored_times) and not self._store_changes():
            return
        if daily:
            try:
                self._store.forget(self._policy.name, now - KEPT_SECONDS)
                self._maintained_at = now
            except FAILURES as error:
                self._report_store_failure(error)

    def close(self) -> None:
        """Store what is settled, and close all files."""
        self.save()
        for file in list(self._open_files):
            self._close(file)

    def _store_changes(self) -> bool:
        """Store changed rows and new times, all of them or none; whether that was possible."""
        now = self._now()
        dirty = list(self._recognition.dirty)
        try:
            self._store.save(
                self._policy.name, [file.row(now) for file in dirty], self._unstored_times, now
            )
        except FAILURES as error:
            self._report_store_failure(error)
            return False
        self._recognition.dirty.clear()
        self._unstored_times.clear()
        for file in dirty:
            file.seen = now
            self._recognition.release(file)
        self._commits["ok"] += 1
        self._last_commit = now
        if self._store_error:
            self._store_error = ""
            _log.info(
                "logs: positions are stored again",
                source=self._policy.name,
                path=str(self._store.path),
            )
        return True

    def _report_store_failure(self, error: Exception) -> None:
        self._commits["failed"] += 1
        words = error_text(error)
        why = f"{self._store.path}: {words}"
        if why != self._store_error:
            _log.error(
                "logs: positions can't be stored",
                source=self._policy.name,
                path=str(self._store.path),
                why=words,
                hint=_STORE_HINT,
            )
        self._store_error = why

    # Statistics

    def statistics(self) -> LogSourceState:
        """The state of the source, as far as files and positions determine it, its files, and what
        was counted since the start.
        """
        files = list(self._recognition.files.values())
        lags = {file: file.lag for file in files}
        listed = nsmallest(
            LOG_FILES, files, key=lambda file: (-lags[file], -(file.last_read or 0.0), file.path)
        )
        why, hint = self._troubles.first
        state = "reading" if files else "waiting"
        if self._store_error:
            state = "down"
            why = f"positions can't be stored: {self._store_error}"
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
            open=len(self._open_files),
            unreadable=self._troubles.count,
            lag=sum(lags.values()),
            bytes=self._bytes_read,
            rotations=dict(self._recognition.rotations),
            commits=dict(self._commits),
            last_commit=self._last_commit,
        )


def _is_at_end(reader: FileReader, status: os.stat_result) -> bool:
    """Whether a file with this status has nothing more to be read, or can't be read further."""
    content = reader.content
    if content.packed:
        return content.ended or bool(content.failure)
    return status.st_size == reader.read


def _can_be_reopened(file: FollowedFile) -> bool:
    """Whether an open file can be closed and opened again by its path, without decompressing again
    what was read.
    """
    return file.unmatched_since is None and not (file.packed and file.queued)


def _is_idle(file: FollowedFile) -> bool:
    """Whether an open file has nothing to be read, and no part of a record was read of it."""
    return not file.queued and (file.reader is None or not file.reader.splitter.held)
