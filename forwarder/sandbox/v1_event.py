"""One event of a v1 request, judged by the real service's rules and put into the classic shape in which the others are kept.

What v1 has beside the properties is put behind them, under the names that the service gives it: `session_id` becomes `$session_id`,
`options.disable_skew_correction` becomes `$ignore_sent_at`, and the SDK's name and version of the request's header become `$lib` and
`$lib_version`. The properties themselves stay as they were sent; of a key that is there twice then, the last counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from forwarder.sandbox.judging import LARGEST_EVENT
from forwarder.sandbox.reading import Event, NotIngested, Unnamed, import_job_of, lacks_survey, storable
from forwarder.sandbox.shapes import Element
from forwarder.sandbox.timing import FUTURE, format_time, parse_rfc3339

LONGEST_NAME: Final = 200
LONGEST_ID: Final = 200
LONGEST_SDK_INFO: Final = 200
"""Bytes."""
_TEXTS: Final = ("event", "uuid", "distinct_id", "timestamp")
_MAYBE_TEXTS: Final = ("session_id", "window_id")
_OPTIONS: Final = {
    "cookieless_mode": "$cookieless_mode",
    "disable_skew_correction": "$ignore_sent_at",
    "product_tour_id": "$product_tour_id",
    "process_person_profile": "$process_person_profile",
}
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Sender:
    """What a request says of all its events: by which SDK, and at what time of its clock it was sent; `now` is ours."""

    sdk_info: str
    sent_at: datetime
    now: datetime
    strict: bool = False

    def library(self) -> dict[str, str]:
        """`$lib` and `$lib_version`; nothing if the header doesn't name them."""
        name, slash, version = self.sdk_info.rpartition("/")
        if not (slash and name.strip() and version.strip()) or len(self.sdk_info) > LONGEST_SDK_INFO:
            return {}
        return {"$lib": name.strip(), "$lib_version": version.strip()}

    def time(self, stated: datetime, *, corrected: bool) -> str:
        """When an event happened, by the difference between the two clocks."""
        if not corrected:
            return format_time(stated)
        try:
            time = stated - (self.sent_at - self.now)
        except OverflowError:
            return format_time(self.now)
        return format_time(time if time <= self.now + FUTURE else self.now)


class _InvalidOptions(ValueError):
    """An option that can't be read as what it is."""


def has_form(element: Element) -> bool:
    """Whether an element can be read as an event of this protocol at all: each of its own keys once, and of its type."""
    known = [member.key for member in element.members if member.key in (*_TEXTS, *_MAYBE_TEXTS, "options", "properties")]
    return (
        len(set(known)) == len(known)
        and all(isinstance(element.get(name), str) for name in _TEXTS)
        and all(isinstance(element.get(name), str | None) for name in _MAYBE_TEXTS)
    )


def uuid_text(element: Element) -> str:
    """Its uuid as it was sent, without the white space around it."""
    text: str = element.get("uuid")
    return text.strip()


def read_v1_event(element: Element, index: int, uuid: str, sender: Sender) -> Event | Unnamed:
    """Judge one event that has the form of one; one that isn't ingested comes back with its reason."""
    raw = element.raw.encode()
    stated = parse_rfc3339(element.get("timestamp"))
    reason = _fault(element, stated)
    try:
        options = _options(element.get("options"))
    except _InvalidOptions:
        reason = reason or NotIngested.INVALID_OPTIONS
    if reason is None and not sender.strict and lacks_survey(element.get("event"), element):
        reason = NotIngested.NO_SURVEY_ID
    if reason is None and sender.strict and len(raw) > LARGEST_EVENT:
        reason = NotIngested.TOO_BIG
    if reason is not None or stated is None:
        return Unnamed(index, reason or NotIngested.INVALID_TIMESTAMP, raw)
    texts = {**_texts(element), "properties": _with(_properties(element), {**_beside(element), **options, **sender.library()})}
    return Event(
        position=index,
        uuid=uuid,
        event=storable(element.get("event")),
        distinct_id=storable(element.get("distinct_id").strip().replace("\0", "\ufffd")),
        timestamp_sent=element.source("timestamp"),
        timestamp=sender.time(stated, corrected=options.get("$ignore_sent_at") is not True),
        properties=texts["properties"],
        raw=f"{{{','.join(f'{json.dumps(name)}:{text}' for name, text in texts.items())}}}".encode(),
        import_job=import_job_of(element),
    )


def _fault(element: Element, stated: datetime | None) -> NotIngested | None:
    """The first thing that is wrong with an event, in the service's order."""
    name, distinct_id = element.get("event"), element.get("distinct_id").strip()
    checks = (
        (name == "$performance_event", NotIngested.PERFORMANCE_EVENT),
        (not name, NotIngested.NO_NAME),
        (len(name.encode(errors="replace")) > LONGEST_NAME, NotIngested.NAME_TOO_LONG),
        (not distinct_id, NotIngested.NO_DISTINCT_ID),
        (len(distinct_id.encode(errors="replace")) > LONGEST_ID, NotIngested.DISTINCT_ID_TOO_LARGE),
        (stated is None, NotIngested.INVALID_TIMESTAMP),
        (not (_properties(element)).startswith("{"), NotIngested.MALFORMED_PROPERTIES),
    )
    return next((reason for wrong, reason in checks if wrong), None)


def _properties(element: Element) -> str:
    member = next((member for member in element.members if member.key == "properties"), None)
    return "{}" if member is None else element.text[member.start : member.end]


def _options(options: Any) -> dict[str, bool | str]:
    """The options as properties. Raises `_InvalidOptions`."""
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise _InvalidOptions
    given = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    return {_OPTIONS[name]: _as_text(value) if name == "product_tour_id" else _as_bool(value) for name, value in given.items()}


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool | int | float):
        return value != 0
    if isinstance(value, str) and value.strip().lower() in _BOOLS:
        return _BOOLS[value.strip().lower()]
    raise _InvalidOptions


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise _InvalidOptions


def _beside(element: Element) -> dict[str, str]:
    return {f"${name}": element.get(name) for name in _MAYBE_TEXTS if element.get(name) is not None}


def _texts(element: Element) -> dict[str, str]:
    """The JSON texts of what an event is in both shapes, as sent but for the white space around its ids."""
    texts = {name: element.source(name) or "null" for name in _TEXTS}
    for name in ("uuid", "distinct_id"):
        value = element.get(name)
        if value != value.strip():
            texts[name] = json.dumps(value.strip())
    return texts


def _with(properties: str, more: dict[str, Any]) -> str:
    """The text of an object with members added at its end; nothing else of it changes."""
    if not more:
        return properties
    added = json.dumps(more, separators=(",", ":"))[1:]
    return f"{properties[:-1]}{'' if properties[1:].lstrip().startswith('}') else ','}{added}"
