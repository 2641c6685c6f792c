"""The properties of persons in an import: what `--person-properties` makes of `$set`, `$set_once`
and `$unset`.

- `history`: they are sent in the order of time, without what an id's last `$set` said already
  (`PersonHistory`).
- `newest`: they are replaced by one `$set_once` for each distinct id, with what its person ends
  with in the whole source; on the first event that is sent of the id and may change its person, or
  on a `$set` event of its own after the first one.
- `oldest`: `$set` becomes `$set_once`. `none`: they are removed. Finishing does both.

The persons of `newest` are those that the service makes of the source: ids that its merges join.
A merge joins two ids unless the person that would go is identified (`$merge_dangerously` joins
always); an id without a person joins whatever the other is. Of all that the ids of a person say
the newest value wins, a `$set_once` and a `$set` of `$initial_…` keep the oldest, and `$unset`
removes what is older. Events that change no person (errors, heatmaps, events of language models,
`$groupidentify`, and those without a person) say nothing, and carry nothing.

The index of `newest` is made by a pass over the whole source before anything is sent. On disk, in
the state folder: `persons.index`, blocks as in `sorting`, in the order of the source, and
`persons.json` (see `checkpoint.seal`), which is written last. While it is made, `persons.building`
is an SQLite database.

Invariants: the same source, job and contents give the same index, whose digest is in the
checkpoint: a resumed import sends the same bytes. Memory is bounded whatever the number of
persons: `CACHED` ids, and four bytes for each id that merges.

Sources in PostHog/posthog, with the commit at which each was read:
`nodejs/src/ingestion/common/persons/person-update.ts` (1db4ce6) what an event changes, and that
its time is no part of that; `person-merge-service.ts` (03330ef) what merges, which ids never do,
and whose value is kept.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Raw, Struct

from forwarder.contract.lifted import LIFTED
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.unmerged_ids import is_never_merged
from forwarder.sources.imports.checkpoint import ImportJob, SourceContent, seal, unseal
from forwarder.sources.imports.columns import EventColumns, EventKey, FinishedEvent
from forwarder.sources.imports.conversion import (
    ConvertedRecords,
    EventFinisher,
    FinishPolicy,
    person_members,
    replace_person_members,
)
from forwarder.sources.imports.format import ImportedEvent, key_uuid
from forwarder.sources.imports.sorting import (
    DamagedBlocks,
    SortedEvent,
    read_blocks,
    write_blocks,
)
from forwarder.sources.imports.values import is_shared
from forwarder.storage.private import atomic_file, make_file
from forwarder.wire.identity import ABSENT, SecondIds, first_byte, second_id_text
from forwarder.wire.splice import Locator

INDEX: Final = "persons.index"
HEAD: Final = "persons.json"
BUILDING: Final = "persons.building"
VERSION: Final = 1
CACHED: Final = 50_000
"""Distinct ids of which memory holds what they say, until they are written to disk."""
CACHED_BYTES: Final = 24 << 20
"""Bytes of what they say, at most."""
INITIAL: Final = "$initial_"
OWN_EVENT: Final = "$set"
"""The name of an event that only carries a person's properties."""
_MERGES: Final = {"$identify": 0, "$create_alias": 0, "$merge_dangerously": 1}
"""By event: whether it also joins persons of which the one that goes is identified."""
_NO_PERSON: Final = frozenset({"$exception", "$$heatmap", "$groupidentify"})
_READ_ONLY_PREFIX: Final = "$ai_"
_ANONYMOUS: Final = b"$process_person_profile"
_NEVER: Final = (-1, -1)
_MERGED_BITS: Final = 1 << 24
_REMEMBERED_OVERHEAD: Final = 300
_LIFTED_TEXTS: Final = tuple(name.encode() for name in sorted(LIFTED) if name[:1] != "$")
_SAMPLED: Final = 500
"""Distinct ids of which samples are chosen."""
_SAMPLES: Final = 3
_SAMPLED_PROPERTIES: Final = 8
_OVERHEAD: Final = 100
"""Bytes that a `$set_once` adds to an event beside its text."""
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_pack: Final = msgspec.msgpack.Encoder().encode
_SCHEMA: Final = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -16384;
    PRAGMA temp_store = FILE;
    CREATE TABLE seen (id BLOB, time INTEGER, turn INTEGER, found BLOB);
    CREATE TABLE merges (time INTEGER, turn INTEGER, always INTEGER, source BLOB, target BLOB);
    CREATE TABLE ids (number INTEGER PRIMARY KEY, id BLOB UNIQUE, root INTEGER);
    CREATE TABLE places (
        person INTEGER, id BLOB, file INTEGER, number INTEGER, part INTEGER, size INTEGER
    );
    CREATE TABLE properties (person INTEGER PRIMARY KEY, value BLOB);
