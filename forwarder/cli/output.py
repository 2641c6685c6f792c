"""What the commands print for a person: errors, tables, the state of a running daemon.

Invariants: what comes from outside (labels, the upstream's words) is printed as text, never as markup; errors go to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.telemetry.readable import duration, halt_times, size
from forwarder.telemetry.snapshot import KafkaCluster, LaneSnapshot, Snapshot, UpstreamState, Worker, by_label

_PLAIN_WIDTH = 140
"""Where there is no terminal, lines are cut for nobody."""


def console() -> Console:
    """Standard output, coloured on a terminal, plain elsewhere."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def status_page(snapshot: Snapshot, address: str) -> RenderableType:
    """The state of a daemon on one screen."""
    lanes = by_label(snapshot.lanes)
    parts: list[RenderableType] = [_head(snapshot, address), Text(), flow(snapshot), Text(), lane_table(lanes, books=False), Text()]
    parts.append(_upstream(snapshot))
    if snapshot.rejected_requests:
        parts.append(_rejected(snapshot.rejected_requests))
    parts.extend(_kafka(cluster, snapshot.now) for cluster in snapshot.kafka)
    parts.extend(Text(_worker(worker)) for worker in snapshot.workers)
    parts.extend(_halts(lanes, snapshot.now))
    parts.extend(Text(f"! {warning}", style="yellow") for warning in snapshot.warnings)
    return Group(*parts)


def flow(snapshot: Snapshot) -> Text:
    """One line: in, buffer, out."""
    lanes = snapshot.lanes
    text = Text("  in ")
    text.append(f"{sum(lane.total_received for lane in lanes):,}", style="bold")
    text.append(" → buffer ")
    text.append(f"{sum(lane.buffered for lane in lanes):,}", style="bold")
    text.append(f" ({size(snapshot.buffer_bytes)} of {size(snapshot.buffer_limit_bytes)}) → out ")
    text.append(f"{sum(lane.delivered for lane in lanes):,}", style="bold green")
    for name, count in (("dead letters", sum(lane.total_dead for lane in lanes)), ("dropped", sum(lane.total_dropped for lane in lanes))):
        text.append(f"   {name} ")
        text.append(f"{count:,}", style="bold red" if count else "bold")
    return text


def lane_table(lanes: Iterable[LaneSnapshot], *, books: bool) -> RenderableType:
    """A row a lane; with `books`, how far its books are off."""
    table = Table(box=None, pad_edge=True, header_style="dim")
    table.add_column("lane", no_wrap=True)
    for name in ("received", "delivered", "buffered", "dead letters", "dropped"):
        table.add_column(name, justify="right")
    table.add_column("books" if books else "oldest", justify="right")
    for lane in lanes:
        last = _books(lane) if books else Text("" if lane.oldest_age is None else duration(lane.oldest_age))
        figures = (f"{lane.total_received:,}", f"{lane.delivered:,}", f"{lane.buffered:,}", _reasons(lane.dead_lettered))
        table.add_row(Text(lane.label), *figures, _reasons(lane.dropped), last)
    return table if table.row_count else Text("  No events yet.", style="dim")


def _head(snapshot: Snapshot, address: str) -> Text:
    text = Text(f"forwarder {snapshot.version}: ")
    text.append(snapshot.state, style="bold")
    text.append(", ready" if snapshot.ready else ", not ready", style="green" if snapshot.ready else "bold red")
    text.append(f", up {duration(snapshot.now - snapshot.started_at)}; admin {address}")
    if snapshot.addresses:
        text.append(f", listens on {', '.join(snapshot.addresses)}")
    for why in snapshot.not_ready:
        text.append(f"\n! takes nothing: {why}", style="red")
    return text


def _upstream(snapshot: Snapshot) -> Text:
    upstream = snapshot.upstream
    text = Text(f"  upstream {upstream.url} is ")
    text.append(upstream.state, style="red" if upstream.state is UpstreamState.DOWN else "green")
    text.append(f"; {snapshot.in_flight:,} requests in flight, at most {snapshot.concurrency_limit:g}")
    answers = ", ".join(f"{code}: {count:,}" for code, count in sorted(snapshot.upstream_requests.items()))
    if answers:
        text.append(f"; answers {answers}")
    if upstream.last_error:
        text.append(f"\n  last error: {upstream.last_error}", style="red")
    return text


def _rejected(requests: Mapping[tuple[str, str], int]) -> Text:
    """One line: which requests were rejected, the most frequent first."""
    counts = sorted(requests.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = ", ".join(f"{path} {reason}: {count:,}" for (path, reason), count in counts)
    return Text(f"  rejected requests  {shown}", style="yellow")


def _kafka(cluster: KafkaCluster, now: float) -> Text:
    text = Text(f"  kafka {cluster.name} (group {cluster.group}) is ")
    text.append(cluster.state, style="green" if cluster.reads else "red")
    paused = f", {cluster.paused} of them paused" if cluster.paused else ""
    text.append(f"; {len(cluster.partitions)} partitions{paused}, lag {cluster.lag:,}, {size(cluster.in_flight_bytes)} not settled")
    if cluster.last_commit is not None:
        text.append(f"; last commit {duration(now - cluster.last_commit)} ago")
    return text


def _worker(worker: Worker) -> str:
    process = f", process {worker.process}" if worker.process else ""
    return f"  {worker.name} is {worker.state}{process}; {worker.received:,} received, {worker.restarts:,} restarts"


def _halts(lanes: Iterable[LaneSnapshot], now: float) -> Iterable[Text]:
    for lane in lanes:
        if lane.halted:
            text = Text(f"! lane {lane.label} is halted: {lane.halted}{halt_times(lane, now)}", style="red")
            text.append(f" ({lane.why})" if lane.why else "")
            text.append(f"\n  what to do: {lane.hint}" if lane.hint else "", style="default")
            yield text


def _books(lane: LaneSnapshot) -> Text:
    if not lane.difference:
        return Text("balanced", style="green")
    return Text(f"{lane.difference:,} missing" if lane.difference > 0 else f"{-lane.difference:,} too many", style="bold red")


def _reasons(counts: Mapping[str, int]) -> Text:
    shown = {reason: count for reason, count in counts.items() if count}
    return Text("\n".join(f"{count:,} {reason}" for reason, count in shown.items()) or "0")
