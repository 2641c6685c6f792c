"""Exports of some hundred records each, as files that someone would import; and what must be
refused of them. Mixpanel's are imported by `test_vendor_models.py`.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.sources.imports.samples import amplitude, mapped, native, segment
from tests.sources.imports.samples import csv as tables

COUNT: Final = 600
"""Records of an export, odd ones aside: each kind of an ordinary one a few times."""
RULES: Final = {
    "event": '"order " + .state',
    "where": '.kind == "order"',
    "distinct_id": ".customer.id",
    "timestamp": {"from": ".placed", "format": "iso", "zone": "Europe/Berlin"},
    "uuid": ".number",
    "set": {"tier": ".customer.tier"},
    "properties": {"total": ".total", "items": ".items", "city": ".city"},
    "drop": [".customer.email"],
}
"""Those of `samples.mapped`, as they are written."""
FLAT_RULES: Final = {
    "event": ".state",
    "distinct_id": ".customer",
    "timestamp": {"from": ".placed", "format": "iso", "zone": "Europe/Berlin"},
    "uuid": ".number",
    "set": {"tier": ".tier"},
    "properties": {"total": ".total", "city": ".city"},
}
"""The same for rows of a table."""
_FLAT: Final = ("state", "customer", "placed", "number", "tier", "total", "city")


@dataclass(frozen=True, slots=True)
class VendorExport:
    """Files of an export, and how they are imported."""

    form: str
    paths: Sequence[Path]
    options: Sequence[str] = ()
    refused: dict[str, int] = field(default_factory=dict)
    """By reason."""


def native_lines(folder: Path) -> VendorExport:
    """Lines of events, of several, and bodies of batches."""
    lines, refused = native.sample(COUNT)
    return VendorExport(
        "native", [_lines(folder / "events.jsonl", lines)], ("--time-offset", "0"), Counter(refused)
    )


def amplitude_download(folder: Path) -> VendorExport:
    """The ZIP that Amplitude gives, of one gzip file an hour."""
    path = folder / "export.zip"
    path.write_bytes(amplitude.archive(COUNT))
    return VendorExport("amplitude", [path], refused=_reasons(amplitude.sample(COUNT)))


def segment_logs(folder: Path) -> VendorExport:
    """Files below a folder for each day, as they are in a bucket."""
    calls = segment.sample(COUNT)
    third = len(calls) // 3
    for number, start in enumerate(range(0, len(calls), third)):
        path = folder / "segment-logs" / f"{1709164800000 + number * 86_400_000}" / "calls.1.gz"
        path.parent.mkdir(parents=True)
        path.write_bytes(
            gzip.compress(
                b"".join(call + b"\n" for call, _ in calls[start : start + third]), mtime=0
            )
        )
    return VendorExport("segment", [folder / "segment-logs"], refused=_reasons(calls))


def csv_table(folder: Path) -> VendorExport:
    """A table of a warehouse, with columns of all kinds."""
    path = folder / "events.csv"
    path.write_text(tables.table(COUNT), newline="")
    columns = ("--json-column", "cart", "--number-column", "amount", "--boolean-column", "paid")
    return VendorExport(
        "csv", [path], (*columns, "--time-offset", "0"), _reasons(tables.sample(COUNT))
    )


def mapped_lines(folder: Path) -> VendorExport:
    """An application's own records, by rules of its own."""
    records, _, refused = mapped.sample(COUNT)
    lines = _lines(folder / "orders.jsonl", records)
    return VendorExport("mapping", [lines], ("--mapping", _rules(folder, RULES)), Counter(refused))


def mapped_csv(folder: Path) -> VendorExport:
    """The same as a table with semicolons."""
    path = folder / "orders.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _FLAT, delimiter=";")
        writer.writeheader()
        writer.writerows(_rows())
    return VendorExport(
        "mapping", [path], ("--mapping", _rules(folder, FLAT_RULES), "--delimiter", ";"), _ODD_ROWS
    )


def mapped_parquet(folder: Path) -> VendorExport:
    """The same as a data frame's file."""
    import pyarrow as pa  # noqa: PLC0415 - large, and needed here alone
    from pyarrow import parquet  # noqa: PLC0415

    path = folder / "orders.parquet"
    rows = _rows()
    table = pa.table({name: [row[name] for row in rows] for name in _FLAT})
    parquet.write_table(table, path, row_group_size=COUNT // 4)
    return VendorExport("mapping", [path], ("--mapping", _rules(folder, FLAT_RULES)), _ODD_ROWS)


EXPORTS: Final[Sequence[Callable[[Path], VendorExport]]] = (
    native_lines,
    amplitude_download,
    segment_logs,
    csv_table,
    mapped_lines,
    mapped_csv,
    mapped_parquet,
)

_ODD: Final = (
    ({"customer": ""}, "missing_distinct_id"),
    ({"customer": " "}, "missing_distinct_id"),
    ({"placed": "yesterday"}, "unmappable"),
)
_ODD_ROWS: Final = Counter(why for _, why in _ODD)


def _rows() -> list[dict[str, Any]]:
    """Orders as flat rows, some of them odd."""
    rows = []
    for number, record in enumerate(mapped.ordinary_records(COUNT, 1)):
        customer = record["customer"]
        row = {name: record.get(name) for name in _FLAT} | {
            "customer": str(customer["id"]),
            "tier": customer["tier"],
        }
        if number % 200 == 199:
            row |= _ODD[number // 200][0]
        rows.append(row)
    return rows


def _lines(path: Path, records: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(record + b"\n" for record in records))
    return path


def _rules(folder: Path, rules: dict[str, Any]) -> str:
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(rules))
    return str(path)


def _reasons(records: Iterable[tuple[bytes, Any]]) -> dict[str, int]:
    return Counter(str(why) for _, why in records if why is not None)