"""
"""`turn` counts events; `time` and `turn` of `seen` are those of the first event of an id that may
change its person.
"""
_NUMBER_IDS: Final = tuple(
    f"INSERT OR IGNORE INTO ids (id) SELECT {column} FROM merges ORDER BY turn"  # noqa: S608
    for column in ("source", "target")
)
_SORT_IN: Final = "PRAGMA temp_store_directory = '{}'"
"""For all databases of the process; where SQLite was built without it, it does nothing."""
_ADD_MERGE: Final = "INSERT INTO merges VALUES (?, ?, ?, ?, ?)"
Moment = tuple[int, int]
"""A time in microseconds, and which of the events it is: what decides which value is newer."""
Values = dict[str, tuple[Moment, bytes]]
"""The JSON of values by name, with when each was said."""


class SourcePlace(NamedTuple):
    """An event of the source, and when it is."""

    moment: Moment
    file: int
    number: int
    part: int
    size: int


class PersonClaims(Struct, array_like=True):
    """What events say of one person. How they were divided into claims, and the order in which
    they were added, changes nothing, apart from a `$set_once` after an `$unset` that is added late
    or by another id: only the oldest is remembered.
    """

    last: bytes = b""
    """The last `$set` as it stands: most events say again what the one before said."""
    last_at: Moment = _NEVER
    set: Values = msgspec.field(default_factory=dict)
    once: Values = msgspec.field(default_factory=dict)
    unset: dict[str, Moment] = msgspec.field(default_factory=dict)

    def add(self, at: Moment, change: PersonChange) -> None:
        """Add what one event says."""
        if change.set == self.last:
            self.last_at = max(at, self.last_at)
        elif change.set:
            if b'"$initial_' in change.set or b"\\" in change.set:
                for name, value in _decode(change.set).items():
                    if name.startswith(INITIAL):
                        self._add_once(name, at, bytes(value))
            older = change.set
            older_at = at
            if at > self.last_at:
                older, older_at = self.last, self.last_at
                self.last = change.set
                self.last_at = at
            self._add_set(older, older_at)
        for name, value in _decode(change.once).items() if change.once else ():
            self._add_once(name, at, bytes(value))
        for name in change.unset:
            self.unset[name] = max(at, self.unset.get(name, _NEVER))

    def merge(self, other: PersonClaims) -> None:
        """Add what other events of the same person say."""
        for claims in (self, other):
            claims._add_set(claims.last, claims.last_at)
            claims.last, claims.last_at = b"", _NEVER
        for name, at in other.unset.items():
            self.unset[name] = max(at, self.unset.get(name, _NEVER))
        for name, (at, value) in other.set.items():
            if at > self.set.get(name, (_NEVER,))[0]:
                self.set[name] = at, value
        for name, (at, value) in other.once.items():
            self._add_once(name, at, value)

    def values(self) -> dict[str, Raw]:
        """The properties that the person ends with, by name."""
        self.merge(PersonClaims())
        by_name = {
            name: Raw(value)
            for values in (self.once, self.set)
            for name, (at, value) in values.items()
            if at >= self.unset.get(name, _NEVER)
        }
        return {name: by_name[name] for name in sorted(by_name)}

    @property
    def size(self) -> int:
        """The bytes that it takes in memory, about."""
        return len(self.last) + 200 * (len(self.set) + len(self.once) + len(self.unset))

    def _add_set(self, said: bytes, at: Moment) -> None:
        for name, value in _decode(said).items() if said else ():
            if not name.startswith(INITIAL) and at > self.set.get(name, (_NEVER,))[0]:
                self.set[name] = at, bytes(value)

    def _add_once(self, name: str, at: Moment, value: bytes) -> None:
        removed = self.unset.get(name, _NEVER)
        known = self.once.get(name)
        if at >= removed and (known is None or at < known[0] or known[0] < removed):
            self.once[name] = at, value


class PersonChange(NamedTuple):
    """What an event says of its person."""

    set: bytes = b""
    """A JSON object; empty: nothing."""
    once: bytes = b""
    unset: tuple[str, ...] = ()


def _says_something(data: bytes) -> bool:
    """Whether an event may say something of its person; nearly none does of many sources."""
    return b'"$set' in data or b'"$unset' in data or b"u0024" in data


def change_of(data: bytes) -> PersonChange | None:
    """What a finished event says; None if it says nothing."""
    if not _says_something(data):
        return None
    own = _decode_own(data)
    if own.is_beside or own.properties is None:
        members = person_members(data)
    else:
        values = own.properties
        members = {"$unset": bytes(values.unset)}
        for name, value in (("$set", values.set), ("$set_once", values.once)):
            if first_byte(value) == b"{":
                members[name] = bytes(value)
    unset = members.get("$unset", b"")
    names: Sequence[Any] = ()
    if unset[:1] in {b"[", b"{"}:
        names = [*msgspec.json.decode(unset)]
    change = PersonChange(
        members.get("$set", b""),
        members.get("$set_once", b""),
        tuple(name for name in names if type(name) is str),
    )
    return change if change.set or change.once or change.unset else None


class _Seen(Struct):
    """What is known of a distinct id."""

    first: SourcePlace
    carrier: SourcePlace | None
    """The first of its events that may change its person."""
    claims: PersonClaims | None = None


_unpack: Final = msgspec.msgpack.Decoder(_Seen).decode


class PersonIndex(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a finished index."""

    job: ImportJob
    contents: list[SourceContent]
    """The source's files: of others it is another index."""
    entries: int
    persons: int
    """Those that have properties."""
    size: int
    """Bytes on disk."""
    digest: str
    """Of the entries."""


