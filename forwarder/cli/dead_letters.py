"""`forwarder dead-letters`: look at what could not be delivered, send it again, or drop it; with the daemon up or down."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.asking import may
from forwarder.cli.formats import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forwarder.cli.dead_letter_files import LetterFile, Wanted
    from forwarder.cli.dead_letter_work import Selected

NO: int = 1
"""Exit code: the answer is no."""

LIMIT = 50
MOST = 10_000_000
"""Nobody means more by `--limit`."""

HELP = "Look at events that could not be delivered, send them again, or drop them."

app = typer.Typer(name="dead-letters", no_args_is_help=True, help=HELP)

Names = Annotated[list[str] | None, typer.Argument(metavar="[NUMBER|UUID]...", help="Letters by their numbers in `ls`, or events by uuid.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="The configuration of the daemon; it says where its dead letters are.")
]
Place = Annotated[
    Path | None, typer.Option("--path", metavar="DIR", help="Look into this state directory instead, one worker's in it, or an import's.")
]
WithReason = Annotated[str, typer.Option("--reason", metavar="REASON", help="Only letters with this reason.")]
WithEvent = Annotated[str, typer.Option("--event", metavar="NAME", help="Only events of this name.")]
WithLane = Annotated[str, typer.Option("--lane", metavar="LABEL", help="Only this lane, by its label in `ls`.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="Only letters since then: 2h, 3d, or 2026-01-31T12:00:00Z.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, max=MOST, metavar="N", help="At most so many, the oldest first.")]
WithFile = Annotated[Path | None, typer.Option("--with", metavar="FILE", help="Send the JSON object in this file instead: for one letter.")]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask.")]


As = Annotated[Output, typer.Option("--output", help="A table for a person, or JSON.")]


@app.command()
def ls(
    names: Names = None,
    *,
    config: Config = None,
    path: Place = None,
    reason: WithReason = "",
    event: WithEvent = "",
    lane: WithLane = "",
    since: Since = "",
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST, metavar="N", help="Show at most so many, the newest.")] = LIMIT,
    output: As = Output.TABLE,
) -> None:
    """Show the dead letters of all workers, the newest first: why each is one, and what was asked to be done with it.

    Works beside a running daemon. Project keys are shown by their labels only.

    Example: forwarder dead-letters ls --reason refused --since 2h
    """
    from forwarder.cli.dead_letter_tables import as_json, print_table
    from forwarder.cli.dead_letter_work import newest

    files = _files(config, path)
    found, total = newest(files, _wanted(names, files, reason=reason, event=event, lane=lane, since=since), limit)
    if output is Output.JSON:
        typer.echo(as_json(found, total))
    else:
        print_table(found, total, time.time())


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NUMBER|UUID", help="The letter's number in `ls`, or the event's uuid.")],
    *,
    config: Config = None,
    path: Place = None,
    raw: Annotated[bool, typer.Option("--raw", help="Write the event's original bytes, and nothing else.")] = False,
    output: As = Output.TABLE,
) -> None:
    """Show everything about a letter, and its event. What looks like a key is masked, but with --raw.

    Exit codes: 0 shown; 1 there is no such letter.

    Example: forwarder dead-letters show 17 --raw > event.json
    """
    from forwarder.cli.dead_letter_tables import letter_as_json, print_letter
    from forwarder.cli.dead_letter_work import with_content

    files = _files(config, path)
    found = with_content(files, _wanted([name], files))
    if not found:
        sys.stderr.write(f"Error: there is no dead letter {name}\n  `forwarder dead-letters ls` shows those that there are.\n")
        raise typer.Exit(NO)
    for file, letter, content in found:
        if raw:
            sys.stdout.buffer.write(content.data)
            sys.stdout.buffer.flush()
        elif output is Output.JSON:
            typer.echo(letter_as_json(file, letter, content))
        else:
            print_letter(file, letter, content)


@app.command()
def replay(
    names: Names = None,
    *,
    config: Config = None,
    path: Place = None,
    reason: WithReason = "",
    event: WithEvent = "",
    lane: WithLane = "",
    since: Since = "",
    limit: Limit = None,
    edit: Annotated[str, typer.Option("--edit", metavar="JQ", help="Send what this jq expression makes of each event instead.")] = "",
    replacement: WithFile = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.01, metavar="N", help="At most so many events a second (100).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and change nothing.")] = False,
    yes: Yes = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the daemon has taken them.")] = True,
) -> None:
    """Send dead letters again, through the running daemon: each event with its own uuid and timestamp, and its own bytes unless edited.

    Without a daemon they are marked, and go with its next start, or with `forwarder buffer drain`. Those of an import (--path STATE)
    go when its command is run again: records that its format refused, mended by --edit or --with, go through the format again.

    Exit codes: 0 done; 1 letters were left; 2 the expression, or an argument, is wrong.

    Example: forwarder dead-letters replay --reason refused --edit '.properties.plan = "free"' --dry-run
    """
    from forwarder.cli import dead_letter_replay as replaying

    files = _files(config, path)
    selected = _select(files, _wanted(names, files, reason=reason, event=event, lane=lane, since=since), limit)
    replaying.check_rate(selected, rate)
    editor = replaying.editor(edit, replacement, selected)
    if dry_run:
        replaying.preview(selected, editor)
        return
    replaying.check(selected, editor)
    if not may(f"Send {_letters(selected)} again?", yes=yes):
        raise typer.Exit(NO)
    replaying.mark(selected, editor, rate)
    raise typer.Exit(0 if replaying.follow(selected, wait=wait) else NO)


@app.command()
def drop(
    names: Names = None,
    *,
    config: Config = None,
    path: Place = None,
    reason: WithReason = "",
    event: WithEvent = "",
    lane: WithLane = "",
    since: Since = "",
    limit: Limit = None,
    yes: Yes = False,
) -> None:
    """Drop dead letters for good; the books count them as dropped by an operator.

    Exit codes: 0 done; 1 nothing was dropped, or not all of it yet.

    Example: forwarder dead-letters drop --reason missing_event --since 1h
    """
    from forwarder.cli.dead_letter_work import drop as drop_letters

    files = _files(config, path)
    selected = _select(files, _wanted(names, files, reason=reason, event=event, lane=lane, since=since), limit)
    if not may(f"Drop {_letters(selected)} for good?", yes=yes):
        raise typer.Exit(NO)
    dropped, left = drop_letters(selected)
    typer.echo(f"{dropped:,} dropped" + (f"; {left:,} are marked, and the daemon, or import, drops them as soon as it can" if left else ""))
    raise typer.Exit(NO if left else 0)


def _files(config: Path | None, path: Path | None) -> list[LetterFile]:
    """The files that are there."""
    from forwarder.cli.dead_letter_files import letter_files
    from forwarder.config.load import load_settings
    from forwarder.core.errors import ConfigurationError
    from forwarder.inspect.state_files import files_at, files_of

    if path is not None:
        workers = files_at(path)
        if not workers and not _may_be_empty(path):
            hint = "Name the directory that `buffer.path` or `dead_letters.path` names, or the state folder of an import."
            raise ConfigurationError(f"{path} holds no state of forwarder", hint=hint)
    else:
        workers = files_of(load_settings(config, os.environ, require_upstream=False).settings, os.environ)
    return letter_files([worker.dead_letters for worker in workers if worker.dead_letters is not None])


def _may_be_empty(path: Path) -> bool:
    """Whether it is no mistake that nothing is there yet: no daemon has used it, or an import that hasn't sent anything."""
    from forwarder.sources.imports.status import PREFLIGHT

    return path.is_dir() and (not any(path.iterdir()) or (path / PREFLIGHT).is_file())


def _wanted(
    names: Sequence[str] | None, files: Sequence[LetterFile], *, reason: str = "", event: str = "", lane: str = "", since: str = ""
) -> Wanted:
    from forwarder.cli.dead_letter_files import wanted
    from forwarder.core.errors import ConfigurationError
    from forwarder.core.ports import Reason

    if reason and reason not in list(Reason):
        raise ConfigurationError(f"--reason: there is no reason {reason!r}", hint=f"There are {', '.join(Reason)}.")
    return wanted(names or (), files, reason=reason, event=event, lane=lane, since=since, now=time.time())


def _select(files: Sequence[LetterFile], meant: Wanted, limit: int | None) -> list[Selected]:
    """The letters that are meant. Ends the command if there are none."""
    from forwarder.cli.dead_letter_work import select

    selected = select(files, meant, limit)
    if not selected:
        sys.stderr.write("No dead letter is meant by that.\n")
        raise typer.Exit(NO if meant.numbers or meant.criteria.uuids else 0)
    return selected


def _letters(selected: Sequence[Selected]) -> str:
    from forwarder.cli.dead_letter_tables import letters

    return letters(sum(len(each.numbers) for each in selected))
