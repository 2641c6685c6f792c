"""One import from its opening to its report, as a person at a terminal sees it: preflight, question, progress, result.

Invariants: nothing is sent before the key is checked, the source is analyzed, and each finding that stops the import is accepted by its
code. Without a terminal to confirm at, nothing is sent unless `--yes` was given, and the source isn't read either. Results go to standard
output, one document if it is JSON; progress goes to standard error.

The first SIGINT or SIGTERM while it sends lets what is in flight settle, the second ends everything at once. Before that, either ends it:
there is nothing to settle.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import typer
import uvloop
from msgspec import Struct
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
from forwarder.core.secrets import mask_key
from forwarder.imports.job import ImportRun
from forwarder.imports.request import ImportProgress, ImportRequest
from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.manifest import FILE as MANIFEST
from forwarder.sources.imports.manifest import ImportManifest, sentence
from forwarder.sources.imports.preflight_page import as_json as preflight_as_json
from forwarder.sources.imports.preflight_page import page
from forwarder.sources.imports.preflight_report import PreflightFinding, PreflightReport, find_all, plural, unaccepted
from forwarder.sources.imports.report import as_json, as_text, complete_reports
from forwarder.sources.imports.status import PREFLIGHT
from forwarder.storage.private import atomic_file
from forwarder.telemetry.readable import duration, size

RATE_WINDOW: Final = 15.0
"""Seconds over which the rate is averaged."""
_BAR: Final = 40
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class ImportCommand:
    """One opened import, and what was typed."""

    opened: ImportRun
    request: ImportRequest
    typed: CommonOptions

    def run(self) -> ExitCode:
        """Do what was asked. Raises `ForwarderError`."""
        with closing(self.opened):
            if self.opened.is_complete and not self.typed.dry_run:
                return self._already_complete()
            self._require_consent()
            self._check_key()
            if self.opened.saved is not None and not self.typed.dry_run:
                say(resuming(self.opened.saved, self.opened.state))
                return self._send(saved_events(self.opened.state))
            preflight = self._preflight()
            if preflight.stopping:
                return ExitCode.NO
            if self.typed.dry_run:
                say("Nothing was sent (--dry-run).")
                return ExitCode.NO if preflight.broken else ExitCode.DONE
            if not confirm(question(self.request, preflight.events), yes=self.typed.yes):
                return ExitCode.NO
            return self._send(preflight.events)

    def _already_complete(self) -> ExitCode:
        saved = self.opened.saved
        if saved is None:
            raise RuntimeError("an import without a checkpoint can't be complete")
        say("This import is complete: nothing is left to send.")
        return self._end(complete_reports(saved, self.opened.state))

    def _require_consent(self) -> None:
        """Reject a run that would send although a question can't be answered and `--yes` is missing. Raises `ConfigurationError`."""
        if not (self.typed.yes or self.typed.dry_run or can_ask()):
            raise ConfigurationError(
                "the import isn't confirmed: standard input or standard error is not a terminal, so the question can't be asked",
                hint="Check the source with --dry-run, then add --yes to the command.",
            )

    def _check_key(self) -> None:
        """Ask the service whether it knows the key. Raises `UpstreamRefuses`."""
        request = self.request
        if not (request.api_key and (request.via or request.settings.upstream.url)):
            say("The key isn't verified: that requires --upstream URL and --api-key KEY.")
        elif request.settings.upstream.verify_keys:
            uvloop.run(self.opened.check_key())

    def _preflight(self) -> PreflightResult:
        """Analyze the source, and save and show the findings."""
        with PreflightProgress() as progress:
            report, broken = self.opened.preflight(progress.update)
        preflight = PreflightResult.assess(report, broken, self.request.accepted)
        preflight.save(self.opened.state)
        ends = bool(preflight.stopping) or self.typed.dry_run
        if self.typed.output is TextOutput.TEXT or ends:
            print_preflight(preflight, self.typed.output, self.opened.state)
        return preflight

    def _send(self, total: int | None) -> ExitCode:
        saved = self.opened.saved
        before = 0 if saved is None else sum(day.delivered for day in saved.totals.days.values())
        say(beginning(self.request, self.opened.state))
        with SendProgress(total, before) as progress:
            manifest = uvloop.run(self._sending(progress))
        return self._end(manifest)

    async def _sending(self, progress: SendProgress) -> ImportManifest:
        """Send until all is settled, or a signal comes. Cancelled, it saves what is settled."""
        with stopped_by_signals(asyncio.get_running_loop(), self.opened.stop, progress.close):
            return await self.opened.run(progress.update)

    def _end(self, manifest: ImportManifest) -> ExitCode:
        broken = self.opened.broken
        print_report(manifest, self.typed.output, self.opened.state, broken)
        return code_of(manifest, broken)