def find_index(
    folder: Path, job: ImportJob, contents: Sequence[SourceContent], digest: str = ""
) -> PersonIndex | None:
    """The index in a state folder; None if there is none of this job and source that can be used.
    `digest`: that it must have; empty: any.
    """
    try:
        index = unseal((folder / HEAD).read_bytes(), VERSION, "persons", PersonIndex)
        size = (folder / INDEX).stat().st_size
    except (OSError, ValueError):  # whatever is wrong with it, it can be made again
        return None
    is_it = (
        index.job == job
        and index.contents == [*contents]
        and index.size == size
        and digest in {"", index.digest}
    )
    return index if is_it else None


class PersonIndexBuilder:
    """Makes an index: `add` all events that are sent, in the order of the source, then `finish`.
    Used as a context. Raises `ConfigurationError` if the folder can't be written in.
    """

    def __init__(
        self, folder: Path, *, is_sorted: bool, max_event: int, refused_alone: bool = True
    ) -> None:
        """`is_sorted`: events are sent in the order of time, not in that of the source.
        `max_event`: the bytes that an event may have.
        """
        self._folder = folder
        self._is_sorted = is_sorted
        self._max_event = max_event
        self._refused_alone = refused_alone
        self._cache: dict[str, _Seen] = {}
        self._cached = 0
        self._count = 0
        path = folder / BUILDING
        self._remove()
        try:
            make_file(path)
            self._database = sqlite3.connect(path, isolation_level=None)
            self._database.executescript(_SCHEMA)
            # what is sorted needs room where the index is, not in a folder for temporary files
            self._database.execute(_SORT_IN.format(str(folder).replace("'", "''")))
        except (OSError, sqlite3.Error) as error:
            raise _cannot_index(folder, error) from error

    def __enter__(self) -> PersonIndexBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.execute(_SORT_IN.format(""))
        self._database.close()
        self._remove()

    def add(self, events: EventColumns) -> None:
        """Add neighbouring events, as finished with the policy `history`."""
        merges: list[tuple[Any, ...]] = []
        sizes = [self._size_of(data) for data in events.data]
        refused = set[tuple[int, int]]()
        if not self._refused_alone:
            refused = {
                event.key[:2]
                for event, size in zip(events, sizes, strict=True)
                if size > self._max_event
            }
        for event, size in zip(events, sizes, strict=True):
            self._count += 1
            if size > self._max_event or event.key[:2] in refused:
                continue
            at = event.time, self._count
            data = event.data
            changes = may_change_person(event.event, data)
            if changes and event.event in _MERGES:
                merges += _merge_of(at, event.distinct_id, event.event, data)
            self._see(event.distinct_id, SourcePlace(at, *event.key, size), changes=changes)
            if changes and (change := change_of(data)) is not None:
                seen = self._cache[event.distinct_id]
                if seen.claims is None:
                    seen.claims = PersonClaims()
                before = seen.claims.size
                seen.claims.add(at, change)
                self._cached += seen.claims.size - before
        self._run(lambda: self._database.executemany(_ADD_MERGE, merges))
        if len(self._cache) >= CACHED or self._cached >= CACHED_BYTES:
            self._run(self._spill)

    def _size_of(self, data: bytes) -> int:
        """The bytes that count against the limit: without what it says of persons, if need be."""
        size = len(data)
        return size if size <= self._max_event else len(replace_person_members(data))

    def finish(self, job: ImportJob, contents: Sequence[SourceContent]) -> PersonIndex:
        """Write the index durably. What was there before is replaced."""
        self._run(self._spill)
        self._run(self._resolve)
        digest = blake2b(digest_size=16)
        entries = 0
        (self._folder / HEAD).unlink(missing_ok=True)  # first: without it the index is none
        with atomic_file(self._folder / INDEX, replace=True) as file:
            try:
                for written in write_blocks(file, self._entries(), digest):
                    entries = written
                file.flush()
                size = file.tell()
            except (OSError, sqlite3.Error) as error:
                raise _cannot_index(self._folder, error) from error
        persons = int(self._database.execute("SELECT count(*) FROM properties").fetchone()[0])
        index = PersonIndex(job, [*contents], entries, persons, size, digest.hexdigest())
        with atomic_file(self._folder / HEAD, replace=True) as file:
            file.write(seal(VERSION, "persons", index))
        return index

    def _see(self, distinct_id: str, place: SourcePlace, *, changes: bool) -> None:
        seen = self._cache.get(distinct_id)
        if seen is None:
            self._cache[distinct_id] = _Seen(place, place if changes else None)
            return
        if seen.carrier is None:
            seen.carrier = place if changes else None
        elif self._is_sorted and changes:
            seen.carrier = min(seen.carrier, place)
        if self._is_sorted:
            seen.first = min(seen.first, place)

    def _spill(self) -> None:
        rows = (
            (who.encode(), *(seen.carrier.moment if seen.carrier else (None, None)), _pack(seen))
            for who, seen in self._cache.items()
        )
        self._database.executemany("INSERT INTO seen VALUES (?, ?, ?, ?)", rows)
        self._cache = {}
        self._cached = 0

    def _resolve(self) -> None:
        """Join the ids, and write of each person the properties, of each id where they go."""
        execute = self._database.execute
        for statement in _NUMBER_IDS:
            execute(statement)
        roots = self._join()
        self._database.executemany(
            "UPDATE ids SET root = ? WHERE number = ?",
            ((root, number) for number, root in enumerate(roots) if number),
        )
        rows = execute(
            "SELECT ids.root, seen.id, seen.found FROM seen LEFT JOIN ids ON ids.id = seen.id "
            "ORDER BY ids.root, seen.id, seen.turn"
        )
        people = groupby(rows, key=lambda row: row[1] if row[0] is None else row[0])
        for number, (_, person) in enumerate(people):
            self._write_person(number, person)

    def _write_person(self, number: int, rows: Iterator[tuple[Any, bytes, bytes]]) -> None:
        claims = PersonClaims()
        places: list[tuple[Any, ...]] = []
        for distinct_id, of_id in groupby(rows, key=itemgetter(1)):
            first = carrier = None
            for seen in (_unpack(packed) for _, _, packed in of_id):
                if seen.claims is not None:
                    claims.merge(seen.claims)
                first = self._earlier(first, seen.first)
                if seen.carrier is not None:
                    carrier = self._earlier(carrier, seen.carrier)
            if first is not None:
                places.append((number, distinct_id, first, carrier))
            if len(places) >= 1000:
                self._write_places(places)
                places = []
        values = claims.values()
        self._write_places(places)
        if values:
            self._database.execute(
                "INSERT INTO properties VALUES (?, ?)", (number, _encode(values))
            )

    def _earlier(self, one: SourcePlace | None, other: SourcePlace) -> SourcePlace:
        if one is None:
            return other
        return min(one, other, key=lambda place: self._order(place.moment))

    def _order(self, moment: Moment) -> Moment:
        """What events are sent in the order of."""
        return moment if self._is_sorted else (0, moment[1])

    def _write_places(self, places: Sequence[tuple[Any, ...]]) -> None:
        self._database.executemany(
            "INSERT INTO places VALUES (?, ?, ?, ?, ?, ?)",
            (
                (
                    *(number, distinct_id, *(carrier or first)[1:4]),
                    None if carrier is None else carrier.size,
                )
                for number, distinct_id, first, carrier in places
            ),
        )

    def _join(self) -> array[int]:
        """The root of each id that merges, by number, as the service joins them."""
        execute = self._database.execute
        (count,) = execute("SELECT count(*) FROM ids").fetchone()
        parents = array("I", range(count + 1))
        is_identified = bytearray(count + 1)
        exists = bytearray(count + 1)
        order = "time, turn" if self._is_sorted else "turn"
        # an id has a person from its first event on, or from its first merge
        # S608: constants.
        rows = execute(
            "SELECT time, turn, -1 AS always, ids.number, 0 FROM ids "  # noqa: S608
            "JOIN seen ON seen.id = ids.id WHERE turn IS NOT NULL "
            "UNION ALL SELECT time, turn, always, one.number, other.number FROM merges "
            "JOIN ids AS one ON one.id = source JOIN ids AS other ON other.id = target "
            f"ORDER BY {order}, always DESC"  # an event merges before its id has a person by it
        )
        for _, _, always, number, target in rows:
            if always < 0:
                exists[number] = 1
                continue
            source = _root(parents, number)
            survivor = _root(parents, target)
            # what exists as a person merges; an id without one is added to the other's
            if (
                source != survivor
                and exists[number]
                and exists[target]
                and is_identified[source]
                and not always
            ):
                is_identified[survivor] = 1
                continue
            exists[number] = exists[target] = 1
            is_identified[survivor] = 1
            parents[source] = survivor
        return array("I", (_root(parents, number) for number in range(count + 1)))

    def _entries(self) -> Iterator[SortedEvent]:
        rows = self._database.execute(
            "SELECT file, number, part, size, places.id, value "
            "FROM places JOIN properties USING (person) ORDER BY file, number, part, places.id"
        )
        for turn, (file, number, part, size, distinct_id, value) in enumerate(rows):
            fits = size is not None and size + len(value) + _OVERHEAD <= self._max_event
            name = "" if fits else OWN_EVENT
            yield SortedEvent(
                0, turn, distinct_id.decode(), name, "", value, file, 0, number, part, None
            )

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self._database.execute("BEGIN")
            work()
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise _cannot_index(self._folder, error) from error

    def _remove(self) -> None:
        for path in self._folder.glob(f"{BUILDING}*"):
            path.unlink(missing_ok=True)


