"""The decoder process itself: `python -m forwarder.daemon.decoder_process PARENT MEMORY`, with a
socket as standard input.

It reads a job, does it, writes its outcome, and repeats until the socket is closed. A job that
takes over `CPU_SECONDS` ends it. It ignores signals that a terminal or a service manager sends to
the process group: it ends when the daemon closes the socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Collection
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from forwarder.core.errors import RequestTooLarge
from forwarder.daemon.allocator import fix_thresholds
from forwarder.intake.decoder_jobs import (
    CPU_SECONDS,
    FRAME,
    QUESTION,
    decode_answer,
    encode_question,
    failed,
    work,
)

if TYPE_CHECKING:
    from forwarder.rules.deadlines import DeadlinedConditions

_PR_SET_PDEATHSIG: Final = 1
_NICER: Final = 5
"""The daemon's loop comes first."""


def main(parent: int, memory: int) -> None:
    """Work until the daemon closes the socket."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    fix_thresholds()
    os.nice(_NICER)
    with contextlib.suppress(ValueError, OSError):  # there is a lower limit already
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with socket.socket(fileno=0) as daemon:
        while _serve(daemon):
            pass


def _serve(daemon: socket.socket) -> bool:
    """Do one job; return whether there was one."""
    start = _receive(daemon, FRAME.size)
    if len(start) < FRAME.size:
        return False
    head_size, body_size = FRAME.unpack(start)
    head = _receive(daemon, head_size)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        body = _receive(daemon, body_size)
        outcome, parts = work(head, body, partial(_ask, daemon), _conditions)
        del body
    except MemoryError:
        outcome = failed(RequestTooLarge.code, "the body takes too much memory to be decoded")
        parts = []
    except Exception:
        outcome = failed("unforeseen", traceback.format_exc())
        parts = []
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    daemon.sendall(FRAME.pack(len(outcome), sum(map(len, parts))))
    daemon.sendall(outcome)
    for part in parts:
        daemon.sendall(part)
    return True


@cache
def _deadlined() -> DeadlinedConditions:
    from forwarder.rules.deadlines import DeadlinedConditions  # noqa: PLC0415 - if there are rules

    return DeadlinedConditions()


def _conditions() -> DeadlinedConditions:
    """Evaluates the conditions of a job's rules."""
    conditions = _deadlined()
    conditions.start()
    return conditions


def _ask(daemon: socket.socket, file: int, ids: Collection[str]) -> Collection[str]:
    """Which of the ids are in a file of ids, which the daemon has."""
    question = encode_question(file, ids)
    daemon.sendall(FRAME.pack(len(question), QUESTION))
    daemon.sendall(question)
    size, _ = FRAME.unpack(_receive(daemon, FRAME.size))
    return decode_answer(_receive(daemon, size))


def _receive(daemon: socket.socket, size: int) -> bytes:
    """That many bytes; fewer if the daemon has closed the socket."""
    received = bytearray(size)
    view = memoryview(received)
    at = 0
    while at < size and (count := daemon.recv_into(view[at:])):
        at += count
    view.release()
    return bytes(received) if at == size else bytes(received[:at])


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main(int(sys.argv[1]), int(sys.argv[2]))
