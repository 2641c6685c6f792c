"""Compiled rules, and what they do with the events of a request: in their order, each on what
those before it left.

Invariants: an event that no rule changes keeps its bytes, and if no rule touches any event of a
request, nothing is copied. An event that can't be removed, hashed or looked up among suppressed
people is never sent: it is returned as failed, as it was before any rule. Nothing is counted here
before the events are admitted (`RuledEvents.count`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from forwarder.config.rule_settings import RuleHashSettings, RuleSettings
from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.core.ports import RULE_PREFIX, RuleDrop
from forwarder.mapping.expressions import EVALUATION_ERRORS
from forwarder.mapping.ordered_edits import TooLong
from forwarder.mapping.paths import Path, parse_path, spelled
from forwarder.mapping.privacy import parse_paths, read_salt
from forwarder.mapping.problems import Unmappable, misconfigured
from forwarder.rules.costs import LOOKUP, edit_cost
from forwarder.rules.edits import EventEdit, Names, Redact, RenameFields, SetValues, with_value
from forwarder.rules.matching import (
    NONE,
    EvaluateCondition,
    KnownIds,
    LaneEvents,
    Matcher,
    OpenIdFiles,
    PeopleSample,
)
from forwarder.wire.effort import Allowance

PROTECTED: Final = frozenset(
    {"uuid", "timestamp", "event", "api_key", "token", "$token", "offset", "sent_at", "properties"}
)
"""Members of an event that no rule sets, moves or hashes: it would be another event, of another
time or project, or none.
"""
IDENTITY: Final = frozenset({"distinct_id", "$distinct_id"})
"""Members that may only be hashed."""
_ORDERED_BY: Final = frozenset({"distinct_id", "$distinct_id", "alias", "$anon_distinct_id"})
_ACTIONS: Final = ("drop", "sample", "set", "remove", "rename", "rename_event", "hash")
_MAX_LANES: Final = 4096
_PATH_HINT: Final = 'Paths of one field are such as .properties.plan or .properties["odd name"].'
_encode = msgspec.json.Encoder().encode

ReadSalt = Callable[[FilePath, str], bytes]
"""Reads the key of hashes; its second argument is the setting that names the file."""


class RuleOutcome(StrEnum):
    """What a rule does to an event."""

    CHANGED = "changed"
    DROPPED = "dropped"
    FAILED = "failed"


RuleCounts = Counter[tuple[str, RuleOutcome]]
"""How many events each rule has changed, dropped and failed on, by the rule's name."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule, compiled."""

    name: str
    matcher: Matcher
    dead_letters_failures: bool
    """Whether an event that it fails on becomes a dead letter."""
    drops: bool = False
    sample: PeopleSample | None = None
    edit: EventEdit | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    """New names of events."""
    moves_ids: bool = False
    """Whether it may change what events are ordered by."""

    @property
    def drop_reason(self) -> RuleDrop:
        """What the books say of events that it drops."""
        return RuleDrop(f"{RULE_PREFIX}{self.name}")


@dataclass(frozen=True, slots=True)
class DroppedEvents:
    """Events that a rule drops, joined by commas."""

    rule: CompiledRule
    data: bytes
    count: int
    places: Sequence[int]
    """Their indexes among the events that were given."""


class FailedEvent(NamedTuple):
    """An event that becomes a dead letter because a rule can't be applied to it: as it was before
    all rules.
    """

    data: bytes
    why: str
    place: int
    """Its index among the events that were given."""


class RuleTally:
    """What rules did to events, until it is known whether those are admitted."""

    def __init__(self, rules: EventRules) -> None:
        self._rules = rules
        self.outcomes: RuleCounts = Counter()
        self.errors: dict[str, str] = {}
        """Why rules failed, by their names: the last reason of each."""

    def count(self) -> None:
        """The events are admitted: count what the rules did."""
        self._rules.counts.update(self.outcomes)
        self._rules.errors.update(self.errors)


