"""The `/status` page for a browser: the same facts as the document, readable without scripts, in
light and dark.

From top to bottom: the header with the daemon's state, notes that need attention, the way of the
events as a diagram, and the tables.

Invariants: every value from outside is escaped; the page shows nothing that isn't in the snapshot;
style and script are separate files, so that a browser needs to allow nothing inline. `status.js`
fetches the page again and replaces what changed: each part has a name (`data-part`), and figures
that rates are computed from say what they count (`data-count`, `data-of`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from aiohttp import web

from forwarder.admin.page.markup import (
    Markup,
    breakdown,
    code,
    counted,
    moment,
    pill,
    section,
    text,
)
from forwarder.admin.page.tables import (
    kafka,
    lanes,
    logs,
    passed,
    rejected,
    rules,
    senders,
    upstream,
    workers,
)
from forwarder.core.proposals import proposed
from forwarder.pages import files
from forwarder.telemetry.attention import (
    BUFFER_FILLING,
    Severity,
    buffer_severity,
    daemon_health,
    dead_letter_severity,
    drop_severity,
    troubles,
    upstream_health,
)
from forwarder.telemetry.readable import duration, plural, size
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, State, by_label

REFRESH_SECONDS: Final = 5
"""How often a browser without scripts asks again."""
PREFIX: Final = "/status/"
"""Where style, icon and script are."""
_NAMES: Final = ("status.css", "status.js")


def page(snapshot: Snapshot) -> str:
    """The whole page."""
    own = by_label(snapshot.lanes)
    parts = [
        notes(snapshot, own),
        flow(snapshot, own),
        lanes(own, snapshot.now),
        kafka(snapshot),
        logs(snapshot),
        workers(snapshot),
        '<div class="pair">',
        upstream(snapshot),
        senders(snapshot),
        rejected(snapshot),
        rules(snapshot),
        passed(snapshot),
        "</div>",
    ]
    return f"{_opening()}{head(snapshot, own)}<main>{''.join(parts)}</main>{_closing()}"


def routes() -> list[web.AbstractRouteDef]:
    """The files that the page needs."""
    return files.routes(PREFIX, "forwarder.admin.page", _NAMES)


def _opening() -> str:
    """Everything up to the body. Addresses are relative, so that a proxy may put the page under a
    path of its own.
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>forwarder</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta '
        'name="color-scheme" content="light dark">'
        f'<noscript><meta http-equiv="refresh" content="{REFRESH_SECONDS}"></noscript>'
        '<link rel="icon" type="image/svg+xml" href="status/icon.svg"><link rel="stylesheet" '
        'href="status/base.css">'
        '<link rel="stylesheet" href="status/status.css"><script type="module" '
        'src="status/status.js"></script></head><body>'
    )


def _closing() -> str:
    return (
        '<footer class="soft">For programs: <a href="status">/status</a> as JSON, <a '
        'href="metrics">/metrics</a> for Prometheus.'
        "</footer></body></html>"
    )


def head(snapshot: Snapshot, lanes: Sequence[LaneSnapshot]) -> Markup:
    """Name, state, what is in trouble, and when this was so."""
    states = [daemon_health(snapshot), upstream_health(snapshot), *troubles(snapshot, lanes)]
    up = moment(snapshot.started_at, snapshot.now, duration(snapshot.now - snapshot.started_at))
    return Markup(
        f'<header class="bar" data-part="head" data-now="{snapshot.now!r}" '
        f'data-started="{snapshot.started_at!r}">'
        '<h1 class="brand"><img src="status/icon.svg" alt=""><span>forwarder '
        f"<small>{text(snapshot.version)}</small></span></h1>"
        f'<p class="soft numbers">up {up} · seen <span '
        f'id="seen">{moment(snapshot.now, snapshot.now)}</span></p>'
        f'<p class="states">{" ".join(map(pill, states))}</p></header>'
    )


