"""What the crash test of imports has to bring: every record, and what must arrive of it, follows
from a seed and the record's number.

The records are some 30 days of visits, a few records of one person in a row, roughly in the order
of time; and now and then a device that was offline hands in what it has of the day before. One
record in nine has no uuid.
"""

from __future__ import annotations

import gzip
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Final
from uuid import UUID

import zstandard

START: Final = datetime(2024, 5, 1, 6, tzinfo=UTC)
DAYS: Final = 30
VISIT: Final = 7
"""Records of one person in a row."""
UPLOADS: Final = 50
"""How often a device hands in what is a day old; so many records each time,
of a thousand: `UPLOAD`.
"""
UPLOAD: Final = 1
BARE: Final = 9
"""One record of so many has no uuid."""
_SPAN: Final = DAYS * 86_400_000
_LATE: Final = 86_400_000
_OUT_OF_ORDER: Final = 3
"""So many neighbours one record in 16 may be ahead of."""
_TEXT: Final = 1 << 22
_NAMES: Final = ("$pageview", "signed up", "order placed", "Warenkorb geöffnet", "登録完了")


@dataclass(frozen=True, slots=True)
class Expected:
    """What must arrive of a record."""

    event: str
    distinct_id: str
    timestamp: str
    uuid: str | None
    """None: one that follows from the source."""
    properties: bytes
    """The properties' members, which nobody may change."""


class EventPlan:
    """The records of an import, of some 600 bytes each."""

    def __init__(self, seed: int, count: int) -> None:
        self.seed = seed
        self.count = count
        self._chance = random.Random(seed)
        self._persons = max(10, count // 50)
        self._text = self._chance.randbytes(_TEXT // 2).hex()
        step = max(1, count // UPLOADS)
        self._uploads = {
            start: self._chance.randrange(step // 4) for start in range(step // 2, count, step)
        }
        self._step = step
        self._length = max(2, count * UPLOAD // 1000)
        self._jitter = [
            self._chance.randrange(_SPAN * _OUT_OF_ORDER // count) if place % 16 == 0 else 0
            for place in range(1009)
        ]

    def expected(self, number: int) -> Expected:
        """What must arrive of a record."""
        upload = self._upload(number)
        person = number // VISIT if upload is None else upload
        time = (
            _SPAN * number // self.count
            + self._jitter[number % 1009]
            - (0 if upload is None else _LATE)
        )
        return Expected(
            _NAMES[number % len(_NAMES)],
            f"person-{(person * 2_654_435_761 ^ self.seed) % self._persons}",
            (START + timedelta(milliseconds=time)).isoformat(timespec="milliseconds")[:-6] + "Z",
            None if number % BARE == 4 else str(UUID(int=(self.seed << 64) + number, version=4)),
            self._properties(number),
        )

    def record(self, number: int) -> bytes:
        """A record, as it stands in the file."""
        what = self.expected(number)
        head = (
            f'{{"event":"{what.event}","distinct_id":"{what.distinct_id}","timestamp":"'
            f'{what.timestamp}"'
        )
        uuid = "" if what.uuid is None else f',"uuid":"{what.uuid}"'
        return b'%b%b,"properties":{%b}}\n' % (head.encode(), uuid.encode(), what.properties)

    def records(self, numbers: range | None = None) -> Iterator[bytes]:
        """These, or all of them, in order."""
        return map(self.record, range(self.count) if numbers is None else numbers)

    def _upload(self, number: int) -> int | None:
        """The start of the upload that a record is part of, if it is."""
        start = number - (number + self._step - self._step // 2) % self._step
        begin = start + self._uploads.get(start, self._step)
        return begin if begin <= number < begin + self._length else None

    def _properties(self, number: int) -> bytes:
        at = number * 7919 % (_TEXT - 400)
        return (
            b'"n":%d, "price":%d.10 ,"tags":["a","\\u00e9"],"deep":{"level":{"n":null}},"text":"%b"'
            % (
                number,
                number % 90,
                self._text[at : at + 320 + number % 80].encode(),
            )
        )


class Division:
    """Which records are in which file, and which files are a shard's own: every `of`-th."""

    def __init__(self, count: int, files: int = 1, of: int = 1) -> None:
        self.of = of
        self._starts = [count * file // files for file in range(files + 1)]
        self._before = [0] * files
        """Records in the shard's earlier files, for each file."""
        self._sizes = [0] * of
        for file in range(files):
            self._before[file] = self._sizes[file % of]
            self._sizes[file % of] += len(self.records(file))

    def records(self, file: int) -> range:
        """The numbers of a file's records."""
        return range(self._starts[file], self._starts[file + 1])

    def size(self, shard: int) -> int:
        """How many records a shard has."""
        return self._sizes[shard]

    def place(self, number: int) -> tuple[int, int]:
        """The shard that has a record, and how many of its records come before."""
        file = bisect_right(self._starts, number) - 1
        return file % self.of, self._before[file] + number - self._starts[file]


def write(plan: EventPlan, path: Path, numbers: range | None = None) -> int:
    """Write these records, or all, to a file, packed as its name says; how many bytes they are."""
    size = 0
    with OPENERS[path.suffix](path) as file:
        for record in plan.records(numbers):
            size += file.write(record)
    return size


def _gzip(path: Path) -> IO[bytes]:
    # A `GzipFile` isn't an `IO`, but has all that is used of one.
    return gzip.open(path, "wb", compresslevel=1)  # type: ignore[return-value]


def _zstd(path: Path) -> IO[bytes]:
    compressor = zstandard.ZstdCompressor(level=1)
    return zstandard.open(path, "wb", cctx=compressor)  # type: ignore[no-any-return]


OPENERS: Final[dict[str, Callable[[Path], IO[bytes]]]] = {".gz": _gzip, ".zst": _zstd}
"""How a file is packed, by its suffix."""
