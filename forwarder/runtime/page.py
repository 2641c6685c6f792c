"""The `/status` page for a browser: the same facts as the document, readable without scripts, in light and dark.

Invariants: one self-contained file; every value that came from outside is escaped; nothing in it that isn't in the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape

from forwarder.telemetry.readable import duration, halt_times, size
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, State, by_label

REFRESH_SECONDS = 5

_STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--bad:#b3261e;--good:#146c2e}
@media(prefers-color-scheme:dark){:root{--bad:#ff8a80;--good:#7ddc94}}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.3rem;margin:0}h2{font-size:1rem;margin:2rem 0 .5rem}
.flow{display:flex;flex-wrap:wrap;gap:.5rem 1rem;margin:1.5rem 0;align-items:center}
.flow div{border:1px solid var(--line);background:var(--soft);border-radius:.5rem;padding:.6rem 1rem}
.flow strong{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line);font-variant-numeric:tabular-nums}
th:first-child,td:first-child{text-align:left}
.bad{color:var(--bad)}.good{color:var(--good)}.note{border-left:4px solid var(--bad);padding:.3rem .8rem;margin:.5rem 0}
code{overflow-wrap:anywhere}
""".strip()


def page(snapshot: Snapshot) -> str:
    """The whole page."""
    lanes = by_label(snapshot.lanes)
    parts = [_head(snapshot), *_notes(snapshot, lanes), _flow(lanes, snapshot), _lanes(lanes), _upstream(snapshot), _requests(snapshot)]
    parts += [_workers(snapshot)] if snapshot.workers else []
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>forwarder</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="{REFRESH_SECONDS}"><style>{_STYLE}</style></head><body>{"".join(parts)}</body></html>'
    )


def _head(snapshot: Snapshot) -> str:
    mood = "good" if snapshot.ready else "bad"
    readiness = "ready" if snapshot.ready else "not ready"
    taken = datetime.fromtimestamp(snapshot.now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    where = ", ".join(snapshot.addresses)
    return (
        f'<h1>forwarder {escape(snapshot.version)}: <span class="{mood}">{snapshot.state}, {readiness}</span></h1>'
        f"<p>up {duration(snapshot.now - snapshot.started_at)}, seen at {taken}{', listens on ' + escape(where) if where else ''}</p>"
    )


def _notes(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> Iterable[str]:
    reasons = [] if snapshot.state is State.RUNNING and snapshot.ready else [f"Takes nothing: {why}" for why in snapshot.not_ready]
    for note in [*reasons, *snapshot.warnings]:
        yield f'<p class="note">{escape(note)}</p>'
    for lane in lanes:
        if lane.halted:
            said = f": {escape(lane.why)}" if lane.why else ""
            reason = escape(lane.halted) + halt_times(lane, snapshot.now)
            yield (
                f'<p class="note">Lane <code>{escape(lane.label)}</code> is halted ({reason}){said}. '
                f"{escape(lane.hint)}</p>"
            )


def _flow(lanes: Iterable[LaneSnapshot], snapshot: Snapshot) -> str:
    lanes = tuple(lanes)
    boxes = [
        ("received", sum(lane.total_received for lane in lanes), ""),
        ("buffered", sum(lane.buffered for lane in lanes), f"{size(snapshot.buffer_bytes)} of {size(snapshot.buffer_limit_bytes)}"),
        ("delivered", sum(lane.delivered for lane in lanes), ""),
        ("dead letters", sum(lane.total_dead for lane in lanes), ""),
        ("dropped", sum(lane.total_dropped for lane in lanes), ""),
    ]
    return '<div class="flow">' + "".join(f"<div>{name}<strong>{count:,}</strong>{more}</div>" for name, count, more in boxes) + "</div>"


def _lanes(lanes: Iterable[LaneSnapshot]) -> str:
    rows = [
        [
            f"<code>{escape(lane.label)}</code>",
            _counted(lane.received),
            f"{lane.buffered:,}",
            "" if lane.oldest_age is None else duration(lane.oldest_age),
            f"{lane.delivered:,}",
            _counted(lane.dead_lettered),
            _counted(lane.dropped),
            '<span class="good">balanced</span>' if not lane.difference else f'<span class="bad">off by {lane.difference:,}</span>',
        ]
        for lane in lanes
    ]
    return _table("Lanes", ["lane", "received", "buffered", "oldest", "delivered", "dead letters", "dropped", "books"], rows)


def _upstream(snapshot: Snapshot) -> str:
    upstream = snapshot.upstream
    error = f'<p class="bad">Last error: {escape(upstream.last_error)}</p>' if upstream.last_error else ""
    table = _table("", ["answer", "requests"], [[escape(code), f"{count:,}"] for code, count in sorted(snapshot.upstream_requests.items())])
    return (
        f"<h2>Upstream</h2><p><code>{escape(upstream.url)}</code> is {upstream.state}; {snapshot.in_flight:,} requests in flight, "
        f"at most {snapshot.concurrency_limit:g}.</p>{error}{table}"
    )


def _requests(snapshot: Snapshot) -> str:
    rows = [[f"<code>{escape(path)}</code>", str(code), f"{count:,}"] for (path, code), count in sorted(snapshot.http_requests.items())]
    return _table(f"Senders' requests ({snapshot.connections:,} open connections)", ["route", "answer", "requests"], rows)


def _workers(snapshot: Snapshot) -> str:
    rows = [
        [
            escape(worker.name),
            escape(f"{worker.state}: {worker.why}".removesuffix(": ")),
            str(worker.process or ""),
            f"{worker.received:,}",
            f"{worker.restarts:,}",
        ]
        for worker in snapshot.workers
    ]
    return _table("Workers", ["worker", "state", "process", "received", "restarts"], rows)


def _table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    if not rows:
        return f"{heading}<p>None yet.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'{heading}<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _counted(counts: Mapping[str, int]) -> str:
    return "<br>".join(f"{count:,} {escape(key)}" for key, count in counts.items() if count) or "0"
