"""What a preflight found out, complete: findings are judged from it, and it is written as JSON as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Raw, Struct

from forwarder.sources.imports.counting import KeyCount, KeyEstimate, share
from forwarder.sources.imports.moments import SECOND
from forwarder.sources.imports.policy import PersonProperties
from forwarder.sources.imports.time_kinds import TimeKind

RECENT: Final = 48 * 3600 * SECOND
"""Historical events should be older than this (wire facts: What the service does not tell)."""


@dataclass(frozen=True, slots=True)
class PreflightTerms:
    """What an import would be made with, and when it is looked at."""

    now: int
    """Microseconds since 1970."""
    max_event: int
    """`upstream.max_event`."""
    batch_events: int
    batch_bytes: int
    rate: float
    """Events per second."""
    until: int | None = None
    """Events from then on are left out; None: `RECENT` before now."""
    person_properties: PersonProperties = "set_once"
    sort: bool = False
    """Events are sorted before they are sent."""
    zone_said: bool = False
    """Times without a zone are known for what they are: the format says so, or `--time-offset`."""

    @property
    def recent(self) -> int:
        """Events from then on are too young for a historical import."""
        return self.now - RECENT

    @property
    def end(self) -> int:
        """Events from then on are left out."""
        return self.recent if self.until is None else self.until


class PreflightDay(Struct, frozen=True):
    """A UTC day of what would be sent."""

    day: str
    events: int
    bytes: int


class EventTimes(Struct, frozen=True):
    """When events are. Of all that records make, also those that would be left out."""

    now: str
    until: str
    first: str | None
    last: str | None
    future: int
    """Later than now."""
    recent: int
    """Would be sent, though they are younger than 48 h."""
    after_until: int
    january_1970: int
    """In the first days that computers count: an epoch of the wrong unit, or a zero."""
    kinds: Mapping[TimeKind, int]
    """How records write them, as far as that is seen."""


class OutOfOrder(Struct, frozen=True):
    """Of what would be sent."""

    late: int
    """Older than one before it; `--sort` mends all of them."""
    late_in_file: int
    """The same within one file; the others are mended by naming the files in the order of time."""
    furthest_seconds: float


class RefusedLine(Struct, frozen=True):
    """One record that would be refused."""

    file: str
    line: int
    detail: str


class RefusedForReason(Struct, frozen=True):
    """Records that would be refused for one reason."""

    reason: str
    records: int
    first: tuple[RefusedLine, ...]


class PersonImpact(Struct, frozen=True):
    """Whose events they are, and what they do to them."""

    policy: PersonProperties
    distinct_ids: KeyEstimate
    with_set: int
    """Events that have `$set`."""
    with_set_once: int
    with_unset: int
    merging: int
    """Events that merge two persons."""
    upper_case_ids: int
    """Events that Mixpanel's option `replace_upper_case_ids` gives the id from before, or would give."""
    with_group_set: int
    """Events that have `$group_set`."""


class SendVolume(Struct, frozen=True):
    """What would be sent, and how long it takes."""

    events: int
    bytes: int
    requests: int
    seconds: float
    rate: float


class PreflightExample(Struct, frozen=True):
    """A record, and what becomes of it."""

    file: str
    line: int
    record: str
    events: tuple[Raw, ...]


class PreflightReport(Struct, frozen=True):
    """Everything."""

    records: int
    record_bytes: int
    silent: int
    """Records that stand for no event."""
    events: int
    volume: SendVolume
    names: tuple[KeyCount, ...]
    other_names: int
    """Events with any other name."""
    days: tuple[PreflightDay, ...]
    other_days: int
    times: EventTimes
    order: OutOfOrder
    refused: tuple[RefusedForReason, ...]
    max_event: int
    illegal_ids: tuple[KeyCount, ...]
    other_illegal_ids: int
    repeats: KeyEstimate
    """Events that came before on the same day: they are sent once."""
    uuids: KeyEstimate
    """A differing one stands for events that aren't the same: the service keeps each of them."""
    persons: PersonImpact
    zone_said: bool
    examples: tuple[PreflightExample, ...]
    sort: bool = False
    """Whether events are sorted before they are sent."""
    broken: tuple[str, ...] = ()
    """Of each file that can't be read to its end: which, where, and why."""

    @property
    def refused_records(self) -> int:
        """Records that would be refused for any reason."""
        return sum(each.records for each in self.refused)

    @property
    def refused_share(self) -> float:
        """Of all records, from 0 to 1."""
        return share(self.refused_records, self.records)

    def refused_for(self, reason: str) -> int:
        """Records that would be refused for this reason."""
        return sum(each.records for each in self.refused if each.reason == reason)