class PersonPlacement:
    """Puts the properties of an index where they go, as records come by in the order of the
    source, from its start; to be closed.
    """

    def __init__(
        self, folder: Path, index: PersonIndex, finish: FinishPolicy, max_event: int, *, strip: bool
    ) -> None:
        """`strip`: what events say of persons is still in them. `max_event`: as for the index."""
        self._path = folder / INDEX
        self._index = index
        self._finisher = EventFinisher(replace(finish, person_properties="history"))
        self._max_event = max_event
        self._strip = strip
        self._entries = self._read()
        self._next = next(self._entries, None)

    def place(self, made: ConvertedRecords) -> None:
        """Change what became of the next records of the source."""
        events = made.events
        if not events:
            return
        data = [*events.data]
        if self._strip:
            data = [replace_person_members(event) if change_of(event) else event for event in data]
        last = events.files[-1], events.numbers[-1], events.parts[-1]
        wanted: dict[EventKey, list[SortedEvent]] = {}
        while (entry := self._next) is not None and (entry.file, entry.number) <= last[:2]:
            wanted.setdefault((entry.file, entry.number, entry.part), []).append(entry)
            self._next = next(self._entries, None)
        own: list[tuple[int, FinishedEvent]] = []
        if wanted:
            keys = zip(events.files, events.numbers, events.parts, strict=True)
            for at, key in enumerate(keys):
                for entry in wanted.pop(key, ()):
                    if entry.event != OWN_EVENT:
                        data[at] = replace_person_members(data[at], entry.data)
                    else:
                        own += [
                            (at, own_event)
                            for own_event in self._own_events(events[at], entry.data)
                        ]
        if wanted:
            raise RuntimeError(f"{self._path}: no event is at {next(iter(wanted))}")
        made.events = replace(events, data=data)
        if own:
            made.insert(own)

    def close(self) -> None:
        """Let go of the file."""
        self._entries.close()

    def _own_events(self, event: FinishedEvent, once: bytes) -> Iterator[FinishedEvent]:
        """The `$set` events beside an event that can't carry its person's properties."""
        values = _decode(once)
        uuid = key_uuid("persons", event.uuid, *sorted(values)[:1])
        made = ImportedEvent(
            OWN_EVENT, event.distinct_id, event.time, uuid, {"$set_once": Raw(once)}
        )
        (data,), refused = self._finisher.finish([made])
        if len(data) > self._max_event and len(values) > 1:
            names = [*values]
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                yield from self._own_events(event, _encode({name: values[name] for name in half}))
        elif not refused and len(data) <= self._max_event:
            yield event._replace(event=OWN_EVENT, uuid=uuid, data=data)

    def _read(self) -> Generator[SortedEvent]:
        try:
            with self._path.open("rb") as file:
                yield from chain.from_iterable(read_blocks(file, 0, self._index.entries))
        except (OSError, DamagedBlocks) as error:
            (self._path.parent / HEAD).unlink(missing_ok=True)
            raise ConfigurationError(
                f"{self._path}: {error_text(error)}",
                hint=(
                    "Run the same command again: the index of persons is made again from the "
                    "source, and the import resumes where it stopped. Check the disk."
                ),
            ) from error


