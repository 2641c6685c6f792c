"""`forwarder dead-letters`: list, show, replay or drop events that could not be delivered, with
the daemon up or down.

Replay has five steps: preview, check, confirm, mark, and follow until the daemon has sent the
letters. Letters of an import are sent at the end of its next run; the command doesn't follow that.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forwarder.cli.dead_letter_tables import (
    content_as_json,
    dead_letter_as_json,
    dead_letter_count,
    print_dead_letter,
    print_table,
    readable,
    without_keys,
)
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import (
    CommandGroup,
    Config,
    Output,
    State,
    TableOrJson,
    TextOrJson,
    TextOutput,
    Yes,
    events_per_second,
)
from forwarder.cli.output import confirm
from forwarder.cli.settings import configured_names
from forwarder.cli.tables import EventProgress
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import Reason
from forwarder.core.proposals import proposed
from forwarder.deadletter.selection import (
    DeadLetterFilter,
    DeadLetterSummary,
    contents,
    mark_for_replay,
    notes_of,
    still_marked,
    summaries,
)
from forwarder.inspect import dead_letters as stored_dead_letters
from forwarder.inspect.dead_letters import (
    DeadLetterQuery,
    SelectedDeadLetters,
    WorkerDeadLetters,
    dead_letter_files,
    newest,
    parse_query,
    with_content,
)
from forwarder.sources.imports.blocks import SOURCE
from forwarder.sources.imports.checkpoint import read_checkpoint
from forwarder.sources.imports.preflight_report import PREFLIGHT

if TYPE_CHECKING:
    from forwarder.deadletter.editing import Edit, Replacement
    from forwarder.telemetry.labels import LaneNames

    Editor = Edit | Replacement

LIMIT: Final = 50
MAX_LIMIT: Final = 10_000_000
_PREVIEWED: Final = 10
_MAX_NOTES: Final = 10
_POLL_SECONDS: Final = 0.25
_BY_HAND: Final = """  Fix a record that isn't JSON by hand: write it with `{show} > FILE`, \
edit FILE, then run
  `{replay}`
