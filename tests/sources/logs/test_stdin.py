"""Standard input as a source: pipes, files, the end, a writer that has to wait."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.clock import SystemClock
from forwarder.core.errors import BufferFull
from forwarder.core.patterns import LinearPattern
from forwarder.sources.logs.splitting import Splitter
from forwarder.sources.logs.stdin import StdinSource
from tests.support.cases import cases
from tests.support.log_blocks import log_line, log_policy
from tests.support.record_intakes import FakeRecordIntake
from tests.support.waiting import eventually


class Piped:
    """A source that reads a pipe."""

    def __init__(self, reader: int, **changes: Any) -> None:
        self.intake = FakeRecordIntake()
        self.ends = 0
        self.source = StdinSource(
            log_policy(stdin=True, paths=(), **changes),
            self.intake,
            SystemClock(),
            self._end,
            reader,
        )

    def _end(self) -> None:
        self.ends += 1

    @property
    def accepted(self) -> int:
        """Records that were accepted."""
        return sum(len(batch.values) for batch in self.intake.accepted)


@pytest.fixture
def pipe() -> Iterator[tuple[int, list[int]]]:
    """A pipe: the end that is read, and a list with the end that is written, which a test may
    close and remove.
    """
    reader, writer = os.pipe()
    writers = [writer]
    yield reader, writers
    for descriptor in (reader, *writers):
        os.close(descriptor)


@asynccontextmanager
async def running(piped: Piped) -> AsyncIterator[Piped]:
    """The source, started and closed."""
    piped.source.start()
    try:
        yield piped
    finally:
        await piped.source.close()


async def test_lines_are_accepted_as_they_come(pipe: tuple[int, list[int]]) -> None:
    """A line is accepted when it is complete, and settled for itself; the writer is still there."""
    reader, [writer] = pipe
    async with running(Piped(reader)) as piped:
        os.write(writer, log_line(1) + b"\n" + log_line(2)[:5])
        await eventually(lambda: piped.accepted == 1)
        os.write(writer, log_line(2)[5:] + b"\n")
        await eventually(lambda: piped.accepted == 2)
        state = piped.source.statistics()
        assert (state.state, state.lines["taken"], state.followed, state.open) == (
            "reading",
            2,
            1,
            1,
        )
        [file] = state.files
        assert (file.path, file.position, file.lag, file.last_line) == (
            "stdin",
            0,
            state.bytes,
            log_line(2).decode(),
        )
        for batch in piped.intake.accepted:
            batch.settle()
        await eventually(lambda: piped.source.statistics().lag == 0)
    assert piped.ends == 0


async def test_the_end_is_reported_when_all_is_settled(pipe: tuple[int, list[int]]) -> None:
    """A last line without an end counts; what isn't settled is waited for."""
    reader, writers = pipe
    async with running(Piped(reader)) as piped:
        os.write(writers[0], log_line(1) + b"\n" + log_line(2))
        os.close(writers.pop())
        await eventually(lambda: piped.accepted == 2)
        *others, last = piped.intake.accepted
        for batch in others:
            batch.settle()
        assert piped.ends == 0
        last.settle()
        await eventually(lambda: piped.ends == 1)
        assert piped.source.statistics().state == "ended"


@cases("lines", [0, 1, 3000])
async def test_a_file_is_read_to_its_end(tmp_path: Path, lines: int) -> None:
    """The loop can't report when there is more of it, and need not; an empty one has
    ended at once.
    """
    (tmp_path / "lines").write_bytes(b"".join(log_line(number) + b"\n" for number in range(lines)))
    reader = os.open(tmp_path / "lines", os.O_RDONLY)
    piped = Piped(reader)
    piped.intake.settles = True
    async with running(piped):
        await eventually(lambda: piped.ends == 1)
    os.close(reader)
    assert piped.accepted == lines


async def test_nothing_to_read_is_an_end() -> None:
    """A service manager's /dev/null."""
    reader = os.open(os.devnull, os.O_RDONLY)
    async with running(Piped(reader)) as piped:
        await eventually(lambda: piped.ends == 1)
    os.close(reader)


@pytest.mark.slow
async def test_a_writer_waits_while_nothing_is_accepted(pipe: tuple[int, list[int]]) -> None:
    """Nothing more is read; when there is room again, all of it comes, in order."""
    reader, writers = pipe
    piped = Piped(reader)
    piped.intake.refuses = BufferFull("the buffer is full")
    os.set_blocking(writers[0], False)
    data = b"".join(log_line(number) + b"\n" for number in range(50_000))
    sent = 0

    def write() -> bool:
        nonlocal sent
        try:
            sent += os.write(writers[0], data[sent : sent + 65_536])
        except BlockingIOError:
            return False
        return sent == len(data)

    async with running(piped):
        await eventually(lambda: not write() and piped.intake.tries > 2)
        assert sent < 1_000_000
        assert piped.source.statistics().why == "the buffer is full"
        piped.intake.refuses = None
        piped.intake.settles = True
        await eventually(write)
        os.close(writers.pop())
        await eventually(lambda: piped.ends == 1)
    values = [value for batch in piped.intake.accepted for value in batch.values]
    assert len(values) == 50_000
    assert all(b'"distinct_id":"u%d"' % number in value for number, value in enumerate(values))


async def test_accepted_lines_of_stdin_are_kept_at_shutdown(pipe: tuple[int, list[int]]) -> None:
    """It can't be read again: it is kept, not given back."""
    reader, [writer] = pipe
    piped = Piped(reader)
    async with running(piped):
        os.write(writer, log_line(1) + b"\n")
        await eventually(lambda: piped.accepted == 1)
    assert (piped.intake.kept, piped.intake.given_back, piped.ends) == (
        piped.intake.accepted,
        [],
        0,
    )


async def test_a_descriptor_that_cant_be_read_is_reported(tmp_path: Path) -> None:
    """The source fails, and the daemon continues: other sources may be there."""
    reader = os.open(tmp_path, os.O_RDONLY)
    async with running(Piped(reader)) as piped:
        await eventually(lambda: piped.source.statistics().state == "failed")
        assert "standard input can't be read: Is a directory" in piped.source.statistics().why
    os.close(reader)
    assert piped.ends == 0


async def test_several_lines_are_one_record(pipe: tuple[int, list[int]]) -> None:
    """A record that waits for more lines is accepted after `max_wait`."""
    reader, [writer] = pipe
    split = partial(Splitter, max_record=1000, start=LinearPattern(rb"^\{"), max_wait=0.1)
    async with running(Piped(reader, split=split)) as piped:
        os.write(writer, log_line(1)[:-1] + b"\n}\n")
        await eventually(lambda: piped.accepted == 1)