def may_change_person(name: str, data: bytes) -> bool:
    """Whether the service lets an event change its person."""
    return not (
        name in _NO_PERSON
        or name.startswith(_READ_ONLY_PREFIX)
        or (_ANONYMOUS in data and _is_anonymous(data))
    )


class _Properties(Struct, gc=False):
    properties: SecondIds | None = None


class _Profile(Struct, gc=False):
    process: Raw = msgspec.field(name=_ANONYMOUS.decode(), default=ABSENT)


class _Profiled(Struct, gc=False):
    properties: _Profile | None = None


_decode_merge: Final = msgspec.json.Decoder(_Properties).decode
_decode_profile: Final = msgspec.json.Decoder(_Profiled).decode


def _is_anonymous(data: bytes) -> bool:
    properties = _decode_profile(data).properties
    return properties is not None and bytes(properties.process) == b"false"


def _merge_of(
    at: Moment, distinct_id: str, name: str, data: bytes
) -> Iterator[tuple[int, int, int, bytes, bytes]]:
    """The row of the merge that an event asks for, unless the service refuses it whoever the
    persons are.
    """
    properties = _decode_merge(data).properties or SecondIds()
    other = properties.anonymous if name == "$identify" else properties.alias
    source = second_id_text(other) if first_byte(other) == b'"' else ""
    if source not in {"", distinct_id} and not any(
        is_shared(identifier) or is_never_merged(identifier) for identifier in (source, distinct_id)
    ):
        yield *at, _MERGES[name], source.encode(), distinct_id.encode()


