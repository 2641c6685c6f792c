"""What the destinations of a configuration may get of a load, by its routes.

Which events match a route isn't known here, so each figure is the largest that can be: as if every
event matched it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forwarder.config.rule_settings import MatchSettings
from forwarder.config.settings import Settings


def largest_shares(settings: Settings) -> Mapping[str, float]:
    """The share of all events that each destination may get, at least 0.0 and at most 1.0, the
    default one first; those that get nothing are left out.
    """
    ways = list(_ways(settings))
    largest = {
        name: max([way.get(name, 0.0) for way in ways], default=0.0)
        for name in settings.destinations
    }
    return {name: share for name, share in largest.items() if share}


def most_copies(settings: Settings) -> float:
    """To how many destinations an event goes at most, at the mean of all people."""
    return max(sum(way.values()) for way in _ways(settings))


def _ways(settings: Settings) -> Iterator[Mapping[str, float]]:
    """The shares of each route that an event can take; at last those of the default."""
    for route in settings.routes:
        yield {target.name: 1.0 if target.sample is None else target.sample for target in route.to}
        if route.match == MatchSettings():
            return
    yield {settings.destinations[0]: 1.0}
