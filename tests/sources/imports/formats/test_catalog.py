"""The list of formats, and what the command line is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import shipped
from forwarder.core.ports import Reason
from forwarder.mapping import MappingRules, TimestampRule
from forwarder.sources.files.record_blocks import RecordBlock, SourceFile
from forwarder.sources.imports import formats
from forwarder.sources.imports.conversion import EventFinisher, FinishedBlock, FinishPolicy
from forwarder.sources.imports.format import (
    ChosenMapping,
    FormatContext,
    ImportedEvent,
    ImportFormat,
    RecordConverter,
)
from forwarder.sources.imports.formats.catalog import BY_NAME, FORMATS
from forwarder.sources.imports.formats.csv import CsvConverter
from forwarder.sources.imports.formats.named import FOLDER
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.times import when
from tests.sources.imports.preflights import ahead
from tests.sources.imports.samples import csv, mapped
from tests.support.cases import cases
from tests.support.documents import text_of

NEW_YEAR = 1_704_067_200_000_000
"""2024, in microseconds, UTC."""
RULES = ChosenMapping(mapped.RULES, mapped.mapping)
ROOT = Path(__file__).parents[4]
EVERY = [pytest.param(form, id=form.name) for form in FORMATS]


def given(**more: Any) -> FormatContext:
    """What is said of an import, and rules for formats that need some."""
    return FormatContext(mapping=RULES, **more)


def converted(
    name: str, record: bytes, options: Any = None, **more: Any
) -> Sequence[ImportedEvent]:
    """The events of one record by a format that was made as the command makes it."""
    form = BY_NAME[name]
    converter = form.make(options or form.options(), given(**more))
    assert isinstance(converter, RecordConverter)
    return converter.convert(RecordBlock(SourceFile("f", "5eed" * 16), 0, [record], range(1, 2)), 0)


def test_every_file_with_a_description_is_listed() -> None:
    """A format that is forgotten in the list can't be typed."""
    (folder,) = formats.__path__
    modules = [
        import_module(f"{formats.__name__}.{file.stem}") for file in Path(folder).glob("[a-z]*.py")
    ]
    described = [
        form.name
        for module in modules
        for form in vars(module).values()
        if isinstance(form, ImportFormat)
    ]
    by_file = [file.stem for file in FOLDER.glob("*.yaml")]
    assert sorted([*described, *by_file]) == sorted(BY_NAME)
    assert len(described) + len(by_file) == len(FORMATS)


def test_mappings_by_name_are_shipped_where_an_installation_looks_for_them() -> None:
    """A wheel has `config/` inside the package (setup.py)."""
    assert shipped("config") / "mappings" == FOLDER
    assert {"ga4", "segment-warehouse", "snowplow"} <= {file.stem for file in FOLDER.glob("*.yaml")}


def test_every_format_is_documented() -> None:
    """Each has a section, or stands in that of its vendor, in the document that says what becomes
    of its fields.
    """
    text = text_of("import-formats")
    assert [form.name for form in FORMATS if f"`{form.name}`" not in text] == []


@cases("form", EVERY)
def test_what_is_described_can_be_typed_and_read(form: ImportFormat[Any]) -> None:
    """Names and flags are words with hyphens, lines end as sentences do, and
    no two flags are the same.
    """
    said = list(form.said)
    assert all(
        re.fullmatch("[a-z]+[0-9]?(-[a-z]+)*", name)
        for name in (form.name, *(option.flag for option in said))
    )
    assert all(text.endswith(".") for text in (form.summary, *(option.help for option in said)))
    assert len({option.flag for option in said}) == len(said)
    assert form.framings


@cases("form", EVERY)
def test_nothing_needs_to_be_said_beside_rules(form: ImportFormat[Any]) -> None:
    """Every option has a default that makes a converter, and that changes no job's identity."""
    options = form.options()
    assert form.make(options, given()) is not form.make(options, given())
    assert [option.of(options) for option in form.said] == [None] * len(list(form.said))


@cases(
    ("name", "record"),
    [
        ("segment", b'{"type":"track","event":"e","userId":"u","timestamp":"2024-01-01T01:00:00"}'),
        ("csv", b'{"event":"e","distinct_id":"u","timestamp":"2024-01-01 01:00:00"}'),
        (
            "amplitude",
            b'{"event_type":"e","user_id":"u","event_time":"2024-01-01 01:00:00.000000"}',
        ),
        ("mixpanel", b'{"event":"e","properties":{"time":1704070800,"distinct_id":"u"}}'),
        ("posthog", b'{"event":"e","distinct_id":"u","timestamp":"2024-01-01 01:00:00.000"}'),
        (
            "mixpanel-profiles",
            b'{"$distinct_id":"u","$properties":{"$last_seen":"2024-01-01T01:00:00"}}',
        ),
    ],
)
def test_the_offset_moves_times_without_a_zone(name: str, record: bytes) -> None:
    """An hour ahead of UTC is an hour less in UTC."""
    assert [converted(name, record, zone=ahead(offset))[-1].time for offset in (60, 0)] == [
        NEW_YEAR,
        NEW_YEAR + 3_600_000_000,
    ]


