"""What `forwarder top` shows of a snapshot: the lines above its table, the table's rows, and the
lines below, as plain functions.

Invariants: each line is one row of the terminal, what matters most first, so that a narrow one
cuts what matters least; text from outside is text, never markup, and holds nothing that a terminal
obeys; colours are among the sixteen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rich.text import Text

from forwarder.cli.output import visible
from forwarder.cli.tables import STYLES, attention, lost
from forwarder.core.proposals import proposed
from forwarder.telemetry.attention import (
    EVENTS_OLD,
    Severity,
    buffer_severity,
    dead_letter_severity,
    drop_severity,
    source_health,
    upstream_health,
    worker_health,
)
from forwarder.telemetry.rates import FlowRates, quantile
from forwarder.telemetry.readable import duration, plural, size
from forwarder.telemetry.snapshot import DestinationSnapshot, LaneSnapshot, Snapshot, by_label

MAX_PROBLEMS: Final = 4
"""Lines of what needs attention."""
CHART_ROWS: Final = 10
"""Lines of a diagram, at most."""
LEAST_CHART_ROWS: Final = 2
BAR: Final = 10
"""Characters of the bar of the buffer."""
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A row of the table."""

    lane: LaneSnapshot
    received: float
    delivered: float
    """Events a second."""


Sorting: TypeAlias = Callable[[LaneRow], tuple[float | str, ...]]

COLUMNS: Final[Mapping[str, Sorting]] = {
    "lane": lambda row: (row.lane.shown,),
    "state": lambda row: (row.lane.halted or "",),
    "in/s": lambda row: (row.received, row.lane.total_received),
    "out/s": lambda row: (row.delivered, row.lane.delivered),
    "buffered": lambda row: (row.lane.buffered,),
    "oldest": lambda row: (row.lane.oldest_age or 0.0,),
    "dead": lambda row: (row.lane.total_dead,),
    "dropped": lambda row: (row.lane.total_dropped,),
}
"""The table's columns, and what each sorts by."""


def lane_rows(
    snapshot: Snapshot, rates: FlowRates | None, *, column: str, ascending: bool, wanted: str = ""
) -> list[LaneRow]:
    """The lanes with `wanted` in their name, label or state, sorted by a column; equal ones by
    what they are called.
    """
    snapshots = [
        lane
        for lane in by_label(snapshot.lanes)
        if wanted.lower() in f"{lane.name} {lane.label} {lane.halted or 'ok'}".lower()
    ]
    rows = [
        LaneRow(lane, *_rates_of(lane, rates))
        for lane in sorted(snapshots, key=lambda lane: lane.shown)
    ]
    return sorted(rows, key=COLUMNS[column], reverse=not ascending)


def _rates_of(lane: LaneSnapshot, rates: FlowRates | None) -> tuple[float, float]:
    of_lane = rates.lane(lane.label) if rates else None
    return (of_lane.received, of_lane.delivered) if of_lane else (0.0, 0.0)


def cells(row: LaneRow) -> list[Text]:
    """A row as the table shows it."""
    lane = row.lane
    right = "right"
    counts: list[tuple[str, str]] = [
        (per_second(row.received), ""),
        (per_second(row.delivered), ""),
        (f"{lane.buffered:,}", ""),
        (
            "" if lane.oldest_age is None else duration(lane.oldest_age),
            "yellow" if (lane.oldest_age or 0) > EVENTS_OLD else "",
        ),
        (f"{lane.total_dead:,}", STYLES[dead_letter_severity(lane.dead_lettered)]),
        (f"{lane.total_dropped:,}", STYLES[drop_severity(lane.dropped)]),
    ]
    state = Text(visible(lane.halted), style="red") if lane.halted else Text("ok", style="green")
    cells = [
        Text(text, style=style, justify=right)  # type: ignore[arg-type]
        for text, style in counts
    ]
    return [Text(visible(lane.shown)), state, *cells]


def per_second(rate: float) -> str:
    """A rate with as many digits as matter."""
    return f"{rate:,.0f}" if rate >= 10 or not rate else f"{rate:.1f}"


def headlines(snapshot: Snapshot, rates: FlowRates | None, history: Sequence[float]) -> list[Text]:
    """The lines above the table: flow, upstream, what was lost, what needs attention. `history`:
    events received a second, lately.
    """
    return [
        _flow(snapshot, rates, history),
        _upstream(snapshot, rates),
        _losses(snapshot),
        *_problems(snapshot),
    ]


def _flow(snapshot: Snapshot, rates: FlowRates | None, history: Sequence[float]) -> Text:
    share = (
        snapshot.buffer_bytes / snapshot.buffer_limit_bytes if snapshot.buffer_limit_bytes else 0.0
    )
    filled = min(BAR, round(share * BAR))
    text = Text("in ")
    text.append(f"{per_second(rates.received)}/s" if rates else "…", style="bold")
    text.append(f" {spark(history)}" if any(history) else "", style="cyan")
    text.append(f" → buffer {snapshot.buffered:,} ")
    text.append("█" * filled + "░" * (BAR - filled), style=STYLES[buffer_severity(snapshot)])
    text.append(f" {share:.0%} of {size(snapshot.buffer_limit_bytes)} → out ")
    text.append(f"{per_second(rates.delivered)}/s" if rates else "…", style="bold green")
    return text


def spark(history: Sequence[float]) -> str:
    """The figures as blocks of their height."""
    highest = max(history)
    return "".join(_BLOCKS[round(value / highest * (len(_BLOCKS) - 1))] for value in history)


@dataclass(frozen=True, slots=True)
class FlowMoment:
    """What the diagrams show of one refresh; rates are a second."""

    at: float
    received: float
    delivered: float
    buffered: int


