"""Every mapping rule of every format, against tables that a person can read: `golden/rules/*.yaml`.

A table begins with a usual record and the event that it becomes. Each rule says what it changes in
the record (`record`, `without`, or `text`: another record altogether), under which options, and
what that changes in the event. All else has to be as usual: so a row says everything of its event.

- `event`, `distinct_id`, `timestamp`, `uuid`: members of the event (a uuid of `*` is any).
  `uuid_of`: the text whose UUIDv5 it is. `keyed`: whether its uuid alone makes repeats.
- `properties`: those beside the usual ones; `gone`: those of the usual ones that aren't there;
  `everything`: all of them, and also what every imported event gets.
- `before`: the events that the record brings before its own. `becomes: nothing`: it has none of
  its own. `refused`: why nothing is sent.
- `keeps`: what the event's bytes hold.

Unless a rule names another `policy`, properties of persons are shown as the format gives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid5
from zoneinfo import ZoneInfo

import pytest
import yaml

from forwarder.core.ports import Reason
from forwarder.mapping import Mapping as RecordMapping
from forwarder.mapping import MappingRules, TimestampRule
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports.conversion import EventFinisher, FinishedBlock, FinishPolicy
from forwarder.sources.imports.format import (
    NAMESPACE,
    ChosenMapping,
    FormatContext,
    PersonProperties,
    RecordConverter,
    RecordRefused,
)
from forwarder.sources.imports.formats import amplitude, mixpanel, segment
from forwarder.sources.imports.formats.catalog import BY_NAME
from forwarder.sources.imports.formats.native import NativeConverter
from tests.sources.imports.preflights import ahead
from tests.support.cases import cases

WITH_TABLE: Final = [name for name, form in BY_NAME.items() if not form.mapping_file]
"""Mappings by name are rules themselves: tests/end_to_end/test_import_named.py."""
FOLDER: Final = Path(__file__).parent.parent / "golden" / "rules"
JOB: Final = "the job"
EVERY_EVENT: Final = {"$geoip_disable": True, "$import_job_id": JOB}
MEMBERS: Final = ("event", "distinct_id", "timestamp")
KNOWN: Final = {
    *("rule", "record", "without", "text", "options", "policy", "geoip", "time_offset", "zone"),
    *(
        *MEMBERS,
        "uuid",
        "uuid_of",
        "keyed",
        "properties",
        "gone",
        "everything",
        "before",
        "becomes",
        "refused",
        "keeps",
    ),
}

Table = dict[str, Any]
Rule = dict[str, Any]
TABLES: Final[dict[str, Table]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))
}


def rows(*, refused: bool) -> list[Any]:
    """The rules of all tables by which a record is refused, or those of the others."""
    all_rules = ((name, table, rule) for name, table in TABLES.items() for rule in table["rules"])
    return [
        pytest.param(table, rule, id=f"{name}: {rule['rule']}")
        for name, table, rule in all_rules
        if ("refused" in rule) is refused
    ]


class RecordOutcome(NamedTuple):
    """What a record became."""

    bodies: Sequence[bytes]
    keyed: bool
    """Of its own event."""


def given(table: Table, rule: Rule) -> FormatContext:
    """What is said of the import."""
    rules = table.get("mapping")
    zone = (
        ZoneInfo(rule["zone"])
        if "zone" in rule
        else ahead(rule["time_offset"])
        if "time_offset" in rule
        else None
    )
    made = FormatContext(policy(rule), zone=zone)
    if rules is None:
        return made
    written = MappingRules(**{**rules, "timestamp": TimestampRule(**rules["timestamp"])})
    return FormatContext(
        made.person_properties,
        mapping=ChosenMapping(written, lambda: RecordMapping.compile(written, "table", "mapping")),
    )


def policy(rule: Rule) -> PersonProperties:
    """Of a rule."""
    chosen: PersonProperties = rule.get("policy", "history")
    return chosen


def record(table: Table, rule: Rule) -> bytes:
    """The usual record with what the rule changes."""
    if "text" in rule:
        return str(rule["text"]).encode()
    whole = {**table["usual"]["record"]}
    inside = table.get("inside")
    part = {**whole[inside]} if inside else whole
    part.update(rule.get("record", {}))
    for name in rule.get("without", ()):
        del part[name]
    if inside:
        whole[inside] = part
    return json.dumps(whole, separators=(",", ":")).encode()


def outcome(table: Table, rule: Rule) -> RecordOutcome:
    """What becomes of the rule's record. Raises `RecordRefused`."""
    form = BY_NAME[table["format"]]
    options = {
        name: frozenset(value) if isinstance(value, list) else value
        for name, value in rule.get("options", {}).items()
    }
    converter = form.make(form.options(**options), given(table, rule))
    block = RecordBlock(
        SourceFile("table", "c0ffee"), 0, [_with_spaces(rule, record(table, rule))], [1]
    )
    finish = FinishPolicy(policy(rule), rule.get("geoip", False), JOB)
    if isinstance(converter, NativeConverter):
        events = FinishedBlock(EventFinisher(finish))
        converter.convert_block(block, events)
        for _, why, _, _ in events.refused:
            raise why
        return RecordOutcome(events.data, False)
    assert isinstance(converter, RecordConverter)
    made = converter.convert(block, 0)
    return RecordOutcome(EventFinisher(finish).finish(made)[0], bool(made) and made[-1].keyed)