"""

app = CommandGroup("dead-letters", "List, show, replay or drop events that could not be delivered.")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NUMBER|UUID", help="Dead letters by their numbers in `ls`, or events by uuid."
    ),
]
WithReason = Annotated[
    str, typer.Option("--reason", metavar="REASON", help="Only dead letters with this reason.")
]
WithEvent = Annotated[
    str, typer.Option("--event", metavar="NAME", help="Only events of this name.")
]
WithLane = Annotated[
    str,
    typer.Option("--lane", metavar="LABEL", help="Only this lane, by its name or label in `ls`."),
]
Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only dead letters since then: 2h, 3d, or 2026-01-31T12:00:00Z.",
    ),
]
AllDeadLetters = Annotated[
    bool, typer.Option("--all", help="All dead letters, where nothing else selects them.")
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit", min=1, max=MAX_LIMIT, metavar="N", help="At most this many, the oldest first."
    ),
]


@app.command()
def ls(
    names: Names = None,
    *,
    config: Config = None,
    path: State = None,
    reason: WithReason = "",
    event: WithEvent = "",
    lane: WithLane = "",
    since: Since = "",
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            min=1,
            max=MAX_LIMIT,
            metavar="N",
            help="At most this many, the newest first.",
        ),
    ] = LIMIT,
    output: TableOrJson = Output.TABLE,
) -> None:
    """List the dead letters of all workers, the newest first, with their reasons and marks.

    Works while the daemon runs. Project keys are shown by their names or labels only.

    Example: forwarder dead-letters ls --reason refused --since 2h
    """
    files = _files(config, path)
    lanes = configured_names(config)
    dead_letters, total = newest(
        files,
        _query(names, files, reason=reason, event=event, lanes=lanes.labels(lane), since=since),
        limit,
    )
    if output is Output.JSON:
        document = {
            "count": total,
            "results": [
                dead_letter_as_json(file, dead_letter, lanes) for file, dead_letter in dead_letters
            ],
        }
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        from forwarder.inspect.state_files import configured_roots

        # Unnamed, it may be another directory than that of the daemon that the reader thinks of.
        roots = configured_roots(None) if config is None and path is None else []
        print_table(dead_letters, total, lanes, time.time(), ", ".join(map(str, roots)))


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NUMBER|UUID", help="The dead letter's number in `ls`, or the event's uuid."
        ),
    ],
    *,
    config: Config = None,
    path: State = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write only the event's original bytes.")
    ] = False,
    output: TableOrJson = Output.TABLE,
) -> None:
    """Show one dead letter and its event, or all of a uuid. Anything that looks like a key is
    masked, except with --raw.

    As JSON, a number is one object, and a uuid {"count":…,"results":[…]}, as in `ls`.

    Exit codes: 0 shown; 1 not found.

    Example: forwarder dead-letters show 17 --raw > event.json
    """
    files = _files(config, path)
    lanes = configured_names(config)
    query = _query([name], files)
    selected = with_content(files, query)
    if not selected:
        sys.stderr.write(
            f"Error: dead letter {name} was not found\n  `{proposed('dead-letters ls')}` lists "
            "all of them.\n"
        )
        raise typer.Exit(ExitCode.NO)
    if raw:
        if len(selected) > 1:
            names = ", ".join(file.name(dead_letter.number) for file, dead_letter, _ in selected)
            raise ConfigurationError(
                f"--raw: {dead_letter_count(len(selected))} have this uuid",
                hint=f"Name one by its number: {names}.",
            )
        sys.stdout.buffer.write(selected[0][2].data)
        sys.stdout.buffer.flush()
    elif output is Output.JSON:
        documents = [content_as_json(*dead_letter, lanes) for dead_letter in selected]
        typer.echo(
            json.dumps(
                {"count": len(documents), "results": documents}
                if query.criteria.uuids
                else documents[0],
                indent=2,
                ensure_ascii=False,
            )
        )
    else:
        for dead_letter in selected:
            print_dead_letter(*dead_letter, lanes)


@app.command()
def replay(
    names: Names = None,
    *,
    config: Config = None,
    path: State = None,
    reason: WithReason = "",
    event: WithEvent = "",
    lane: WithLane = "",
    since: Since = "",
    limit: Limit = None,
    every: AllDeadLetters = False,
    edit: Annotated[
        str,
        typer.Option(
            "--edit",
            metavar="JQ",
            help="Send the result of this jq expression instead of each event.",
        ),
    ] = "",
    replacement: Annotated[
        Path | None,
        typer.Option(
            "--with", metavar="FILE", help="Send the JSON object in this file instead of one event."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            parser=events_per_second(),
            metavar="N",
            help="At most this many events a second (100).",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, and change nothing.")
    ] = False,
    yes: Yes = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the daemon has accepted them.")
    ] = True,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Send dead letters again through the running daemon, each with its own uuid and timestamp.

    Name dead letters, select them by options, or say --all. --dry-run without any shows all.

    If no daemon runs, the dead letters are marked, and sent at its next start or by `forwarder
    buffer drain`; those of an import (--path STATE) when its command runs again.

    Exit codes: 0 done; 1 some are left; 2 invalid expression or argument.

    Example: forwarder dead-letters replay --reason refused --edit '.properties.plan = "free"'
    --dry-run
    """
    chosen = bool(names or reason or event or lane or since or limit)
    _check_choice("replay", chosen=chosen, every=every or (dry_run and not chosen))
    files = _files(config, path)
    lanes = configured_names(config)
    selected = _select(
        files,
        _query(names, files, reason=reason, event=event, lanes=lanes.labels(lane), since=since),
        limit,
        None if output is TextOutput.TEXT else ReplayOutcome().as_json(dry_run=dry_run),
    )
    check_rate(selected, rate)
    change = editor(edit, replacement, selected)
    if dry_run:
        preview(selected, change, lanes, output)
        return
    check(selected, change)
    if not confirm(f"Send {dead_letter_count(_count(selected))} again?", yes=yes):
        raise typer.Exit(ExitCode.NO)
    mark(selected, change, rate)
    outcome = follow(selected, wait=wait)
    if output is TextOutput.JSON:
        typer.echo(json.dumps(outcome.as_json(), indent=2, ensure_ascii=False))
    else:
        outcome.print()
    raise typer.Exit(ExitCode.DONE if outcome.complete else ExitCode.NO)