def charts(history: Sequence[FlowMoment], width: int, height: int) -> list[Text]:
    """Diagrams of what came in, went out and was buffered lately, a column a refresh, of at most
    `height` lines; none if that is too few to see anything.
    """
    rows = min(CHART_ROWS, height // 3 - 1)
    if rows < LEAST_CHART_ROWS or not history:
        return []
    shown = history[-width:]
    span = f"in the last {duration(shown[-1].at - shown[0].at)}" if len(shown) > 1 else "so far"
    lines: list[Text] = []
    figures: tuple[tuple[str, str, list[float]], ...] = (
        ("in/s", "cyan", [rate.received for rate in shown]),
        ("out/s", "green", [rate.delivered for rate in shown]),
        ("buffered", "", [float(rate.buffered) for rate in shown]),
    )
    for name, style, values in figures:
        title = Text(f"{name} {per_second(values[-1])}", style="bold")
        lines.append(title.append(f"  at most {per_second(max(values))} {span}", style="not bold"))
        lines += [Text(line, style=style) for line in chart(values, rows)]
    return lines


def chart(values: Sequence[float], rows: int) -> list[str]:
    """The figures as columns of blocks; the highest one fills the rows."""
    steps = len(_BLOCKS)
    highest = max(values) or 1
    levels = [round(value / highest * rows * steps) for value in values]
    return [
        "".join(f" {_BLOCKS}"[min(steps, max(0, level - row * steps))] for level in levels)
        for row in reversed(range(rows))
    ]


def _upstream(snapshot: Snapshot, rates: FlowRates | None) -> Text:
    text = Text("upstream")
    for destination in snapshot.destinations or [snapshot]:
        text.append(
            f" {destination.name} " if isinstance(destination, DestinationSnapshot) else " "
        )
        text.append(
            destination.upstream.state.words, style=STYLES[upstream_health(destination).severity]
        )
    text.append(f"  {snapshot.in_flight:,}/{snapshot.concurrency_limit:g} in flight")
    if rates and rates.latency.count:
        shown = [
            f"p{share:.0%}"[:-1] + f" {milliseconds(quantile(rates.latency, share))}"
            for share in (0.5, 0.95, 0.99)
        ]
        text.append(f"  {per_second(rates.requests)}/s  {' '.join(shown)}")
    for code, count in sorted(
        snapshot.upstream_requests.items(),
        key=lambda answers: (answers[0].startswith("2"), answers[0]),
    ):
        text.append(f"  {visible(code)}: ")
        text.append(f"{count:,}", style="" if code.startswith("2") else "red")
    return text


def milliseconds(seconds: float | None) -> str:
    """A latency."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"


def _losses(snapshot: Snapshot) -> Text:
    text = Text()
    dead, dropped = lost(snapshot)
    for what, counts, severity in (
        ("dead letters", dead, dead_letter_severity(dead)),
        ("dropped", dropped, drop_severity(dropped)),
    ):
        text.append(f"{'  ' if text else ''}{what} ")
        text.append(f"{counts.total():,}", style=STYLES[severity])
        reasons = ", ".join(
            f"{reason} {count:,}" for reason, count in counts.most_common() if count
        )
        text.append(f" ({visible(reasons)})" if reasons else "")
    rejected = sum(snapshot.rejected_requests.values())
    text.append(f"  {plural(rejected, 'rejected request')}" if rejected else "", style="yellow")
    return text


def _problems(snapshot: Snapshot) -> Iterator[Text]:
    """A line each of what needs attention, as far as there is room."""
    problems = list(attention(snapshot))
    shown = problems if len(problems) <= MAX_PROBLEMS else problems[: MAX_PROBLEMS - 1]
    for problem in shown:
        yield Text(visible(problem.plain.partition("\n")[0]), style=problem.style)
    if len(problems) > len(shown):
        yield Text(
            f"! {len(problems) - len(shown)} more: `{proposed('status')}` shows all", style="yellow"
        )


def details(row: LaneRow | None) -> Text:
    """The line below the table: the selected lane's halt and what to do, or what its figures are
    made of.
    """
    if row is None:
        return Text()
    lane = row.lane
    if lane.halted:
        text = Text().append(
            visible(f"{lane.shown} is halted: {lane.halted}{f' ({lane.why})' if lane.why else ''}"),
            style="red",
        )
        return text.append("\nwhat to do: " + visible(lane.hint) if lane.hint else "")
    sources = ", ".join(f"{source} {count:,}" for source, count in lane.received.items())
    return Text().append(
        visible(f"{lane.shown}: received {sources or '0'}; delivered {lane.delivered:,}"),
        style="dim",
    )


def sources(snapshot: Snapshot) -> list[Text]:
    """A line for each Kafka cluster, log source and worker."""
    lines = []
    for cluster in snapshot.kafka:
        text = (
            f"; lag {cluster.lag:,}, {plural(len(cluster.partitions), 'partition')}, "
            f"{cluster.paused} paused"
        )
        lines.append(
            _source(f"kafka {cluster.name}", cluster.state, source_health(cluster).severity, text)
        )
    for log in snapshot.logs:
        text = f"; lag {size(log.lag)}, {plural(log.followed, 'file')}, {log.unreadable} unreadable"
        lines.append(_source(f"logs {log.name}", log.state, source_health(log).severity, text))
    for worker in snapshot.workers:
        text = f"; {worker.received:,} received, {plural(worker.restarts, 'restart')}"
        lines.append(_source(worker.name, worker.condition, worker_health(worker).severity, text))
    return lines


def _source(name: str, state: str, severity: Severity, more: str) -> Text:
    text = Text(visible(f"{name} is "))
    return text.append(visible(state), style=STYLES[severity]).append(visible(more))