def _with_spaces(rule: Rule, text: bytes) -> bytes:
    """Where a rule shows that nested values keep their bytes, the record has a space that a writer
    of its own wouldn't write.
    """
    wanted = str(rule.get("keeps", "")).encode()
    return text.replace(wanted.replace(b": ", b":"), wanted) if b": " in wanted else text


def expected(table: Table, rule: Rule) -> dict[str, Any]:
    """The record's own event."""
    usual = table["usual"]
    whole = {name: rule.get(name, usual[name]) for name in MEMBERS}
    said = rule if {"uuid", "uuid_of"} & rule.keys() else usual
    if "uuid" in said:
        whole["uuid"] = said["uuid"]
    elif "uuid_of" in said:
        whole["uuid"] = str(uuid5(NAMESPACE, said["uuid_of"]))
    remaining = {
        name: value
        for name, value in usual["properties"].items()
        if name not in rule.get("gone", ())
    }
    properties = {**remaining, **rule.get("properties", {}), **EVERY_EVENT}
    return {**whole, "properties": rule.get("everything", properties)}


def _check(table: Table, rule: Rule) -> None:
    bodies, keyed = outcome(table, rule)
    events = [json.loads(body) for body in bodies]
    own = expected(table, rule)
    if own.get("uuid", "*") == "*":  # of persons: it follows from the whole record
        own["uuid"] = events[-1]["uuid"]
    brought = rule.get("before", [])
    if rule.get("becomes") != "nothing":
        assert events.pop() == own
    shown = [
        {"event": event["event"], "properties": {**event["properties"], **EVERY_EVENT}}
        for event in brought
    ]
    assert [
        {"event": event["event"], "properties": event["properties"]} for event in events
    ] == shown
    assert all(
        (event["distinct_id"], event["timestamp"]) == (own["distinct_id"], own["timestamp"])
        for event in events
    )
    assert len({event["uuid"] for event in events} - {own["uuid"]}) == len(events)
    if "keyed" in rule:
        assert keyed == rule["keyed"]
    if "keeps" in rule:
        assert rule["keeps"].encode() in bodies[-1]


@cases(("table", "rule"), rows(refused=False))
def test_what_a_record_becomes(table: Table, rule: Rule) -> None:
    """The events of the record, with all that is in them, are those of the table."""
    _check(table, rule)


