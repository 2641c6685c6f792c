"""An import from its opening to its report, as somebody at a terminal has it: a look first, a question, then the events.

Invariants: nothing is sent before the key is known, the source was looked at, and each finding that stops was accepted by its code.
Without a terminal to confirm at, nothing is sent unless `--yes` was given, and the source isn't read either. The results go to standard
output, one document if it is JSON; how it is going to standard error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import uvloop

from forwarder.cli.asking import can_ask, may
from forwarder.cli.import_look import Looked, kept_to_send
from forwarder.cli.import_options import Form, Shared
from forwarder.cli.import_progress import LookProgress, SendProgress
from forwarder.cli.import_signals import stopped_by_signals
from forwarder.cli.import_words import CONFIRM, UNCONFIRMED, beginning, goes_on, print_look, print_report, question, say
from forwarder.core.errors import ConfigurationError
from forwarder.imports.request import ImportRequest, ReportProgress
from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob
from forwarder.sources.imports.manifest import ImportManifest
from forwarder.sources.imports.preflight_report import PreflightReport
from forwarder.sources.imports.report import complete_reports

DONE: Final = 0
NO: Final = 1
INTERRUPTED: Final = 130


class Opened(Protocol):
    """An import that was opened (`imports.job.Import`)."""

    job: ImportJob
    state: Path
    saved: ImportCheckpoint | None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to do."""

    @property
    def broken(self) -> Sequence[BrokenSource]:
        """After it ran: files that couldn't be read to their end."""

    def preflight(self, told: Callable[[int, int], None]) -> tuple[PreflightReport, tuple[BrokenSource, ...]]:
        """Look at all of the source."""

    async def check_key(self) -> None:
        """Raises `UpstreamRefuses`."""

    async def run(self, told: ReportProgress) -> ImportManifest:
        """Send what isn't there yet."""

    def stop(self) -> None:
        """Let `run` end soon."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One import, opened, and what was asked for."""

    opened: Opened
    request: ImportRequest
    typed: Shared

    def run(self) -> int:
        """Do what was asked; the exit code. Raises `ForwarderError`."""
        with closing(self.opened):
            if self.opened.is_complete and not self.typed.dry_run:
                return self._already()
            self._require_consent()
            self._verify()
            if self.opened.saved is not None and not self.typed.dry_run:
                say(goes_on(self.opened.saved, self.opened.state))
                return self._send(kept_to_send(self.opened.state))
            looked = self._look()
            if looked.stopping:
                return NO
            if self.typed.dry_run:
                say("Nothing was sent: that was only a look (--dry-run).")
                return NO if looked.broken else DONE
            if not may(question(self.request, looked.to_send), yes=self.typed.yes):
                return NO
            return self._send(looked.to_send)

    def _already(self) -> int:
        """Say that it is complete, and what came of it."""
        saved = self.opened.saved
        if saved is None:
            raise RuntimeError("an import without a checkpoint can't be complete")
        say("This import is complete: nothing is left to be sent.")
        return self._end(complete_reports(saved, self.opened.state))

    def _require_consent(self) -> None:
        """Reject a run that would send although nobody can be asked and `--yes` is missing. Raises `ConfigurationError`."""
        if not (self.typed.yes or self.typed.dry_run or can_ask()):
            raise ConfigurationError(UNCONFIRMED, hint=CONFIRM)

    def _verify(self) -> None:
        """Ask whether the service knows the key. Raises `UpstreamRefuses`."""
        request = self.request
        if not (request.api_key and (request.via or request.settings.upstream.url)):
            say("The key isn't verified: that needs --upstream URL and --api-key KEY.")
        elif request.settings.upstream.verify_keys:
            uvloop.run(self.opened.check_key())

    def _look(self) -> Looked:
        """Look at the source, keep what was found, and show it."""
        with LookProgress() as progress:
            report, broken = self.opened.preflight(progress.told)
        looked = Looked.judged(report, broken, self.request.accepted)
        looked.keep(self.opened.state)
        ends = bool(looked.stopping) or self.typed.dry_run
        if self.typed.output is Form.TEXT or ends:
            print_look(looked, self.typed.output, self.opened.state)
        return looked

    def _send(self, total: int | None) -> int:
        saved = self.opened.saved
        before = 0 if saved is None else sum(day.delivered for day in saved.totals.days.values())
        say(beginning(self.request, self.opened.state))
        with SendProgress(total, before) as progress:
            manifest = uvloop.run(self._sending(progress))
        return self._end(manifest)

    async def _sending(self, progress: SendProgress) -> ImportManifest:
        """Send until all is settled, or a signal comes. Cancelled, it saves what is settled."""
        with stopped_by_signals(asyncio.get_running_loop(), self.opened.stop, progress.close):
            return await self.opened.run(progress.told)

    def _end(self, manifest: ImportManifest) -> int:
        """Show what came of it; the exit code."""
        broken = self.opened.broken
        print_report(manifest, self.typed.output, self.opened.state, broken)
        return code_of(manifest, broken)


def code_of(manifest: ImportManifest, broken: Sequence[BrokenSource]) -> int:
    """The exit code that says what came of an import. Refused records that were mended, and sent since, are delivered after all."""
    if broken:
        return NO
    if not manifest.complete:
        return INTERRUPTED
    return NO if manifest.books.unmended else DONE
