"""Cross-field validation of destinations and routes."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from forwarder.config.api_keys import check_project_key
from forwarder.config.conflicts import Conflict
from forwarder.config.layers import what_and_hint
from forwarder.config.rule_settings import RouteSettings
from forwarder.config.settings import DestinationSettings, Settings, UpstreamSettings
from forwarder.config.source_checks import same_names
from forwarder.config.units import format_duration
from forwarder.core.ack import AckLevel

_EXAMPLE = "for example: upstreams: {us: {url: https://us.i.example.com}}"


def destination_conflicts(settings: Settings) -> Iterator[Conflict]:
    """What is wrong with `upstreams`, `routes` and the destination of passed calls."""
    if settings.upstreams and settings.upstream != UpstreamSettings():
        hint = (
            "move its keys under a name in upstreams: its events that wait stay with the "
            "first of them"
        )
        yield Conflict("upstream", "can't be beside upstreams", hint)
    yield from same_names(
        "upstreams",
        "destination",
        [upstream.name for upstream in settings.upstreams if upstream.name],
    )
    for number, destination in enumerate(settings.upstreams):
        key = f"upstreams[{number}]"
        if not destination.name:
            yield Conflict(f"{key}.name", "is missing: what the destination is called", _EXAMPLE)
        if destination.archive.url:
            yield from _unusable_archive(key, destination, settings)
        elif not destination.url:
            what = (
                f"of {destination.name} is missing: the address of the service"
                if destination.name
                else "is missing"
            )
            yield Conflict(f"{key}.url", what, _EXAMPLE)
        for mine, other in destination.api_keys.items():
            yield from _unusable_keys(f"{key}.api_keys", mine, other)
    if settings.upstreams and not any(upstream.required for upstream in settings.upstreams):
        yield Conflict(
            "upstreams[0].required",
            "is false for all destinations: nothing would be kept in an outage",
            "require one of them",
        )
    for number, route in enumerate(settings.routes):
        yield from _route(f"routes[{number}]", route, settings)
    if settings.passthrough.destination:
        yield from _unknown("passthrough.destination", settings.passthrough.destination, settings)


def _unusable_archive(
    key: str, destination: DestinationSettings, settings: Settings
) -> Iterator[Conflict]:
    if destination.url:
        yield Conflict(
            f"{key}.url",
            "can't be beside archive: it is one or the other",
            "make two destinations of them, and name both in routes",
        )
    if settings.buffer.kind != "disk":
        hint = "set buffer.kind: disk: events stay there until their file is complete"
        yield Conflict(f"{key}.archive", "needs a disk buffer", hint)
    if settings.passthrough.destination and settings.passthrough.destination == destination.name:
        yield Conflict(
            "passthrough.destination",
            f"{destination.name} is an archive, which answers no calls",
            "name a service",
        )
    buffer = settings.buffer
    max_age = destination.archive.max_age
    if (
        buffer.ack_level is AckLevel.DELIVERED
        and destination.required
        and buffer.ack_timeout <= max_age
    ):
        longest = f"archive.max_age of {destination.name} ({format_duration(max_age)})"
        message = f"is delivered, which takes up to {longest}: longer than buffer.ack_timeout"
        yield Conflict("buffer.ack", message, "use disk, or set required: false for the archive")


def _unusable_keys(key: str, *api_keys: str) -> Iterator[Conflict]:
    for api_key in api_keys:
        try:
            check_project_key(api_key)
        except ValueError as error:
            yield Conflict(key, *what_and_hint(error))


def _route(key: str, route: RouteSettings, settings: Settings) -> Iterator[Conflict]:
    names = [target.name for target in route.to]
    if not settings.upstreams:
        yield Conflict(key, "needs upstreams: there is only one destination", _EXAMPLE)
        return
    if not names:
        yield Conflict(
            f"{key}.to",
            "is missing: the destinations of these events",
            f"for example: to: [{settings.upstreams[0].name}]",
        )
    elif all(target.sample is not None for target in route.to):
        message = "has only samples: the other events would go nowhere"
        yield Conflict(f"{key}.to", message, "add a destination without sample")
    for at, name in enumerate(names):
        yield from _unknown(f"{key}.to", name, settings)
        if name in names[:at]:
            yield Conflict(f"{key}.to", f"has {name} twice", "name it once")
    for name, value in (
        ("distinct_id_file", route.match.distinct_id_file),
        ("salt_file", route.match.salt_file),
    ):
        if value is not None:
            yield Conflict(f"{key}.match.{name}", "is only for rules", "remove it")


def _unknown(key: str, name: str, settings: Settings) -> Iterator[Conflict]:
    known = [upstream.name for upstream in settings.upstreams]
    if name in known:
        return
    near = get_close_matches(name, known, 1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else f"name one of upstreams: {', '.join(known) or 'there is none'}"
    )
    yield Conflict(key, f"{name} is no destination", hint)