@cases(("table", "rule"), rows(refused=True))
def test_why_a_record_is_refused(table: Table, rule: Rule) -> None:
    """It is a dead letter for the reason that the table says, in words."""
    with pytest.raises(RecordRefused) as refused:
        outcome(table, rule)
    assert (str(refused.value.why), bool(refused.value.detail)) == (rule["refused"], True)


@cases("name", WITH_TABLE)
def test_the_usual_record_becomes_the_usual_event(name: str) -> None:
    """What all rows are compared with holds itself; and each format has a table."""
    _check(TABLES[name], {"rule": "usual"})


def test_tables_are_written_as_they_are_read() -> None:
    """No word in a row is passed over, each row changes or says something,
    and no rule is there twice.
    """
    assert set(TABLES) == set(WITH_TABLE)
    for name, table in TABLES.items():
        titles = [rule["rule"] for rule in table["rules"]]
        assert table["format"] == name
        assert len(set(titles)) == len(titles)
        for rule in table["rules"]:
            assert not rule.keys() - KNOWN, rule
            assert len(rule) > 1, rule


def words(table: Table) -> Iterator[str]:
    """Every name of a member, and every text, in the table's records and events."""
    waiting: list[Any] = [table["usual"], table["rules"]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            yield from map(str, value)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            yield value
            yield from (part for part in value.split('"') if part.startswith("$"))


@cases(
    ("name", "needed"),
    [
        (
            "amplitude",
            {*amplitude.DROPPED_EVENTS, *amplitude.EVENT_NAMES, *amplitude.EVENT_NAMES.values()},
        ),
        (
            "amplitude",
            {
                *amplitude.PAGE,
                *amplitude.PAGE.values(),
                *amplitude.RENAMED,
                *amplitude.RENAMED.values(),
                *amplitude.COPIED,
                *amplitude.COPIED.values(),
                *("$browser", "$browser_version", "$os", "$os_version", "$device_type"),
                *("$session_id", "$amplitude_user_id", "$amplitude_device_id"),
                *("$set", "$setOnce", "$unset", "$set_once", "$group_unset", amplitude.OPERATIONS),
            },
        ),
        (
            "amplitude",
            {*amplitude.KEPT.values(), "event_time", "client_event_time", "server_received_time"},
        ),
        (
            "mixpanel",
            {
                *mixpanel.EVENT_NAMES,
                *mixpanel.EVENT_NAMES.values(),
                *mixpanel.RENAMED,
                *mixpanel.RENAMED.values(),
            },
        ),
        (
            "mixpanel",
            {
                *mixpanel.DROPPED,
                "token",
                "$distinct_id_before_identity",
                "$identify",
                "$create_alias",
                "$merge",
            },
        ),
        (
            "segment",
            {
                *segment.CALLS,
                *segment.SURROUNDINGS,
                "timestamp",
                "originalTimestamp",
                "$group_set",
                "alias",
                "$anon_distinct_id",
            },
        ),
    ],
)
def test_nothing_that_a_format_knows_is_missing(name: str, needed: set[str]) -> None:
    """Every name that a format renames, drops or keeps stands in a rule: a new one has to be
    written down.
    """
    assert needed - set(words(TABLES[name])) == set()


@cases("name", WITH_TABLE)
def test_every_kind_of_refusal_is_there(name: str) -> None:
    """No id, no time, no record: each format has a rule for each. A mapping's
    missing name is its rules' to say.
    """
    reasons = {rule.get("refused") for rule in TABLES[name]["rules"]}
    missing_event = {
        "mapping": Reason.UNMAPPABLE,
        "mixpanel-profiles": Reason.INVALID_EVENT,
    }.get(name, Reason.MISSING_EVENT)
    assert {
        Reason.MISSING_DISTINCT_ID,
        Reason.MISSING_TIMESTAMP,
        Reason.UNDECODABLE,
        missing_event,
    } - reasons == set()
