"""One import from its opening to its report, as a person at a terminal sees it: preflight,
question, progress, result.

Invariants: nothing is sent before the key is checked, the source is analyzed, and each finding
that stops the import is accepted by its code. Without a terminal to confirm at, nothing is sent
unless `--yes` was given, and the source isn't read either. Results go to standard output, one
document if it is JSON; progress goes to standard error.

The first SIGINT or SIGTERM while it sends lets what is in flight settle, the second ends
everything at once. Before that, either ends it: there is nothing to settle.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import typer
import uvloop
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.import_options import CommonOptions
from forwarder.cli.options import TextOutput
from forwarder.cli.output import can_ask, confirm, report_visible
from forwarder.cli.tables import EVERY, console
from forwarder.core.errors import ConfigurationError
from forwarder.core.proposals import proposed
from forwarder.core.stop_requests import STOP_SIGNALS, StopRequests, remove_handlers
from forwarder.daemon.imports import ImportRun, KeyUnverified
from forwarder.sources.files.record_blocks import BrokenSource
from forwarder.sources.imports.job import ImportRequest
from forwarder.sources.imports.pacing import rate_text
from forwarder.sources.imports.preflight_report import PREFLIGHT, PreflightResult, saved_report
from forwarder.sources.imports.report import (
    JSON,
    MANIFEST,
    PAGE,
    ImportManifest,
    as_json,
    as_text,
    complete_reports,
    sentence,
    to_second,
)
from forwarder.sources.imports.source import ImportProgress
from forwarder.telemetry.readable import duration, plural, size

RATE_WINDOW: Final = 15.0
"""Seconds over which the rate is averaged."""
_BAR: Final = 40
_REFRESH: Final = 0.1
"""Seconds between two pictures on a terminal."""


@dataclass(frozen=True, slots=True)
class ImportCommand:
    """One opened import, and what was typed."""

    opened: ImportRun
    request: ImportRequest
    typed: CommonOptions

    def run(self) -> ExitCode:
        """Do what was asked. Raises `ForwarderError`; `UpstreamRefuses` if the service doesn't
        know the key.
        """
        with closing(self.opened):
            saved = None if self.typed.dry_run else self.opened.saved
            state = self.opened.state
            if saved is not None and self.opened.is_complete:
                say("This import is complete: nothing is left to send.")
                return self._end(complete_reports(saved, state))
            if not self.opened.has_files:
                say(
                    f"Shard {self.request.shard} has no files, for there are fewer files than "
                    "shards: nothing is left to send."
                )
                return (
                    ExitCode.DONE
                    if self.typed.dry_run
                    else self._end(uvloop.run(self.opened.run(lambda _: None)))
                )
            if not (self.typed.yes or self.typed.dry_run or can_ask()):
                raise ConfigurationError(
                    (
                        "the import isn't confirmed: standard input or standard error is not a "
                        "terminal, so the question can't be asked"
                    ),
                    hint="Check the source with --dry-run, then add --yes to the command.",
                )
            unchecked = self._check_key()
            if saved is not None:
                resumed = (
                    "This import resumes from its checkpoint of "
                    f"{to_second(saved.written_at)} ({state}): {sentence(saved.books)}."
                )
                sent = (
                    f"All of the source has been sent; now the marked dead letters in {state} "
                    "are sent."
                )
                say(sent if saved.complete else resumed)
                earlier = saved_report(state)
                return self._send(None if earlier is None else earlier.to_send)
            preflight, broken = self._preflight(unchecked)
            if preflight.stopping:
                return ExitCode.NO
            if self.typed.dry_run:
                say("Nothing was sent (--dry-run).")
                return ExitCode.NO if broken else ExitCode.DONE
            events = preflight.report.to_send
            question = (
                f"Send {plural(events, 'event')} to {self.request.address}, project "
                f"{self.request.shown_project}? This can't be undone."
            )
            return self._send(events) if confirm(question, yes=self.typed.yes) else ExitCode.NO

    def _check_key(self) -> str:
        """Ask whether the service knows the key; why that isn't known, which only a dry run passes
        over. Raises `UpstreamRefuses`.
        """
        if not (self.request.api_key and self.request.address):
            return "that requires --upstream URL and --api-key KEY"
        if not self.request.settings.upstream.verify_keys:
            return "`upstream.verify_keys` is false"
        try:
            uvloop.run(self.opened.check_key(None if self.typed.dry_run else _say_wait))
        except KeyUnverified as error:
            if not self.typed.dry_run:
                raise
            return error.message
        return ""

    def _preflight(self, unchecked: str) -> tuple[PreflightResult, Sequence[BrokenSource]]:
        """Analyze the source, and save and show the findings; also the files that can't be read to
        their end.

        `unchecked`: why it isn't known whether the service knows the key.
        """
        state = self.opened.state
        output = self.typed.output
        with closing(ImportDisplay()) as display:
            report, broken = self.opened.preflight(display.analyzed)
        report.unchecked = (
            (f"whether the service knows the project key: {unchecked}",) if unchecked else ()
        )
        preflight = PreflightResult.assess(report, self.request.accepted)
        preflight.save(state)
        if output is TextOutput.TEXT or preflight.stopping or self.typed.dry_run:
            show(preflight.json() if output is TextOutput.JSON else preflight.page(), broken)
            say(f"Saved in {state / PREFLIGHT}")
        return preflight, broken

    def _send(self, total: int | None) -> ExitCode:
        saved = self.opened.saved
        request = self.request
        before = 0 if saved is None else sum(day.delivered for day in saved.totals.days.values())
        via = " (a forwarder)" if request.via else ""
        rate = (
            f"at most {rate_text(request.own_rate)} events a second"
            if request.own_rate
            else "without a rate limit"
        )
        part = "" if request.shard is None else f" shard {request.shard}"
        say(
            f"Sending{part} to {request.address}{via}, project {request.shown_project}, "
            f"{rate}. State: {self.opened.state}"
        )

        async def send() -> ImportManifest:
            """Until all is settled, or a signal comes."""
            with stopped_by_signals(asyncio.get_running_loop(), self.opened.stop, display.close):
                return await self.opened.run(display.sent)

        with closing(ImportDisplay(total, before)) as display:
            manifest = uvloop.run(send())
        return self._end(manifest)

    def _end(self, manifest: ImportManifest) -> ExitCode:
        """Print the result, and where its files are."""
        state = self.opened.state
        broken = self.opened.broken
        show(
            as_json(manifest).decode()
            if self.typed.output is TextOutput.JSON
            else as_text(manifest),
            broken,
        )
        say(f"Report: {state / PAGE} (and {JSON})\nManifest: {state / MANIFEST}")
        if manifest.books.unrepaired:
            say(f"Rejected records are kept: {proposed('dead-letters ls --path', state)}")
        if self.request.shard is not None:
            say(f"All shards: {proposed('import status --state', self.opened.folder)}")
        elif manifest.complete:
            against = "--export PATH (of a sandbox: --sandbox URL)"
            say(
                f"Compare it with the service: {proposed('import verify --state', state)} {against}"
            )
        return code_of(manifest, broken)


def code_of(manifest: ImportManifest, broken: Sequence[BrokenSource]) -> ExitCode:
    """The exit code of an import. Rejected records that were fixed, and sent since, count as
    delivered.
    """
    if broken:
        return ExitCode.NO
    if not manifest.complete:
        return ExitCode.INTERRUPTED
    return ExitCode.NO if manifest.books.unrepaired else ExitCode.DONE


def say(text: str) -> None:
    """Write progress to standard error."""
    sys.stderr.write(text + "\n")


def _say_wait(why: str, seconds: float) -> None:
    """Say that the service is asked again, and when."""
    say(
        f"The service doesn't answer whether it knows the project key: {why}. "
        f"It is asked again in {seconds:.1f}s."
    )


def show(result: str | RenderableType, broken: Sequence[BrokenSource]) -> None:
    """Write JSON or a page to standard output, and then the files that can't be read to their end
    to standard error.
    """
    if isinstance(result, str):
        typer.echo(result)
    else:
        console().print(result, soft_wrap=True)
    sys.stdout.flush()
    for file in broken:
        report_visible(file)
    if broken:
        say(
            "An import that has begun rejects a file that has changed: import the new file by "
            "itself. Events whose records have ids of "
            "their own keep their uuids and times, so they aren't counted twice."
        )


class ImportDisplay:
    """How much is done: live on a terminal, a line every few seconds elsewhere. Its methods may be
    called at any time. To be closed.
    """

    def __init__(
        self,
        total: int | None = None,
        before: int = 0,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total`: events to send, if known; `before`: those that earlier runs delivered."""
        self._total = total
        self._before = before
        self._now = now
        self._seen = deque([(now(), 0)])
        self._live = (
            Live(console=Console(stderr=True), auto_refresh=False) if sys.stderr.isatty() else None
        )
        self._shown = 0.0 if self._live is not None else now()
        if self._live is not None:
            self._live.start()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def analyzed(self, records: int, content: int) -> None:
        """Show how much of the source is analyzed."""
        line = (
            f"analyzing the source: {plural(records, 'record')}, {size(content)}, "
            f"{self.rate(records):,.0f} a second"
        )
        self._show(Text(line), line, refresh=_REFRESH)

    def sent(self, progress: ImportProgress) -> None:
        """Show the events of those that the preflight found, and below them the books, which count
        records.
        """
        done = self._before + progress.events
        rate = self.rate(progress.events)
        total = None if self._total is None else max(self._total, done)
        left = (
            f", {duration((total - done) / rate)} left"
            if total and rate and done < total and not progress.waiting
            else ""
        )
        slowed = f" ({progress.slowed})" if progress.slowed else ""
        figures = (
            f"{done:,}{'' if total is None else f' of {total:,}'} events, "
            f"{0 if progress.waiting else rate:,.0f} a second{slowed}{left}"
        )
        bar = Table.grid(padding=(0, 1, 0, 0))
        bar.add_row(
            Text("importing"),
            ProgressBar(total or 1, done if total else 0, width=_BAR),
            Text(figures),
        )
        counts = {
            "delivered": progress.delivered,
            "refused": progress.refused,
            "left out": progress.left_out,
        }
        counted = ", ".join(
            [
                *(f"{count:,} {what}" for what, count in counts.items()),
                plural(progress.repeats, "repeat"),
            ]
        )
        books = (
            f"{plural(progress.read, 'record')} read: {counted}; "
            f"{plural(progress.in_flight, 'event')} in flight"
        )
        rows: list[RenderableType] = [bar, Text(f"  {books}", style="dim")]
        line = f"importing: {figures}; {books}"
        if progress.waiting:
            rows.append(Text(f"  waiting: {progress.waiting}", style="yellow"))
            line = f"{line}; waiting: {progress.waiting}"
        self._show(Group(*rows), line)

    def rate(self, count: int) -> float:
        """The rate a second over the last seconds, at a `count` now."""
        now = self._now()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - RATE_WINDOW:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0

    def _show(self, page: RenderableType, line: str, *, refresh: float = 0.0) -> None:
        """Show the page, or write the line, unless that was done just now; `refresh`: seconds
        between two pages.
        """
        if self._now() - self._shown < (EVERY if self._live is None else refresh):
            return
        self._shown = self._now()
        if self._live is not None:
            self._live.update(page, refresh=True)
        else:
            say(line)


@contextmanager
def stopped_by_signals(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    tidy: Callable[[], None],
    exit_now: Callable[[int], None] = os._exit,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Call `stop` on the first signal; on the second, at least a second later, call `tidy` and
    exit.
    """
    requests = StopRequests(monotonic)
    stopped = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal stopped
        request = requests.count()
        if not request:
            return
        if request == 1:
            stopped = True
            sys.stderr.write(
                f"{number.name}: reading stops; events in flight are settled and saved. A second "
                "signal stops at once.\n"
            )
            stop()
            return
        tidy()
        sys.stderr.write(
            "Stopped at once. Events that were in flight are sent again, unchanged, when the same "
            "command resumes.\n"
        )
        sys.stderr.flush()
        exit_now(ExitCode.INTERRUPTED)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        remove_handlers(loop, STOP_SIGNALS, ends=stopped)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
