"""What a row of CSV becomes, column by column, and which rows are refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.core.ports import Reason
from forwarder.sources.files.record_blocks import ReadOptions, RecordBlock, SourceFile
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.conversion import EventFinisher, FinishedBlock, FinishPolicy
from forwarder.sources.imports.format import (
    ImportedEvent,
    RecordRefused,
    derived_uuid,
)
from forwarder.sources.imports.formats.csv import CsvConverter, CsvOptions
from tests.sources.imports.preflights import ahead
from tests.sources.imports.samples.csv import COLUMNS, OPTIONS, rows, sample, table
from tests.support.cases import cases

FILE = SourceFile("events.csv", "c0ffee")
UUID = "0190f7a2-93c5-7e01-8a55-2f4be0a6d001"
ROW: dict[str, Any] = {
    "event": "bought",
    "distinct_id": "u1",
    "timestamp": "2024-03-01T10:20:30.456789Z",
    "uuid": UUID,
}
WITHOUT_UUID = {name: cell for name, cell in ROW.items() if name != "uuid"}
MICROS = 1_709_288_430_456_789
NO_NUMBERS = ["1,5", "+1", ".5", "5.", "007", "0x1", "NaN", "Infinity", "1e999", "1 2", "\u0663"]
NO_JSON = ["x", "{", "[1,]", "NaN", '"\\ud800"', "1 2", "[" * 100_000, "\n{"]
TYPED = CsvOptions(json=frozenset({"j"}), numbers=frozenset({"n"}), booleans=frozenset({"b"}))


def one(
    row: dict[str, Any] | bytes,
    options: CsvOptions | None = None,
    first: int = 0,
    offset_minutes: int = 0,
) -> ImportedEvent:
    """The event of a row."""
    data = row if isinstance(row, bytes) else json.dumps(row).encode()
    (event,) = CsvConverter(options, ahead(offset_minutes)).convert(
        RecordBlock(FILE, first, [data], [first + 2]), 0
    )
    return event


def written(event: ImportedEvent) -> str:
    """An event's properties as JSON."""
    return msgspec.json.encode(event.properties).decode()


def refusal(row: dict[str, Any] | bytes) -> RecordRefused:
    """Why a row is refused."""
    with pytest.raises(RecordRefused) as refused:
        one(row, TYPED)
    return refused.value


def outcome(converter: CsvConverter, block: RecordBlock, index: int) -> ImportedEvent | Reason:
    """The event of a row, or why it is refused."""
    try:
        (event,) = converter.convert(block, index)
    except RecordRefused as refused:
        return refused.why
    return event


GOLDEN = [
    ("no other columns", {}, "{}"),
    (
        "text",
        {"plan": "pro", "zip": "007", "flag": "true"},
        '{"plan":"pro","zip":"007","flag":"true"}',
    ),
    ("empty cells", {"plan": "", "n": "", "b": "", "j": "", "properties": "", "none": None}, "{}"),
    ("white space is a text", {"plan": " "}, '{"plan":" "}'),
    ("white space is no value", {"n": " ", "b": "\t", "j": "\n", "properties": " "}, "{}"),
    ("odd names", {"": "x", "$ip": "::1", "a.b": "c"}, '{"":"x","$ip":"::1","a.b":"c"}'),
    ("number", {"n": "12"}, '{"n":12}'),
    ("number with its zeros", {"n": " 1.50"}, '{"n":1.50}'),
    (
        "number of many digits",
        {"n": "-123456789012345678901234567890"},
        '{"n":-123456789012345678901234567890}',
    ),
    ("number with a power", {"n": "1e3"}, '{"n":1e3}'),
    ("yes", {"b": "Yes"}, '{"b":true}'),
    ("no", {"b": "0"}, '{"b":false}'),
    ("JSON text", {"j": '"x"'}, '{"j":"x"}'),
    ("JSON null", {"j": "null"}, '{"j":null}'),
    ("JSON list", {"j": ' [1, 2.50, {"a": "\\u00e9"}] '}, '{"j":[1, 2.50, {"a": "\\u00e9"}]}'),
    ("JSON of several lines", {"j": '{\r\n "a":\n 1.50}'}, '{"j":{"a":1.50}}'),
    ("properties", {"properties": '{"a": 1.50, "b": {"c": []}}'}, '{"a":1.50,"b":{"c": []}}'),
    ("properties of several lines", {"properties": '{\n"a": [1,\n2]}'}, '{"a":[1,2]}'),
    ("properties of null", {"properties": "null"}, "{}"),
    (
        "a column wins over properties",
        {"plan": "pro", "properties": '{"plan":"free","x":1}'},
        '{"plan":"pro","x":1}',
    ),
    ("an empty cell doesn't", {"plan": "", "properties": '{"plan":"free"}'}, '{"plan":"free"}'),
]


@cases(("cells", "properties"), [pytest.param(*row[1:], id=row[0]) for row in GOLDEN])
def test_cells(cells: dict[str, Any], properties: str) -> None:
    """Each column becomes the property that its kind says, as it was written."""
    made = one({**ROW, **cells}, TYPED)
    assert written(made) == properties
    assert (made.event, made.distinct_id, made.time, made.uuid) == ("bought", "u1", MICROS, UUID)


