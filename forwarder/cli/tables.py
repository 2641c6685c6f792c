"""Output that several commands share and that needs a terminal library: the console, the table of
lanes, the state of a daemon, and progress.

Invariant: labels and words from outside are printed as text, never as markup.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from forwarder.core.proposals import proposed
from forwarder.telemetry.attention import (
    Severity,
    dead_letter_severity,
    drop_severity,
    source_health,
    upstream_health,
)
from forwarder.telemetry.rates import FlowRates
from forwarder.telemetry.readable import duration, halt_times, plural, size
from forwarder.telemetry.snapshot import (
    DestinationSnapshot,
    KafkaCluster,
    LaneSnapshot,
    LogSourceState,
    Snapshot,
    Worker,
    by_label,
    unbalanced,
)

EVERY: Final = 5.0
"""Seconds between two lines of progress where standard error is not a terminal."""
STYLES: Final = {
    Severity.GOOD: "green",
    Severity.NEUTRAL: "",
    Severity.WARNING: "yellow",
    Severity.CRITICAL: "red",
}
"""How a terminal shows whether something needs a person."""
_PLAIN_WIDTH: Final = 140
"""Width of tables where standard output is not a terminal."""


def console() -> Console:
    """Standard output: coloured on a terminal, plain elsewhere."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def plain_table(columns: Mapping[str, bool]) -> Table:
    """A table without borders; `columns` says of each whether it is aligned to the right."""
    table = Table(box=None, pad_edge=True, header_style="dim")
    for name, right in columns.items():
        table.add_column(name, justify="right" if right else "left", no_wrap=not right)
    return table


def flow(snapshot: Snapshot, rates: FlowRates | None = None) -> Text:
    """One line: in, buffer, out."""
    lanes = snapshot.lanes
    text = Text("  in ")
    text.append(f"{sum(lane.total_received for lane in lanes):,}", style="bold")
    text.append(f" ({rates.received:,.0f}/s)" if rates else "")
    text.append(" → buffer ")
    text.append(f"{sum(lane.buffered for lane in lanes):,}", style="bold")
    text.append(f" ({size(snapshot.buffer_bytes)} of {size(snapshot.buffer_limit_bytes)}) → out ")
    text.append(f"{sum(lane.delivered for lane in lanes):,}", style="bold green")
    text.append(f" ({rates.delivered:,.0f}/s)" if rates else "")
    dead, dropped = lost(snapshot)
    for name, counts, severity in (
        ("dead letters", dead, dead_letter_severity(dead)),
        ("dropped", dropped, drop_severity(dropped)),
    ):
        text.append(f"   {name} ")
        text.append(f"{counts.total():,}", style=f"bold {STYLES[severity]}")
    return text


def lost(snapshot: Snapshot) -> tuple[Counter[str], Counter[str]]:
    """Dead letters and dropped events of all lanes, by reason."""
    dead: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for lane in snapshot.lanes:
        dead.update(lane.dead_lettered)
        dropped.update(lane.dropped)
    return dead, dropped


def lane_table(lanes: Iterable[LaneSnapshot], *, books: bool) -> RenderableType:
    """One row per lane; with `books`, the difference of its books instead of the
    age of its oldest event.
    """
    shown = list(lanes)
    return _LaneTable(shown, books=books) if shown else Text("  No events yet.", style="dim")


