"""A restart in place: the process becomes a new program of the same command, with the same process
id.

The old program stops only after the new one has accepted the configuration. Listening sockets and
locks stay open throughout, so that senders wait in the sockets' queues and no other process can
lock the directory.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import structlog

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.processes import send_signal
from forwarder.core.proposals import proposed
from forwarder.daemon.inheritance import InheritedDescriptors, announced

CHECK_LIMIT: Final = 60.0
"""Seconds that the new program may take to check the configuration."""

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""The signals that a daemon obeys."""

_MAX_WHY: Final = 2000

_log = structlog.get_logger(__name__)


class InPlaceRestart:
    """How this process is replaced. `command` runs the daemon, the exit code of `check` says
    whether it could start.
    """

    def __init__(self, command: Sequence[str], check: Sequence[str]) -> None:
        self._command = list(command)
        self._check = check

    async def objection(self) -> str:
        """Why the program on disk can't replace this one; empty if it can.
        Cancellation ends the check.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *self._check,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            return f"{self._check[0]} can't be started: {error_text(error)}"
        try:
            async with asyncio.timeout(CHECK_LIMIT):
                output, _ = await process.communicate()
        except TimeoutError:
            return f"it didn't check the configuration within {CHECK_LIMIT:g} s"
        finally:
            if process.returncode is None:
                send_signal(process, signal.SIGKILL)
                await process.communicate()
        return (
            output.decode("utf-8", "replace").strip()[:_MAX_WHY] or "the check failed"
            if process.returncode
            else ""
        )

    def block_signals(self) -> None:
        """Block signals until the new program handles them; called before this one's handlers are
        removed: they would end the process.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def replace(self, inherited: InheritedDescriptors) -> NoReturn:
        """Become the new program. Raises `OSError` if it can't be started any more."""
        sys.stdout.flush()
        sys.stderr.flush()
        _close_on_exec()
        for descriptor in inherited.descriptors:
            os.set_inheritable(descriptor, True)
        environment = {**os.environ, **announced(inherited)}
        # S606: the command is this program's own, and needs no shell.
        os.execve(self._command[0], self._command, environment)  # noqa: S606


class PendingRestart:
    """One daemon's restart in place, from the signal that requests it to the new program. `stop`
    is set to end the daemon for it.
    """

    def __init__(self, how: InPlaceRestart | None, stop: asyncio.Event) -> None:
        self.decided = False
        """Whether the daemon ends to be replaced by a new program."""
        self.kept: InheritedDescriptors | None = None
        """What the new program inherits, once it is known."""
        self._how = how
        self._stop = stop
        self._check: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Restart if the new program accepts the configuration; else log why
        not, and change nothing.
        """
        if self._how is None:
            _log.warning("this process can't be restarted in place")
        elif self._check is None and not self._stop.is_set():
            self._check = asyncio.create_task(
                self._decide(self._how), name="check before the restart"
            )

    def withdraw(self) -> bool:
        """End after all; whether a restart was decided."""
        decided = self.decided
        self.decided = False
        return decided

    async def close(self) -> None:
        """End the check, if there is one. From here on signals are blocked for the new program, if
        there is one.
        """
        if self._check is not None:
            self._check.cancel()
            await asyncio.gather(self._check, return_exceptions=True)
        if self.kept is not None and not self.decided:
            self.kept.close()
            self.kept = None
        if self._how is not None and self.kept is not None:
            self._how.block_signals()

    def replace(self, code: int) -> int:
        """Become the new program, if that was decided; else `code`. Raises `ConfigurationError` if
        it can't be started any more.
        """
        if self._how is None or self.kept is None:
            return code
        try:
            self._how.replace(self.kept)
        except OSError as error:
            raise ConfigurationError(
                f"can't restart in place: {error_text(error)}", hint="Start forwarder again."
            ) from error

    async def _decide(self, how: InPlaceRestart) -> None:
        objection = await how.objection()
        self._check = None
        if objection:
            _log.error(
                "can't restart in place; this process continues",
                why=objection,
                hint=f"Run `{proposed('config check')}` for details.",
            )
        elif not self._stop.is_set():
            _log.info("restarting in place")
            self.decided = True
            self._stop.set()


def unblock_signals() -> None:
    """Deliver the signals that were blocked, now that there are handlers for them."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def restart_of(arguments: Sequence[str], check: Sequence[str]) -> InPlaceRestart:
    """How the running program, as it is on disk by then, is started again with `arguments`."""
    program = _program()
    return InPlaceRestart([*program, *arguments], [*program, *check])


def _program() -> list[str]:
    """The command without its arguments: the script itself where there is one, for its first line
    names the interpreter.
    """
    script = sys.argv[0]
    if (
        os.sep in script
        and script.endswith("forwarder")
        and os.access(script, os.X_OK)
        and Path(script).is_file()
    ):
        return [script]
    options = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return [sys.executable, *options]


def _close_on_exec() -> None:
    """Pass the new program no descriptor that it doesn't know, whatever library has opened it."""
    own = Path("/proc/self/fd")
    for descriptor in [int(path.name) for path in own.iterdir()] if own.is_dir() else ():
        if descriptor > 2:
            with suppress(OSError):  # the listing's own is closed by now
                os.set_inheritable(descriptor, False)
