"""`forwarder status`, `health`, `audit` and `explain`: the state of the running daemon, its books,
and where one event is.

`health` runs every few seconds as a container's health check: it imports nothing but the standard
library and the admin client.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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
from forwarder.cli.options import (
    Admin,
    Config,
    Output,
    Quiet,
    State,
    TableOrJson,
    TextOrJson,
    TextOutput,
    Watch,
)
from forwarder.cli.output import as_json
from forwarder.core.proposals import proposed
from forwarder.core.stamps import utc_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forwarder.inspect.explain import Trace
    from forwarder.inspect.state_files import WorkerFiles
    from forwarder.telemetry.labels import LaneNames
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

    With --watch it has rates, and continues after a restart of the daemon.

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
    output: TextOrJson = TextOutput.TEXT,
    quiet: Quiet = False,
) -> None:
    """Exit with 0 if the running daemon is healthy, else with 1.

    For a container's health check.

    Example: forwarder health --ready
    """
    address = resolve(admin, config)
    healthy = False
    error = ""
    try:
        code, body = get(address, "/readyz" if ready else "/livez")
    except NoDaemon as unanswered:
        error = unanswered.message
    else:
        healthy = code == 200
        if healthy and body.strip() not in (b"live", b"ready"):
            healthy = False
            error = f"what answers at {address} is not forwarder's admin server"
    message = error or body.decode(errors="replace").strip()
    if output is TextOutput.JSON and not quiet:
        sys.stdout.write(as_json({"healthy": healthy, "message": message}) + "\n")
    elif error:
        sys.stderr.write(f"{error}\n")
    elif not quiet:
        sys.stdout.write(f"{message}\n")
    raise typer.Exit(ExitCode.DONE if healthy else ExitCode.NO)


def audit(
    admin: Admin = None,
    config: Config = None,
    path: State = None,
    output: TableOrJson = Output.TABLE,
    quiet: Quiet = False,
) -> None:
    """Print the books of each lane: received = delivered + buffered + dead-lettered + dropped.

    Asks the running daemon; if none answers, reads the configured files. With --admin it only
    asks, with --path it only reads.

    Exit codes: 0 the books balance; 1 they don't; 3 no daemon answers and there are no files.

    Example: forwarder audit --config /etc/forwarder/forwarder.yaml
    """
    if path is not None:
        files: Sequence[WorkerFiles] | None = _files_at(path)
    else:
        files = None if admin is not None else _files_without_daemon(config)
    if files is None:
        books = AuditedBooks(_from_daemon(resolve(admin, config)), (), _BUG)
    else:
        books = AuditedBooks(_from_files(files, config), _directories_of(files), _damage())
    if output is Output.JSON and not quiet:
        sys.stdout.write(as_json(books.as_json(), indent=2) + "\n")
    elif not quiet:
        books.print()
    books.check()


def explain(
    uuid: Annotated[str, typer.Argument(metavar="UUID", help="The event's uuid, in any notation.")],
    admin: Admin = None,
    config: Config = None,
    path: State = None,
    output: TextOrJson = TextOutput.TEXT,
) -> None:
    """Find one event: buffered, dead-lettered and why, or else delivered or never received.

    Asks the running daemon, and searches the files of buffer and dead letters.

    Exit codes: 0 found; 1 not found.

    Example: forwarder explain 01890a5d-ac96-774b-bcce-b302099a8057
    """
    from forwarder.admin.event_lookup import WantedUuid
    from forwarder.cli.settings import configured_names
    from forwarder.inspect.explain import search_files
    from forwarder.inspect.state_files import configured_files

    wanted = WantedUuid.parse(uuid)
    live, asked = live_traces(wanted.text, admin, config)
    files = _files_at(path, empty=True) if path is not None else configured_files(config)
    sightings = search_files(wanted, files, path)
    traces = [*live, *(trace for trace in sightings if not _is_live(trace, live))]
    names = configured_names(config)
    dropped = _dropped_by_rules(admin, config) if asked and not traces else {}
    if output is TextOutput.JSON:
        document = {
            "uuid": wanted.text,
            "count": len(traces),
            "results": [_trace_as_json(trace, names) for trace in traces],
            "daemon_asked": asked,
            "dropped_by_rules": dropped,
        }
        sys.stdout.write(as_json(document, indent=2) + "\n")
    else:
        for trace in traces:
            typer.echo(_trace_line(trace, names, time.time()))
    if traces:
        return
    if output is TextOutput.TEXT:
        typer.echo("not found: delivered, or never received")
        if dropped:
            by = ", ".join(f"{rule} dropped {count:,}" for rule, count in dropped.items())
            typer.echo(f"or dropped by a rule: {by} since the start")
    if not asked:
        sys.stderr.write(
            "No daemon answered, so events that it holds only in memory are not covered.\n"
        )
    raise typer.Exit(ExitCode.NO)


def _dropped_by_rules(admin: str | None, config: Path | None) -> dict[str, int]:
    """How many events each rule of the running daemon has dropped, of those that have."""
    from forwarder.admin.status import parse

    try:
        events = parse(get_status(resolve(admin, config))).rule_events
    except NoDaemon:
        return {}
    return {
        rule: count for (rule, outcome), count in events.items() if outcome == "dropped" and count
    }


def _from_daemon(address: str) -> Sequence[LaneSnapshot]:
    from forwarder.admin.status import parse

    return parse(require_status(address)).lanes


def _from_files(files: Sequence[WorkerFiles], config: Path | None) -> Sequence[LaneSnapshot]:
    from dataclasses import replace

    from forwarder.cli.settings import configured_names
    from forwarder.inspect.audit import books_of
    from forwarder.storage.directory import is_locked

    if any(worker.log is not None and is_locked(worker.log) for worker in files):
        sys.stderr.write(
            "These files are in use by a running process, so the figures may differ slightly. Ask "
            "it with --admin ADDRESS.\n"
        )
    names = configured_names(config)
    return [replace(lane, name=names.name(lane.label)) for lane in books_of(files)]


def _directories_of(files: Sequence[WorkerFiles]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            str(worker.log or (worker.dead_letters and worker.dead_letters.parent))
            for worker in files
        )
    )


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


@dataclass(frozen=True, slots=True)
class AuditedBooks:
    """The books of each lane, the directories that they were read from (none: the daemon was
    asked), and what to do if they don't balance.
    """

    lanes: Sequence[LaneSnapshot]
    directories: tuple[str, ...]
    hint: str

    @property
    def _off(self) -> list[str]:
        return [lane.shown for lane in self.lanes if lane.difference]

    def print(self) -> None:
        """Print them as a table."""
        from forwarder.cli.tables import console, lane_table

        if self.directories:
            sys.stdout.write(f"From the files in {', '.join(self.directories)}:\n")
        console().print(lane_table(self.lanes, books=True))
        if not self._off:
            sys.stdout.write(
                "The books balance: received = delivered + buffered + dead-lettered + dropped.\n"
            )

    def as_json(self) -> dict[str, Any]:
        """The same for programs. `difference` is 0 for a lane whose books balance."""
        return {
            "balanced": not self._off,
            "directories": list(self.directories),
            "lanes": [
                {
                    "lane": lane.label,
                    **({"lane_name": lane.name} if lane.name else {}),
                    "received": lane.total_received,
                    "delivered": lane.delivered,
                    "buffered": lane.buffered,
                    "dead_lettered": dict(lane.dead_lettered),
                    "dropped": dict(lane.dropped),
                    "difference": lane.difference,
                }
                for lane in self.lanes
            ],
        }

    def check(self) -> None:
        """End the command with exit code 1 if they don't balance."""
        if self._off:
            sys.stderr.write(
                f"Error: the books don't balance for {', '.join(self._off)}\n  {self.hint}\n"
            )
            raise typer.Exit(ExitCode.NO)


def _is_live(trace: Trace, live: list[Trace]) -> bool:
    """Whether the daemon has reported the same copy, of which it knows more than its files."""
    return any(
        (trace.where, trace.destination, trace.lane, trace.since)
        == ("buffered", other.destination, other.lane, other.since)
        for other in live
    )


def _trace_as_json(trace: Trace, names: LaneNames) -> dict[str, str | None]:
    return {
        "where": trace.where,
        "destination": trace.destination or None,
        "lane": trace.lane,
        **names.beside(trace.lane),
        "since": utc_text(trace.since, "milliseconds"),
        "reason": trace.reason or None,
        "why": trace.why or None,
        "note": trace.note or None,
    }


def _trace_line(trace: Trace, names: LaneNames, now: float) -> str:
    from forwarder.telemetry.readable import duration

    when = datetime.fromtimestamp(trace.since, UTC).isoformat(timespec="seconds")
    copy = f"{trace.where}, for {trace.destination}" if trace.destination else trace.where
    parts = [
        f"{copy}, lane {names.show(trace.lane)}, since {when} ({duration(now - trace.since)})",
        trace.reason,
        trace.why,
    ]
    return ": ".join(part for part in parts if part) + (f"\n    {trace.note}" if trace.note else "")
