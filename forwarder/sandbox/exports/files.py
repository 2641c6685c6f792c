"""The content of an export's files: records as JSON lines or Parquet, compressed or not.

A JSON line has the columns in their order, JSON columns as the values that they hold. Parquet has
typed columns, JSON as text; its codec is inside the file, as its readers expect, so its name says
nothing of it. The same records give the same bytes.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from json.encoder import encode_basestring
from typing import Any, Final

import zstandard

from forwarder.core.installation import install_extra
from forwarder.sandbox.exports.export_records import ColumnKind, ExportRecord
from forwarder.sandbox.exports.jobs import ExportMisconfigured

FORMATS: Final[Mapping[str, str]] = {"jsonlines": "jsonl", "parquet": "parquet"}
"""By `file_format` in lower case: how names of files end."""
COMPRESSIONS: Final[Mapping[str, str]] = {"none": "", "gzip": ".gz", "zstd": ".zst"}
_CODECS: Final[Mapping[str, str]] = {"none": "NONE", "gzip": "GZIP", "zstd": "ZSTD"}
_GZIP_LEVEL: Final = 6
_GZIP_FORMAT: Final = 31
"""`wbits` of zlib for gzip with the largest window; its header is the same on every Python."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """A format with a compression."""

    file_format: str
    compression: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> FileForm:
        """What a destination's config says: JSON lines, not compressed, where it says nothing.
        Raises `ExportMisconfigured`.
        """
        form = cls(
            _choice(config, "file_format", "jsonlines", ("JSONLines", "Parquet")),
            _choice(config, "compression", "none", ("none", "gzip", "zstd")),
        )
        if form.file_format == "parquet":
            try:
                import pyarrow  # noqa: F401, PLC0415 - an optional dependency
            except ImportError:
                raise ExportMisconfigured(
                    f"Parquet can't be written without pyarrow. {install_extra('import')}"
                ) from None
        return form

    @property
    def suffix(self) -> str:
        """How the names of its files end."""
        outside = "" if self.file_format == "parquet" else COMPRESSIONS[self.compression]
        return f".{FORMATS[self.file_format]}{outside}"

    def encode(self, columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord]) -> bytes:
        """A file of these records."""
        if self.file_format == "parquet":
            return _parquet(columns, records, _CODECS[self.compression])
        content = b"".join([line + b"\n" for line in json_lines(columns, records)])
        if self.compression == "gzip":
            return zlib.compress(content, _GZIP_LEVEL, wbits=_GZIP_FORMAT)
        return (
            zstandard.ZstdCompressor().compress(content) if self.compression == "zstd" else content
        )


def json_lines(
    columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord], only: Sequence[str] = ()
) -> list[bytes]:
    """Each record as a JSON object on one line, with all columns or only the named ones."""
    writers = [
        (f"{encode_basestring(name)}:", place, kind)
        for place, (name, kind) in enumerate(columns.items())
        if not only or name in only
    ]
    return [f"{{{','.join(_members(writers, record.values))}}}".encode() for record in records]


def _members(writers: Sequence[tuple[str, int, ColumnKind]], values: Sequence[Any]) -> list[str]:
    members = list[str]()
    for name, place, kind in writers:
        value = values[place]
        if value is None:
            if kind is not ColumnKind.OPTIONAL_JSON:
                members.append(name + "null")
        elif kind is ColumnKind.TEXT:
            members.append(name + encode_basestring(value))
        elif kind is ColumnKind.TIME:
            members.append(f'{name}"{value}"')
        elif kind is ColumnKind.BOOLEAN:
            members.append(name + ("true" if value else "false"))
        else:
            members.append(name + str(value))
    return members


def _parquet(
    columns: Mapping[str, ColumnKind], records: Sequence[ExportRecord], codec: str
) -> bytes:
    # The dependency is optional; `FileForm.of` has checked that it is installed.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = {
        ColumnKind.TIME: pa.timestamp("us", tz="UTC"),
        ColumnKind.INTEGER: pa.int64(),
        ColumnKind.BOOLEAN: pa.bool_(),
    }
    schema = pa.schema([(name, types.get(kind, pa.string())) for name, kind in columns.items()])
    arrays = []
    for place, (field, kind) in enumerate(zip(schema, columns.values(), strict=True)):
        values = [record.values[place] for record in records]
        if kind is ColumnKind.TIME:
            values = [datetime.fromisoformat(value) for value in values]
        arrays.append(pa.array(values, field.type))
    written = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), written, compression=codec)
    return written.getvalue()


def _choice(config: Mapping[str, Any], name: str, default: str, choices: Sequence[str]) -> str:
    """The value of a setting, in lower case."""
    value = config.get(name)
    chosen = default
    if value not in (None, ""):
        chosen = value.strip().lower() if isinstance(value, str) else ""
    if chosen not in {choice.lower() for choice in choices}:
        raise ExportMisconfigured(
            f"{name} of the destination is {value!r}. Set it to one of: {', '.join(choices)}."
        )
    return chosen
