"""What exports of the service hold of an import: files of events, one object a row, as its batch exports write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from forwarder.core.errors import ConfigurationError
from forwarder.sources.files import ReadOptions, RecordReader, open_source
from forwarder.sources.imports.verification import InvalidRow, StoredDays, add_stored, decode_rows

_HINT = (
    "What is needed of each row are `uuid`, `timestamp` (ISO 8601) and `properties` (an object, or one as text), as the service's batch "
    "exports of events have them: JSON lines, or Parquet; compressed or not."
)


def hold_exports(paths: Sequence[str], job: str | None, options: ReadOptions, folder: Path, told: Callable[[int], None]) -> StoredDays:
    """What these files hold of a job, or with None of anything; `folder` is for what memory has no room for.

    `told` hears how many events of it were found, now and then. Raises `ConfigurationError` and `BrokenSource`: what can't be read to its
    end proves nothing.
    """
    with StoredDays(folder) as holding, open_source(paths, options) as source:
        for file in source.files():
            with source.blocks(file) as blocks:
                _hold_file(blocks, job, holding, told)
    return holding


def _hold_file(blocks: RecordReader, job: str | None, holding: StoredDays, told: Callable[[int], None]) -> None:
    for block in blocks:
        try:
            told(add_stored(decode_rows(block.records, block.lines), job, holding))
        except InvalidRow as error:
            raise ConfigurationError(f"{blocks.name}:{error.line} is no event of an export: {error.why}", hint=_HINT) from error