class RuledEvents(RuleTally):
    """What the rules make of the events of one lane, if they change anything or fail."""

    def __init__(self, rules: EventRules, left: LaneEvents) -> None:
        super().__init__(rules)
        self.data = b""
        """The events that are left, joined by commas."""
        self.remaining_events = 0
        """Number of events in `data`."""
        self.places: Sequence[int] = ()
        """Their indexes among the events that were given."""
        self.left = left
        """The same events, with their names and ids."""
        self.dropped: list[DroppedEvents] = []
        self.failed: list[FailedEvent] = []
        self.new_ids = False
        """Whether the events may be ordered by other ids than before."""


class EventRules:
    """All rules, in order."""

    def __init__(
        self,
        rules: Sequence[CompiledRule],
        max_event: int,
        *,
        digest: str,
        encoded: bytes,
        files: Sequence[KnownIds] = (),
        counts: RuleCounts | None = None,
    ) -> None:
        """`max_event`: bytes that an event may have; `digest`: of the settings; `encoded`: the
        rules for another process (`restored_rules`); `files`: those of ids, in the order in which
        they were opened; `counts`: to be continued.
        """
        self.rules = rules
        self.digest = digest
        self.encoded = encoded
        self._files = files
        self.counts: RuleCounts = Counter() if counts is None else counts
        self.errors: dict[str, str] = {}
        """Why rules failed last, by their names."""
        self._max_event = max_event
        self._by_lane: dict[tuple[str, str], Sequence[CompiledRule]] = {}

    def known(self, file: int, ids: Collection[str]) -> list[str]:
        """Those of `ids` that are in a file, which is named by its number among all files."""
        known = self._files[file].among(ids)
        return [identifier for identifier in ids if identifier in known]

    def apply(
        self,
        data: bytes,
        count: int,
        api_key: str,
        source: str,
        names: Sequence[str] | None = None,
        *,
        allowance: Allowance | None = None,
    ) -> RuledEvents | None:
        """What they make of stamped events of one lane; None if all stay as they are, and no rule
        has failed. Raises `TooMuchWork` if that takes more than `allowance`; None: it may take
        long.

        `names`: those of the events, if they are known.
        """
        rules = self._by_lane.get((api_key, source))
        if rules is None:
            rules = self._rules_for(api_key, source)
        if not rules:
            return None
        events = LaneEvents(data, count, api_key, source, names, allowance=allowance)
        run: _RuleRun | None = None
        for rule in rules:
            failures: dict[int, str] = {}
            selected = rule.matcher.select(events, None, failures.__setitem__)
            if selected and rule.names and rule.names.keys().isdisjoint(events.named()):
                selected = NONE
            if (
                selected
                and rule.edit is not None
                and events.whole is not None
                and not rule.edit.may_change(events.whole)
            ):
                selected = NONE
            if not selected and not failures:
                continue
            if run is None:
                run = _RuleRun(self, events, self._max_event)
            run.apply(rule, selected, failures)
            if not events.count:
                break
        return None if run is None else run.finished()

    def _rules_for(self, api_key: str, source: str) -> Sequence[CompiledRule]:
        if len(self._by_lane) >= _MAX_LANES:
            self._by_lane.clear()
        rules = self._by_lane[api_key, source] = [
            rule for rule in self.rules if rule.matcher.may_match(api_key, source)
        ]
        return rules