def code_of(manifest: ImportManifest, broken: Sequence[BrokenSource]) -> ExitCode:
    """The exit code of an import. Rejected records that were fixed, and sent since, count as delivered."""
    if broken:
        return ExitCode.NO
    if not manifest.complete:
        return ExitCode.INTERRUPTED
    return ExitCode.NO if manifest.books.unmended else ExitCode.DONE


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The analysis of a source before anything is sent."""

    report: PreflightReport
    broken: Sequence[BrokenSource]
    """Files that can't be read to their end."""
    findings: Sequence[PreflightFinding]
    stopping: Sequence[PreflightFinding]
    """Findings that stop the import, as they were not accepted."""

    @classmethod
    def assess(cls, report: PreflightReport, broken: Sequence[BrokenSource], accepted: Collection[str]) -> PreflightResult:
        """The findings of a report. Raises `ConfigurationError` for an unknown code in `accepted`."""
        findings = find_all(report)
        return cls(report, broken, findings, unaccepted(findings, accepted))

    def json(self) -> str:
        """All of it, for programs."""
        return preflight_as_json(self.report, self.findings, self.stopping)

    def save(self, folder: Path) -> None:
        """Write it into the state folder. Raises `ConfigurationError`."""
        with atomic_file(folder / PREFLIGHT, replace=True) as file:
            file.write(f"{self.json()}\n".encode())

    @property
    def events(self) -> int:
        """Events to send, without repeats."""
        return max(0, self.report.volume.events - self.report.repeats.repeats)


class _Count(Struct):
    events: int = 0
    repeats: int = 0


class _SavedReport(Struct):
    volume: _Count
    repeats: _Count


class _SavedPreflight(Struct):
    report: _SavedReport


def saved_events(folder: Path) -> int | None:
    """The events to send by an earlier run's preflight, for the progress bar only; None if unknown."""
    try:
        report = msgspec.json.decode((folder / PREFLIGHT).read_bytes(), type=_SavedPreflight).report
    except (OSError, ValueError):
        return None
    return max(0, report.volume.events - report.repeats.repeats)


def say(text: str) -> None:
    """Write progress to standard error."""
    sys.stderr.write(text + "\n")