def test_columns_can_have_other_names() -> None:
    """The options say what the columns are called; the usual names are properties then."""
    options = CsvOptions(
        event="name", distinct_id="user", timestamp="at", uuid="row", properties="more"
    )
    row = {
        "name": "bought",
        "user": "u1",
        "at": "1709288430",
        "row": UUID.upper(),
        "more": '{"a":1}',
        "event": "e",
        "uuid": "u",
        "properties": "p",
    }
    made = one(row, options)
    assert (made.event, made.distinct_id, made.time, made.uuid) == (
        "bought",
        "u1",
        1_709_288_430_000_000,
        UUID,
    )
    assert json.loads(written(made)) == {"a": 1, "event": "e", "uuid": "u", "properties": "p"}


def test_a_column_is_one_thing() -> None:
    """Options that give a column two meanings are an error, which names it."""
    for wrong in (
        {"event": "uuid"},
        {"json": frozenset({"x"}), "numbers": frozenset({"x"})},
        {"booleans": frozenset({"timestamp"})},
    ):
        with pytest.raises(ValueError, match=r"two things: (uuid|x|timestamp)$"):
            CsvOptions(**wrong)


def test_times_without_a_zone_are_of_the_clock_that_was_said() -> None:
    """They are UTC unless the options say how far ahead that clock is."""
    row = {**ROW, "timestamp": "2024-03-01 10:20:30.456789"}
    assert one(row).time == MICROS
    assert one(row, offset_minutes=-60).time == MICROS + 3_600_000_000


@cases("cell", [UUID, UUID.upper(), UUID.replace("-", ""), f" {UUID} "])
def test_a_row_keeps_its_uuid(cell: str) -> None:
    """A UUID is kept in its own spelling, but for capitals."""
    assert one({**ROW, "uuid": cell}).uuid == cell.strip().lower()


def test_another_id_of_a_row_makes_its_uuid() -> None:
    """What isn't a UUID still tells rows apart, together with event, time and id,
    wherever the row stands.
    """
    key = f'["csv","bought",{MICROS},"u1","17"]'
    made = one({**ROW, "uuid": "17"}, first=4)
    assert (made.keyed, made.uuid) == (False, derived_uuid(key))
    assert one({**ROW, "uuid": "17"}).uuid == made.uuid
    others = [
        {"uuid": "18"},
        {"event": "sold"},
        {"distinct_id": "u2"},
        {"timestamp": "2024-03-01T10:20:30.456788Z"},
    ]
    assert made.uuid not in {one({**ROW, "uuid": "17", **other}).uuid for other in others}


@cases("row", [{**ROW, "uuid": ""}, {**ROW, "uuid": " "}, {**ROW, "uuid": None}, WITHOUT_UUID])
def test_the_place_makes_the_uuid_of_other_rows(row: dict[str, Any]) -> None:
    """Without an id two rows that say the same are two events, distinguished by
    the file and their number.
    """
    made = one(row, first=4)
    assert (made.keyed, made.uuid) == (False, derived_uuid('["csv","c0ffee",4]'))
    assert one(row, first=5).uuid != made.uuid


def test_repeats_have_all_that_makes_one() -> None:
    """A row that comes again is recognised, however its time and its uuid are spelled."""
    again = {
        **ROW,
        "timestamp": "2024-03-01T11:20:30.456789+01:00",
        "uuid": UUID.upper(),
        "note": "again",
    }
    first = one(ROW)
    second = one(again)
    assert (first.uuid, first.event, first.time, first.distinct_id) == (
        second.uuid,
        second.event,
        second.time,
        second.distinct_id,
    )


def test_a_row_of_another_length_is_named_as_such() -> None:
    """Anyone who has a table knows nothing of JSON."""
    assert "more or fewer cells than the header" in refusal(b"bought,u1").detail


@cases(
    ("row", "why"),
    [
        (b'"bought","u1"', Reason.UNDECODABLE),
        (b'["bought"]', Reason.UNDECODABLE),
        (b'{"event":"\xff"}', Reason.UNDECODABLE),
        ({**ROW, "n": 5}, Reason.INVALID_EVENT),
        ({**ROW, "event": " "}, Reason.MISSING_EVENT),
        ({"distinct_id": "u1"}, Reason.MISSING_EVENT),
        ({**ROW, "distinct_id": ""}, Reason.MISSING_DISTINCT_ID),
        ({**ROW, "distinct_id": None}, Reason.MISSING_DISTINCT_ID),
        ({**ROW, "timestamp": ""}, Reason.MISSING_TIMESTAMP),
        ({**ROW, "timestamp": "soon"}, Reason.MISSING_TIMESTAMP),
        *(({**ROW, "n": cell}, Reason.INVALID_EVENT) for cell in NO_NUMBERS),
        *(({**ROW, "b": cell}, Reason.INVALID_EVENT) for cell in ("2", "maybe", "truee")),
        *(({**ROW, "j": cell}, Reason.INVALID_EVENT) for cell in NO_JSON),
        *(
            ({**ROW, "properties": cell}, Reason.INVALID_EVENT)
            for cell in ("[1]", "5", "{", '{"a":}', '{"a":' * 100_000)
        ),
    ],
)
def test_refused_rows(row: dict[str, Any] | bytes, why: Reason) -> None:
    """What can't be read for sure is refused, in few words that name the column."""
    refused = refusal(row)
    assert refused.why == why
    assert 0 < len(refused.detail) < 300