class _RuleRun:
    """The rules on the events of one request, from the first rule on that matches."""

    def __init__(self, rules: EventRules, events: LaneEvents, max_event: int) -> None:
        self._events = events
        self._max_event = max_event
        self._ruled = RuledEvents(rules, events)
        self._places: Sequence[int] = range(events.count)
        self._originals: list[bytes] | None = None
        """The events that are left, as they were; None until one is changed."""

    def apply(self, rule: CompiledRule, selected: Sequence[int], failures: dict[int, str]) -> None:
        """One rule on the events with these indexes; `failures`: of those on which its condition
        failed, and why.
        """
        gone: set[int] = set()
        if rule.drops:
            gone.update(selected)
        elif rule.sample is not None:
            if self._events.allowance is not None:
                self._events.allowance.spend(LOOKUP * len(selected))
            ids = self._events.ids
            sample = rule.sample
            gone.update([index for index in selected if ids[index] not in sample])
        else:
            self._edit(rule, selected, failures)
        dead_lettered: list[int] = []
        if failures:
            self._ruled.outcomes[rule.name, RuleOutcome.FAILED] += len(failures)
            self._ruled.errors[rule.name] = failures[max(failures)]
            if rule.dead_letters_failures:
                dead_lettered = sorted(failures)
        if gone:
            self._drop(rule, gone)
        for index in dead_lettered:
            original = (self._originals or self._events.events)[index]
            self._ruled.failed.append(
                FailedEvent(original, f"rule {rule.name}: {failures[index]}", self._places[index])
            )
        if gone or dead_lettered:
            self._keep(gone.union(dead_lettered))

    def _drop(self, rule: CompiledRule, gone: set[int]) -> None:
        events = self._events
        whole = len(gone) == events.count
        data = (
            events.joined()
            if whole
            else b",".join([events.events[index] for index in sorted(gone)])
        )
        self._ruled.dropped.append(
            DroppedEvents(rule, data, len(gone), [self._places[index] for index in sorted(gone)])
        )
        self._ruled.outcomes[rule.name, RuleOutcome.DROPPED] += len(gone)

    def _keep(self, gone: set[int]) -> None:
        events = self._events
        left = [index for index in range(events.count) if index not in gone]
        if self._originals is not None:
            self._originals = [self._originals[index] for index in left]
        self._places = [self._places[index] for index in left]
        events.keep(left)

    def _edit(self, rule: CompiledRule, selected: Sequence[int], failures: dict[int, str]) -> None:
        events = self._events
        texts = self._events.events
        changed = 0
        for index in selected:
            old = texts[index]
            try:
                new, name = self._edited(rule, index, old)
            except EVALUATION_ERRORS as error:
                failures[index] = error_text(error)
                continue
            if new == old:
                continue
            if self._originals is None:
                self._originals = [*texts]
            if name is None:
                events.replace(index, new)
            else:
                events.rename(index, new, name)
            changed += 1
        if changed:
            self._ruled.outcomes[rule.name, RuleOutcome.CHANGED] += changed
            if rule.moves_ids:
                events.forget_ids()
                self._ruled.new_ids = True

    def _edited(self, rule: CompiledRule, index: int, old: bytes) -> tuple[bytes, str | None]:
        """The event as the rule makes it, and its new name, if it gets one."""
        name = rule.names.get(self._events.names[index]) if rule.names else None
        limit = max(self._max_event, len(old))
        edit = rule.edit if rule.edit is not None and rule.edit.may_change(old) else None
        if name is None and edit is None:
            return old, None
        if self._events.allowance is not None:
            passes = 1 if edit is None else edit.passes
            self._events.allowance.spend(edit_cost(old, passes))
        try:
            if name is not None:
                return with_value(old, ("event",), _encode(name), limit), name
            if edit is not None:
                return edit.apply(old, limit), None
        except TooLong:
            raise Unmappable(
                f"the event would have over {limit:,} bytes, {self._max_event:,} are allowed "
                "(upstream.max_event)"
            ) from None
        return old, None

    def finished(self) -> RuledEvents | None:
        """What became of the events; None if nothing did."""
        ruled = self._ruled
        events = self._events
        if not ruled.outcomes:
            return None
        ruled.data = events.joined()
        ruled.remaining_events = events.count
        ruled.places = self._places
        return ruled