@app.command()
def drop(
    names: Names = None,
    *,
    config: Config = None,
    path: State = None,
    reason: WithReason = "",
    event: WithEvent = "",
    lane: WithLane = "",
    since: Since = "",
    limit: Limit = None,
    every: AllDeadLetters = False,
    yes: Yes = False,
) -> None:
    """Drop dead letters permanently; the books count them as dropped by an operator.

    Name dead letters, select them by options, or say --all.

    Exit codes: 0 done; 1 nothing was dropped, or not all of it yet.

    Example: forwarder dead-letters drop --reason missing_event --since 1h
    """
    chosen = bool(names or reason or event or lane or since or limit)
    _check_choice("drop", chosen=chosen, every=every)
    files = _files(config, path)
    lanes = configured_names(config)
    selected = _select(
        files,
        _query(names, files, reason=reason, event=event, lanes=lanes.labels(lane), since=since),
        limit,
    )
    if not confirm(f"Drop {dead_letter_count(_count(selected))} permanently?", yes=yes):
        raise typer.Exit(ExitCode.NO)
    dropped, left = stored_dead_letters.drop(selected)
    typer.echo(
        f"{dropped:,} dropped"
        + (
            f"; {left:,} marked, to be dropped by the daemon or import that uses them"
            if left
            else ""
        )
    )
    raise typer.Exit(ExitCode.NO if left else ExitCode.DONE)


def _files(config: Path | None, path: Path | None) -> list[WorkerDeadLetters]:
    """The files in the state directory `path`, or else those of the
    configuration. Raises `ConfigurationError`.
    """
    from forwarder.inspect.state_files import configured_files, files_at

    if path is not None:
        workers = files_at(path)
        if not workers and not _may_be_empty(path):
            hint = (
                "Name the directory of `buffer.path` or `dead_letters.path`, or the state "
                "folder of an import (in shards: of one shard)."
            )
            raise ConfigurationError(f"{path} is not a state directory of forwarder", hint=hint)
    else:
        workers = configured_files(config)
    return dead_letter_files(
        [worker.dead_letters for worker in workers if worker.dead_letters is not None]
    )


def _may_be_empty(path: Path) -> bool:
    """Whether a directory without letters is no mistake: no daemon has used it yet, or an import
    that hasn't sent anything.
    """
    return path.is_dir() and (not any(path.iterdir()) or (path / PREFLIGHT).is_file())


def _query(
    names: Sequence[str] | None,
    files: Sequence[WorkerDeadLetters],
    *,
    reason: str = "",
    event: str = "",
    lanes: tuple[str, ...] = (),
    since: str = "",
) -> DeadLetterQuery:
    if reason and reason not in list(Reason):
        raise ConfigurationError(
            f"--reason: {reason!r} is not a reason", hint=f"The reasons are {', '.join(Reason)}."
        )
    return parse_query(
        names or (), files, reason=reason, event=event, lanes=lanes, since=since, now=time.time()
    )