def _has_names(unset: Any) -> bool:
    """Whether a decoded `$unset` names properties."""
    return isinstance(unset, list | dict)


def _root(parents: array[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number


def _cannot_index(folder: Path, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{folder}: the index of persons can't be written: {error_text(error)}",
        hint=(
            "`--person-properties newest` needs room there for what the source says of persons. "
            "Make room, or name a folder on a larger disk with `--state`, and run the command "
            "again: nothing was sent."
        ),
    )


class _LastSet:
    """The last `$set` of ids that may be of one person."""

    __slots__ = ("distinct_id", "joined", "said", "whole")

    def __init__(self) -> None:
        self.distinct_id = ""
        self.said = b""
        self.joined: _LastSet | None = None
        """What it has become part of."""
        self.whole = False
        """Whether an id of it was forgotten: then everything is sent whole."""


class PersonHistory:
    """Takes out of each `$set` what the same id's last one has said already, as events come in the
    order in which they are sent: most sources say all of a person with every event.

    Only what the person is known to have is left out: of ids that merge, also where the service
    refuses it, nothing once another of them has set something, and nothing after an `$unset`.
    Names that the service may set by itself (`$…`, and what it lifts) are always sent. Bounded: so
    many bytes are `remembered` at least, and twice that at most; what was forgotten is sent whole.
    """

    def __init__(self, remembered: int = 16 << 20) -> None:
        self._remembered = remembered
        self._size = 0
        self._recent: dict[str, _LastSet] = {}
        self._older: dict[str, _LastSet] = {}
        self._merged = bytearray(_MERGED_BITS >> 3)
        """A bit for each id that has merged, by its checksum: several ids may share one."""

    def place(self, made: ConvertedRecords) -> None:
        events = made.events
        if events:
            columns = zip(events.distinct_ids, events.names, events.data, strict=True)
            made.events = replace(events, data=[self.changed(*changes) for changes in columns])

    def sorted(self, events: Iterable[SortedEvent]) -> Iterator[SortedEvent]:
        """The same of single events."""
        for event in events:
            yield event._replace(data=self.changed(event.distinct_id, event.event, event.data))

    def changed(self, distinct_id: str, name: str, data: bytes) -> bytes:
        """The next event, as it is sent."""
        if name in _MERGES:
            self._merge(distinct_id, name, data)
        if not _says_something(data) or not may_change_person(name, data):
            return data
        last = self._last_of(distinct_id)
        self._forget_some()
        if last is None or last.whole:
            return data
        own = _decode_own(data)
        said = own.properties.set if own.properties else ABSENT
        if own.is_beside or b"$unset" in data or b"u0024" in data or first_byte(said) != b"{":
            last.distinct_id = ""
            return data
        text = bytes(said)
        before = last.said if last.distinct_id == distinct_id else b""
        last.distinct_id = distinct_id
        self._size += len(text) - len(last.said)
        last.said = text
        if not before:
            return data
        if text == before and not _is_set_by_service(text):
            return _without(data, said)
        known = _decode(before)
        new = {
            name: value
            for name, value in _decode(text).items()
            if name[:1] == "$" or name in LIFTED or known.get(name) != value
        }
        start, end = Locator(data).span(said)
        return data[:start] + _encode(new) + data[end:] if new else _without(data, said)

    def _merge(self, distinct_id: str, name: str, data: bytes) -> None:
        for *_, source, _ in _merge_of((0, 0), distinct_id, name, data):
            one = self._last_of(source.decode())
            other = self._last_of(distinct_id)
            joined = one or other
            for who in (source.decode(), distinct_id):
                number = _bit(who)
                self._merged[number >> 3] |= 1 << (number & 7)
            if joined is None:
                continue
            joined.distinct_id = ""
            joined.whole |= one is None or other is None or one.whole or other.whole
            if other is not None and other is not joined:
                other.joined = joined
        # not before both ids are known to have merged: what is forgotten of one that has is noted
        self._forget_some()

    def _last_of(self, distinct_id: str) -> _LastSet | None:
        """None: it was forgotten which other ids belong to it."""
        last_set = self._recent.get(distinct_id)
        if last_set is None:
            last_set = self._older.get(distinct_id)
            if last_set is None:
                number = _bit(distinct_id)
                if self._merged[number >> 3] & 1 << (number & 7):
                    return None
                last_set = _LastSet()
            self._size += len(last_set.said) + len(distinct_id) + _REMEMBERED_OVERHEAD
            self._recent[distinct_id] = last_set
        while last_set.joined is not None:
            last_set = last_set.joined
        return last_set

    def _forget_some(self) -> None:
        if self._size <= self._remembered:
            return
        for distinct_id, last in self._older.items():
            number = _bit(distinct_id)
            if distinct_id not in self._recent and self._merged[number >> 3] & 1 << (number & 7):
                while last.joined is not None:
                    last = last.joined  # noqa: PLW2901 - what it has become
                last.whole = True
        self._older = self._recent
        self._recent = {}
        self._size = 0


class _OwnProperties(Struct, gc=False):
    set: Raw = msgspec.field(name="$set", default=ABSENT)
    once: Raw = msgspec.field(name="$set_once", default=ABSENT)
    unset: Raw = msgspec.field(name="$unset", default=ABSENT)


class _OwnMembers(Struct, gc=False):
    properties: _OwnProperties | None = None
    set: Raw = msgspec.field(name="$set", default=ABSENT)
    once: Raw = msgspec.field(name="$set_once", default=ABSENT)

    @property
    def is_beside(self) -> bool:
        """Whether something about persons stands beside the properties."""
        return len(self.set) + len(self.once) > 0


_decode_own: Final = msgspec.json.Decoder(_OwnMembers).decode


def _is_set_by_service(said: bytes) -> bool:
    """Whether one of the names may be one that the service sets by itself."""
    return b'"$' in said or b"\\" in said or any(name in said for name in _LIFTED_TEXTS)


def _without(data: bytes, said: Raw) -> bytes:
    """The event without its `$set`, which is this value in its text."""
    start, end = Locator(data).span(said)
    name = b'"$set":'
    if not data.endswith(name, 0, start):
        return data[:start] + b"{}" + data[end:]
    start -= len(name)
    if data[end : end + 1] == b",":
        end += 1
    elif data[start - 1 : start] == b",":
        start -= 1
    return data[:start] + data[end:]


def _bit(distinct_id: str) -> int:
    return crc32(distinct_id.encode(errors="surrogatepass")) % _MERGED_BITS


class SampledProperty(Struct, frozen=True):
    """A property of a sample person: its value after the import, by choice; None: it has none."""

    name: str
    history: Raw | None
    newest: Raw | None
    oldest: Raw | None


class PersonSample(Struct, frozen=True):
    """A person of the source, into a project that doesn't have it: with `none` it has nothing."""

    distinct_id: str
    properties: tuple[SampledProperty, ...]


class PersonSamples:
    """Shows what each choice makes of the persons in which they differ most. Events of several ids
    aren't joined.
    """

    def __init__(self, *, is_sorted: bool) -> None:
        """`is_sorted`: events are sent in the order of time."""
        self._is_sorted = is_sorted
        self._turn = 0
        self._claims: dict[str, PersonClaims] = {}
        self._states: dict[str, tuple[Values, Values]] = {}
        """By id, what `history` and `oldest` make of it."""

    def add(self, distinct_id: str, time: int, properties: Mapping[str, Any]) -> None:
        """Add what the next event says."""
        claims = self._claims.get(distinct_id)
        if claims is None:
            if len(self._claims) >= _SAMPLED:
                return
            claims = self._claims[distinct_id] = PersonClaims()
            self._states[distinct_id] = ({}, {})
        members = {name: _object(properties.get(name)) for name in ("$set", "$set_once")}
        unset = msgspec.json.decode(_encode(properties.get("$unset") or []))
        names = [name for name in unset if type(name) is str] if _has_names(unset) else []
        self._turn += 1
        at = (time, self._turn)
        claims.add(at, PersonChange(members["$set"], members["$set_once"], tuple(names)))
        history, oldest = self._states[distinct_id]
        said, once = (_decode(member) if member else {} for member in members.values())
        for name, value in once.items():
            history.setdefault(name, (at, bytes(value)))
        for name, value in said.items():
            if at > history.get(name, (_NEVER,))[0]:
                history[name] = at, bytes(value)
        for name in names:
            if history.get(name, (at,))[0] < at:
                del history[name]
        for name, value in {**said, **once}.items():
            if name not in oldest or (self._is_sorted and at < oldest[name][0]):
                oldest[name] = at, bytes(value)

    def chosen(self) -> tuple[PersonSample, ...]:
        """Those in which the choices differ most."""
        samples = [self._sample(distinct_id) for distinct_id in self._claims]
        telling = [sample for sample in samples if sample.properties]
        return tuple(sorted(telling, key=_likeness)[:_SAMPLES])

    def _sample(self, distinct_id: str) -> PersonSample:
        newest = self._claims[distinct_id].values()
        history, oldest = (
            {name: Raw(value) for name, (_, value) in state.items()}
            for state in self._states[distinct_id]
        )
        names = sorted({*newest, *history, *oldest})
        values = [
            SampledProperty(name, *(rows.get(name) for rows in (history, newest, oldest)))
            for name in names
        ]
        values.sort(key=lambda value: not _differs(value))
        return PersonSample(distinct_id, tuple(values[:_SAMPLED_PROPERTIES]))


def _object(value: Any) -> bytes:
    """The JSON of an object; empty for anything else."""
    data = _encode(value) if isinstance(value, dict) else bytes(value or b"")
    return data if data[:1] == b"{" else b""


def _differs(value: SampledProperty) -> bool:
    texts = {None if text is None else bytes(text) for text in (value.history, value.oldest)}
    return len({*texts, None if value.newest is None else bytes(value.newest)}) > 1


def _likeness(sample: PersonSample) -> int:
    return -sum(map(_differs, sample.properties))