def compile_rules(
    settings: Sequence[RuleSettings],
    files: OpenIdFiles,
    max_event: int,
    counts: RuleCounts | None = None,
) -> EventRules | None:
    """The rules that are configured; None if there are none. `max_event`: see
    `upstream.max_event`; `counts`: to be continued.

    Reads the files that rules name. Raises `ConfigurationError`, whose message begins with the
    setting's key.
    """
    if not settings:
        return None
    salts: dict[str, bytes] = {}

    def read(path: FilePath, key: str) -> bytes:
        salt = salts[str(path)] = read_salt(path, key)
        return salt

    opened = _OpenedFiles(files)
    rules = _compile_all(settings, opened, read)
    digest = sha256()
    for rule, own in zip(rules, settings, strict=True):
        digest.update(_encode([rule.name, own.as_document(changed_only=True)]))
        if own.hash.salt_file is not None:
            digest.update(sha256(read_file(own.hash.salt_file)).digest())
    documents = [rule_settings.as_document(changed_only=True) for rule_settings in settings]
    source = _RuleSource(documents, salts, max_event)
    encoded = msgspec.msgpack.encode(source)
    return EventRules(
        rules,
        max_event,
        digest=digest.hexdigest()[:16],
        encoded=encoded,
        files=opened.known,
        counts=counts,
    )


def restored_rules(
    encoded: bytes, files: OpenIdFiles, evaluate: EvaluateCondition | None
) -> EventRules:
    """The rules of another process, as `EventRules.encoded` says them. They read no file."""
    source = msgspec.msgpack.decode(encoded, type=_RuleSource)
    settings = [RuleSettings.parse(document) for document in source.documents]
    rules = _compile_all(settings, files, lambda path, _: source.salts[str(path)], evaluate)
    return EventRules(rules, source.max_event, digest="", encoded=encoded)


class _RuleSource(Struct):
    """What rules are compiled from."""

    documents: list[dict[str, Any]]
    salts: dict[str, bytes]
    """Keys of hashes, by their files."""
    max_event: int


class _OpenedFiles:
    """Files of ids, in the order in which rules name them."""

    def __init__(self, files: OpenIdFiles) -> None:
        self._files = files
        self.known: list[KnownIds] = []

    def open(self, path: FilePath, salt_file: FilePath | None, key: str) -> KnownIds:
        known = self._files.open(path, salt_file, key)
        self.known.append(known)
        return known


def _compile_all(
    settings: Sequence[RuleSettings],
    files: OpenIdFiles,
    read: ReadSalt,
    evaluate: EvaluateCondition | None = None,
) -> list[CompiledRule]:
    names: list[str] = []
    rules: list[CompiledRule] = []
    for number, rule in enumerate(settings):
        key = f"rules[{number}]"
        name = rule.name or f"rule-{number + 1}"
        if name in names:
            raise misconfigured(
                f"{key}.name",
                f"{name} is the name of rules[{names.index(name)}] too",
                "Give each rule its own name.",
            )
        names.append(name)
        for path, value in rule.set.items():
            _check_encodable(value, f"{key}.set.{path.removeprefix('.')}")
        matcher = Matcher(rule.match, f"{key}.match", files, evaluate)
        rules.append(_compile(rule, key, name, matcher, read))
    return rules


def _compile(
    settings: RuleSettings, key: str, name: str, matcher: Matcher, read: ReadSalt
) -> CompiledRule:
    defaults = RuleSettings()
    actions = [
        setting for setting in _ACTIONS if getattr(settings, setting) != getattr(defaults, setting)
    ]
    if len(actions) != 1:
        what = "does nothing" if not actions else f"does several things: {', '.join(actions)}"
        raise misconfigured(
            key,
            what,
            f"A rule has exactly one of {', '.join(_ACTIONS)}; several make several rules.",
        )
    (action,) = actions
    protects = action in ("remove", "hash") or matcher.by_file
    if protects and settings.on_error == "keep":
        hint = "Remove on_error: an event that can't be redacted or looked up is never sent."
        raise misconfigured(
            f"{key}.on_error", "keep isn't possible for remove, hash and distinct_id_file", hint
        )
    dead_letters_failures = protects or settings.on_error == "dead_letter"
    where = f"{key}.{action}"
    if action == "drop":
        return CompiledRule(name, matcher, dead_letters_failures, drops=True)
    if action == "sample":
        return CompiledRule(
            name, matcher, dead_letters_failures, sample=PeopleSample(settings.sample or 0.0)
        )
    if action == "rename_event":
        if "" in settings.rename_event.values():
            raise misconfigured(where, "an event needs a name", "Write {old name: new name}.")
        return CompiledRule(name, matcher, dead_letters_failures, names=settings.rename_event)
    edit, paths = _edit(settings, action, where, read)
    return CompiledRule(
        name, matcher, dead_letters_failures, edit=edit, moves_ids=any(map(_may_order, paths))
    )