def resuming(saved: ImportCheckpoint, state: Path) -> str:
    """Message shown when an import resumes."""
    if saved.complete:
        return f"All of the source has been sent; now the marked dead letters in {state} are sent."
    at = datetime.fromtimestamp(saved.written_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"This import resumes from its checkpoint of {at} ({state}): {sentence(saved.books)}."


def beginning(request: ImportRequest, state: Path) -> str:
    """Message shown before events are sent."""
    target = f"{request.via} (a forwarder)" if request.via else request.settings.upstream.url
    rate = f"at most {request.rate:,.10g} events a second" if request.rate else "without a rate limit"
    return f"Sending to {target}, project {mask_key(request.api_key)}, {rate}. State: {state}"


def question(request: ImportRequest, events: int) -> str:
    """The question before events are sent."""
    target = request.via or request.settings.upstream.url
    return f"Send {plural(events, 'event')} to {target}, project {mask_key(request.api_key)}? This can't be undone."


def print_preflight(preflight: PreflightResult, output: TextOutput, state: Path) -> None:
    """Print the analysis of the source."""
    if output is TextOutput.JSON:
        typer.echo(preflight.json())
    else:
        console().print(page(preflight.report, preflight.findings, preflight.stopping), soft_wrap=True)
    sys.stdout.flush()
    for each in preflight.broken:
        report_visible(each)
    say(f"Saved in {state / PREFLIGHT}")


def print_report(manifest: ImportManifest, output: TextOutput, state: Path, broken: Sequence[BrokenSource]) -> None:
    """Print the result of an import, and where its files are."""
    if output is TextOutput.JSON:
        typer.echo(as_json(manifest))
    else:
        console().print(as_text(manifest), soft_wrap=True)
    sys.stdout.flush()
    for each in broken:
        report_visible(each)
    lines = [f"Report: {state / 'report.html'} (and report.json)", f"Manifest: {state / MANIFEST}"]
    if manifest.books.unmended:
        lines.append(f"Rejected records are kept: forwarder dead-letters ls --path {state}")
    if manifest.complete:
        against = "--export PATH (of a sandbox: --sandbox URL)"
        lines.append(f"Compare it with the service: forwarder import verify --state {state} {against}")
    say("\n".join(lines))


class RecentRate:
    """A rate over the last seconds."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._seen = deque([(now(), 0)])

    def at(self, count: int) -> float:
        """The rate a second, at a `count` now."""
        now = self._now()
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - RATE_WINDOW:
            self._seen.popleft()
        then, before = self._seen[0]
        return (count - before) / (now - then) if now > then else 0.0


class _Display:
    """A live display on a terminal, a line every few seconds elsewhere."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._rate = RecentRate(now)
        self._written = now()
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

    def _show(self, page: RenderableType, line: str) -> None:
        if self._live is not None:
            self._live.update(page, refresh=True)
        elif self._now() - self._written >= EVERY:
            self._written = self._now()
            sys.stderr.write(line + "\n")


class PreflightProgress(_Display):
    """How much of a source is analyzed."""

    def __init__(self, *, now: Now = time.monotonic) -> None:
        super().__init__(now)
        self._shown = 0.0

    def update(self, records: int, content: int) -> None:
        """Show the counts; may be called as often as convenient."""
        if self._live is not None and self._now() - self._shown < 0.1:
            return
        self._shown = self._now()
        line = f"analyzing the source: {records:,} records, {size(content)}, {self._rate.at(records):,.0f} a second"
        self._show(Text(line), line)


class SendProgress(_Display):
    """How much of an import is done: events of those that the preflight found, and below them the books, which count records."""

    def __init__(self, total: int | None, before: int, *, now: Now = time.monotonic) -> None:
        """`total`: events to send, if known; `before`: those that earlier runs delivered."""
        super().__init__(now)
        self._total, self._before = total, before

    def update(self, progress: ImportProgress) -> None:
        """Show the progress."""
        done, rate = self._before + progress.events, self._rate.at(progress.events)
        total = None if self._total is None else max(self._total, done)
        figures = _figures(done, total, 0.0 if progress.waiting else rate)
        rows = [_bar(done, total, figures), Text(f"  {books(progress)}", style="dim")]
        if progress.waiting:
            rows.append(Text(f"  waiting: {progress.waiting}", style="yellow"))
        waiting = f"; waiting: {progress.waiting}" if progress.waiting else ""
        self._show(Group(*rows), f"importing: {figures}; {books(progress)}{waiting}")


def books(progress: ImportProgress) -> str:
    """What became of the records."""
    counts = {"delivered": progress.delivered, "refused": progress.refused, "left out": progress.left_out, "repeats": progress.repeats}
    counted = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    return f"{progress.read:,} records read: {counted}; {progress.in_flight:,} events in flight"


def _figures(done: int, total: int | None, rate: float) -> str:
    """Events, rate, and the time left if there is progress."""
    of = "" if total is None else f" of {total:,}"
    left = f", {duration((total - done) / rate)} left" if total is not None and rate and done < total else ""
    return f"{done:,}{of} events, {rate:,.0f} a second{left}"


def _bar(done: int, total: int | None, figures: str) -> RenderableType:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(Text("importing"), ProgressBar(total or 1, done if total else 0, width=_BAR), Text(figures))
    return row


@contextmanager
def stopped_by_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None], tidy: Callable[[], None], exit_now: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """Call `stop` on the first signal; on the second, call `tidy` and exit."""
    received = 0

    def on_signal(number: signal.Signals) -> None:
        nonlocal received
        received += 1
        if received == 1:
            sys.stderr.write(f"{number.name}: reading stops; events in flight are settled and saved. A second signal stops at once.\n")
            stop()
            return
        tidy()
        sys.stderr.write("Stopped at once. Events that were in flight are sent again, unchanged, when the same command resumes.\n")
        sys.stderr.flush()
        exit_now(ExitCode.INTERRUPTED)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
