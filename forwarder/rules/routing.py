"""Routes: which destinations events go to. The first route that matches decides; events that none
matches go to the first destination.

Where neither names, conditions nor samples count, a route is decided once for a project key and a
source, and costs nothing by event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from forwarder.config.rule_settings import RouteSettings
from forwarder.core.event import Lane
from forwarder.mapping.problems import misconfigured
from forwarder.rules.matching import (
    EvaluateCondition,
    KnownIds,
    LaneEvents,
    Matcher,
    PeopleSample,
)
from forwarder.wire.effort import Allowance

MAX_DECIDED: Final = 4096
"""Project keys and sources whose route is remembered."""

DEFAULT: Final = (0,)
"""The first destination."""


@dataclass(frozen=True, slots=True)
class _Route:
    matcher: Matcher
    to: tuple[int, ...]
    """The destinations that all events that match go to."""
    sampled: tuple[tuple[int, PeopleSample], ...]
    """Those that a share of all people goes to, too."""
    whole: bool
    """Whether project key and source alone decide."""


class _NoFiles:
    """Routes choose by no files (`config.checks`): a person would change destinations
    with a line.
    """

    # The parameters are those of the protocol.
    def open(self, path: Path, salt_file: Path | None, key: str) -> KnownIds:  # noqa: ARG002
        """Raises `ConfigurationError`."""
        raise misconfigured(f"{key}.distinct_id_file", "is only for rules", "Remove it.")


class _RouteSource(Struct):
    """What routes are compiled from."""

    documents: list[dict[str, Any]]
    destinations: list[str]


class EventRoutes:
    """Where each event goes, by the configured routes."""

    def __init__(
        self,
        routes: Sequence[RouteSettings],
        destinations: Sequence[str],
        evaluate: EvaluateCondition | None = None,
    ) -> None:
        """`evaluate`: how conditions are evaluated; None: at once. Raises `ConfigurationError` for
        a condition that can't be used.
        """
        names = list(destinations)
        self._routes = [
            _route(route, f"routes[{number}].match", names, evaluate)
            for number, route in enumerate(routes)
        ]
        documents = [route.as_document(changed_only=True) for route in routes]
        self.encoded = (
            None
            if all(route.whole for route in self._routes)
            else msgspec.msgpack.encode(_RouteSource(documents, names))
        )
        """See `RouteTable.encoded`; `restored_routes` reads it."""
        self._decided: dict[tuple[str, str], tuple[int, ...] | None] = {}

    def whole(self, lane: Lane, source: str) -> Sequence[int] | None:
        asked = lane.api_key, source
        try:
            return self._decided[asked]
        except KeyError:
            if len(self._decided) >= MAX_DECIDED:
                self._decided.clear()
            decided = self._decided[asked] = self._decide(*asked)
            return decided

    def _decide(self, api_key: str, source: str) -> tuple[int, ...] | None:
        route = next(
            (
                candidate
                for candidate in self._routes
                if candidate.matcher.may_match(api_key, source)
            ),
            None,
        )
        if route is None:
            return DEFAULT
        return route.to if route.whole else None

    def of_events(
        self,
        lane: Lane,
        source: str,
        data: bytes,
        count: int,
        *,
        allowance: Allowance | None = None,
    ) -> Sequence[Sequence[int]]:
        events = LaneEvents(data, count, lane.api_key, source, allowance=allowance)
        found: list[Sequence[int]] = [DEFAULT] * count
        left: Sequence[int] = range(count)
        try:
            for route in self._routes:
                matching = route.matcher.select(events, left)
                if not matching:
                    continue
                for index in matching:
                    found[index] = route.to
                for number, sample in route.sampled:
                    for index in matching:
                        if events.ids[index] in sample:
                            found[index] = (*found[index], number)
                if len(matching) == len(left):
                    break
                chosen = set(matching)
                left = [index for index in left if index not in chosen]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # only what became a dead letter at receipt can't be read
            return [self._without_content(lane, source)] * count
        return found

    def _without_content(self, lane: Lane, source: str) -> Sequence[int]:
        """Where events go that can't be read."""
        matching = [
            route
            for route in self._routes
            if route.matcher.may_match(lane.api_key, source) and not route.matcher.by_content
        ]
        return matching[0].to if matching else DEFAULT


def restored_routes(encoded: bytes, evaluate: EvaluateCondition | None) -> EventRoutes:
    """The routes of another process, as `EventRoutes.encoded` says them."""
    source = msgspec.msgpack.decode(encoded, type=_RouteSource)
    routes = [RouteSettings.parse(document) for document in source.documents]
    return EventRoutes(routes, source.destinations, evaluate)


def _route(
    settings: RouteSettings,
    key: str,
    destinations: list[str],
    evaluate: EvaluateCondition | None,
) -> _Route:
    matcher = Matcher(settings.match, key, _NoFiles(), evaluate)
    to = tuple(destinations.index(target.name) for target in settings.to if target.sample is None)
    sampled = [
        (destinations.index(target.name), PeopleSample(target.sample))
        for target in settings.to
        if target.sample is not None
    ]
    return _Route(matcher, to, tuple(sampled), not sampled and not matcher.by_content)
