"""`forwarder status`, `health`, `audit` and `explain`: the state of the running daemon, its books,
and where one event is.

`health` runs every few seconds as a container's health check: it imports nothing but the standard
library and the admin client.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forwarder.cli.admin_client import (
    NoDaemon,
    get,
    get_status,
    live_traces,
    require_status,
    resolve,
)
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Admin, Config, Output, State, TableOrJson, Watch
from forwarder.core.proposals import proposed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forwarder.inspect.explain import Trace
    from forwarder.inspect.state_files import WorkerFiles
    from forwarder.telemetry.snapshot import LaneSnapshot

_BUG: Final = "This is a bug in forwarder: please report the table above."


def _damage() -> str:
    return (
        f"`{proposed('buffer verify')}` lists damaged records: they are missing here until the "
        "next start counts them as dropped "
        "(damaged). If nothing is damaged, this is a bug in forwarder: please report the table "
        "above."
    )


def status(
    admin: Admin = None,
    config: Config = None,
    output: TableOrJson = Output.TABLE,
    watch: Watch = None,
) -> None:
    """Show the running daemon: what needs attention, and events in, buffered and out.

    With --watch it is shown again and again, with rates, also after the daemon was restarted;
    Ctrl-C ends it.

    Exit codes: 0 shown; 3 no daemon answers.

    Example: forwarder status --watch 5
    """
    address = resolve(admin, config)
    if watch is not None:
        from forwarder.cli.status_watch import watch_status

        watch_status(address, watch, output)
        return
    body = require_status(address)
    if output is Output.JSON:
        sys.stdout.write(body.decode() + "\n")
        return
    from forwarder.admin.status import parse
    from forwarder.cli.tables import console, status_page

    console().print(status_page(parse(body), address))


def health(
    admin: Admin = None,
    config: Config = None,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready", help="Check whether it accepts events, not only whether it is alive."
        ),
    ] = False,
) -> None:
    """Exit with 0 if the running daemon is healthy, else with 1.

    Made for a container's health check.

    Example: forwarder health --ready
    """
    address = resolve(admin, config)
    try:
        code, body = get(address, "/readyz" if ready else "/livez")
    except NoDaemon as error:
        sys.stderr.write(f"{error.message}\n")
        raise typer.Exit(ExitCode.NO) from error
    if code == 200 and body.strip() not in (b"live", b"ready"):
        sys.stderr.write(f"what answers at {address} is not forwarder's admin server\n")
        raise typer.Exit(ExitCode.NO)
    sys.stdout.write(body.decode(errors="replace"))
    raise typer.Exit(ExitCode.DONE if code == 200 else ExitCode.NO)


def audit(admin: Admin = None, config: Config = None, path: State = None) -> None:
    """Print the books of each lane: received = delivered + buffered + dead-lettered + dropped.

    Asks the running daemon; if none answers, reads the configured files. With --admin it only
    asks, with --path it only reads.

    Exit codes: 0 the books balance; 1 they don't; 3 no daemon answers and there are no files.

    Example: forwarder audit --config /etc/forwarder/forwarder.yaml
    """
    if path is not None:
        _judge(_from_files(_files_at(path)), _damage())
    elif admin is not None or (files := _files_without_daemon(config)) is None:
        _judge(_from_daemon(resolve(admin, config)), _BUG)
    else:
        _judge(_from_files(files), _damage())


def explain(
    uuid: Annotated[str, typer.Argument(metavar="UUID", help="The event's uuid, in any notation.")],
    admin: Admin = None,
    config: Config = None,
    path: State = None,
) -> None:
    """Find one event: buffered, dead-lettered and why, or else delivered or never received.

    Asks the running daemon and searches the files of the buffer and the dead letters. Lanes are
    shown by their labels.

    Exit codes: 0 found; 1 not found.

    Example: forwarder explain 01890a5d-ac96-774b-bcce-b302099a8057
    """
    from forwarder.admin.event_lookup import WantedUuid
    from forwarder.inspect.explain import search_files
    from forwarder.inspect.state_files import configured_files

    wanted = WantedUuid.parse(uuid)
    live, asked = live_traces(wanted.text, admin, config)
    files = _files_at(path, empty=True) if path is not None else configured_files(config)
    found = search_files(wanted, files, path)
    traces = [*live, *(trace for trace in found if not _is_live(trace, live))]
    for trace in traces:
        typer.echo(_trace_line(trace, time.time()))
    if traces:
        return
    typer.echo("not found: delivered, or never received")
    if dropped := _dropped_by_rules(admin, config) if asked else "":
        typer.echo(f"or dropped by a rule: {dropped} since the start")
    if not asked:
        sys.stderr.write(
            "No daemon answered, so events that it holds only in memory are not covered.\n"
        )
    raise typer.Exit(ExitCode.NO)


def _dropped_by_rules(admin: str | None, config: Path | None) -> str:
    """What each rule of the running daemon has dropped; empty if none has dropped anything."""
    from forwarder.admin.status import parse

    try:
        events = parse(get_status(resolve(admin, config))).rule_events
    except NoDaemon:
        return ""
    return ", ".join(
        f"{rule} dropped {count:,}"
        for (rule, outcome), count in events.items()
        if outcome == "dropped" and count
    )


def _from_daemon(address: str) -> Sequence[LaneSnapshot]:
    from forwarder.admin.status import parse

    return parse(require_status(address)).lanes


def _from_files(files: Sequence[WorkerFiles]) -> Sequence[LaneSnapshot]:
    from forwarder.inspect.audit import books_of
    from forwarder.storage.directory import is_locked

    if any(each.log is not None and is_locked(each.log) for each in files):
        sys.stderr.write(
            "These files are in use by a running process, so the figures may differ slightly. Ask "
            "it with --admin ADDRESS.\n"
        )
    where = ", ".join(
        dict.fromkeys(
            str(each.log or (each.dead_letters and each.dead_letters.parent)) for each in files
        )
    )
    sys.stdout.write(f"From the files in {where}:\n")
    return books_of(files)


def _files_at(path: Path, *, empty: bool = False) -> list[WorkerFiles]:
    """The files in a state directory. Raises `NotABuffer` if there are none,
    unless it may be `empty`.
    """
    from forwarder.inspect.state_files import NotABuffer, files_at

    files = files_at(path)
    if not (files or empty):
        hint = "Name the directory of `buffer.path` or `dead_letters.path`."
        raise NotABuffer(f"{path} contains no buffer and no dead letters", hint=hint)
    return files


def _files_without_daemon(config: Path | None) -> list[WorkerFiles] | None:
    """The configured files; None if a daemon answers, or there are none."""
    from forwarder.inspect.state_files import configured_files

    try:
        get(resolve(None, config), "/livez")
    except NoDaemon:
        return configured_files(config) or None
    return None


def _judge(lanes: Sequence[LaneSnapshot], hint: str) -> None:
    """Print the books. Ends the command with exit code 1 and `hint` if they don't balance."""
    from forwarder.cli.tables import console, lane_table

    console().print(lane_table(lanes, books=True))
    off = [lane for lane in lanes if lane.difference]
    if not off:
        sys.stdout.write(
            "The books balance: received = delivered + buffered + dead-lettered + dropped.\n"
        )
        return
    names = ", ".join(lane.label for lane in off)
    sys.stderr.write(f"Error: the books don't balance for {names}\n  {hint}\n")
    raise typer.Exit(ExitCode.NO)


def _is_live(trace: Trace, live: list[Trace]) -> bool:
    """Whether the daemon has reported the same copy, of which it knows more than its files."""
    return any(
        (trace.where, trace.destination, trace.lane, trace.since)
        == ("buffered", each.destination, each.lane, each.since)
        for each in live
    )


def _trace_line(trace: Trace, now: float) -> str:
    from forwarder.telemetry.readable import duration

    when = datetime.fromtimestamp(trace.since, UTC).isoformat(timespec="seconds")
    copy = f"{trace.where}, for {trace.destination}" if trace.destination else trace.where
    parts = [
        f"{copy}, lane {trace.lane}, since {when} ({duration(now - trace.since)})",
        trace.reason,
        trace.why,
    ]
    return ": ".join(part for part in parts if part) + (f"\n    {trace.note}" if trace.note else "")