def _check_choice(verb: str, *, chosen: bool, every: bool) -> None:
    """Raises `ConfigurationError` if nothing selects dead letters, or `--all` contradicts what
    does: a forgotten option mustn't send or drop all of them.
    """
    if chosen is not every:
        return
    if every:
        raise ConfigurationError(
            "--all excludes numbers, uuids, and the options that select dead letters",
            hint="Leave --all out to use only those.",
        )
    example = proposed(f"dead-letters {verb} --reason", Reason.REFUSED)
    raise ConfigurationError(
        f"nothing selects the dead letters to {verb}",
        hint=f"Name them by NUMBER or UUID, select them as in `{example}`, or use "
        f"`{proposed(f'dead-letters {verb} --all')}` for all of them. "
        f"`{proposed('dead-letters ls')}` lists them.",
    )


def _select(
    files: Sequence[WorkerDeadLetters],
    query: DeadLetterQuery,
    limit: int | None,
    document: dict[str, Any] | None = None,
) -> list[SelectedDeadLetters]:
    """The matching letters. Ends the command if there are none, with `document` for programs."""
    selected = stored_dead_letters.select(files, query, limit)
    if not selected:
        if document is not None:
            typer.echo(json.dumps(document, indent=2))
        sys.stderr.write("No dead letter matches.\n")
        raise typer.Exit(ExitCode.NO if query.numbers or query.criteria.uuids else ExitCode.DONE)
    return selected


def _count(selected: Sequence[SelectedDeadLetters]) -> int:
    return sum(len(selection.numbers) for selection in selected)


def editor(
    expression: str, file: Path | None, selected: Sequence[SelectedDeadLetters]
) -> Editor | None:
    """The requested edit, if any. Raises `ConfigurationError` if the expression doesn't compile or
    the file can't be used.
    """
    if not expression and file is None:
        return None
    from forwarder.deadletter.editing import Edit, Replacement

    if file is None:
        return Edit(expression)
    count = _count(selected)
    if expression or count != 1:
        what = (
            "--edit and --with exclude each other"
            if expression
            else f"--with: {dead_letter_count(count)} match"
        )
        raise ConfigurationError(
            what,
            hint="`--with FILE` replaces one event: name its dead letter by its number in `ls`.",
        )
    return Replacement(file)


def check_rate(selected: Sequence[SelectedDeadLetters], rate: float | None) -> None:
    """Raises `ConfigurationError` for a rate with letters of an import."""
    if rate is not None and any(_is_of_import(selection.file) for selection in selected):
        raise ConfigurationError(
            "--rate: an import sends its dead letters at its own rate",
            hint="Use --rate of the import's own command.",
        )


def preview(
    selected: Sequence[SelectedDeadLetters],
    edit: Editor | None,
    lanes: LaneNames,
    output: TextOutput,
) -> None:
    """Print what would be sent: the first few events, before and after the edit."""
    total = _count(selected)
    if output is TextOutput.JSON:
        results = [
            {
                **dead_letter_as_json(file, dead_letter, lanes),
                "data": readable(data, dead_letter.lane),
                "edited": _after(edit, data, dead_letter.lane) if edit else None,
            }
            for file, dead_letter, data in _previewed(selected)
        ]
        document = {**ReplayOutcome().as_json(dry_run=True), "count": total, "results": results}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        check(selected, edit)
        return
    typer.echo(f"{dead_letter_count(total)} would be sent again; nothing was changed.")
    for file, dead_letter, data in _previewed(selected):
        typer.echo(
            f"{file.name(dead_letter.number)}  {dead_letter.reason}  "
            f"{lanes.show(dead_letter.label)}"
        )
        typer.echo(f"  {'-' if edit else ' '} {readable(data, dead_letter.lane)}")
        if edit:
            typer.echo(f"  + {_after(edit, data, dead_letter.lane)}")
    if total > _PREVIEWED:
        typer.echo(f"… and {total - _PREVIEWED:,} more")
    check(selected, edit)