def _may_order(path: Path) -> bool:
    """Whether what events are ordered by may be at a path, or below it."""
    return path[-1] is None or path[-1] in _ORDERED_BY or path == ("properties",)


def _edit(
    settings: RuleSettings, action: str, key: str, read: ReadSalt
) -> tuple[EventEdit, Sequence[Path]]:
    """The change that a rule makes, and the paths that it touches."""
    if action == "remove":
        paths = parse_paths(settings.remove, key)
        for path in paths:
            _check(path, key, PROTECTED - {"properties"} | IDENTITY)
        return Redact(paths), paths
    if action == "hash":
        return _hash(settings.hash, key, read)
    if action == "set":
        values = [(_names(text, key), _encode(value)) for text, value in settings.set.items()]
        return SetValues(values), [path for path, _ in values]
    pairs = [(_names(old, key), _names(new, key)) for old, new in settings.rename.items()]
    for old, new in pairs:
        if old == new[: len(old)] or new == old[: len(new)]:
            raise misconfigured(
                key, "a field can't be moved into itself, or in place of what holds it", _PATH_HINT
            )
    return RenameFields(pairs), [path for pair in pairs for path in pair]


def _check_encodable(value: object, key: str) -> None:
    """Raises `ConfigurationError` if a value can't be written: into an event, or for another
    process.
    """
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError) as error:
        hint = "Integers are from -2^63 to 2^64 - 1, and texts have no half of a surrogate pair."
        raise misconfigured(key, f"can't be written: {error_text(error)}", hint) from None


def _hash(settings: RuleHashSettings, key: str, read: ReadSalt) -> tuple[EventEdit, Sequence[Path]]:
    if not settings.field:
        raise misconfigured(
            f"{key}.field", "is missing: what is to be hashed", "For example .properties.email."
        )
    if settings.salt_file is None:
        hint = "Make one: openssl rand -hex 32 > salt; name it here."
        raise misconfigured(
            f"{key}.salt_file", "is missing: the file that holds the key of the hashes", hint
        )
    paths = parse_paths(settings.field, f"{key}.field")
    for path in paths:
        _check(path, f"{key}.field", PROTECTED)
    return Redact((), paths, read(settings.salt_file, f"{key}.salt_file")), paths


def _names(text: str, key: str) -> Names:
    """The path of one field. Raises `ConfigurationError` if it is none, or one that a rule may not
    touch.
    """
    path = parse_path(text)
    names = tuple(step for step in path or () if isinstance(step, str))
    if not path or len(names) < len(path):
        raise misconfigured(key, f"{text!r} is not the path of one field", _PATH_HINT)
    _check(path, key, PROTECTED | IDENTITY)
    return names


def _check(path: Path, key: str, protected: frozenset[str]) -> None:
    # [] is every member
    if len(path) == 1 and (path[0] is None or path[0] in protected):
        hint = (
            "rename_event renames events; hash may replace .distinct_id."
            if path[0] in ("event", *IDENTITY)
            else _PATH_HINT
        )
        raise misconfigured(
            key,
            f"{spelled(path)} can't be changed: it says which event it is, of whom, when and where",
            hint,
        )
