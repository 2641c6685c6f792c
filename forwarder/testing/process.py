"""A `forwarder` command as a process of its own: its output, the line that says where it listens,
and its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

START: Final = 60.0
"""Seconds within which a command says where it listens: far more than it takes."""
STOP: Final = 30.0
"""Seconds within which it ends after SIGTERM, before it is killed."""
TAIL: Final = 40
"""Lines of the output that an error shows."""
_LEFT_OUT: Final = ("FORWARDER_", "STATE_DIRECTORY", "XDG_STATE_HOME", "PYTHONWARNINGS")
"""Variables of the environment that a test run does not pass on: what begins so."""


class ServerFailed(Exception):
    """A command did not start, or has ended unexpectedly. The message has the end of its output."""


class ServerProcess:
    """A running command; the constructor starts it."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.command = " ".join(("forwarder", *arguments[:1]))
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)
        }
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and its own module
            [sys.executable, "-P", "-m", "forwarder.testing.child", *arguments],
            env={**inherited, "PYTHONUNBUFFERED": "1", **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the tests, whose fixtures stop it then
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(
            target=self._read, name=f"output of {self.command}", daemon=True
        )
        self._reader.start()

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """Everything that it has written, to both outputs."""
        with self._news:
            return "".join(self._lines)

    def line(self, text: str, timeout: float = START) -> str:
        """The first line with `text`, as soon as it is there. Raises `ServerFailed` after
        `timeout` seconds, or if the process ends.
        """
        with self._news:
            self._news.wait_for(lambda: self._ended or self._find(text) is not None, timeout)
            line = self._find(text)
        if line is not None:
            return line
        if not self._ended:
            self.kill()
            raise ServerFailed(f"{self.command} did not start within {timeout:g} s.\n{self.tail()}")
        raise ServerFailed(
            f"{self.command} ended with exit code {self._close()} instead of starting.\n"
            f"{self.tail()}"
        )

    def tail(self) -> str:
        """The last lines of the output, for an error."""
        lines = self.output.splitlines()[-TAIL:]
        return "\n".join(["Its output:", *lines]) if lines else "It wrote nothing."

    def stop(self, timeout: float = STOP) -> int:
        """Have it complete its work and end, and return its exit code; after `timeout` seconds it
        is killed. A second call does nothing.
        """
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._close()

    def kill(self) -> int:
        """End it at once, as `kill -9` does, and return its exit code."""
        self._process.kill()
        return self._close()

    def _close(self) -> int:
        code = self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        return code

    def _find(self, text: str) -> str | None:
        return next((line for line in self._lines if text in line), None)

    def _read(self) -> None:
        output = self._process.stdout
        for line in output or ():
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
