"""Whatever happens to log files, each line is read at least once, and always under the same
identity, generation and offset.

A state machine appends whole and partial lines, rotates in every way, compresses, removes what was
read, kills the follower and settles what it has read, in any order. Lines are unique, but for
first lines, which may be equal.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.followed_logs import COMPRESSIONS, ROTATE_WAIT, FollowedLogs

EQUAL = "the same first line"


class FollowedFiles(RuleBasedStateMachine):
    """Up to three logs, each with some rotated files."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.logs = FollowedLogs(self.root, max_open_files=2)
        self.written = 0
        self.rotated = 0
        self.expected: set[str] = set()
        """Complete lines."""
        self.partial: dict[str, str] = {}
        """The unfinished last line of each file, by its name."""
        self.seen: set[str] = set()
        """The logs that were looked at since they were rotated: of others it isn't known that no
        more is written to what was rotated.
        """
        self.names: dict[str, tuple[str, int, int]] = {}
        """Of each unique line that was read, how it was named."""

    def teardown(self) -> None:
        """The last look finds what there is."""
        try:
            for _ in range(4):
                self._pass(ROTATE_WAIT)
                self.logs.settle()
            self._check()
            lines = set(self.logs.lines.values())
            assert self.expected <= lines, self.expected - lines
        finally:
            self.logs.close()
            shutil.rmtree(self.root)

    def _path(self, name: str) -> Path:
        return self.logs.folder / name

    def _content(self, name: str) -> bytes:
        return self._path(name).read_bytes() if self._path(name).exists() else b""

    @rule(
        name=st.sampled_from("abc"),
        lines=st.integers(1, 3),
        equal=st.booleans(),
        whole=st.booleans(),
    )
    def append(self, name: str, lines: int, equal: bool, whole: bool) -> None:
        """Append lines; the last one may be unfinished."""
        text = ""
        if equal and not self._content(name):
            text = EQUAL + "\n"
            self.expected.add(EQUAL)
        unfinished = self.partial.pop(name, "")
        for number in range(lines):
            self.written += 1
            line = f"line {self.written} of {name}" + "." * (self.written % 7)
            self.expected.add(unfinished + line)
            text += line + "\n"
            unfinished = ""
            if number == lines - 1 and not whole:
                self.written += 1
                self.partial[name] = f"begun {self.written} "
                text += self.partial[name]
        self.logs.write(name, text)

    @rule(name=st.sampled_from("abc"))
    def rename(self, name: str) -> None:
        """Rotate by rename; what was unfinished is the last line."""
        if self._content(name):
            self._rotated(name)
            self._path(name).rename(self._path(f"{name}.{self.rotated}"))

    @precondition(lambda self: not self.down)
    @rule(name=st.sampled_from("abc"), seen=st.booleans())
    def copy_truncate(self, name: str, seen: bool) -> None:
        """Rotate by copying; the copy may be seen before the truncation."""
        if self._content(name):
            self._rotated(name)
            shutil.copy(self._path(name), self._path(f"{name}.{self.rotated}"))
            if seen:
                self._read()
            self._path(name).write_bytes(b"")
            self.seen.discard(name)

    def _rotated(self, name: str) -> None:
        self.rotated += 1
        unfinished = self.partial.pop(name, "")
        if unfinished and name in self.seen:
            self.expected.add(unfinished)
        self.seen.discard(name)

    @rule(pick=st.integers(0, 9), suffix=st.sampled_from(sorted(COMPRESSIONS)), seen=st.booleans())
    def compress(self, pick: int, suffix: str, seen: bool) -> None:
        """Compress a rotated file; the original may be there for a while."""
        rotated = [path for path in sorted(self.logs.folder.iterdir()) if path.name.count(".") == 1]
        if rotated:
            path = rotated[pick % len(rotated)]
            packed = COMPRESSIONS[suffix](path.read_bytes())
            target = path.with_name(f"{path.name}.{suffix}")
            target.write_bytes(packed[: len(packed) // 2])
            if seen:
                self._read()
            target.write_bytes(packed)
            if seen:
                self._read()
            path.unlink()

    @rule(pick=st.integers(0, 9))
    def remove(self, pick: int) -> None:
        """Remove a rotated file that was read to its end, and is settled."""
        rotated = [path for path in sorted(self.logs.folder.iterdir()) if "." in path.name]
        if rotated:
            for _ in range(4):
                self._pass(ROTATE_WAIT)
                self.logs.settle()
            rotated[pick % len(rotated)].unlink()

    @rule()
    def read(self) -> None:
        """Look and read."""
        self._read()

    @rule()
    def wait(self) -> None:
        """So long that what doesn't change any more is finished."""
        self._pass(ROTATE_WAIT)

    @rule(some=st.integers(0, 5), save=st.booleans())
    def settle(self, some: int, save: bool) -> None:
        """Some blocks are settled, in any order, and perhaps stored."""
        for block in self.logs.blocks[::-1][:some]:
            self.logs.blocks.remove(block)
            self.logs.follower.settle(block)
        if save:
            self.logs.follower.save()

    @rule(pick=st.integers(0, 9))
    def rewind(self, pick: int) -> None:
        """A block couldn't be kept."""
        if self.logs.blocks:
            block = self.logs.blocks[pick % len(self.logs.blocks)]
            file = block.file
            first = block.first
            self.logs.follower.rewind(block)
            self.logs.blocks = [
                read_block
                for read_block in self.logs.blocks
                if read_block.file is not file or read_block.first < first
            ]

    @rule()
    def kill(self) -> None:
        """Nothing is left but what is stored."""
        self.logs.kill_and_restart()

    @property
    def down(self) -> bool:
        """Whether the follower hasn't looked since it began."""
        return not self.logs.follower._first_look_done

    def _read(self) -> None:
        self._pass(1)

    def _pass(self, seconds: float) -> None:
        self.logs.read_after(seconds)
        self.seen = {name for name in "abc" if b"\n" in self._content(name)}

    @invariant()
    def _check(self) -> None:
        for key, line in self.logs.lines.items():
            if line != EQUAL:
                assert self.names.setdefault(line, key) == key, line
        assert len(self.logs.follower._open_files) <= 2


TestFollowedFiles = pytest.mark.slow(FollowedFiles.TestCase)
TestFollowedFiles.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
