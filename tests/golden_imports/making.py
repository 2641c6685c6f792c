"""What exports are made of: chances that are the same on any machine, times out of order, files
and archives.
"""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

Record = dict[str, Any]

FIRST: Final = datetime(2024, 4, 30, 20, 0, 0, 250_125, tzinfo=UTC)
WRITTEN: Final = 1_730_000_000
"""When the files were last written, in seconds since 1970."""
HOURS: Final = 100
"""Over which the records of a source are spread."""
LATE: Final = (0, 0, 0, 0, 0, 0, 1, 7, 26, -26)
"""So many hours a record is older than its neighbours."""
TEXTS: Final = (
    "",
    "plain",
    'a "quoted", text',
    "Grüße — 日本",
    "\U0001f680\U0001f469\u200d\U0001f52c",
    "\u2028",
    "back\\slash {[",
    "tab\tand\u0001",
)
ONCE: Final = "only-once@example.com"
"""A person of whom there is one record, so that little waits for it."""
ONE: Final = 20
"""The number of the record."""
LARGE: Final = "x" * 1_050_000


class Dice:
    """Chances that depend on the seed alone: of `random.Random` only what Python
    promises to keep.
    """

    def __init__(self, seed: int) -> None:
        self._next = random.Random(seed).random

    def below(self, limit: int) -> int:
        """A number from 0 on."""
        return int(self._next() * limit)

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of them."""
        return choices[self.below(len(choices))]

    def chance(self, share: float) -> bool:
        """Whether it happens."""
        return self._next() < share

    def uuid(self) -> str:
        """A random one."""
        return str(
            UUID(
                int=self.below(1 << 50) << 78 | self.below(1 << 50) << 28 | self.below(1 << 28),
                version=4,
            )
        )


@dataclass(frozen=True, slots=True)
class GoldenExport:
    """Files of a source by their names, and the words of the command: format, paths and options."""

    files: dict[str, bytes]
    words: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Make the files."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (WRITTEN, WRITTEN))


def moments(dice: Dice, count: int) -> Iterable[datetime]:
    """Times of neighbouring records: mostly one after the other, now and then one of hours or a
    day before or after.
    """
    step = HOURS * 3_600_000_000 // count
    for number in range(count):
        exact = FIRST + timedelta(microseconds=number * step + dice.below(step))
        yield exact - timedelta(hours=dice.pick(LATE))


def zulu(time: datetime) -> str:
    """With milliseconds and a Z."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_json(record: object, *, ascii_only: bool = False) -> bytes:
    """A record as most programs write it."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=ascii_only).encode()


def spread(records: Sequence[bytes], odd: Sequence[bytes]) -> list[bytes]:
    """Records with odd ones among them, at even distances; of few records only as many odd ones as
    keep their distance.
    """
    result = list(records)
    step = max(12, len(records) // (len(odd) + 1))
    for place, other in enumerate(odd[: len(records) // step], start=1):
        result.insert(place * (step + 1) - 1, other)
    return result


def halves(records: Sequence[bytes], share: float = 0.5) -> tuple[bytes, bytes]:
    """Two files of them."""
    middle = int(len(records) * share)
    return lines(records[:middle]), lines(records[middle:])


def lines(records: Iterable[bytes]) -> bytes:
    """One record a line."""
    return b"".join(record + b"\n" for record in records)


def packed(content: bytes) -> bytes:
    """As a gzip file, the same with any version of zlib and of Python."""
    return zlib.compress(content, 0, wbits=31)


def archive(members: dict[str, bytes]) -> bytes:
    """As a ZIP file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, content in members.items():
            made.writestr(zipfile.ZipInfo(name, date_time=(2024, 1, 1, 0, 0, 0)), content)
    return out.getvalue()
