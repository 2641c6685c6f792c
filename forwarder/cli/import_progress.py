"""How far an import is, on standard error: a bar and the books on a terminal, a line every few seconds elsewhere.

Counted are events, of those that the preflight found; the books below are of records.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forwarder.cli.progress import EVERY
from forwarder.imports.request import ImportProgress
from forwarder.telemetry.readable import duration, size

LATELY: Final = 15.0
"""Seconds over which the rate is looked at."""
_BAR: Final = 40

Now = Callable[[], float]


class Speed:
    """How many a second, lately."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._seen = deque([(now(), 0)])

    def at(self, count: int) -> float:
        """The rate, with so many counted until now."""
        now = self._now()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - LATELY:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0


class _Telling:
    """What looks and runs have in common: a live display on a terminal, else lines."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._told = now()
        self._live = Live(console=Console(stderr=True), auto_refresh=False) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def _tell(self, shown: RenderableType, line: str) -> None:
        if self._live is not None:
            self._live.update(shown, refresh=True)
        elif self._now() - self._told >= EVERY:
            self._told = self._now()
            sys.stderr.write(line + "\n")


class LookProgress(_Telling):
    """How much of a source was looked at."""

    def __init__(self, *, now: Now = time.monotonic) -> None:
        super().__init__(now)
        self._speed = Speed(now)
        self._shown = 0.0

    def told(self, records: int, content: int) -> None:
        """So much was looked at; it may be told as often as it likes."""
        if self._live is not None and self._now() - self._shown < 0.1:
            return
        self._shown = self._now()
        line = f"looking at the source: {records:,} records, {size(content)}, {self._speed.at(records):,.0f} a second"
        self._tell(Text(line), line)


class SendProgress(_Telling):
    """How much of an import is done."""

    def __init__(self, total: int | None, before: int, *, now: Now = time.monotonic) -> None:
        """`total`: events that there are to send, if that is known; `before`: those that earlier runs delivered."""
        super().__init__(now)
        self._total, self._before = total, before
        self._speed = Speed(now)

    def told(self, progress: ImportProgress) -> None:
        """So far it is."""
        done, rate = self._before + progress.events, self._speed.at(progress.events)
        total = None if self._total is None else max(self._total, done)
        figures = _figures(done, total, 0.0 if progress.waiting else rate)
        rows = [_bar(done, total, figures), Text(f"  {books(progress)}", style="dim")]
        if progress.waiting:
            rows.append(Text(f"  waiting: {progress.waiting}", style="yellow"))
        waiting = f"; waiting: {progress.waiting}" if progress.waiting else ""
        self._tell(Group(*rows), f"importing: {figures}; {books(progress)}{waiting}")


def books(progress: ImportProgress) -> str:
    """What became of the records."""
    counts = {"delivered": progress.delivered, "refused": progress.refused, "left out": progress.left_out, "repeats": progress.repeats}
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return f"{progress.read:,} records read: {said}; {progress.in_flight:,} events on their way"


def _figures(done: int, total: int | None, rate: float) -> str:
    """Time left only where something moves."""
    of = "" if total is None else f" of {total:,}"
    left = f", {duration((total - done) / rate)} left" if total is not None and rate and done < total else ""
    return f"{done:,}{of} events, {rate:,.0f} a second{left}"


def _bar(done: int, total: int | None, figures: str) -> RenderableType:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(Text("importing"), ProgressBar(total or 1, done if total else 0, width=_BAR), Text(figures))
    return row
