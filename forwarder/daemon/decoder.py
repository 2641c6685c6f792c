"""The decoder process as the daemon sees it: started when it is needed, restarted when it has
ended, killed when it takes too long.

It is a fresh interpreter with one socket to this process and nothing else of it: no listening
socket, no file, no thread. It ends when that socket is closed or this process dies, and after
`IDLE_SECONDS` without work (docs/decisions/0022-large-bodies-have-a-process.md).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from forwarder.core.clock import Clock, Timer
from forwarder.core.error_text import error_text
from forwarder.core.errors import Backpressure, BufferFull, RequestTooLarge
from forwarder.intake.decoder_jobs import (
    CPU_SECONDS,
    FRAME,
    QUESTION,
    LookUp,
    decode_head,
    decode_question,
    encode_answer,
    no_files,
)

IDLE_SECONDS: Final = 300.0
PIECE: Final = 128 * 1024
"""Bytes that are written at a time, before others have their turn."""
_SOCKET_BUFFER: Final = 1 << 20
_POLL_SECONDS: Final = 0.01
"""Between two checks whether a killed process is gone."""

_log = structlog.get_logger(__name__)

Command = Sequence[str]


def command(memory: int) -> Command:
    """Starts the process, which may take `memory` bytes."""
    return (
        sys.executable,
        "-P",
        "-m",
        "forwarder.daemon.decoder_process",
        str(os.getpid()),
        str(memory),
    )


class DecoderProcess:
    """A `Decoder` in a process of its own. One body at a time."""

    def __init__(
        self, max_body: int, clock: Clock, seconds: float, start: Callable[[int], Command] = command
    ) -> None:
        """`seconds`: how long one body may take on a busy machine; `start`: the command, given the
        bytes of memory that it may take.
        """
        self._command = start(memory_limit(max_body))
        self._clock = clock
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._line: _Line | None = None
        self._idle: Timer | None = None
        self.starts = 0
        """Processes that were started."""

    @property
    def pid(self) -> int | None:
        """Of the process; None if there is none now."""
        return None if self._process is None else self._process.pid

    async def decode(
        self, head: bytes, body: bytes, accept: Callable[[int], None], look_up: LookUp
    ) -> tuple[bytes, list[bytes]]:
        self._stop_idling()
        try:
            for _ in range(2):  # a process that was killed from outside says nothing about the body
                try:
                    return await self._decode_once(head, body, accept, look_up)
                except ConnectionError:
                    code = await self._end()
                    if code == -signal.SIGPROF:
                        raise RequestTooLarge(
                            f"the body takes over {CPU_SECONDS} s of CPU to be decoded"
                        ) from None
                    _log.warning("the decoder process has ended unexpectedly", exit_code=code)
        except Backpressure:
            if self._line is not None and self._line.lost:
                await self._end()
            raise
        except BaseException:
            await self._end()
            raise
        finally:
            self._idle = self._clock.call_later(IDLE_SECONDS, self._close_idle)
        raise RequestTooLarge(
            "the body could not be decoded: the process that tried has ended each time"
        )

    async def _decode_once(
        self, head: bytes, body: bytes, accept: Callable[[int], None], look_up: LookUp
    ) -> tuple[bytes, list[bytes]]:
        line = self._line
        if line is None or line.lost:
            line = await self._start()
        done = line.expect(accept, look_up)
        late = self._clock.call_later(self._seconds, line.expire)
        try:
            await line.send(FRAME.pack(len(head), len(body)), head, body)
            return await done
        finally:
            late.cancel()
            done.cancel()
            del done  # the traceback of its error leads here

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    async def _start(self) -> _Line:
        await self._end()
        mine, its = socket.socketpair()
        with its:
            try:
                for connection in (mine, its):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
                self._process = _popen(self._command, its)
            except OSError as error:
                mine.close()
                _log.error("the decoder process can't be started", why=error_text(error))
                raise Backpressure(
                    "large requests can't be decoded now", retry_after=5.0
                ) from error
        self.starts += 1
        mine.setblocking(False)
        _, self._line = await asyncio.get_running_loop().create_connection(_Line, sock=mine)
        return self._line

    def _close_idle(self) -> None:
        """Nothing was decoded for a while: end the process, to free its memory."""
        self._idle = None
        if self._line is not None:
            self._line.close()

    async def close(self) -> None:
        """End the process."""
        self._stop_idling()
        await self._end()

    async def _end(self) -> int | None:
        """End the process, if there is one; its exit code."""
        line = self._line
        process = self._process
        self._line = self._process = None
        if line is not None:
            line.close()
        if process is None:
            return None
        process.kill()
        # ASYNC110: no event is set when the process ends.
        while process.poll() is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        if line is not None:
            await line.closed
        return process.returncode


def _popen(command: Command, standard_input: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own
        command, stdin=standard_input.fileno(), stdout=subprocess.DEVNULL, close_fds=True
    )


def memory_limit(max_body: int) -> int:
    """Bytes of address space that the process may take: itself, and what the largest body may
    become on its way.
    """
    return (512 << 20) + 16 * max_body


class _Line(asyncio.Protocol):
    """The socket to the process."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: bytes | None = None
        self._needed = 0
        self._rest = 0
        self._sizes: list[int] = []
        self._parts: list[bytes] = []
        self._refused: Exception | None = None
        self._accept: Callable[[int], None] | None = None
        self._look_up: LookUp = no_files
        self._done: asyncio.Future[tuple[bytes, list[bytes]]] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.lost = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def expect(
        self, accept: Callable[[int], None], look_up: LookUp
    ) -> asyncio.Future[tuple[bytes, list[bytes]]]:
        """The outcome that comes next. `accept`: asked about the bytes that follow its head; if it
        raises they are discarded. `look_up`: answers questions that come before it.
        """
        self._accept = accept
        self._look_up = look_up
        self._done = asyncio.get_running_loop().create_future()
        return self._done

    async def send(self, *data: bytes) -> None:
        """Write, at the pace of the process. Raises `ConnectionError` if it is gone, and what
        `expect`'s future raises by then.
        """
        for piece in data:
            for at in range(0, len(piece), PIECE):
                await self._writable.wait()
                if self.lost:
                    return  # the future says why
                self._transport.write(piece[at : at + PIECE])
                await asyncio.sleep(0)

    def expire(self) -> None:
        """The time limit has passed: the machine is too busy, because a body that takes too much
        CPU ends the process itself.
        """
        self._fail(
            BufferFull(
                "the request can't be decoded in time",
                retry_after=5.0,
                hint="the machine is busy; send smaller batches",
            )
        )
        self._writable.set()
        self.lost = True

    def close(self) -> None:
        """Close the socket."""
        self.lost = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]

    # How the connection was lost makes no difference.
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.lost = True
        self._writable.set()
        self._fail(ConnectionError("the decoder process has ended"))
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while self._done is not None and not self._done.done() and self._advance():
            pass

    def _advance(self) -> bool:
        """Use the bytes that have come for what comes next; whether that is complete."""
        if self._head is None:
            return self._read_head()
        if self._sizes:
            size = self._sizes[-1]
            if len(self._buffer) < size:
                return False
            part = self._cut(size)
            self._sizes.pop()
            if self._refused is None:
                self._parts.append(part)
            return True
        self._finish(self._head)
        return False

    def _read_head(self) -> bool:
        if len(self._buffer) < FRAME.size:
            return False
        length, rest = FRAME.unpack_from(self._buffer)
        if len(self._buffer) < FRAME.size + length:
            return False
        self._cut(FRAME.size)
        head = self._cut(length)
        if rest == QUESTION:
            answer = encode_answer(self._look_up(*decode_question(head)))
            self._transport.write(FRAME.pack(len(answer), 0) + answer)
            return True
        self._head = head
        sizes = decode_head(head).sizes
        self._sizes = list(reversed(sizes))
        if self._accept is not None:
            try:
                self._accept(sum(sizes))
            except Backpressure as error:
                self._refused = error.with_traceback(None)
        return True

    def _cut(self, size: int) -> bytes:
        cut = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return cut

    def _finish(self, head: bytes) -> None:
        parts = self._parts
        self._parts = []
        self._head = None
        refused = self._refused
        self._refused = None
        done = self._done
        self._done = None
        if done is None or done.done():
            return
        if refused is not None:
            done.set_exception(refused)
        else:
            done.set_result((head, parts))

    def _fail(self, error: Exception) -> None:
        done = self._done
        self._done = None
        if done is not None and not done.done():
            done.set_exception(error)
