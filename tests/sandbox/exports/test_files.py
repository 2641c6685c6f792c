"""Formats and compressions: what is written is what is read, in the types of its columns."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forwarder.sandbox.exports.export_records import EVENT_COLUMNS, PERSON_COLUMNS, ExportRecord
from forwarder.sandbox.exports.files import FileForm
from forwarder.sandbox.exports.jobs import ExportMisconfigured
from tests.sandbox.shipped import read_part
from tests.support.cases import cases

TIME = "2026-01-01T00:00:00.000001Z"
PROPERTIES = '{"b": 1.0, "a": 12345678901234567890123}'
EVENTS = [
    ExportRecord(
        1,
        10,
        (
            "u-1",
            'say "é\\"',
            "d\n1",
            TIME,
            PROPERTIES,
            '{"n": 1}',
            None,
            None,
            "p-1",
            "{}",
            7,
            TIME,
        ),
        "{}",
    ),
    ExportRecord(
        2, 10, ("u-2", "seen", "d2", TIME, "{}", None, None, None, None, "{}", 7, TIME), "{}"
    ),
]
PERSONS = [ExportRecord(1, 10, (7, "d1", "p-1", PROPERTIES, 3, 3, TIME, True, False), "{}")]
FORMS = [
    (file_format, compression)
    for file_format in ("JSONLines", "Parquet")
    for compression in ("none", "gzip", "zstd")
]


def form(**config: Any) -> FileForm:
    """The form that a config says."""
    return FileForm.of(config)


@cases(("file_format", "compression"), FORMS)
def test_every_form_can_be_read(file_format: str, compression: str) -> None:
    """Events and persons; times are times and JSON is text in Parquet, as the values they are in
    JSON lines. Twice gives the same bytes.
    """
    made = form(file_format=file_format.upper(), compression=compression)
    events = made.encode(EVENT_COLUMNS, EVENTS)
    persons = made.encode(PERSON_COLUMNS, PERSONS)
    assert made.encode(EVENT_COLUMNS, EVENTS) == events
    first, second = read_part(f"x{made.suffix}", events)
    [person] = read_part(f"x{made.suffix}", persons)
    assert (first["uuid"], first["event"], first["distinct_id"], first["person_id"]) == (
        "u-1",
        'say "é\\"',
        "d\n1",
        "p-1",
    )
    assert (second["person_id"], second["team_id"]) == (None, 7)
    assert (person["is_identified"], person["is_deleted"], person["person_version"]) == (
        True,
        False,
        3,
    )
    if file_format == "Parquet":
        assert first["timestamp"] == first["created_at"] == datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
        assert (first["properties"], first["$set"], second["$set"]) == (
            PROPERTIES,
            '{"n": 1}',
            None,
        )
    else:
        assert (first["timestamp"], first["properties"], first["$set"]) == (
            TIME,
            json.loads(PROPERTIES),
            {"n": 1},
        )
        assert "$set" not in second


def test_json_lines_keep_the_text_of_properties() -> None:
    """One line a record, every digit as it was."""
    lines = form().encode(EVENT_COLUMNS, EVENTS).splitlines()
    assert [line.count(b'"properties":{') for line in lines] == [1, 1]
    assert PROPERTIES.encode() in lines[0]


def test_parquet_is_typed_and_compressed_inside() -> None:
    """As its readers expect: its name says nothing of the codec."""
    made = form(file_format="parquet", compression="ZSTD")
    file = pq.ParquetFile(io.BytesIO(made.encode(EVENT_COLUMNS, EVENTS)))
    types = {column.name: column.type for column in file.schema_arrow}
    assert types["timestamp"] == types["created_at"] == pa.timestamp("us", tz="UTC")
    assert (types["properties"], types["team_id"]) == (pa.string(), pa.int64())
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert made.suffix == ".parquet"


@cases(
    ("config", "suffix"),
    [
        ({}, ".jsonl"),
        ({"file_format": None, "compression": None}, ".jsonl"),
        ({"compression": "Gzip "}, ".jsonl.gz"),
        ({"compression": "zstd"}, ".jsonl.zst"),
    ],
)
def test_what_is_understood_without_being_said(config: dict[str, Any], suffix: str) -> None:
    """JSON lines, not compressed; words in any case."""
    assert FileForm.of(config).suffix == suffix


@cases(
    ("config", "message"),
    [
        (
            {"file_format": "CSV"},
            "file_format of the destination is 'CSV'. Set it to one of: JSONLines, Parquet",
        ),
        (
            {"compression": "brotli"},
            "compression of the destination is 'brotli'. Set it to one of: none, gzip, zstd",
        ),
        ({"compression": 9}, "compression of the destination is 9"),
        ({"file_format": ["Parquet"]}, "file_format"),
    ],
)
def test_an_unknown_form(config: dict[str, Any], message: str) -> None:
    """It is one of configuration, and says what there is."""
    with pytest.raises(ExportMisconfigured, match=message):
        FileForm.of(config)


def test_parquet_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says how to install it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExportMisconfigured, match=r"without pyarrow\. Install the extra import: "):
        form(file_format="Parquet")
