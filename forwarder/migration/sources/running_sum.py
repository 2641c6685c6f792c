"""What tells the records that were read from others: a sum that is kept while reading.

It is there to find a file that was changed by accident or ignorance between two runs, though its size, time, beginning and end are as they
were; nobody gains by a collision. So it is a pair of checksums that cost a tenth of a cryptographic digest, which would be the most
expensive thing that is done with most events: CRC-32, which sees every change within four bytes, and Adler-32, by which two changes that
CRC-32 takes for one another differ but for one in billions.
"""

from __future__ import annotations

from typing import Self

from isal import isal_zlib


class RunningSum:
    """Of bytes, in the order in which they are added, however they are cut."""

    __slots__ = ("_adler", "_crc")

    def __init__(self, crc: int = 0, adler: int = 1) -> None:
        self._crc, self._adler = crc, adler

    def update(self, data: bytes) -> None:
        """Add bytes."""
        self._crc = isal_zlib.crc32(data, self._crc)
        self._adler = isal_zlib.adler32(data, self._adler)

    def copy(self) -> Self:
        """One that goes on from here by itself."""
        return type(self)(self._crc, self._adler)

    def hexdigest(self) -> str:
        """The sum so far, as sixteen digits."""
        return f"{self._crc:08x}{self._adler:08x}"
