"""What can be taken out of a process that is about to start: one guard each.

Nothing of the product may be imported here, as a module that has imported a name keeps it: the
changes are made first (`without/sitecustomize.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

_LARGE: Final = 1_000_000
"""Bytes: far more than the rows take, and no more than other limits allow."""
_TIME: Final = b'"1999-12-31T23:59:59Z"'
_UUID: Final = b"00000000-0000-4000-8000-000000000000"

Change = Callable[[Any], Any]
"""What stands in place of something, by what is there."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """What is changed, by `module:Class.name`; of `rows` one at least must be broken then.
    `spares`: entrances that don't depend on it, and why.
    """

    changes: Mapping[str, Change]
    rows: frozenset[str]
    spares: Mapping[str, str] = field(default_factory=dict)

    def take_out(self) -> None:
        """Make the changes, in this process. Raises `AttributeError` for what isn't there."""
        for where, change in self.changes.items():
            module, _, path = where.partition(":")
            owner: Any = import_module(module)
            *names, last = path.split(".")
            for name in names:
                owner = getattr(owner, name)
            fields = getattr(owner, "__dataclass_fields__", {})
            setattr(owner, last, change(fields[last] if last in fields else getattr(owner, last)))


def returning(value: Any) -> Change:
    """A function that always returns this."""
    return lambda _: lambda *_, **__: value


def fixed(value: Any) -> Change:
    """A field that has this value, whatever it is set to."""
    return lambda _: property(lambda _: value, lambda *_: None)


def by(function: Callable[..., Any]) -> Change:
    """Another function."""
    return lambda _: function


def and_then(more: Callable[[Any], object]) -> Change:
    """A method that does more when it is done."""

    def change(method: Any) -> Any:
        def extended(self: Any, *arguments: Any) -> Any:
            result = method(self, *arguments)
            more(self)
            return result

        return extended

    return change


def _settled(method: Any) -> Any:
    """A watermark whose records are settled once they are read."""

    def open_settled(mark: Any, *offsets: int) -> Any:
        span = method(mark, *offsets)
        mark.settle(span)
        return span

    return open_settled


def _uuids(count: int, before: bytes = b"", after: bytes = b"") -> list[bytes]:
    return [before + _UUID + after] * count


def _count_one_more(books: Any) -> None:
    books.delivered += 1


_ON_DISK: Final = "it confirms what is on disk: only a power cut shows more (tests/buffer/disk)"

GUARDS: Final[Mapping[str, Guard]] = {
    "rules": Guard(
        changes={"forwarder.rules.event_rules:EventRules.apply": returning(None)},
        rows=frozenset({"drop", "set", "rename", "rename_event"}),
    ),
    "redaction": Guard(
        changes={"forwarder.rules.edits:Redact.apply": by(lambda _, event, __: event)},
        rows=frozenset({"remove", "hash"}),
    ),
    "people to forget": Guard(
        changes={"forwarder.rules.id_files:IdFile.__contains__": returning(False)},
        rows=frozenset({"people to forget", "people to forget, as hashes"}),
    ),
    "routes": Guard(
        changes={"forwarder.rules.routing:EventRoutes.whole": returning((0,))},
        rows=frozenset({"routes", "routes by share"}),
    ),
    "keys": Guard(
        changes={"forwarder.config.settings:DestinationSettings.api_keys": fixed({})},
        rows=frozenset({"keys"}),
    ),
    "masks of keys": Guard(
        changes={"forwarder.core.secrets:mask_key": by(lambda key: key)},
        rows=frozenset({"no key is shown"}),
    ),
    "limit of events": Guard(
        changes={"forwarder.config.settings:UpstreamSettings.max_event": fixed(_LARGE)},
        rows=frozenset({"an event that is too large"}),
    ),
    "limit of bodies": Guard(
        changes={
            "forwarder.config.source_settings:HttpSettings.max_body": fixed(20 * _LARGE),
            "forwarder.config.source_settings:LogSourceSettings.max_line": fixed(_LARGE),
        },
        rows=frozenset({"a body that is too large"}),
    ),
    "books": Guard(
        changes={
            "forwarder.telemetry.books:Books.deliver": returning(None),
            "forwarder.sources.imports.import_books:RecordBooks.add": and_then(_count_one_more),
        },
        rows=frozenset({"books"}),
        spares={"drain": "the audit reads the buffer's log, in which nothing is counted beside it"},
    ),
    "drops in books": Guard(
        changes={
            "forwarder.telemetry.books:Books.turn_away": returning(None),
            "forwarder.sources.imports.import_books:RecordBooks.add": and_then(
                lambda books: books.left_out.clear()
            ),
        },
        rows=frozenset({"drops are in the books"}),
        spares={"replay": "what a rule would drop stays a dead letter"},
    ),
    "uuids": Guard(
        changes={
            "forwarder.core.stamps:new_uuid7": returning(_UUID),
            "forwarder.core.stamps:new_uuids7": by(lambda _, count, *more: _uuids(count, *more)),
            "forwarder.core.stamps:uuid5": returning(_UUID),
            "forwarder.core.stamps:as_uuid5": returning(_UUID),
            "forwarder.core.stamps:uuids5": by(lambda _, names, *more: _uuids(len(names), *more)),
            "forwarder.core.stamps:uuid_texts5": by(lambda _, names: [_UUID.decode()] * len(names)),
        },
        rows=frozenset({"missing uuid"}),
        spares={"send": "the command makes the uuid"},
    ),
    "times": Guard(
        changes={
            "forwarder.core.stamps:time_text": returning(_TIME),
            "forwarder.sources.logs.batches:utc_text": returning(_TIME.decode().strip('"')),
        },
        rows=frozenset({"missing timestamp"}),
        spares={"send": "the command makes the time"},
    ),
    "acknowledgement": Guard(
        changes={
            "forwarder.intake.intake:Intake._level_of": lambda _: (
                lambda intake, _: intake._level.__class__("memory")
            ),
            "forwarder.sources.hand_over:Watermark.open": _settled,
        },
        rows=frozenset({"acknowledgement"}),
        spares={
            **dict.fromkeys(("drain", "restart", "replay"), _ON_DISK),
            "stdin": "what was piped can't be read again: no position is stored",
            "send": "the command waits until the daemon says where its event is, whatever it said "
            "at receipt",
        },
    ),
    "secrets in taps": Guard(
        changes={"forwarder.core.secrets:redact": by(lambda value: value)},
        rows=frozenset({"secrets in a tap"}),
    ),
}
