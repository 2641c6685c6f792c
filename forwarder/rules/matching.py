"""Which events of a request match: by project key, source, name, distinct_id, and a condition in
jq, the cheapest first.

`LaneEvents` are the stamped events of one lane and source, decoded only as far as matchers ask:
first the names of all, at once. A `Matcher` answers with indexes, in order: a `range` where all
events match and `()` where none does, so that the usual answers cost nothing by event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Raw, Struct, field

from forwarder.config.rule_settings import MatchSettings
from forwarder.core.error_text import error_text
from forwarder.core.event import split_events
from forwarder.mapping.expressions import Expressions
from forwarder.mapping.problems import misconfigured
from forwarder.rules.costs import LOOKUP, NAME, ConditionCost
from forwarder.wire.effort import Allowance
from forwarder.wire.identity import ABSENT, SecondIds, id_text, second_ids, second_texts

MAX_NAMES: Final = 4096
"""Names whose verdict a matcher remembers."""
LONGEST_NAME: Final = 200
"""Characters of the longest name that it remembers."""

_BACKSLASH: Final = ord("\\")
NONE: Final[Sequence[int]] = ()
EvaluateCondition = Callable[
    [Expressions, ConditionCost, Sequence[bytes], Callable[[int, Exception], object]], list[int]
]
"""The indexes of the events for which a condition holds (`Expressions.select`)."""

Failed = Callable[[int, str], object]
"""Called with the index of an event whose condition can't be evaluated, and why."""


class _NamedEvent(Struct, gc=False):
    event: str


class _LastName(Struct, gc=False):
    event: Raw


class _OwnId(Struct, gc=False):
    distinct_id: Raw = ABSENT


class _IdentifiedEvent(Struct, gc=False):
    distinct_id: Raw = ABSENT
    dollar_distinct_id: Raw = field(name="$distinct_id", default=ABSENT)
    properties: Raw = ABSENT


class _NamingEvent(Struct, gc=False):
    properties: SecondIds | None = None


