"""`forwarder dead-letters replay`: what would be sent, marking it, and watching the daemon send it.

An import's letters are sent by its next run, or by the one that goes on, at its end; nobody watches that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from forwarder.cli.dead_letter_files import LetterFile
from forwarder.cli.dead_letter_origin import without_keys
from forwarder.cli.dead_letter_tables import letters, readable
from forwarder.cli.dead_letter_work import Selected
from forwarder.cli.progress import EventProgress
from forwarder.core.errors import ConfigurationError
from forwarder.deadletter.selection import DeadLetterFilter, contents, mark_for_replay, notes_of, still_marked, summaries
from forwarder.sources.imports.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from forwarder.core.event import Lane
    from forwarder.deadletter.editing import Edit, Replacement

    Editor = Edit | Replacement

NO: Final = 1
_PREVIEWED: Final = 10
_COMPLAINTS: Final = 10
_LOOK_SECONDS: Final = 0.25
_BY_HAND: Final = """  What isn't JSON is mended by hand: `forwarder dead-letters show {letter} --raw > FILE`, an editor,
  then `forwarder dead-letters replay {letter} --with FILE`
"""


def editor(expression: str, file: Path | None, selected: Sequence[Selected]) -> Editor | None:
    """The edit, if one is asked for. Raises `ConfigurationError` for an expression that can't be compiled, or a file that can't be used."""
    if not expression and file is None:
        return None
    from forwarder.deadletter.editing import Edit, Replacement

    if file is None:
        return Edit(expression)
    count = sum(len(each.numbers) for each in selected)
    if expression or count != 1:
        what = "--edit and --with can't both be said" if expression else f"--with: {letters(count)} are meant"
        raise ConfigurationError(what, hint="`--with FILE` takes the place of one letter: name it by its number in `ls`.")
    return Replacement(file)


def check_rate(selected: Sequence[Selected], rate: float | None) -> None:
    """Raises `ConfigurationError` if a rate is said for letters of an import."""
    if rate is not None and any(each.file.is_of_import for each in selected):
        raise ConfigurationError("--rate: an import sends its letters at its own pace", hint="Say `--rate` to `forwarder import`.")


def preview(selected: Sequence[Selected], edit: Editor | None) -> None:
    """Say what would be sent, and show the first few events, before and after the edit."""
    total = sum(len(each.numbers) for each in selected)
    typer.echo(f"{letters(total)} would be sent again; nothing was changed.")
    left = _PREVIEWED
    for each in selected:
        with each.file.reading() as connection:
            for letter in summaries(connection, DeadLetterFilter(numbers=tuple(each.numbers[:left])))[::-1]:
                typer.echo(f"{each.file.name(letter.number)}  {letter.reason}  {letter.label}")
                for _, data in contents(connection, [letter.number]):
                    typer.echo(f"  - {readable(data, letter.lane)}" if edit else f"    {readable(data, letter.lane)}")
                    if edit:
                        typer.echo(f"  + {_after(edit, data, letter.lane)}")
                left -= 1
    if total > _PREVIEWED:
        typer.echo(f"… and {total - _PREVIEWED:,} more")
    check(selected, edit)


def check(selected: Sequence[Selected], edit: Editor | None) -> None:
    """Try the edit on every event before anything is changed. Ends the command with 1 if it doesn't fit one."""
    if edit is None:
        return
    from forwarder.deadletter.editing import NotEditable, UnreadableEvent

    misfits: list[str] = []
    unreadable = ""
    for each in selected:
        with each.file.reading() as connection:
            for number, data in contents(connection, each.numbers):
                try:
                    edit.apply(data)
                except NotEditable as error:
                    misfits.append(f"{each.file.name(number)}: {without_keys(error.message, None)}")
                    if isinstance(error, UnreadableEvent):
                        unreadable = unreadable or f"{each.file.name(number)} --path {each.file.path.parent}"
    if misfits:
        shown = "\n  ".join(misfits[:_COMPLAINTS])
        sys.stderr.write(f"Error: --edit makes no event of {letters(len(misfits))}; nothing was changed\n  {shown}\n")
        if unreadable:
            sys.stderr.write(_BY_HAND.format(letter=unreadable))
        raise typer.Exit(NO)


