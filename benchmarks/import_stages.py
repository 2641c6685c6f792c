"""What an import does with each event, in one process and without a network: read, convert,
filter, look for repeats, finish, cut into chunks by days, and count in the ledger. Beside it the
floor of its format.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.bare_loops import JOB, bare_loop
from benchmarks.exports import Export
from forwarder.core.event import Lane
from forwarder.mapping import Mapping, MappingRules, TimestampRule
from forwarder.sources.files.source import open_source
from forwarder.sources.imports.blocks import ChunkLimits, source_blocks
from forwarder.sources.imports.checkpoint import ImportCheckpoint, ImportJob
from forwarder.sources.imports.conversion import Conversion, EventFilters, FinishPolicy
from forwarder.sources.imports.format import ChosenMapping, Converter, FormatContext
from forwarder.sources.imports.formats.catalog import BY_NAME
from forwarder.sources.imports.formats.csv import CsvOptions
from forwarder.sources.imports.repeats import Repeats
from forwarder.sources.imports.source import ImportLedger

MAX_EVENT: Final = 1_000_000
LIMITS: Final = ChunkLimits.of_batches(max_bytes=5_000_000, max_events=5_000)
LANE: Final = Lane("phc_benchmark_of_imports", historical=True)
UNTIL: Final = 4_102_444_800_000_000
"""The year 2100, in microseconds: there is always a limit, 48 h ago if nobody says otherwise."""
FINISH: Final = FinishPolicy("oldest", geoip=False, job_id=JOB)

_RULES: Final = MappingRules(
    event=".what",
    distinct_id=".who.id",
    timestamp=TimestampRule(".when", "iso", "UTC"),
    uuid=".id",
    set={"plan": ".who.plan"},
    properties={name: f".{name}" for name in ("page", "basket", "city", "owner")},
)
_OPTIONS: Final[dict[Export, Any]] = {
    Export.CSV: CsvOptions(
        json=frozenset({"basket"}), numbers=frozenset({"amount"}), booleans=frozenset({"paid"})
    ),
}


def import_once(export: Export, path: Path) -> int:
    """Import a file into nothing; how many events arrived in the books."""
    ledger = ImportLedger(ImportCheckpoint(ImportJob(JOB, export, str(path), {}), 0.0, 0.0, []))
    with (
        tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder,
        Repeats(Path(folder)) as repeats,
    ):
        conversion = Conversion(
            converter_of(export), FINISH, MAX_EVENT, EventFilters(until=UNTIL), repeats
        )
        with open_source([str(path)]) as source:
            for block in source_blocks(source, conversion, {}, LIMITS):
                block.chunks(LANE, 0.0)
                ledger.add(block)
    return ledger.delivered


def converter_of(export: Export) -> Converter:
    """A format as it is measured."""
    described = BY_NAME[export]
    mapping = (
        ChosenMapping(_RULES, lambda: Mapping.compile(_RULES, "benchmark", "mapping"))
        if described.takes_mapping
        else None
    )
    return described.make(_OPTIONS.get(export, described.options()), FormatContext(mapping=mapping))


def bare_once(export: Export, path: Path) -> int:
    """Run the bare loop of a format over a file; how many events it made."""
    return bare_loop(export, path)[0]