def notes(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> Markup:
    """What needs attention, the most severe first; an empty part if nothing does."""
    notes = [*_not_accepting(snapshot), *_halts(snapshot, lanes), *_off(lanes)]
    notes += [_note(Severity.WARNING, text(warning)) for warning in snapshot.warnings]
    label = "Needs attention" if notes else "Nothing needs attention"
    notes += [_note(Severity.NEUTRAL, text(notice)) for notice in snapshot.notices]
    return Markup(
        f'<section class="notes" data-part="notes" aria-label="{label}">{"".join(notes)}</section>'
    )


def _not_accepting(snapshot: Snapshot) -> Iterator[Markup]:
    if snapshot.state is State.RUNNING and snapshot.ready:
        return
    for why in snapshot.not_ready:
        yield _note(
            daemon_health(snapshot).severity,
            Markup(f"<strong>Accepts nothing: {text(why)}</strong>"),
        )


def _halts(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> Iterator[Markup]:
    for lane in lanes:
        if lane.halted:
            said = f"<blockquote>{text(lane.why)}</blockquote>" if lane.why else ""
            advice = f"<p>What to do: {text(lane.hint)}</p>" if lane.hint else ""
            title = (
                f"<strong>Lane {code(lane.shown)} is halted: "
                f"{text(lane.halted)}{_halt_times(lane, snapshot.now)}</strong>"
            )
            pending = (
                f"<p>{plural(lane.buffered, 'event')} of this lane "
                f"{'is' if lane.buffered == 1 else 'are'} buffered, not lost.</p>"
            )
            yield _note(
                Severity.CRITICAL,
                Markup(f"{title}{said}{advice}{pending if lane.buffered else ''}"),
            )


def _halt_times(lane: LaneSnapshot, now: float) -> Markup:
    """How long it is halted, and when it is probed next; empty if not known."""
    if lane.halted_since is None or lane.next_probe is None:
        return Markup("")
    since = moment(lane.halted_since, now, duration(now - lane.halted_since))
    return Markup(f", for {since}, next probe {moment(lane.next_probe, min(now, lane.next_probe))}")


def _off(lanes: Iterable[LaneSnapshot]) -> Iterator[Markup]:
    for lane in lanes:
        if lane.difference:
            title = (
                f"<strong>The books of lane {code(lane.shown)} are off by "
                f"{lane.difference:,}.</strong>"
            )
            yield _note(Severity.CRITICAL, Markup(f"{title} That is a bug."))


def _note(severity: Severity, body: Markup) -> Markup:
    return Markup(f'<div class="note {severity}">{body}</div>')


_ARROW = '<div class="arrow" aria-hidden="true"></div>'


def flow(snapshot: Snapshot, lanes: Sequence[LaneSnapshot]) -> Markup:
    """The diagram; in a narrow window it goes from top to bottom, and what isn't delivered follows
    at the end.
    """
    dead = _sum(lane.dead_lettered for lane in lanes)
    dropped = _sum(lane.dropped for lane in lanes)
    boxes = (
        f"{_senders(snapshot, lanes)}{_ARROW}{_buffer(snapshot, lanes)}{_ARROW}"
        f"{_upstream(snapshot, lanes)}"
        f'<div class="ends">{_dead_letters(dead)}'
        f"{_end('Dropped', 'dropped', dropped, drop_severity(dropped))}</div>{_through(snapshot)}"
    )
    return section("flow", "From senders to upstream", f'<div class="flow">{boxes}</div>', "way")


def _senders(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> str:
    received = _sum(lane.received for lane in lanes)
    where = ", ".join(snapshot.addresses)
    facts = [
        plural(snapshot.connections, "open connection"),
        *([f"at {code(where)}"] if where else []),
    ]
    sources = breakdown(received) if len(received) > 1 else ""
    total = sum(received.values())
    return _stage(
        "senders",
        "Senders",
        (counted(total, "received", "all"), _noun(total, "received")),
        facts,
        sources,
    )


def _buffer(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> str:
    lanes = tuple(lanes)
    waiting = sum(lane.buffered for lane in lanes)
    oldest = max((lane.oldest_age for lane in lanes if lane.oldest_age is not None), default=None)
    facts = [
        (
            f"{size(snapshot.buffer_bytes)} of {size(snapshot.buffer_limit_bytes)}, "
            f"{'on disk' if _on_disk(snapshot) else 'in memory'}"
        )
    ]
    if oldest is not None:
        facts.append(
            f"the oldest for {moment(snapshot.now - oldest, snapshot.now, duration(oldest))}"
        )
    limit = max(1, snapshot.buffer_limit_bytes)
    severity = buffer_severity(snapshot)
    bounds = (
        f'min="0" max="{limit}" low="{int(limit * BUFFER_FILLING)}" high="{limit - 1}" optimum="0"'
    )
    in_use = (
        f'<label><span class="unseen">Buffer in use</span><meter {bounds} '
        f'value="{snapshot.buffer_bytes}"></meter></label>'
    )
    kind = "buffer" if severity is Severity.GOOD else f"buffer {severity}"
    return _stage(
        kind, "Buffer", (Markup(f"{waiting:,}"), _noun(waiting, "buffered")), facts, in_use
    )


def _upstream(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> str:
    upstream = snapshot.upstream
    facts = [
        f"{plural(snapshot.in_flight, 'request')} in flight, at most {snapshot.concurrency_limit:g}"
    ]
    named = [
        f"{text(destination.name)} is {destination.upstream.state.words}: "
        f"{code(destination.upstream.url)}"
        for destination in snapshot.destinations
    ]
    facts += named or [code(upstream.url)]
    error = f'<p class="bad-text">{text(upstream.last_error)}</p>' if upstream.last_error else ""
    severity = upstream_health(snapshot).severity
    kind = f"upstream {severity}" if severity is Severity.CRITICAL else "upstream"
    delivered = sum(lane.delivered for lane in lanes)
    return _stage(
        kind,
        "Upstream",
        (counted(delivered, "delivered", "all"), _noun(delivered, "delivered")),
        facts,
        error,
    )


def _noun(count: int, what: str) -> str:
    """What a large figure counts."""
    return f"{'event' if count == 1 else 'events'} {what}"


def _stage(
    kind: str, title: str, figure: tuple[Markup, str], facts: Iterable[str], more: str
) -> str:
    """A box: what is counted is `figure`, with its unit."""
    lines = "".join(f"<p>{fact}</p>" for fact in facts)
    return (
        f'<div class="card stage {kind}"><h3>{title}</h3><p class="figure">{figure[0]} '
        f"<small>{figure[1]}</small></p>"
        f'<p class="rate" hidden></p>{more}{lines}</div>'
    )


def _dead_letters(counts: Mapping[str, int]) -> str:
    """With the command that shows them, as they wait for a person."""
    more = ""
    if any(counts.values()):
        more = f'<p class="do">List them: {code(proposed("dead-letters ls"))}</p>'
    return _end("Dead letters", "dead", counts, dead_letter_severity(counts), more)


def _end(
    title: str, kind: str, counts: Mapping[str, int], severity: Severity, more: str = ""
) -> str:
    figure = counted(sum(counts.values()), kind, "all")
    return (
        f'<div class="card end {kind} {severity}"><h3>{title}</h3><p '
        f'class="figure">{figure}</p>{breakdown(counts)}{more}</div>'
    )


def _through(snapshot: Snapshot) -> str:
    """What bypasses the buffer: calls that need the upstream's answer."""
    requests = snapshot.passthrough_requests
    total = sum(requests.values())
    failed = sum(count for (_, status), count in requests.items() if status >= 500)
    failures = f", {failed:,} of them failed" if failed else ""
    calls = "request" if total == 1 else "requests"
    return (
        '<p class="through"><strong>Passed through</strong> '
        f"<span>{counted(total, 'passed', 'all')} {calls} for flags and assets"
        f"{failures}: answered by the upstream, never buffered</span></p>"
    )


def _on_disk(snapshot: Snapshot) -> bool:
    return snapshot.buffer_kind == "disk"


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