def mark(selected: Sequence[Selected], edit: Editor | None, rate: float | None) -> None:
    """Mark the letters, edited if they are to be."""
    with EventProgress("marking", sum(len(each.numbers) for each in selected)) as progress:
        for each in selected:
            with each.file.reading() as reading, each.file.writing() as writing:
                if edit is None:
                    changed: Iterator[tuple[int, bytes | None]] = ((number, None) for number in each.numbers)
                else:
                    changed = ((number, edit.apply(data)) for number, data in contents(reading, each.numbers))
                mark_for_replay(writing, changed, rate, progress.advance)


def follow(selected: Sequence[Selected], *, wait: bool, pause: Callable[[float], None] = time.sleep) -> bool:
    """Watch the daemons send what is marked, as long as they run; whether nothing is left that should have gone."""
    imports = [each for each in selected if each.file.is_of_import]
    for each in imports:
        typer.echo(f"{letters(len(each.numbers))} marked; {_by_import(each.file)}")
    running = [each for each in selected if each not in imports and each.file.has_daemon]
    marked = sum(len(each.numbers) for each in selected if each not in imports and each not in running)
    if marked:
        typer.echo(f"{letters(marked)} marked; no daemon runs: they go with its next start, or with `forwarder buffer drain`")
    if not wait:
        asked = sum(len(each.numbers) for each in running)
        if asked:
            typer.echo(f"{letters(asked)} marked; the daemon sends them")
        return True
    left = _watch(running, pause) if running else {}
    return _tell(running, left) if running else True


def _by_import(file: LetterFile) -> str:
    """When the letters of an import go."""
    if file.has_daemon:
        return "the import that runs sends them when it has read its source; `ls` shows what is left then"
    try:
        saved = read_checkpoint(file.path.parent)
    except ConfigurationError:
        saved = None
    example = "" if saved is None else f": forwarder import {saved.job.format} {saved.job.source} …"
    return f"no import runs: they go when its command is run again{example}"


def _watch(running: Sequence[Selected], pause: Callable[[float], None]) -> dict[LetterFile, set[int]]:
    """Wait until no letter is marked any more, or its daemon is gone; the letters that still are."""
    left = {each.file: set(each.numbers) for each in running}
    with EventProgress("replaying", sum(map(len, left.values()))) as progress:
        while True:
            for file, numbers in left.items():
                with file.reading() as connection:
                    left[file] = still_marked(connection, "replay", numbers)
                progress.advance(len(numbers) - len(left[file]))
            if not any(numbers and file.has_daemon for file, numbers in left.items()):
                return left
            pause(_LOOK_SECONDS)


def _tell(running: Sequence[Selected], left: dict[LetterFile, set[int]]) -> bool:
    notes: list[str] = []
    for each in running:
        with each.file.reading() as connection:
            notes += [f"{each.file.name(number)}: {note}" for number, note in notes_of(connection, each.numbers).items()]
    waiting = sum(map(len, left.values()))
    typer.echo(f"{letters(sum(len(each.numbers) for each in running) - waiting - len(notes))} sent again")
    if notes:
        shown = "\n  ".join(without_keys(note, None) for note in notes[:_COMPLAINTS])
        sys.stderr.write(f"{letters(len(notes))} can't be sent as they are:\n  {shown}\n")
    if waiting:
        sys.stderr.write(f"The daemon ended; {letters(waiting)} marked: they go with its next start.\n")
    return not notes and not waiting


def _after(edit: Editor, data: bytes, lane: Lane | None) -> str:
    from forwarder.deadletter.editing import NotEditable

    try:
        return readable(edit.apply(data), lane)
    except NotEditable as error:
        return f"(can't be edited: {error.message})"
