"""The way of the events as a diagram: senders, buffer, upstream, and where else an event can end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from forwarder.admin.page.parts import Markup, breakdown, code, counted, section, text
from forwarder.telemetry.readable import duration, size
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, UpstreamState

_ARROW = '<div class="arrow" aria-hidden="true"></div>'


def flow(snapshot: Snapshot, lanes: Sequence[LaneSnapshot]) -> Markup:
    """The diagram; in a narrow window it goes from top to bottom."""
    boxes = (
        f"{_senders(snapshot, lanes)}{_ARROW}{_buffer(snapshot, lanes)}{_ARROW}{_upstream(snapshot, lanes)}"
        f'<div class="ends">{_end("Dead letters", "dead", _sum(lane.dead_lettered for lane in lanes))}'
        f"{_end('Dropped', 'dropped', _sum(lane.dropped for lane in lanes))}</div>{_through(snapshot)}"
    )
    return section("flow", "From senders to upstream", f'<div class="flow">{boxes}</div>', "way")


def _senders(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> str:
    received = _sum(lane.received for lane in lanes)
    where = ", ".join(snapshot.addresses)
    facts = [_plural(snapshot.connections, "open connection"), *([f"at {code(where)}"] if where else [])]
    sources = breakdown(received) if len(received) > 1 else ""
    return _stage("senders", "Senders", (counted(sum(received.values()), "received", "all"), "events received"), facts, sources)


def _buffer(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> str:
    lanes = tuple(lanes)
    waiting = sum(lane.buffered for lane in lanes)
    oldest = max((lane.oldest_age for lane in lanes if lane.oldest_age is not None), default=None)
    facts = [f"{size(snapshot.buffer_bytes)} of {size(snapshot.buffer_limit_bytes)}, {'on disk' if _on_disk(snapshot) else 'in memory'}"]
    if oldest is not None:
        facts.append(f"the oldest for {duration(oldest)}")
    limit = max(1, snapshot.buffer_limit_bytes)
    meter = f'<meter min="0" max="{limit}" low="{limit // 2}" high="{limit * 9 // 10}" optimum="0" value="{snapshot.buffer_bytes}"></meter>'
    in_use = f'<label><span class="unseen">Buffer in use</span>{meter}</label>'
    return _stage("buffer", "Buffer", (Markup(f"{waiting:,}"), "events wait"), facts, in_use)


def _upstream(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> str:
    upstream = snapshot.upstream
    facts = [f"{_plural(snapshot.in_flight, 'request')} in flight, at most {snapshot.concurrency_limit:g}", code(upstream.url)]
    error = f'<p class="bad-text">{text(upstream.last_error)}</p>' if upstream.last_error else ""
    bad = " bad" if upstream.state is UpstreamState.DOWN else ""
    figure = counted(sum(lane.delivered for lane in lanes), "delivered", "all")
    return _stage(f"upstream{bad}", "Upstream", (figure, "events delivered"), facts, error)


def _stage(kind: str, title: str, figure: tuple[Markup, str], facts: Iterable[str], more: str) -> str:
    """A box: what is counted is `figure`, with its unit."""
    lines = "".join(f"<p>{fact}</p>" for fact in facts)
    return (
        f'<div class="card stage {kind}"><h3>{title}</h3><p class="figure">{figure[0]} <small>{figure[1]}</small></p>'
        f'<p class="rate" hidden></p>{more}{lines}</div>'
    )


def _end(title: str, kind: str, counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    some = " some" if total else ""
    return (
        f'<div class="card end {kind}{some}"><h3>{title}</h3><p class="figure">{counted(total, kind, "all")}</p>{breakdown(counts)}</div>'
    )


def _through(snapshot: Snapshot) -> str:
    """What goes past the buffer: calls that wait for an answer."""
    requests = snapshot.passthrough_requests
    total, failed = sum(requests.values()), sum(count for (_, status), count in requests.items() if status >= 500)
    failures = f', <span class="bad-text">{failed:,} of them failed</span>' if failed else ""
    return (
        f'<p class="through"><strong>Passed through</strong> <span>{counted(total, "passed", "all")} requests for flags and assets'
        f"{failures}: answered by the upstream, never buffered</span></p>"
    )


def _plural(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"


def _on_disk(snapshot: Snapshot) -> bool:
    return snapshot.buffer_kind == "disk"


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
