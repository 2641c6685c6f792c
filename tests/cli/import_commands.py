"""A command of `forwarder import` run in this process, and state folders as imports leave them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from forwarder.cli.exit_codes import ExitCode
from forwarder.core.errors import ForwarderError
from forwarder.sources.imports import checkpoint
from forwarder.sources.imports.report import write_reports
from tests.sources.imports.samples import manifests
from tests.support.commands import Finished

DAYS = 4


def run(command: Callable[..., None], *arguments: str | Path) -> Finished:
    """What a command leaves; errors end as they do in `forwarder`."""
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(done.exception, ForwarderError):
        return Finished(
            ExitCode.WRONG_USAGE,
            done.stdout,
            f"{done.stderr}Error: {done.exception.message}\n  {done.exception.hint}\n",
        )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Finished(done.exit_code, done.stdout, done.stderr)


async def run_beside(command: Callable[..., None], *arguments: str | Path) -> Finished:
    """The same, while this loop continues."""
    with ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, run, command, *arguments)


def state(folder: Path, *, ended: bool = True, **changed: Any) -> Path:
    """The folder of an import of some days: its checkpoint and its manifest."""
    folder.mkdir(parents=True)
    saved = manifests.checkpoint(DAYS, ended=ended)
    for name, value in changed.items():
        setattr(saved, name, value)
    (folder / checkpoint.FILE).write_bytes(checkpoint.seal(checkpoint.VERSION, "checkpoint", saved))
    write_reports(manifests.manifest(DAYS, ended=ended), folder)
    return folder