class _LaneTable:
    """A table of lanes; where there is room for them, with the reasons of dead letters
    and drops.
    """

    def __init__(self, lanes: Sequence[LaneSnapshot], *, books: bool) -> None:
        self._lanes = lanes
        self._books = books

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._table(_reasons)
        fits = (
            console.measure(whole, options=options.update(width=_PLAIN_WIDTH)).maximum
            <= options.max_width
        )
        yield whole if fits else self._table(lambda counts: Text(f"{sum(counts.values()):,}"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return console.measure(self._table(_reasons), options=options)

    def _table(self, counted: Callable[[Mapping[str, int]], Text]) -> Table:
        last = "books" if self._books else "oldest"
        table = plain_table(
            {"lane": False}
            | dict.fromkeys(
                ("received", "delivered", "buffered", "dead letters", "dropped", last), True
            )
        )
        for lane in self._lanes:
            end = (
                _books(lane)
                if self._books
                else Text("" if lane.oldest_age is None else duration(lane.oldest_age))
            )
            figures = (f"{lane.total_received:,}", f"{lane.delivered:,}", f"{lane.buffered:,}")
            table.add_row(
                Text(lane.shown), *figures, counted(lane.dead_lettered), counted(lane.dropped), end
            )
        return table


def _books(lane: LaneSnapshot) -> Text:
    if not lane.difference:
        return Text("balanced", style="green")
    return Text(
        f"{lane.difference:,} missing" if lane.difference > 0 else f"{-lane.difference:,} too many",
        style="bold red",
    )


def _reasons(counts: Mapping[str, int]) -> Text:
    shown = {reason: count for reason, count in counts.items() if count}
    return Text("\n".join(f"{count:,} {reason}" for reason, count in shown.items()) or "0")


def status_page(snapshot: Snapshot, address: str, rates: FlowRates | None = None) -> RenderableType:
    """The state of a daemon on one screen: what needs attention first."""
    lanes = by_label(snapshot.lanes)
    parts: list[RenderableType] = [_head(snapshot, address), *attention(snapshot)]
    table = lane_table(lanes, books=False)
    parts += [
        Text(),
        flow(snapshot, rates),
        Text(),
        Padding(table, (0, 0, 0, 1), expand=False) if lanes else table,
        Text(),
        *map(_upstream, snapshot.destinations or [snapshot]),
    ]
    if snapshot.rejected_requests:
        parts.append(_rejected(snapshot.rejected_requests))
    if snapshot.rule_events:
        parts.append(_rules(snapshot.rule_events))
    parts.extend(_kafka(cluster, snapshot.now) for cluster in snapshot.kafka)
    parts.extend(log_source(source, snapshot.now) for source in snapshot.logs)
    parts.extend(Text(_worker(worker, snapshot.now)) for worker in snapshot.workers)
    parts.extend(Text(f"  {notice}", style="dim") for notice in snapshot.notices)
    return Group(*(_Hanging(part) if isinstance(part, Text) else part for part in parts))


class _Hanging:
    """Text whose lines, where they are too long for the screen, continue below their words, beside
    the mark or indent that they begin with.
    """

    def __init__(self, text: Text) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self._text.split("\n", allow_blank=True):
            begin = line[:2]
            if begin.plain not in ("  ", "! "):
                yield line
                continue
            for folded in line[2:].wrap(console, max(1, options.max_width - 2)):
                folded.rstrip()
                yield begin + folded
                begin = Text("  ")


def attention(snapshot: Snapshot) -> Iterator[Text]:
    """What needs a person's attention, the most urgent first."""
    for why in snapshot.not_ready:
        yield Text(f"! accepts no events: {why}", style="red")
    off = [lane.shown for lane in unbalanced(snapshot)]
    if off:
        yield Text(
            (
                f"! the books don't balance for {', '.join(off)}: `{proposed('audit')}` has the "
                "figures"
            ),
            style="red",
        )
    yield from _halts(by_label(snapshot.lanes), snapshot.now)
    for warning in snapshot.warnings:
        yield Text(f"! {warning}", style="yellow")


def _head(snapshot: Snapshot, address: str) -> Text:

    text = Text(f"forwarder {snapshot.version}: ")
    text.append(snapshot.state, style="bold")
    text.append(
        ", ready" if snapshot.ready else ", not ready",
        style="green" if snapshot.ready else "bold red",
    )
    text.append(f", up {duration(snapshot.now - snapshot.started_at)}; admin {address}")
    if snapshot.addresses:
        text.append(f", listens on {', '.join(snapshot.addresses)}")
    return text


def _upstream(snapshot: Snapshot | DestinationSnapshot) -> Text:

    upstream = snapshot.upstream
    name = "upstream"
    if isinstance(snapshot, DestinationSnapshot):
        name = (
            f"upstream {snapshot.name}"
            if snapshot.required
            else f"upstream {snapshot.name} (not required)"
        )
    text = Text(f"  {name} {upstream.url} is ")
    text.append(upstream.state.words, style=STYLES[upstream_health(snapshot).severity])
    text.append(
        f"; {plural(snapshot.in_flight, 'request')} in flight, at most "
        f"{snapshot.concurrency_limit:g}"
    )
    answers = ", ".join(
        f"{code}: {count:,}" for code, count in sorted(snapshot.upstream_requests.items())
    )
    if answers:
        text.append(f"; answers {answers}")
    if isinstance(snapshot, DestinationSnapshot):
        used = size(snapshot.buffer_bytes)
        limit = size(snapshot.buffer_limit_bytes)
        text.append(f"; {plural(snapshot.buffered, 'event')} in its buffer, {used} of {limit}")
    if upstream.last_error:
        text.append(f"\n  last error: {upstream.last_error}", style="red")
    return text


def _rejected(requests: Mapping[tuple[str, str], int]) -> Text:
    """One line: rejected requests, the most frequent first."""
    counts = sorted(requests.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(f"{path} {reason}: {count:,}" for (path, reason), count in counts)
    return Text(f"  rejected requests  {shown}", style="yellow")


def _rules(events: Mapping[tuple[str, str], int]) -> Text:
    """One line: what each rule did, in the order of the rules."""
    shown: dict[str, list[str]] = {}
    for (rule, outcome), count in events.items():
        shown.setdefault(rule, []).extend([f"{count:,} {outcome}"] if count else [])
    parts = [f"{rule}: {', '.join(done) or 'nothing yet'}" for rule, done in shown.items()]
    failed = any(count for (_, outcome), count in events.items() if outcome == "failed")
    return Text(f"  rules  {'; '.join(parts)}", style="yellow" if failed else "")


def _kafka(cluster: KafkaCluster, now: float) -> Text:

    text = Text(f"  kafka {cluster.name} (group {cluster.group}) is ")
    text.append(cluster.state, style=STYLES[source_health(cluster).severity])
    paused = f", {cluster.paused} of them paused" if cluster.paused else ""
    partitions = plural(len(cluster.partitions), "partition")
    text.append(
        f"; {partitions}{paused}, lag {cluster.lag:,}, {size(cluster.in_flight_bytes)} not settled"
    )
    if cluster.last_commit is not None:
        text.append(f"; last commit {duration(now - cluster.last_commit)} ago")
    return text


def log_source(source: LogSourceState, now: float) -> Text:
    """One line: its state, its files, what became of its lines."""
    text = Text(f"  logs {source.name} is ")
    text.append(source.state, style=STYLES[source_health(source).severity])
    lines = ", ".join(
        f"{count:,} {_LINES[result]}"
        for result, count in source.lines.items()
        if count and result in _LINES
    )
    text.append(f"; {plural(source.followed, 'file')}")
    text.append(f", {source.open:,} of them open" if source.open else "")
    text.append(f", {source.unreadable:,} unreadable" if source.unreadable else "", style="red")
    text.append(f", lag {size(source.lag)}")
    if source.lines:
        text.append(f", {size(source.in_flight_bytes)} not settled; {lines or 'no lines yet'}")
    if source.last_commit is not None:
        text.append(f"; positions stored {duration(now - source.last_commit)} ago")
    return text


_LINES: Final = {
    "taken": "lines accepted",
    "filtered": "filtered",
    "unmatched": "not of the format",
    "refused": "not mappable",
    "overlong": "too long",
}
"""What became of lines, as a person reads it."""


def _worker(worker: Worker, now: float) -> str:
    silent = "" if worker.silent_since is None else f" for {duration(now - worker.silent_since)}"
    process = f", process {worker.process}" if worker.process else ""
    return (
        f"  {worker.name} is {worker.condition}{silent}{process}; {worker.received:,} "
        f"received, {plural(worker.restarts, 'restart')}"
    )


def _halts(lanes: Iterable[LaneSnapshot], now: float) -> Iterable[Text]:

    for lane in lanes:
        if lane.halted:
            text = Text(
                f"! lane {lane.shown} is halted: {lane.halted}{halt_times(lane, now)}", style="red"
            )
            text.append(f" ({lane.why})" if lane.why else "")
            text.append(f"\n  what to do: {lane.hint}" if lane.hint else "", style="default")
            yield text


class EventProgress:
    """Counts events up to `total` on standard error, as a context manager: a bar on a terminal, a
    line every few seconds elsewhere.

    Without a terminal, work that ends within the first seconds writes nothing.
    """

    def __init__(
        self, title: str, total: int, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = title
        self._total = total
        self._now = now
        self._began = self._written = now()
        self._bar = _bar() if sys.stderr.isatty() else None
        self._task = self._bar.add_task(title, total=total) if self._bar else None
        self.done = 0

    def __enter__(self) -> EventProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, events: int) -> None:
        """Count `events` more."""
        self.done += events
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done)
        elif self._now() - self._written >= EVERY:
            self._written = self._now()
            sys.stderr.write(self._line() + "\n")

    def _line(self) -> str:
        rate = self.done / max(self._now() - self._began, 1e-9)
        left = (
            f", {duration((self._total - self.done) / rate)} left"
            if 0 < self.done < self._total
            else ""
        )
        return f"{self._title}: {self.done:,} of {self._total:,} events, {rate:,.0f} a second{left}"


class _Rate(ProgressColumn):
    """Events a second."""

    def render(self, task: Task) -> Text:
        """The recent rate."""
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


def _bar() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=Console(stderr=True))
