"""What SDKs, producers and applications write: the shapes that mutants are made of."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.differential.configurations import KAFKA_KEY, KEY, LOGS, OTHER, SHOP
from tests.support.log_lines import access_lines, syslog_lines
from tests.support.otlp import AT, in_json, in_protobuf

UUID: Final = "0190a0a0-1111-7222-8333-4444556666{:02}"
NAMES: Final = (
    "click",
    "order placed",
    "noise",
    "$autocapture",
    "$pageview",
    "Signed Up",
    "sampled",
    "$identify",
    "$groupidentify",
    "$create_alias",
    "$merge_dangerously",
    "survey sent",
    "page viewed",
    "$exception",
)
PEOPLE: Final = ("ann", "bob", "zoë", "listed", "018f-anonymous", "2", "null", "anonymous")
PROPERTIES: Final[Sequence[Mapping[str, Any]]] = (
    {},
    {"n": 1},
    {"n": 7, "plan": "pro"},
    {"n": "five", "code": "abc"},
    {"code": 5},
    {"password": "secret", "email": "ann@example.com"},
    {"$set": {"email": "ann@example.com", "secret": 1}, "$set_once": {"first": "é"}},
    {"old": {"a": [1, 2.5, None]}, "new": 1},
    {"$ip": "8.8.8.8", "$lib": "web", "$lib_version": "1.2.3"},
    {"$geoip_disable": True},
    {"$ignore_sent_at": True},
    {"alias": "bob"},
    {"$groups": {"company": "acme"}, "$group_type": "company", "$group_key": "acme"},
    {"$survey_id": "s-1", "$survey_response": "yes"},
    {"name": "😀 café \u2028", "html": "<b>\\\"'</b>"},
    {"a": {"b": {"c": {"d": [[[{}]]]}}}},
    {"long": "x" * 700},
    {"longer": "y" * 1700},
)
_PROPERTIES: Final = [json.dumps(properties) for properties in PROPERTIES]
"""The same as text: an event has its own, which edits may change."""
TIMES: Final = (
    "2025-12-31T12:00:00Z",
    "2025-12-31T12:00:00.123456Z",
    "2026-01-01 00:00:00+03",
    "2026-01-01",
    "2026-01-01T00:00:00.9999999+05:30",
    "9999-12-31T23:59:59Z",
    "yesterday",
    1767225600,
    1767225600000,
    "",
    None,
)


def event(dice: random.Random) -> dict[str, Any]:
    """An event, which may lack a uuid, a time or properties."""
    new_event: dict[str, Any] = {"event": dice.choice(NAMES), "distinct_id": dice.choice(PEOPLE)}
    if dice.random() < 0.5:
        new_event["uuid"] = UUID.format(dice.randrange(99))
    if dice.random() < 0.6:
        new_event["timestamp"] = dice.choice(TIMES)
    if dice.random() < 0.1:
        new_event["offset"] = dice.choice((5, 1500, -3, "7", 2.5))
    if dice.random() < 0.9:
        new_event["properties"] = json.loads(dice.choice(_PROPERTIES))
    if dice.random() < 0.1:
        new_event["$set"] = {"email": "top@example.com"}
    return new_event


def _key(dice: random.Random) -> str:
    return dice.choices((KEY, SHOP, OTHER), (8, 3, 1))[0]


def _single(dice: random.Random) -> Any:
    return {dice.choice(("api_key", "token", "$token")): _key(dice), **event(dice)}


def _bare_single(dice: random.Random) -> Any:
    body = event(dice)
    body["properties"] = {**body.get("properties", {}), "token": _key(dice)}
    return body


def _batch(dice: random.Random, most: int) -> Any:
    body: dict[str, Any] = {
        "api_key": _key(dice),
        "batch": [event(dice) for _ in range(dice.randint(0, most))],
    }
    if dice.random() < 0.3:
        body["sent_at"] = dice.choice(TIMES)
    if dice.random() < 0.15:
        body["historical_migration"] = dice.choice((True, False, "true"))
    if dice.random() < 0.1:
        body["library"] = "py"
    return body


def _array(dice: random.Random) -> Any:
    return [_bare_single(dice) for _ in range(dice.randint(0, 6))]


def _keyed_array(dice: random.Random) -> Any:
    return [_single(dice) for _ in range(dice.randint(1, 5))]


def _engage(dice: random.Random) -> Any:
    return {
        "$token": _key(dice),
        "$distinct_id": dice.choice(PEOPLE),
        "$set": {"email": "ann@example.com"},
    }


BODIES: Final[Sequence[tuple[int, Callable[[random.Random], Any]]]] = (
    (20, _single),
    (6, _bare_single),
    (25, lambda dice: _batch(dice, 4)),
    (10, lambda dice: _batch(dice, 12)),
    (3, lambda dice: _batch(dice, 50)),
    (8, _array),
    (4, _keyed_array),
    (3, _engage),
)


def v1_body(dice: random.Random) -> Any:
    """A body of the protocol with results for each event."""
    events = []
    for _ in range(dice.randint(0, dice.choice((3, 3, 3, 30)))):
        new_event = event(dice)
        if dice.random() < 0.9:
            new_event["uuid"] = UUID.format(dice.randrange(99))
            new_event["timestamp"] = dice.choice(TIMES)
            new_event["options"] = dice.choice(
                ({}, {"process_person_profile": False}, {"cookieless_mode": True}, {"x": 1}, None)
            )
        if dice.random() < 0.2:
            new_event["session_id"] = "s-1"
        events.append(new_event)
    body = {"created_at": dice.choice(TIMES), "batch": events}
    if dice.random() < 0.15:
        body["historical_migration"] = True
    return body


def otlp_body(dice: random.Random, *, protobuf: bool) -> bytes:
    """An export request with log records."""
    groups = []
    for _ in range(dice.randint(1, 2)):
        records = [_log_record(dice) for _ in range(dice.randint(0, dice.choice((3, 3, 16))))]
        scope = dice.choice((None, {"name": "lib", "version": "1"}))
        groups.append(((("service.name", "shop"),), scope, records))
    return in_protobuf(groups) if protobuf else in_json(groups)


def _log_record(dice: random.Random) -> dict[str, Any]:
    record: dict[str, Any] = {
        "time_unix_nano": dice.choice((AT, AT + 1, 0, 1)),
        "event_name": dice.choice(NAMES),
        "severity_text": dice.choice(("INFO", "debug")),
        "attributes": {"user": dice.choice(PEOPLE), "n": dice.choice((1, 7, 2.5, True, "x"))},
        "body": dice.choice(("hello", 5, {"a": [1, b"x"]}, None, "é")),
    }
    if dice.random() < 0.2:
        del record["attributes"]["user"]
    if dice.random() < 0.3:
        record["trace_id"] = bytes(range(16))
    return record


def record_value(dice: random.Random, policy: int) -> Any:
    """What a producer writes, for one of the clusters."""
    if policy == 2:
        return {
            "type": dice.choice((*NAMES, "heartbeat")),
            "user": {"id": dice.choice((*PEOPLE, 5)), "email": "a@example.com", "password": "x"},
            "at": dice.choice((1767225600000, 1.5, "1767225600000", None)),
            "account": {"plan": "pro"},
            "cents": dice.choice((5, 250, "x", None)),
        }
    shape = dice.random()
    if shape < 0.55:
        new_event = event(dice)
        if dice.random() < 0.15:
            new_event.pop("distinct_id")
        if dice.random() < 0.4:
            new_event |= {"uuid": UUID.format(dice.randrange(99)), "timestamp": TIMES[0]}
        return new_event
    if shape < 0.7:
        return _single(dice)
    if shape < 0.85:
        return _batch(dice, dice.choice((3, 3, 3, 20)))
    if shape < 0.9:
        return {**_batch(dice, 3), "api_key": KAFKA_KEY}
    return _array(dice)


_ACCESS: Final = list(access_lines(400))
_COMMON: Final = [line.rsplit(b' "', 2)[0] for line in _ACCESS]
_SYSLOG: Final = [line for line, _ in syslog_lines(400)]


def log_line(dice: random.Random, policy: int) -> bytes:
    """A line of one of the logs."""
    kind = LOGS[policy]["format"]
    if kind == "combined":
        return dice.choice(_ACCESS)
    if kind == "common":
        return dice.choice(_COMMON)
    if kind == "syslog":
        return dice.choice(_SYSLOG)
    user = dice.choice(PEOPLE)
    name = dice.choice(NAMES)
    if kind == "logfmt":
        text = f'event="{name}" user={user} n={dice.randrange(9)} request=r-{dice.randrange(9)}'
        return text.encode()
    if kind == "regex":
        return f"{user} {name} and the rest".encode()
    members = {"type": name, "user": user, **dice.choice(PROPERTIES)}
    line = json.dumps(members, ensure_ascii=dice.random() < 0.5)
    if kind == "cri":
        tag = dice.choice("FFFFP")
        stream = dice.choice(("stdout", "stderr"))
        line = f"2026-01-01T00:00:0{dice.randrange(10)}.123456789Z {stream} {tag} {line}"
    elif "multiline" in LOGS[policy] and dice.random() < 0.3:
        line = f"  at line {dice.randrange(9)}"
    return line.encode()