def test_the_sample_becomes_what_it_says() -> None:
    """Each of its rows becomes an event with the values of its cells, or is refused for the reason
    for which it was made.
    """
    made = rows(2_400, 1)
    block = RecordBlock(FILE, 0, [record for record, _ in sample()], range(2, 2_402))
    converter = CsvConverter(OPTIONS)
    for index, (row, expected) in enumerate(made):
        event = outcome(converter, block, index)
        if not isinstance(event, ImportedEvent):
            assert event == expected, row
            continue
        assert expected is None, row
        properties = json.loads(written(event))
        assert (event.event, event.distinct_id) == (row["event"], row["distinct_id"])
        assert {name: properties.get(name, "") for name in ("plan", "note")} == {
            name: row[name] for name in ("plan", "note")
        }
        assert properties.get("amount") == (json.loads(row["amount"]) if row["amount"] else None)
        assert properties.get("cart") == (json.loads(row["cart"]) if row["cart"] else None)


def test_the_file_of_the_sample_holds_its_rows() -> None:
    """What a CSV reader makes of the file are the sample's rows."""
    assert list(csv.DictReader(io.StringIO(table(300)))) == [row for row, _ in rows(300, 1)]
    assert len(COLUMNS) == len(rows(1, 1)[0][0])


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*ROW, "n", "b", "j", "properties", "x"]), st.none() | st.text(max_size=8)
    )
)
def test_any_row_becomes_an_event_or_is_refused(cells: dict[str, Any]) -> None:
    """Whatever stands in the cells, nothing but `RecordRefused` comes of it, and an event is
    complete, on one line.
    """
    try:
        event = one({**ROW, **cells}, TYPED)
    except RecordRefused:
        return
    assert event.event
    assert event.distinct_id.strip()
    assert json.loads(written(event)).keys() <= {*cells}
    assert "\n" not in written(event)


SIMPLE = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
VALUES = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_json_cells_come_out_as_they_went_in(value: Any) -> None:
    """A JSON cell has its value whether it is written on one line or on many."""
    for cell in (json.dumps(value), json.dumps(value, indent=1, ensure_ascii=False)):
        assert json.loads(written(one({**ROW, "j": cell}, TYPED))) == {"j": value}


CELLS = st.text(st.sampled_from('aé日"\\,\n\t 1.[]{}\u2028'), max_size=6) | st.sampled_from(
    ["", "1.50", "true", "[1]", UUID, "x" * 300]
)
TIMES = st.sampled_from([ROW["timestamp"], "2024-03-01", "1709288430", "yesterday"])
TABLE = st.lists(
    st.tuples(
        st.sampled_from(["bought", "é", " "]),
        st.sampled_from(["u1", "null", "日"]),
        TIMES,
        CELLS,
        CELLS,
        CELLS,
        CELLS,
    )
)
NAMES = ("event", "distinct_id", "timestamp", "uuid", "j", "n", "b")


@settings(deadline=None, max_examples=60)
@given(TABLE, st.sampled_from([1 << 18, 300]))
def test_rows_of_a_file_become_what_their_json_becomes(
    cells: list[tuple[str, ...]], block_bytes: int
) -> None:
    """Rows go to the format as such, and to dead letters and digests as JSON: both say the same,
    however the file is cut into blocks.
    """
    text = io.StringIO()
    csv.writer(text).writerows([NAMES, *cells])
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "table.csv").write_text(
            text.getvalue(), newline="", encoding="utf-8"
        )
        with open_source([str(path)], ReadOptions(block_bytes=block_bytes)) as source:
            blocks = [block for file in source.files() for block in source.blocks(file)]
    for block in blocks:
        plain = RecordBlock(block.file, block.first, [*block.records], block.lines)
        finished, expected = (
            FinishedBlock(EventFinisher(FinishPolicy("oldest", geoip=False, job_id="j")))
            for _ in range(2)
        )
        CsvConverter(TYPED).convert_block(block, finished)
        CsvConverter(TYPED).convert_block(plain, expected)
        assert (finished.records, finished.data, finished.uuids, finished.times) == (
            expected.records,
            expected.data,
            expected.uuids,
            expected.times,
        )
        assert [(at, str(why)) for at, why, *_ in finished.refused] == [
            (at, str(why)) for at, why, *_ in expected.refused
        ]
    assert [json.loads(record) for block in blocks for record in block.records] == [
        dict(zip(NAMES, row, strict=True)) for row in cells
    ]
