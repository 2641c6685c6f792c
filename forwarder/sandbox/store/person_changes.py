"""What an event changes of its person's properties, as the service's ingestion decides it.

An event sets what its `$set` and `$set_once` say, and what the service lifts from its other
properties: the device, the page and the campaign. An update that would change nothing but
properties in `UNIMPORTANT` is left out, unless the event is one in `PERSON_EVENTS`; the event
itself still has the values (`StoredEvent.person_properties`). Each event is decided by itself; the
service decides over a batch, so it may write such a value together with a later event's.

Sources in PostHog/posthog, with the commit at which each was read:
`nodejs/src/common/persons/person-property-utils.ts` (07eec2a) has both lists,
`nodejs/src/common/utils/db/utils.ts` (07eec2a, `personInitialAndUTMProperties`) the lifting,
`nodejs/src/common/utils/event.ts` (07eec2a, `sanitizeEvent`, `normalizeOsAlias`) what stands beside
the properties and `$os_name`, `nodejs/src/ingestion/common/persons/person-update.ts` (1db4ce6) and
`batch-writing-person-store.ts` (84838b8, `getPersonUpdateOutcome`) which changes are written,
`nodejs/src/ingestion/common/steps/event-preprocessing/enrich-survey-person-properties.ts`
(d96ff7b) the survey's date.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from forwarder.contract.lifted import LIFTED
from forwarder.sandbox.protocol.times import parse_time

_INITIAL: Final = {name: f"$initial_{name.removeprefix('$')}" for name in LIFTED}
UNIMPORTANT: Final = frozenset(
    {
        *("$browser", "$browser_version", "$device_type", "$raw_user_agent"),
        *("$current_url", "$pathname", "$referrer", "$referring_domain"),
        *("$os", "$os_name", "$os_version"),
        *("$screen_height", "$screen_width", "$viewport_height", "$viewport_width"),
        *("$geoip_postal_code", "$geoip_postal_code_confidence", "$geoip_time_zone"),
        *("$geoip_latitude", "$geoip_longitude", "$geoip_accuracy_radius"),
        *("$geoip_subdivision_1_code", "$geoip_subdivision_1_name"),
        *("$geoip_subdivision_2_code", "$geoip_subdivision_2_name"),
        *("$geoip_subdivision_3_code", "$geoip_subdivision_3_name"),
        *("$geoip_city_confidence", "$geoip_country_confidence"),
        *("$geoip_subdivision_1_confidence", "$geoip_subdivision_2_confidence"),
    }
)
"""Properties whose new value alone is no reason to update a person that has an old one."""
PERSON_EVENTS: Final = frozenset({"$identify", "$create_alias", "$merge_dangerously", "$set"})
"""Events that write whatever they change."""
_NOT_LIFTED: Final = frozenset({"$snapshot", "$performance_event"})
_SERVER_OS: Final = frozenset({"$os", "$os_version"})
_SURVEY_SHOWN: Final = "survey shown"
_SURVEY_DATE: Final = "$survey_last_seen_date"
_CLICK_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,400}").fullmatch
_DAY: Final = 86_400_000
_MOST_NUMBERED: Final = 80_000
"""A person with more would be over 640 kB, and so rejected by the service."""
_NUMBERS: Final = (int, float)
_MISSING: Final = object()


class Operation(NamedTuple):
    """How a property was set."""

    name: str
    """`$set` or `$set_once`."""
    lifted: bool
    """Whether the service took the value from the event's other properties."""


OPERATIONS: Final = (
    Operation("$set", lifted=False),
    Operation("$set_once", lifted=False),
    Operation("$set", lifted=True),
    Operation("$set_once", lifted=True),
)
"""A property's source has the index of its operation."""


class Update(NamedTuple):
    """What an event does to the properties of one person."""

    set: Mapping[str, Any] = {}
    operations: Mapping[str, int] = {}
    """Of each property that is set, the index in `OPERATIONS`."""
    unset: tuple[str, ...] = ()
    differs: bool = False
    """Whether the event's own `$set` says something that the person doesn't have afterwards."""


_NO_UPDATE: Final = Update()
_NOTHING_SAID: Final = frozenset[str]()