def test_whether_a_zone_is_said() -> None:
    """By the vendor, by an offset, by a project's zone, or by rules; else no one knows."""
    assert {form.name for form in FORMATS if form.zone_said(form.options(), given())} == {
        "amplitude",
        "posthog",
    }
    given_zone = {
        form.name
        for form in FORMATS
        if form.takes_zone and form.zone_said(form.options(), given(zone=UTC))
    }
    by_rules = {form.name for form in FORMATS if form.mapping_file} | {"mapping"}
    assert given_zone == set(BY_NAME) - by_rules
    assert BY_NAME["mapping"].zone_said(
        None, FormatContext(mapping=ChosenMapping(mapped.RULES, mapped.mapping, zone_said=True))
    )


SUMMER: Final = [
    ("2024-07-01 12:00:00", "2024-07-01T10:00:00.000Z", "summer"),
    ("2024-01-01 12:00:00", "2024-01-01T11:00:00.000Z", "winter"),
    ("2024-03-31 01:59:59", "2024-03-31T00:59:59.000Z", "before clocks are put forward"),
    ("2024-03-31 02:30:00", "2024-03-31T01:30:00.000Z", "skipped: by the offset from before"),
    ("2024-03-31 03:00:00", "2024-03-31T01:00:00.000Z", "after it"),
    ("2024-10-27 01:59:59", "2024-10-26T23:59:59.000Z", "before clocks are put back"),
    ("2024-10-27 02:30:00", "2024-10-27T00:30:00.000Z", "comes twice: the first"),
    ("2024-10-27 03:00:00", "2024-10-27T02:00:00.000Z", "after it"),
    ("2024-07-01T12:00:00Z", "2024-07-01T12:00:00.000Z", "a zone of its own"),
    ("1900-01-01 00:00:00", "", "before 1970"),
]


@cases(("shown", "utc"), [case[:2] for case in SUMMER], ids=[case[2] for case in SUMMER])
@cases("name", ["native", "csv", "segment", "amplitude", "mixpanel", "mixpanel-profiles"])
def test_a_named_zone_knows_summer_time(name: str, shown: str, utc: str) -> None:
    """In every format that takes one, the hours that are skipped or come twice are read alike."""
    records: dict[str, dict[str, Any]] = {
        "native": {"event": "e", "distinct_id": "u1", "timestamp": shown},
        "csv": {"event": "e", "distinct_id": "u1", "timestamp": shown},
        "segment": {"type": "track", "event": "e", "userId": "u1", "timestamp": shown},
        "amplitude": {"event_type": "e", "user_id": "u1", "event_time": shown},
        "mixpanel": {"event": "e", "properties": {"distinct_id": "u1", "time": shown}},
        "mixpanel-profiles": {"$distinct_id": "u1", "$properties": {"$last_seen": shown}},
    }
    form = BY_NAME[name]
    sink = FinishedBlock(EventFinisher(FinishPolicy("oldest", geoip=False, job_id="j")))
    converter = form.make(form.options(), given(zone=ZoneInfo("Europe/Berlin")))
    converter.convert_block(
        RecordBlock(
            SourceFile("f", "5eed" * 16), 0, [json.dumps(records[name]).encode()], range(1, 2)
        ),
        sink,
    )
    if utc:
        assert [when(time) for time in sink.times] == [utc]
        sent = datetime.fromisoformat(json.loads(sink.data[0])["timestamp"])
        assert sent == datetime.fromisoformat(utc)
    else:
        assert not sink.data
        assert [why.why for _, why, *_ in sink.refused] == [Reason.MISSING_TIMESTAMP]


def test_where_times_are_looked_for_follows_what_was_said() -> None:
    """The column that was named; of rules the field that is a plain path."""
    table = BY_NAME["csv"]
    assert table.times(table.options(timestamp="at"), given()) == ["at"]
    assert table.times(table.options(timestamp="at,on"), given()) == ["at", "on"]
    for source, fields in (
        (".placed", ("placed",)),
        (".a.b", ("a.b",)),
        (".a.b.c", ()),
        (".at // .on", ("at", "on")),
        (".at // now", ()),
    ):
        rules = MappingRules(event=".e", timestamp=TimestampRule(source))
        assert (
            BY_NAME["mapping"].times(
                None, FormatContext(mapping=ChosenMapping(rules, mapped.mapping))
            )
            == fields
        )
    assert (
        BY_NAME["mapping"].times(
            None, FormatContext(mapping=ChosenMapping(MappingRules(event=".e"), mapped.mapping))
        )
        == ()
    )


def test_a_mapping_without_rules_says_where_they_belong() -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigurationError, match="has no rules") as raised:
        BY_NAME["mapping"].make(BY_NAME["mapping"].options(), FormatContext())
    assert "--mapping FILE" in raised.value.hint


def test_the_policy_reaches_the_format_that_depends_on_it() -> None:
    """Native decodes by it."""
    assert isinstance(
        BY_NAME["native"].make(BY_NAME["native"].options(), given(person_properties="history")),
        NativeConverter,
    )
    assert isinstance(BY_NAME["csv"].make(csv.OPTIONS, given()), CsvConverter)


def test_what_was_said_is_part_of_the_job() -> None:
    """As JSON values, sets in order."""
    table = BY_NAME["csv"]
    options = table.options(event="kind", numbers=frozenset({"b", "a"}))
    assert {
        option.flag: option.of(options) for option in table.said if option.of(options) is not None
    } == {
        "event-column": "kind",
        "number-column": ["a", "b"],
    }