_decode_names = msgspec.json.Decoder(list[_NamedEvent]).decode
_decode_last = msgspec.json.Decoder(list[_LastName]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_ids = msgspec.json.Decoder(list[_IdentifiedEvent]).decode
_decode_naming = msgspec.json.Decoder(list[_NamingEvent]).decode
_decode_own_id = msgspec.json.Decoder(_OwnId).decode


class LaneEvents:
    """Stamped events of one project key and source, `count` of them, joined by commas as in
    `Chunk.data`.
    """

    __slots__ = (
        "_events",
        "_ids",
        "_names",
        "_raws",
        "_second_ids",
        "allowance",
        "api_key",
        "count",
        "data",
        "distinct_names",
        "source",
    )

    def __init__(
        self,
        data: bytes,
        count: int,
        api_key: str,
        source: str,
        names: Sequence[str] | None = None,
        *,
        allowance: Allowance | None = None,
    ) -> None:
        """`names`: those of the events, if they are known; `allowance`: what may be done with
        them, None: anything.
        """
        self.data = data
        self.count = count
        self.api_key = api_key
        self.source = source
        self.allowance = allowance
        self.distinct_names: frozenset[str] | None = None
        self._names = None if names is None else [*names]
        self._ids: list[str] | None = None
        self._second_ids: dict[int, list[str]] | None = None
        self._events: list[bytes] | None = None
        self._raws: Sequence[bytes | Raw] | None = None

    @property
    def names(self) -> list[str]:
        """The names of all events."""
        if self._names is None:
            try:
                self._names = [event.event for event in _decode_names(self._array())]
            except msgspec.ValidationError:
                # one has its name twice, at first as no text: the last counts, as for the service
                self._names = [_decode_text(event.event) for event in _decode_last(self._array())]
        return self._names

    def named(self) -> frozenset[str]:
        """The names that occur."""
        if self.distinct_names is None:
            self.distinct_names = frozenset(self.names)
        return self.distinct_names

    @property
    def ids(self) -> list[str]:
        """The distinct_ids of all events, as the service stores them."""
        if self._ids is None:
            self._ids = [_own_id(event) for event in _decode_ids(self._array())]
        return self._ids

    @property
    def second_ids(self) -> Mapping[int, Sequence[str]]:
        """The ids that events name beside their own, by the indexes of those that name some."""
        if self._second_ids is None:
            self._second_ids = _second_ids(self._array()) if _may_name_others(self.joined()) else {}
        return self._second_ids

    @property
    def events(self) -> list[bytes]:
        """The bytes of each event."""
        if self._events is None:
            self._events = [bytes(raw) for raw in self._split()]
        return self._events

    def event(self, index: int) -> bytes:
        """The bytes of one event."""
        return bytes(self._split()[index]) if self._events is None else self._events[index]

    def _split(self) -> Sequence[bytes | Raw]:
        if self._raws is None:
            one = self.count == 1
            self._raws = [self.data.strip()] if one else split_events(self._array())
        return self._raws

    @property
    def whole(self) -> bytes | None:
        """The bytes of all events, as long as they are those that were received; None once they
        were split.
        """
        return self.data if self._events is None else None

    def joined(self) -> bytes:
        """The bytes of all events, joined by commas."""
        return self.data if self._events is None else b",".join(self._events)

    def _array(self) -> bytes:
        return b"[%b]" % self.joined()

    def replace(self, index: int, event: bytes) -> None:
        """An event has other bytes, with the same name and id."""
        self.events[index] = event

    def rename(self, index: int, event: bytes, name: str) -> None:
        """An event has another name, and other bytes with it."""
        self.events[index] = event
        self.names[index] = name
        self.distinct_names = None

    def forget_ids(self) -> None:
        """Ids have changed: they are read again."""
        self._ids = None
        self._second_ids = None

    def keep(self, indexes: Sequence[int]) -> None:
        """Keep only these events."""
        self._events = [self.events[index] for index in indexes]
        if self._names is not None:
            self._names = [self._names[index] for index in indexes]
        if self._ids is not None:
            self._ids = [self._ids[index] for index in indexes]
        self._second_ids = None
        self.distinct_names = None
        self.count = len(indexes)


def _may_name_others(text: bytes) -> bool:
    """Whether events in a text may name ids beside their own, however the names are spelled."""
    return (
        b"alias" in text
        or b"$anon_distinct_id" in text
        or (_BACKSLASH in text and b"\\u" in text)  # a single byte is found far faster
    )


def _second_ids(events: bytes) -> dict[int, list[str]]:
    named: list[SecondIds | None]
    try:
        named = [event.properties for event in _decode_naming(events)]
    except msgspec.ValidationError:  # the properties of one are no object
        named = [second_ids(event.properties) for event in _decode_ids(events)]
    return {
        index: texts
        for index, inner in enumerate(named)
        if inner is not None
        and (inner.alias is not ABSENT or inner.anonymous is not ABSENT)
        and (texts := second_texts(inner))
    }


def _own_id(event: _IdentifiedEvent) -> str:
    own = id_text(event.distinct_id) or id_text(event.dollar_distinct_id)
    if own or bytes(memoryview(event.properties)[:1]) != b"{":
        return own
    return id_text(_decode_own_id(event.properties).distinct_id)


class KnownIds(Protocol):
    """The ids of a file."""

    def among(self, ids: Collection[str]) -> Container[str]:
        """Holds those of `ids` that are in the file."""


class OpenIdFiles(Protocol):
    """Opens files of distinct_ids."""

    def open(self, path: Path, salt_file: Path | None, key: str) -> KnownIds:
        """The ids of a file, kept current from now on. Raises `ConfigurationError`; `key` is the
        setting of the match.
        """


class Matcher:
    """The conditions of one `match`."""

    def __init__(
        self,
        settings: MatchSettings,
        key: str,
        files: OpenIdFiles,
        evaluate: EvaluateCondition | None = None,
    ) -> None:
        """`key` is the setting that holds them; `evaluate`: how the condition is evaluated; None:
        at once. Raises `ConfigurationError` for a condition or a file that can't be used.
        """
        self._api_keys = frozenset(settings.api_key)
        self._sources = frozenset[str](settings.source)
        self._plain_names = frozenset(map(_unescaped, filter(_is_plain, settings.event)))
        self._globs = [_glob(text) for text in settings.event if not _is_plain(text)]
        self._by_name = bool(settings.event)
        self._verdicts: dict[str, bool] = {}
        self._ids: KnownIds | None = None
        if settings.distinct_id_file is not None:
            self._ids = files.open(settings.distinct_id_file, settings.salt_file, key)
        elif settings.salt_file is not None:
            raise misconfigured(
                f"{key}.salt_file",
                "is the key of hashes in a distinct_id_file, and there is none",
                "Remove it.",
            )
        self._condition: Expressions | None = None
        self._evaluate = evaluate
        if settings.where is not None:
            self._condition = Expressions(key)
            self._cost = ConditionCost(settings.where)
            self._condition.only_where(settings.where)
            self._condition.compile()

    @property
    def by_file(self) -> bool:
        """Whether people in a file match."""
        return self._ids is not None

    @property
    def by_content(self) -> bool:
        """Whether more than project key and source counts."""
        return self._by_name or self.by_file or self._condition is not None

    def may_match(self, api_key: str, source: str) -> bool:
        """Whether events of this project key and source may match; an empty key isn't known, and
        matches any (`core.ports.ReplayedDeadLetter`).
        """
        if self._sources and source not in self._sources:
            return False
        return not self._api_keys or not api_key or api_key in self._api_keys

    def select(
        self, events: LaneEvents, among: Sequence[int] | None = None, failed: Failed | None = None
    ) -> Sequence[int]:
        """The indexes of the events that match, in order; `among`: only these are looked at; None:
        all. Raises `TooMuchWork` if that takes more than the events' allowance.

        An event whose condition can't be evaluated is reported to `failed`, and doesn't match.
        """
        if not self.may_match(events.api_key, events.source):
            return NONE
        selected: Sequence[int] = range(events.count) if among is None else among
        if self._by_name:
            selected = self._by_names(events, selected)
        if self._ids is not None and selected:
            selected = self._by_people(self._ids, events, selected)
        if self._condition is not None and selected:
            selected = self._by_condition(events, selected, failed)
        return selected

    def _by_people(
        self, file: KnownIds, events: LaneEvents, selected: Sequence[int]
    ) -> Sequence[int]:
        """Those whose own id is in the file, or one that they name beside it."""
        ids = events.ids
        second = events.second_ids
        others = {index: second[index] for index in selected if index in second} if second else {}
        if events.allowance is not None:
            events.allowance.spend(LOOKUP * (len(selected) + sum(map(len, others.values()))))
        asked = {ids[index] for index in selected}
        if not others:
            known = file.among(asked)
            return [index for index in selected if ids[index] in known] or NONE
        known = file.among(asked.union(*others.values()))
        named = {index for index, texts in others.items() if any(text in known for text in texts)}
        return [index for index in selected if index in named or ids[index] in known] or NONE

    def _by_names(self, events: LaneEvents, selected: Sequence[int]) -> Sequence[int]:
        if events.allowance is not None:
            events.allowance.spend(NAME * events.count * (1 + len(self._globs)))
        named = events.named()
        matching = {name for name in named if self._matches(name)}
        if not matching:
            return NONE
        if len(matching) == len(named):
            return selected
        names = events.names
        return [index for index in selected if names[index] in matching] or NONE

    def _matches(self, name: str) -> bool:
        verdict = self._verdicts.get(name)
        if verdict is None:
            if len(self._verdicts) >= MAX_NAMES:
                self._verdicts.clear()
            verdict = name in self._plain_names or any(glob.fullmatch(name) for glob in self._globs)
            if len(name) <= LONGEST_NAME:
                self._verdicts[name] = verdict
        return verdict

    def _by_condition(
        self, events: LaneEvents, selected: Iterable[int], failed: Failed | None
    ) -> Sequence[int]:
        condition = self._condition
        if condition is None:
            raise TypeError("there is no condition")
        places = [*selected]

        def report(at: int, error: Exception) -> None:
            if failed is not None:
                failed(places[at], error_text(error))

        texts = [events.event(index) for index in places]
        if events.allowance is not None:
            events.allowance.spend(self._cost.of(texts))
        indexes = (
            condition.select(texts, report)
            if self._evaluate is None
            else self._evaluate(condition, self._cost, texts, report)
        )
        return [places[at] for at in indexes] or NONE


_WILD: Final = re.compile(r"\\(.)|([*?])", re.DOTALL)


def _is_plain(text: str) -> bool:
    return not any(match[2] for match in _WILD.finditer(text))


def _unescaped(text: str) -> str:
    return _WILD.sub(lambda match: match[1] if match[1] in "*?\\" else match[0], text)


def _glob(text: str) -> re.Pattern[str]:
    """The names that a glob matches. What stands between two stars is found once, never tried
    again: the time is linear in the name.
    """
    fixed = [""]
    at = 0
    for match in _WILD.finditer(text):
        fixed[-1] += re.escape(text[at : match.start()])
        if match[2] == "*":
            fixed.append("")
        else:
            fixed[-1] += "." if match[2] else re.escape(_unescaped(match[0]))
        at = match.end()
    fixed[-1] += re.escape(text[at:])
    first, *middle, last = fixed if len(fixed) > 1 else (*fixed, "")
    if len(fixed) == 1:
        return re.compile(first, re.DOTALL)
    pattern = "".join([f"(?>.*?{literal})" for literal in middle if literal])
    return re.compile(f"{first}{pattern}.*{last}", re.DOTALL)


class PeopleSample:
    """A share of all people, each in or out whole, on every machine and in every release.

    A person is in a sample of `rate` if the first 8 bytes of SHA-256 over the distinct_id (UTF-8),
    as a big-endian number, are below rate times 2**64. So whoever is in a sample is in each larger
    one.
    """

    def __init__(self, rate: float) -> None:
        self._below = int(rate * 2**64)

    def __contains__(self, distinct_id: str) -> bool:
        return (
            int.from_bytes(sha256(distinct_id.encode("utf-8", "surrogatepass")).digest()[:8])
            < self._below
        )