def _previewed(
    selected: Sequence[SelectedDeadLetters],
) -> Iterator[tuple[WorkerDeadLetters, DeadLetterSummary, bytes]]:
    """The first few letters, each with its event."""
    left = _PREVIEWED
    for selection in selected:
        with selection.file.reading() as connection:
            for dead_letter in summaries(
                connection, DeadLetterFilter(numbers=tuple(selection.numbers[:left]))
            )[::-1]:
                for _, data in contents(connection, [dead_letter.number]):
                    yield selection.file, dead_letter, data
                left -= 1


def check(selected: Sequence[SelectedDeadLetters], edit: Editor | None) -> None:
    """Try the edit on every event before anything is changed. Ends the command with exit code 1 if
    it fails for one.
    """
    if edit is None:
        return
    from forwarder.deadletter.editing import NotEditable, UnreadableEvent

    failures: list[str] = []
    unreadable: tuple[object, ...] = ()
    for selection in selected:
        with selection.file.reading() as connection:
            for number, data in contents(connection, selection.numbers):
                try:
                    edit.apply(data)
                except NotEditable as error:
                    failures.append(
                        f"{selection.file.name(number)}: {without_keys(error.message, None)}"
                    )
                    if isinstance(error, UnreadableEvent):
                        unreadable = unreadable or (
                            selection.file.name(number),
                            "--path",
                            selection.file.path.parent,
                        )
    if failures:
        shown = "\n  ".join(failures[:_MAX_NOTES])
        sys.stderr.write(
            f"Error: --edit fails for {dead_letter_count(len(failures))}; nothing was changed\n"
            f"  {shown}\n"
        )
        if unreadable:
            sys.stderr.write(
                _BY_HAND.format(
                    show=proposed("dead-letters show --raw", *unreadable),
                    replay=proposed("dead-letters replay --with FILE", *unreadable),
                )
            )
        raise typer.Exit(ExitCode.NO)


def mark(selected: Sequence[SelectedDeadLetters], edit: Editor | None, rate: float | None) -> None:
    """Mark the letters, each with its edited event if there is an edit."""
    with EventProgress("marking", _count(selected)) as progress:
        for selection in selected:
            with selection.file.reading() as reading, selection.file.writing() as writing:
                if edit is None:
                    changed: Iterator[tuple[int, bytes | None]] = (
                        (number, None) for number in selection.numbers
                    )
                else:
                    changed = (
                        (number, edit.apply(data))
                        for number, data in contents(reading, selection.numbers)
                    )
                mark_for_replay(writing, changed, rate, progress.advance)


@dataclass(slots=True)
class ReplayOutcome:
    """What became of the marked letters: sent again, or still marked, or not to be sent as they
    are.
    """

    sent: int | None = None
    """None if no daemon was followed."""
    marked: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    """Number and reason of each letter that can't be sent."""
    stopped: int = 0
    """Of the marked ones, those whose daemon stopped meanwhile."""
    notes: list[str] = field(default_factory=list)
    """When the marked ones are sent."""

    @property
    def complete(self) -> bool:
        """Whether a person needs to do nothing more."""
        return not self.failures and not self.stopped

    def print(self) -> None:
        """Print it for a person."""
        for note in self.notes:
            typer.echo(note)
        if self.sent is not None:
            typer.echo(f"{dead_letter_count(self.sent)} sent again")
        if self.failures:
            shown = "\n  ".join(
                f"{number}: {without_keys(why, None)}" for number, why in self.failures[:_MAX_NOTES]
            )
            count = dead_letter_count(len(self.failures))
            sys.stderr.write(f"{count} can't be sent as they are:\n  {shown}\n")
        if self.stopped:
            sys.stderr.write(
                f"The daemon stopped; {dead_letter_count(self.stopped)} marked: they are sent "
                "at its next start.\n"
            )

    def as_json(self, *, dry_run: bool = False) -> dict[str, Any]:
        """The same for programs: `count` is the sum of those sent, marked and failed."""
        return {
            "count": (self.sent or 0) + self.marked + len(self.failures),
            "dry_run": dry_run,
            "sent": self.sent or 0,
            "marked": self.marked,
            "failed": [
                {"number": number, "why": without_keys(why, None)} for number, why in self.failures
            ],
        }


