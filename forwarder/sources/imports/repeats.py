"""What the source has twice within a UTC day: it is sent once, and counted (`duplicate_in_source`).

A repeat has everything by which the service deduplicates in common with an earlier event: uuid,
event, timestamp and distinct_id (wire facts: What the service does not tell). Where the uuid
stands for the vendor's own key (`ImportedEvent.keyed`), uuid, event and day are enough; with the
name, several events of one record are no repeats of each other.

Invariants: exact in both directions. Uuids are compared as they are, and what else counts by a
hash of 64 bits: of a billion events of one uuid two share one by chance once in forty imports.
Digests are kept in the order in which they came, all but the last of them in a file; memory holds
at most 36 MB of an index, by which an event that is new is nearly always known to be new without
reading the file. A block of events without keys whose times are apart from all others (as in a
source in the order of time) can have no repeats: it is only kept, and made searchable once others
reach into its times. Nothing is kept from run to run: a resumed run reads its source from the
start anyway, and passes every event here again.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from hashlib import blake2b
from itertools import compress, count, filterfalse
from mmap import ACCESS_READ, mmap
from operator import itemgetter
from pathlib import Path
from struct import Struct
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Final, NamedTuple, Self, TypeAlias

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.times import DAY

FORMER_FILE: Final = "repeats.sqlite"
"""Of former versions, which leave it if they are killed."""
_UUID: Final = 16
_DIGEST: Final = 24
_SPELLED: Final = 36
_IN_MEMORY: Final = 2 << 20
"""Bytes that a spool has in memory."""
_PAGES: Final = 0x0000FFFF
"""The bits of a head for its page; those above are for its fingerprint."""
_FINGERPRINT: Final = 0xFFFF0000
_SHARED: Final = 0x00010000
"""The fingerprint of a slot that several digests have."""
_MARK: Final = 0x00020000
"""A bit that every other fingerprint has."""
_SHIFT: Final = 24
"""What becomes of a hash its fingerprint is above all that becomes a slot."""
_GROWTH: Final = 4
Column: TypeAlias = "array[int]"
_PAGE: Final = 512
"""Digests of a page, or as many as came at once: so few are searched in microseconds."""


class Repeats:
    """Knows the events of one run; to be closed. One caller at a time.

    `folder` is the import's own, for files without a name; it is there already. What asks
    takes up to a second when an index grows, and raises `ConfigurationError` if a file
    can't be written or read.
    """

    def __init__(self, folder: Path, slots: int = 1 << 20, max_slots: int = 1 << 23) -> None:
        """`slots`, `max_slots`: of an index at first, and once it has grown; powers of two. Four
        bytes each.
        """
        (folder / FORMER_FILE).unlink(missing_ok=True)
        self._spool = DigestSpool(folder)
        self._slots = slots, max_slots
        self._index = DigestIndex(self._spool, *self._slots)
        self._former: list[DigestIndex] = []
        self._kept: list[_KeptBlock] = []
        self._latest = -1  # the latest time of all that was ever kept
        self._searchable = 0, -1  # the earliest and the latest time of what isn't
        self.repeats = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def among(
        self,
        names: Sequence[str],
        distinct_ids: Sequence[str],
        times: Sequence[int],
        uuids: Sequence[str],
        keyed: Sequence[bool],
    ) -> list[int]:
        """Which of some events are repeats, by index; all have come from then on."""
        if not times:
            return []
        first = min(times)
        last = max(times)
        any_keyed = True in keyed
        is_one_day = first // DAY == last // DAY
        if any_keyed and is_one_day and False not in keyed:
            of_name = {name: hash((name, first // DAY)) for name in {*names}}
            hashes = [*map(of_name.__getitem__, names)]
        elif any_keyed:
            columns = zip(names, distinct_ids, times, keyed, strict=True)
            hashes = [
                hash((name, time // DAY)) if key else hash((name, who, time))
                for name, who, time, key in columns
            ]
        else:
            hashes = [*map(hash, zip(names, distinct_ids, times, strict=True))]
        data = _digests(pack_uuids(uuids), array("q", hashes))
        # else it is after all that is kept, as in a source in the order of time
        if first <= self._latest:
            for block in [
                block for block in self._kept if block.first <= last and first <= block.last
            ]:
                self._make_searchable(block)
        is_apart = first > self._searchable[1] or last < self._searchable[0]
        if is_apart and is_one_day and not any_keyed and len(set(uuids)) == len(uuids):
            self._kept.append(_KeptBlock(first, last, self._spool.append(data), len(data)))
            self._latest = max(self._latest, last)
            return []
        self._widen(first, last)
        repeated = self._search(
            _split(data), [first // DAY] if is_one_day else {time // DAY for time in times}
        )
        self.repeats += len(repeated)
        return repeated

    def is_repeat(self, day: int, digest: bytes) -> bool:
        """Whether a digest of sixteen bytes came before on the same day; it has come
        from then on.
        """
        repeated = self._search([digest + day.to_bytes(_DIGEST - _UUID)], [day])
        self.repeats += len(repeated)
        return bool(repeated)

    def close(self) -> None:
        """Remove the files."""
        self._spool.close()

    def _search(self, digests: Sequence[bytes], days: Collection[int]) -> list[int]:
        """Which of some digests of these days came before, by index; all have come from then on."""
        hashes = [*map(hash, digests)]
        known: set[int] = set()
        for former in self._former:
            if not former.days.isdisjoint(days):
                known |= former.find(digests, hashes)
        if self._index.is_full:
            self._index.freeze()
            self._former.append(self._index)
            known |= self._index.find(digests, hashes)
            self._index = DigestIndex(self._spool, *self._slots)
        return self._index.add(digests, hashes, days, known)

    def _make_searchable(self, block: _KeptBlock) -> None:
        self._kept.remove(block)
        self._widen(block.first, block.last)
        self._search(_split(self._spool.read(block.begin, block.size)), (block.first // DAY,))

    def _widen(self, first: int, last: int) -> None:
        begin, end = self._searchable
        self._searchable = (min(begin, first), max(end, last)) if begin <= end else (first, last)


class _KeptBlock(NamedTuple):
    """Events of one day that are known, but not searchable."""

    first: int
    last: int
    """The earliest and the latest time of them."""
    begin: int
    size: int
    """Where their digests are in the spool, in bytes."""


def _digests(uuids: bytes, hashes: array[int]) -> bytes:
    """Of each event its packed uuid and its hash."""
    words = array("q", uuids)
    whole = array("q", bytes(_DIGEST * len(hashes)))
    whole[::3] = words[::2]
    whole[1::3] = words[1::2]
    whole[2::3] = hashes
    return whole.tobytes()


def _split(digests: bytes) -> tuple[bytes, ...]:
    return _splitter(len(digests) // _DIGEST).unpack(digests)


@lru_cache(maxsize=256)
def _splitter(count: int) -> Struct:
    return Struct(f"{_DIGEST}s" * count)


def pack_uuids(uuids: Sequence[str]) -> bytes:
    """Sixteen bytes of each uuid: its own, if it is spelled as most are, else a digest of how it
    is spelled.
    """
    if [*map(len, uuids)].count(_SPELLED) == len(uuids):
        return bytes.fromhex("".join(uuids).replace("-", ""))
    return b"".join(
        bytes.fromhex(uuid.replace("-", ""))
        if len(uuid) == _SPELLED
        else blake2b(uuid.encode(), digest_size=_UUID).digest()
        for uuid in uuids
    )


class DigestIndex:
    """Which digests were added. They are on pages in a spool; memory has, of each slot (a part of
    a digest's hash), the last page with any.

    Of a slot that one digest has, fifteen more bits of its hash are known: so what is new is
    seldom looked up. What belongs to a slot that several have is looked up, from page to page:
    each page has links, for slots that had digests before, to the page that had the last of them.
    Links outlive growth: digests of one slot had one slot before, too.
    """

    def __init__(self, spool: DigestSpool, slots: int, max_slots: int) -> None:
        self.days: set[int] = set()
        """The days of its digests."""
        self._spool = spool
        self._max_slots = max_slots
        self._slots = slots
        self._heads: Any = array("I", [0]) * slots
        """By slot: the page, counted from one, and above it a fingerprint; zero if no digest has
        the slot.
        """
        self._count = 0
        self._sealed: list[_SealedPage] = []
        self._open: dict[bytes, None] = {}
        """The digests of the page that isn't in the spool yet, in their order."""
        self._links: dict[int, int] = {}
        """Its links."""

    @property
    def is_full(self) -> bool:
        """Whether it has so many that another one is faster."""
        return self._count > self._max_slots // 2 or len(self._sealed) >= _PAGES - 2

    def find(self, digests: Sequence[bytes], hashes: Sequence[int]) -> set[int]:
        """Which of some digests it has, by index."""
        slots = self._places(hashes)
        return self._find(digests, hashes, slots, _gather(slots)(self._heads))

    def add(
        self,
        digests: Sequence[bytes],
        hashes: Sequence[int],
        days: Collection[int],
        known: set[int],
    ) -> list[int]:
        """Add those of some digests of these days that are new: not in it, and not `known`. Which
        aren't, by index.
        """
        self.days.update(days)
        if self._count + len(digests) > self._slots // 2 and self._slots < self._max_slots:
            self._grow()
        slots = self._places(hashes)
        gather = _gather(slots)
        before = gather(self._heads)
        known |= self._find(digests, hashes, slots, before)
        if not known and len(set(digests)) == len(digests):
            self._enter(digests, hashes, slots, before)
            return []
        fresh = {digest: at for at, digest in reversed([*enumerate(digests)]) if at not in known}
        ats = [*fresh.values()]
        if ats:
            some = _gather(ats)
            self._enter([*fresh], some(hashes), some(slots), some(before))
        return [*filterfalse({*ats}.__contains__, range(len(digests)))]

    def freeze(self) -> None:
        """From now on nothing is added, and all of it is in the spool."""
        self._seal()
        self._heads = _mapped(self._spool.folder, self._heads)

    def _places(self, hashes: Sequence[int]) -> list[int]:
        mask = self._slots - 1
        return [hashed & mask for hashed in hashes]

    def _find(
        self,
        digests: Sequence[bytes],
        hashes: Sequence[int],
        slots: Sequence[int],
        heads: Sequence[int],
    ) -> set[int]:
        if not any(heads):
            return set()
        known = set()
        for at in compress(count(), heads):
            mark = heads[at] & _FINGERPRINT
            may_be = mark == _SHARED or mark == hashes[at] >> _SHIFT & _FINGERPRINT | _MARK
            if may_be and self._has(digests[at], slots[at], heads[at] & _PAGES):
                known.add(at)
        return known

    def _enter(
        self,
        digests: Sequence[bytes],
        hashes: Sequence[int],
        slots: Sequence[int],
        before: Sequence[int],
    ) -> None:
        """Add different digests that are new; `before`: the heads of their slots."""
        page = len(self._sealed) + 1
        self._set_heads(hashes, slots, before, page)
        for slot, head in compress(zip(slots, before, strict=True), before):
            if (last := head & _PAGES) != page:
                self._links[slot] = last
        self._count += len(digests)
        self._open.update(dict.fromkeys(digests))
        if len(self._open) >= _PAGE:
            self._seal()

    def _set_heads(
        self, hashes: Sequence[int], slots: Sequence[int], before: Sequence[int], page: int
    ) -> None:
        heads = self._heads
        page_and_mark = page | _MARK
        own = [hashed >> _SHIFT & _FINGERPRINT | page_and_mark for hashed in hashes]
        for slot, head in zip(slots, own, strict=True):
            heads[slot] = head
        shared = page | _SHARED
        for slot in compress(slots, before):
            heads[slot] = shared
        if len({*slots}) < len(slots):
            for slot in [slot for slot, times in Counter(slots).items() if times > 1]:
                heads[slot] = shared

    def _grow(self) -> None:
        self._seal()  # its links are by the slots of now
        self._slots = min(self._slots * _GROWTH, self._max_slots)
        self._heads = array("I", [0]) * self._slots
        for number, page in enumerate(self._sealed, 1):
            hashes = [*map(hash, _split(self._spool.read(page.begin, page.size)))]
            slots = self._places(hashes)
            self._set_heads(hashes, slots, _gather(slots)(self._heads), number)

    def _seal(self) -> None:
        """Put the page that is open into the spool, if it has any."""
        if not self._open:
            return
        digests = b"".join(self._open)
        links = array("I", [*self._links, *self._links.values()])
        begin = self._spool.append(digests + links.tobytes())
        self._sealed.append(_SealedPage(begin, len(digests), len(self._links), self._slots))
        self._open = {}
        self._links = {}

    def _has(self, digest: bytes, slot: int, page: int) -> bool:
        """Whether a digest is on a page, or on one to which the page's links for the slot lead."""
        while page > len(self._sealed):
            if digest in self._open:
                return True
            page = self._links.get(slot, 0)
        while page:
            begin, size, links, slots = self._sealed[page - 1]
            data = self._spool.read(begin, size + 8 * links)
            at = data.find(digest, 0, size)
            while at > 0 and at % _DIGEST:
                at = data.find(digest, at + 1, size)
            if at >= 0:
                return True
            columns = array("I", data[size:])
            try:
                page = columns[links + columns.index(slot & slots - 1, 0, links)]
            except ValueError:
                return False
        return False


def _gather(slots: Sequence[int]) -> Callable[[Any], Sequence[Any]]:
    """What gets the numbers of some slots."""
    return (
        itemgetter(*slots) if len(slots) > 1 else lambda numbers: [numbers[slot] for slot in slots]
    )


class _SealedPage(NamedTuple):
    """A page in the spool: its digests, then the slots of its links, then their pages."""

    begin: int
    size: int
    """Bytes of its digests."""
    links: int
    slots: int
    """How many there were when it was sealed."""


class DigestSpool:
    """Bytes that are only added: the last of them in memory, all others in a file without a name,
    once there are any.

    All raise `ConfigurationError` if the file can't be used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: BinaryIO | None = None
        self._in_file = 0
        self._last = bytearray()

    def append(self, data: bytes) -> int:
        """Add some bytes; where they are."""
        begin = self._in_file + len(self._last)
        self._last += data
        if len(self._last) > _IN_MEMORY:
            with _usable(self.folder):
                if self._file is None:
                    # `close` closes the file.
                    self._file = TemporaryFile(dir=self.folder, buffering=0)  # noqa: SIM115
                while self._last:
                    written = self._file.write(self._last)
                    self._in_file += written
                    del self._last[:written]
        return begin

    def read(self, begin: int, size: int) -> bytes:
        """Bytes that were added at once, or a part of them."""
        if self._file is None or begin >= self._in_file:
            return bytes(self._last[begin - self._in_file : begin - self._in_file + size])
        with _usable(self.folder):
            if len(data := os.pread(self._file.fileno(), size, begin)) < size:
                raise OSError(f"of {size} bytes at {begin}, {len(data)} are left")
            return data

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()


def _mapped(folder: Path, numbers: Column) -> memoryview:
    """The numbers in a file without a name, of which the system has in
    memory what there is room for.
    """
    with _usable(folder), TemporaryFile(dir=folder) as file:
        file.write(numbers)
        file.flush()
        return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)).cast("I")


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """What is seen can be written down, and looked up; else it raises `ConfigurationError`."""
    try:
        yield
    except OSError as error:
        hint = "It holds what was seen: about 30 bytes for each event."
        raise ConfigurationError(
            f"no file in {folder} can be used: {error_text(error)}", hint=hint
        ) from error
