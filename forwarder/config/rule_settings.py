"""What can be configured of rules, and of what they match. Written as `settings.py`, whose section
`rules` this is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from forwarder.config.section import Section
from forwarder.config.values import (
    JsonValues,
    NamePairs,
    NonEmpty,
    OneOrMore,
    ProjectKey,
    Ratio,
    RouteTarget,
    RouteTargets,
    SourceName,
)

DaemonSource = Literal["http", "otlp", "kafka", "logs"]
"""The sources of a daemon, by the names that its events have."""

SourceKind = Literal[DaemonSource, "import"]
"""All sources: an import is a process of its own."""


@dataclass(frozen=True, kw_only=True)
class MatchSettings(Section):
    """Conditions on an event; all that are set must hold. Without any, every event matches."""

    event: Annotated[tuple[NonEmpty, ...], OneOrMore()] = ()
    """Names of events, or globs of them: `*` stands for any text, `?` for one character, and a
    backslash before them for themselves.
    """
    api_key: Annotated[tuple[ProjectKey, ...], OneOrMore()] = field(default=(), repr=False)
    """Project keys."""
    source: Annotated[tuple[SourceKind, ...], OneOrMore()] = ()
    """Where the event came from: http (v1 included), otlp, kafka, logs or import."""
    where: NonEmpty | None = None
    """jq condition on the whole event; false and null don't match."""
    distinct_id_file: Path | None = None
    """File with one distinct_id a line, read again when it changes; with `salt_file`, the lines
    are HMAC-SHA256 hashes of them in hex.
    """
    salt_file: Path | None = None
    """File with the key of the hashes in `distinct_id_file`."""


@dataclass(frozen=True, kw_only=True)
class RuleHashSettings(Section):
    """Fields whose values are replaced by their HMAC-SHA256 in hex."""

    field: Annotated[tuple[NonEmpty, ...], OneOrMore()] = ()
    """Path of the field, such as .properties.email, or a list of them."""
    salt_file: Path | None = None
    """File with the key of the hash. Required."""


@dataclass(frozen=True, kw_only=True)
class RuleSettings(Section):
    """What happens to events that match: exactly one of drop, sample, set, remove, rename,
    rename_event and hash.
    """

    name: SourceName | None = None
    """Unique name of the rule in metrics, books and messages. Default: rule-1 for the first in the
    list, and so on.
    """
    match: MatchSettings = MatchSettings()
    drop: bool = False
    """Whether the event is dropped, and counted with the reason rule:NAME."""
    sample: Annotated[float | None, Ratio()] = None
    """Share of people whose events are kept, from 0 to 1, by distinct_id; the events of all others
    are dropped, and counted.
    """
    set: Annotated[Mapping[str, Any], JsonValues()] = field(default_factory=dict)
    """Values to set, by path, such as {.properties.environment: staging}; objects on the way are
    created.
    """
    remove: Annotated[tuple[NonEmpty, ...], OneOrMore()] = ()
    """Paths of fields to remove, such as .properties.password."""
    rename: Annotated[Mapping[str, str], NamePairs()] = field(default_factory=dict)
    """New paths of fields, by their paths."""
    rename_event: Annotated[Mapping[str, str], NamePairs()] = field(default_factory=dict)
    """New names of events, by their names."""
    hash: RuleHashSettings = RuleHashSettings()
    on_error: Literal["keep", "dead_letter"] | None = None
    """Fate of an event on which the rule fails: kept, or a dead letter. Default: keep, but not for
    remove, hash and files of ids.
    """


@dataclass(frozen=True, kw_only=True)
class RouteSettings(Section):
    """Where the events go that match; the first route that matches decides."""

    match: MatchSettings = MatchSettings()
    to: Annotated[tuple[RouteTarget, ...], RouteTargets()] = ()
    """Names of `upstreams` that each of these events goes to, or {name: {sample: 0.05}} for a
    share of all people. Required.
    """