def follow(
    selected: Sequence[SelectedDeadLetters],
    *,
    wait: bool,
    pause: Callable[[float], None] = time.sleep,
) -> ReplayOutcome:
    """Follow the running daemons until they have sent the marked letters, or have stopped."""
    outcome = ReplayOutcome(marked=_count(selected))
    daemons: list[SelectedDeadLetters] = []
    marked = 0
    adopted = 0
    for selection in selected:
        if _is_of_import(selection.file):
            outcome.notes.append(
                f"{dead_letter_count(len(selection.numbers))} marked; {_by_import(selection.file)}"
            )
        elif selection.file.has_daemon:
            daemons.append(selection)
        elif selection.file.has_supervisor:
            adopted += len(selection.numbers)
        else:
            marked += len(selection.numbers)
    if marked:
        outcome.notes.append(
            f"{dead_letter_count(marked)} marked; no daemon runs: they are sent at its next start, "
            f"or by `{proposed('buffer drain')}`"
        )
    if adopted:
        outcome.notes.append(
            f"{dead_letter_count(adopted)} of former workers marked; "
            "the daemon sends them within seconds"
        )
    if daemons and wait:
        _count_sent(outcome, daemons, _watch(daemons, pause))
    elif daemons:
        outcome.notes.append(f"{dead_letter_count(_count(daemons))} marked; the daemon sends them")
    return outcome


def _is_of_import(file: WorkerDeadLetters) -> bool:
    return file.source == SOURCE


def _by_import(file: WorkerDeadLetters) -> str:
    """When the letters of an import are sent."""
    if file.has_daemon:
        return (
            "the running import sends them after its source is read; `ls` shows what is left then"
        )
    try:
        saved = read_checkpoint(file.path.parent)
    except ConfigurationError:
        saved = None
    example = (
        "" if saved is None else f": {proposed('import', saved.job.format, saved.job.source)} …"
    )
    return f"no import runs: they are sent when its command runs again{example}"


def _watch(
    daemons: Sequence[SelectedDeadLetters], pause: Callable[[float], None]
) -> dict[WorkerDeadLetters, set[int]]:
    """Wait until no letter is marked any more, or its daemon has stopped. Returns the letters that
    are still marked.
    """
    left = {daemon.file: set(daemon.numbers) for daemon in daemons}
    with EventProgress("replaying", sum(map(len, left.values()))) as progress:
        while True:
            for file, numbers in left.items():
                with file.reading() as connection:
                    left[file] = still_marked(connection, "replay", numbers)
                progress.advance(len(numbers) - len(left[file]))
            if not any(numbers and file.has_daemon for file, numbers in left.items()):
                return left
            pause(_POLL_SECONDS)


def _count_sent(
    outcome: ReplayOutcome,
    daemons: Sequence[SelectedDeadLetters],
    left: dict[WorkerDeadLetters, set[int]],
) -> None:
    """Count what daemons have sent, what could not be sent, and what is `left` marked."""
    for daemon in daemons:
        with daemon.file.reading() as connection:
            outcome.failures += [
                (daemon.file.name(number), note)
                for number, note in notes_of(connection, daemon.numbers).items()
            ]
    followed = _count(daemons)
    outcome.stopped = sum(map(len, left.values()))
    outcome.sent = followed - outcome.stopped - len(outcome.failures)
    outcome.marked -= followed - outcome.stopped


def _after(edit: Editor, data: bytes, lane: Lane | None) -> str:
    from forwarder.deadletter.editing import NotEditable

    try:
        return readable(edit.apply(data), lane)
    except NotEditable as error:
        return f"(can't be edited: {error.message})"