class PersonChanges(NamedTuple):
    """What an event says about its person's properties."""

    always: Mapping[str, Any] = {}
    once: Mapping[str, Any] = {}
    never: tuple[str, ...] = ()
    said: frozenset[str] = frozenset()
    """The names of `always` and `once` that the service didn't lift."""
    forced: bool = False
    """Whether the event writes whatever it changes."""

    def update(self, properties: Mapping[str, Any]) -> Update:
        """What they do to a person with these properties. What is unset is what was there before
        the event: a name that it sets and unsets stays if it is new.
        """
        changed: dict[str, Any] = {}
        operations: dict[str, int] = {}
        for name, value in self.once.items():
            if properties.get(name) is None and (name not in properties or value is not None):
                changed[name] = value
                operations[name] = 1 if name in self.said else 3
        for name, value in self.always.items():
            if not _is_same(properties.get(name, _MISSING), value):
                changed[name] = value
                operations[name] = 0 if name in self.said else 2
        if not (changed or self.never):
            return _NO_UPDATE
        unset = tuple(dict.fromkeys(name for name in self.never if name in properties))
        if not (self.forced or unset or _matter(changed, properties)):
            return Update(differs=not self.always.keys().isdisjoint(changed))
        return Update(changed, operations, unset, not self.always.keys().isdisjoint(unset))

    def __bool__(self) -> bool:
        return bool(self.always or self.once or self.never)


def person_changes(
    event: str, content: Mapping[str, Any], properties: Mapping[str, Any], times: tuple[str, str]
) -> PersonChanges:
    """What an event says and what the service lifts. `times` are the event's and that of its
    receipt. `$set` and `$set_once` beside the properties win over those inside, `$set` over
    `$set_once`; `$unset` counts inside only, since the service's capture keeps no other member.
    """
    always = {**_inside("$set", properties), **as_object(content.get("$set"))}
    once = {**_inside("$set_once", properties), **as_object(content.get("$set_once"))}
    said_always = tuple(always)
    said_once = tuple(once)
    if event == _SURVEY_SHOWN:
        always.setdefault(_SURVEY_DATE, times[0])
    if event not in _NOT_LIFTED:
        _lift(properties, always, once, times)
    for name in (*said_always, *said_once):
        if name in always:
            once.pop(name, None)
    said = _NOTHING_SAID
    if said_always or said_once:
        said = frozenset((*said_always, *(name for name in said_once if name in once)))
    never = _names(properties["$unset"]) if "$unset" in properties else ()
    return PersonChanges(always, once, never, said, event in PERSON_EVENTS)


def as_object(value: Any) -> dict[str, Any]:
    """A JSON object; an empty one instead of anything else."""
    return value if isinstance(value, dict) else {}


def _inside(name: str, properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """What stands inside the properties under this name. Lifted properties replace a text."""
    value = properties.get(name)
    if isinstance(value, str) and not _INITIAL.keys().isdisjoint(properties):
        return {}
    return _members(value)


def _members(value: Any) -> Mapping[str, Any]:
    """What JavaScript takes for the members of a JSON value: of a text its characters, of a list
    its items, by their numbers.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, list | str) and len(value) <= _MOST_NUMBERED:
        return {str(number): item for number, item in enumerate(value)}
    return {}


def _lift(
    properties: Mapping[str, Any],
    always: dict[str, Any],
    once: dict[str, Any],
    times: tuple[str, str],
) -> None:
    """Add what the service lifts to what the event says. A null is never an initial value: it
    would keep the first real one out.
    """
    of_server = properties.get("$is_server") is True
    lifted = False
    for name, value in properties.items():
        initial = _INITIAL.get(name)
        if initial is None or (of_server and name in _SERVER_OS):
            continue
        lifted = True
        if name not in always:
            always[name] = value
        if value is not None and initial not in once:
            once[initial] = value
    if not lifted:
        return
    if "$os_name" in properties and not of_server:
        _name_system(properties["$os_name"], always, once)
    click = properties.get("fbclid")
    if isinstance(click, str) and _CLICK_ID(click):
        always.setdefault("$fbc", f"fb.1.{_day(times)}.{click}")


def _name_system(name: Any, always: dict[str, Any], once: dict[str, Any]) -> None:
    """`$os_name` is another name of `$os`, where that isn't given."""
    always.setdefault("$os", name)
    if name is not None:
        once.setdefault("$initial_os", name)
    always.pop("$os_name", None)
    once.pop("$initial_os_name", None)


def _day(times: tuple[str, str]) -> int:
    """The milliseconds since 1970 of the UTC day of the earlier time."""
    moments = [parse_time(text) for text in times]
    known = [time for time in moments if isinstance(time, datetime)]
    return int(min(known).timestamp() * 1000) // _DAY * _DAY if known else 0


def _matter(changed: Mapping[str, Any], properties: Mapping[str, Any]) -> bool:
    return any(name not in properties or name not in UNIMPORTANT for name in changed)


def _is_same(old: Any, new: Any) -> bool:
    """Whether the service sees no change: JavaScript's `===`, for which `1` is `1.0` and not
    `true`, and no object or list is another one.
    """
    kind = type(new)
    if type(old) is kind:
        return kind is not dict and kind is not list and bool(old == new)
    return kind in _NUMBERS and type(old) in _NUMBERS and bool(old == new)


def _names(value: Any) -> tuple[str, ...]:
    names = value if isinstance(value, list) else _members(value)
    return tuple(name for name in names if isinstance(name, str))
