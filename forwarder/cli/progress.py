"""How far long work has come, on standard error: a bar with rate and time left on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from forwarder.telemetry.readable import duration

EVERY: Final = 5.0
"""Seconds between two lines."""


class EventProgress:
    """Counts events up to `total`, as a context manager. It says nothing where the work ends within the first seconds."""

    def __init__(self, what: str, total: int, *, now: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._total = total
        self._now = now
        self._began = self._told = now()
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = self._bar.add_task(what, total=total) if self._bar else None
        self.done = 0

    def __enter__(self) -> EventProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, events: int) -> None:
        """So many more are done."""
        self.done += events
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done)
        elif self._now() - self._told >= EVERY:
            self._told = self._now()
            sys.stderr.write(self._line() + "\n")

    def _line(self) -> str:
        rate = self.done / max(self._now() - self._began, 1e-9)
        left = f", {duration((self._total - self.done) / rate)} left" if 0 < self.done < self._total else ""
        return f"{self._what}: {self.done:,} of {self._total:,} events, {rate:,.0f} a second{left}"


class _Rate(ProgressColumn):
    """Events a second."""

    def render(self, task: Task) -> Text:
        """The rate lately."""
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
