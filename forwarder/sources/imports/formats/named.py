"""Formats that are mappings by name: each is a file of `config/mappings`, and nothing else.

A file begins with comments: what it is for, and an example of its use. `cases` are rules of a
mapping (`forwarder help mapping`): a record meets the first case whose `where` holds. `table` says
how its tables are read, if it has some, and `recognize` which fields its records have.

The command line knows the comments; the rest is read when a format is used, because loading YAML
takes longer than showing help.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import help_on, shipped
from forwarder.sources.files.record_blocks import Framing
from forwarder.sources.imports.format import OF_JSON, ImportFormat, NoOptions
from forwarder.sources.imports.formats import mapped
from forwarder.sources.imports.formats.cells import TableCells

FOLDER: Final = shipped("config") / "mappings"
_EXAMPLE: Final = "# Example: "
_CASES: Final = re.compile(r"^cases:", re.MULTILINE)
_TABLE: Final = re.compile(r"^table:", re.MULTILINE)
_HEADER: Final = re.compile(r"^  header:", re.MULTILINE)


class TableDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """How tables are read."""

    delimiter: str | None = None
    quote: str | None = None
    header: list[str] | None = None
    numbers: list[str] = field(default_factory=list)
    booleans: list[str] = field(default_factory=list)
    json: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    """Of tables: a row gets a member `$table`, an object in which the one that its file's name
    has is true.
    """

    @property
    def reading(self) -> dict[str, Any]:
        """How files are read: of `ReadOptions`."""
        given = {"delimiter": self.delimiter, "quote": self.quote}
        options: dict[str, Any] = {name: text for name, text in given.items() if text is not None}
        return options if self.header is None else {**options, "header": tuple(self.header)}

    @property
    def cells(self) -> TableCells:
        """What the cells stand for."""
        return TableCells(
            frozenset(self.numbers),
            frozenset(self.booleans),
            frozenset(self.json),
            tuple(self.names),
        )


class MappingDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of rules in cases."""

    cases: list[dict[str, Any]]
    """The settings of a mapping each."""
    table: TableDocument | None = None
    recognize: list[str] = field(default_factory=list)


def has_cases(file: Path) -> bool:
    """Whether a file holds cases, and not the rules of one mapping alone."""
    try:
        return _CASES.search(read_file(file).decode("utf-8-sig")) is not None
    except (OSError, ValueError):  # whoever reads it says why it can't be read
        return False


@lru_cache(maxsize=8)
def read_mapping(file: Path) -> MappingDocument:
    """The file of a mapping in cases. Raises `ConfigurationError`."""
    import yaml  # noqa: PLC0415 - see above

    try:
        document = yaml.safe_load(read_file(file).decode("utf-8-sig"))
        return msgspec.convert(document, MappingDocument)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{file} can't be used as a mapping: {error_text(error)}",
            hint=f"{help_on('mapping')} describes its cases.",
        ) from error


def _reading(file: Path) -> Mapping[str, Any]:
    table = read_mapping(file).table
    return {} if table is None else table.reading


def _recognizes(file: Path, record: Mapping[str, Raw]) -> bool:
    wanted = read_mapping(file).recognize
    return bool(wanted) and all(name in record for name in wanted)


def _framings(text: str) -> tuple[Framing, ...]:
    if _HEADER.search(text):
        return (Framing.CSV,)
    return tuple(Framing) if _TABLE.search(text) else OF_JSON


def _format_of(file: Path) -> ImportFormat[NoOptions]:
    text = file.read_text("utf-8")
    summary, example = text.splitlines()[:2]
    return ImportFormat(
        name=file.stem,
        summary=summary.removeprefix("# "),
        example=example.removeprefix(_EXAMPLE),
        options=NoOptions,
        make=mapped.make,
        times=mapped.times,
        zone_said=mapped.zone_said,
        looks_like=summary.removeprefix("# ").partition(":")[0],
        recognizes=partial(_recognizes, file),
        framings=_framings(text),
        takes_zone=False,
        mapping_file=file,
        reading=partial(_reading, file),
    )


NAMED: Final[Sequence[ImportFormat[NoOptions]]] = tuple(
    map(_format_of, sorted(FOLDER.glob("*.yaml")))
)
