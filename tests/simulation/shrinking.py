"""From a life that broke a promise to a smaller one that breaks it too, and to a story."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.simulation.life import Life, live
from tests.simulation.plan import Plan

MOST: Final = 200
"""Lives that shrinking takes at most."""


def shrunk(life: Life, live: Callable[[Plan], Life] = live) -> Life:
    """The smallest life found that breaks the same promise, by its first words; `live` lives it."""
    kind = _kind(life)
    acts = list(life.plan.acts)
    size = max(1, len(acts) // 2)
    tried = 0
    while tried < MOST:
        at = 0
        smaller = False
        while at < len(acts) and tried < MOST:
            tried += 1
            rest = acts[:at] + acts[at + size :]
            candidate = live(life.plan.without(rest))
            if candidate.broken is not None and _kind(candidate) == kind:
                acts, life, smaller = rest, candidate, True
            else:
                at += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return life


def _kind(life: Life) -> str:
    """What sort of promise was broken: its words without numbers."""
    return "".join(char for char in str(life.broken)[:60] if not char.isdigit())


def story(life: Life, lines: int) -> str:
    """The last steps of a life, and how it ended."""
    plan = life.plan
    told = [
        f"seed {plan.seed}: destinations {', '.join(plan.destinations)}"
        + (" (the second optional)" if plan.optional else "")
        + f"; routes {[dict(route) for route in plan.routes]}; rules {list(plan.rules)}",
        f"settings {dict(plan.settings)}",
    ]
    told += [
        f"{at:12.6f}  {who:12}  {what[:300]}" for at, who, what in list(life.trace.kept)[-lines:]
    ]
    told.append("")
    told.append(f"broken: {str(life.broken)[:1000]}" if life.broken else "all promises were kept")
    return "\n".join(told)
