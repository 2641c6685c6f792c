"""What an import says to a person: where it goes on, what it asks, what it found, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from forwarder.cli.import_look import FILE as PREFLIGHT
from forwarder.cli.import_look import Looked
from forwarder.cli.import_options import Form
from forwarder.cli.main import report
from forwarder.cli.output import console
from forwarder.cli.visible import visible_lines
from forwarder.core.errors import ForwarderError
from forwarder.core.secrets import mask_key
from forwarder.imports.request import ImportRequest
from forwarder.sources.files.records import BrokenSource
from forwarder.sources.imports.checkpoint import ImportCheckpoint
from forwarder.sources.imports.manifest import FILE as MANIFEST
from forwarder.sources.imports.manifest import ImportManifest, sentence
from forwarder.sources.imports.preflight_page import page
from forwarder.sources.imports.preflight_report import plural
from forwarder.sources.imports.report import as_json, as_text

UNCONFIRMED: Final = "the import isn't confirmed: standard input or standard error is not a terminal, so the question can't be asked"
CONFIRM: Final = "Check the source with --dry-run, then add --yes to the command."


def say(text: str) -> None:
    """How it is going."""
    sys.stderr.write(text + "\n")


def tell(error: ForwarderError) -> None:
    """What went wrong, on standard error. Names of files may come from archives: what a terminal would obey is written as an escape."""
    report(ForwarderError(visible_lines(error.message), hint=visible_lines(error.hint)))


def goes_on(saved: ImportCheckpoint, state: Path) -> str:
    """That an earlier run is gone on with, and from where."""
    if saved.complete:
        return f"All of the source was brought already; what is marked of the dead letters in {state} is sent now."
    at = datetime.fromtimestamp(saved.written_at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return f"This import goes on where it stood at {at} ({state}): {sentence(saved.books)}."


def beginning(request: ImportRequest, state: Path) -> str:
    """What is done now."""
    target = f"{request.via} (a forwarder)" if request.via else request.settings.upstream.url
    rate = f"at most {request.rate:,.10g} events a second" if request.rate else "as fast as it goes"
    return f"Sending to {target}, project {mask_key(request.api_key)}, {rate}. State: {state}"


def question(request: ImportRequest, events: int) -> str:
    """What has to be agreed to."""
    target = request.via or request.settings.upstream.url
    return f"Send {plural(events, 'event')} to {target}, project {mask_key(request.api_key)}? They can't be taken back."


def print_look(looked: Looked, output: Form, state: Path) -> None:
    """What was found at the source."""
    if output is Form.JSON:
        typer.echo(looked.json())
    else:
        console().print(page(looked.report, looked.findings, looked.stopping), soft_wrap=True)
    sys.stdout.flush()
    for each in looked.broken:
        tell(each)
    say(f"Kept in {state / PREFLIGHT}")


def print_report(manifest: ImportManifest, output: Form, state: Path, broken: Sequence[BrokenSource]) -> None:
    """What came of an import, and where to read more."""
    if output is Form.JSON:
        typer.echo(as_json(manifest))
    else:
        console().print(as_text(manifest), soft_wrap=True)
    sys.stdout.flush()
    for each in broken:
        tell(each)
    say("\n".join(_places(manifest, state)))


def _places(manifest: ImportManifest, state: Path) -> list[str]:
    said = [f"Report: {state / 'report.html'} (and report.json)", f"Manifest: {state / MANIFEST}"]
    if manifest.books.unmended:
        said.append(f"Refused records are kept: forwarder dead-letters ls --path {state}")
    if manifest.complete:
        against = "--export PATH (of a sandbox: --sandbox URL)"
        said.append(f"To compare it with what the service has: forwarder import verify --state {state} {against}")
    return said
