"""The top of the status page: how the daemon is, and what a person should read and act on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from forwarder.admin.page.parts import Markup, code, pill, text
from forwarder.telemetry.readable import duration, halt_times
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, State, UpstreamState

_MOODS = {UpstreamState.UP: "good", UpstreamState.DOWN: "bad", UpstreamState.UNKNOWN: ""}


def head(snapshot: Snapshot) -> Markup:
    """Name, state, and when this was so."""
    taken = datetime.fromtimestamp(snapshot.now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    readiness = "ready" if snapshot.ready else "not ready"
    return Markup(
        f'<header class="bar" data-part="head" data-now="{snapshot.now!r}" data-started="{snapshot.started_at!r}">'
        '<h1 class="brand"><img src="status/icon.svg" alt=""><span>forwarder '
        f"<small>{text(snapshot.version)}</small></span></h1>"
        f'<p class="soft numbers">up {duration(snapshot.now - snapshot.started_at)} · <span id="seen">seen at {taken}</span></p>'
        f"{pill(f'{snapshot.state}, {readiness}', 'good' if snapshot.ready else 'bad')}"
        f"{pill(f'upstream {snapshot.upstream.state}', _MOODS[snapshot.upstream.state])}</header>"
    )


def notes(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> Markup:
    """What needs a hand, the gravest first; an empty part if nothing does."""
    found = [*_not_taking(snapshot), *_halts(snapshot, lanes), *_off(lanes), *(_note("warn", text(each)) for each in snapshot.warnings)]
    label = "What needs a hand" if found else "Nothing needs a hand"
    return Markup(f'<section class="notes" data-part="notes" aria-label="{label}">{"".join(found)}</section>')


def _not_taking(snapshot: Snapshot) -> Iterator[Markup]:
    if snapshot.state is State.RUNNING and snapshot.ready:
        return
    for why in snapshot.not_ready:
        yield _note("bad", Markup(f"<strong>Takes nothing: {text(why)}</strong>"))


def _halts(snapshot: Snapshot, lanes: Iterable[LaneSnapshot]) -> Iterator[Markup]:
    for lane in lanes:
        if lane.halted:
            said = f"<blockquote>{text(lane.why)}</blockquote>" if lane.why else ""
            advice = f"<p>What to do: {text(lane.hint)}</p>" if lane.hint else ""
            title = f"<strong>Lane {code(lane.label)} is halted: {text(lane.halted)}{text(halt_times(lane, snapshot.now))}</strong>"
            waiting = f"<p>{lane.buffered:,} of its events wait in the buffer, and none is lost.</p>" if lane.buffered else ""
            yield _note("bad", Markup(f"{title}{said}{advice}{waiting}"))


def _off(lanes: Iterable[LaneSnapshot]) -> Iterator[Markup]:
    for lane in lanes:
        if lane.difference:
            title = f"<strong>The books of lane {code(lane.label)} are off by {lane.difference:,}.</strong>"
            yield _note("bad", Markup(f"{title} That is a bug."))


def _note(mood: str, body: Markup) -> Markup:
    return Markup(f'<div class="note {mood}">{body}</div>')
