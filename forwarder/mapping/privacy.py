"""What happens to a record before any expression sees it: fields are dropped or replaced by keyed
hashes, and hashes of several are added.

A daily key is made of the salt and the day (UTC) of the record's time, which is the mapping's
`timestamp` or else the time that its source knows. So the timestamp is evaluated first, on the
record without everything that is dropped or hashed.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path as FilePath
from typing import Final

import msgspec

from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.mapping.expressions import Expressions, PathReader
from forwarder.mapping.mapping_rules import MappingRules
from forwarder.mapping.paths import Path, parse_path
from forwarder.mapping.problems import Unmappable, misconfigured
from forwarder.mapping.redaction import Redaction, hash_content, keyed_hash
from forwarder.mapping.times import Times

_SALT_HINT: Final = (
    "Name a file with a long secret, such as `openssl rand -hex 32` writes. Keep it: with "
    "another one all hashes change."
)
_PATH_HINT: Final = 'Paths are such as .user.email, .["odd name"], .items[0].sku or .items[].email.'
_ONE_PATH_HINT: Final = 'Paths are such as .user.email, .["odd name"] or .items[0].sku.'
_SPACE: Final = b" \t\r\n"


class Privacy:
    """What is dropped, hashed and added by the rules of a mapping."""

    def __init__(
        self, rules: MappingRules, key: str, times: Times | None, *, has_time: bool
    ) -> None:
        """Reads the file of the salt. Raises `ConfigurationError`; `key` is
        the setting of the rules.
        """
        rule = rules.hash
        dropped = parse_paths(rules.drop, f"{key}.drop")
        hashed = () if rule is None else parse_paths(rule.fields, f"{key}.hash.field")
        self._salt = b"" if rule is None else read_salt(rule.salt_file, f"{key}.hash.salt_file")
        self._redaction = Redaction(dropped, hashed) if dropped or hashed else None
        combined = {} if rule is None else rule.combine
        self._combinations = [
            Combination(name, paths, f"{key}.hash.combine") for name, paths in combined.items()
        ]
        self._days = (
            _RecordDays(rules, key, times, [*dropped, *hashed])
            if rule is not None and rule.daily
            else None
        )
        if self._days is not None and times is None and not has_time:
            raise misconfigured(
                f"{key}.hash.daily",
                "needs the time of each record",
                f"Write the expression of the time: {key}.timestamp.",
            )
        self._day_key = (b"", b"")

    def apply(self, record: bytes, time: float | None) -> tuple[bytes, bytes, str]:
        """The record for the expressions; its timestamp as JSON text if it was evaluated (else
        empty); why it can't be an event (empty if it can).

        Of such a record `where` may still say that it is none. Raises msgspec's errors if it isn't
        a JSON object.
        """
        key = self._salt
        text = b""
        problem = ""
        try:
            if self._days is not None:
                day, text = self._days.of(record, time)
                key = self._key_of(day)
            if self._combinations:
                record = add_members(
                    record,
                    [
                        (combination.target, combination.value(record, key))
                        for combination in self._combinations
                    ],
                )
        except Unmappable as error:
            problem = error.message
        return (
            record if self._redaction is None else self._redaction.apply(record, key),
            text,
            problem,
        )

    def _key_of(self, day: bytes) -> bytes:
        """The key of a day; that of the last one is remembered."""
        if self._day_key[0] != day:
            self._day_key = (day, hmac.digest(self._salt, day, "sha256"))
        return self._day_key[1]


class Combination:
    """A member with one hash over the values at several paths."""

    def __init__(self, name: str, paths: Sequence[str], key: str) -> None:
        """Raises `ConfigurationError`; `key` is the setting of all combinations."""
        self.target = AddedMember(name)
        self._reader = PathReader()
        self._count = len(paths)
        if not paths:
            raise misconfigured(
                f"{key}.{name}", "has no paths: what is to be hashed", _ONE_PATH_HINT
            )
        for slot, text in enumerate(paths):
            path = parse_path(text)
            if not path or None in path:
                raise misconfigured(
                    f"{key}.{name}", f"{text!r} is not the path of one value", _ONE_PATH_HINT
                )
            self._reader.add(path, slot, f"hash.combine.{name}")

    def value(self, record: bytes, key: bytes) -> bytes:
        """The hash as JSON text; empty if none of the values is there. Raises `Unmappable`, and
        msgspec's errors.
        """
        values = [b""] * self._count
        self._reader.fill(self._reader.open(record), record, values)
        contents = [*map(hash_content, values)]
        if not any(contents):
            return b""
        return keyed_hash(
            key, b"".join([b"%d:%b," % (len(content), content) for content in contents])
        )


class AddedMember:
    """A member that an object gets; one that it has with this name gives way."""

    def __init__(self, name: str) -> None:
        written = msgspec.json.encode(name)
        self._start = written + b":"
        self._text = written[1:-1]
        self._escapable = b"/" in written
        self._removal = Redaction([(name,)])

    def remove_from(self, record: bytes, *, unescaped: bool = False) -> bytes:
        """The object without it. `unescaped`: the names of its members have no escapes that they
        don't need.
        """
        may_be_escaped = b"\\u" in record or (self._escapable and b"\\" in record)
        if self._text in record or (may_be_escaped and not unescaped):
            return self._removal.apply(record)
        return record

    def with_value(self, value: bytes) -> bytes:
        """The member's text."""
        return self._start + value


def add_members(
    record: bytes, members: Iterable[tuple[AddedMember, bytes]], *, unescaped: bool = False
) -> bytes:
    """An object with members, each with its value as JSON text, before its own. One without a
    value is only removed. `unescaped`: as for `AddedMember.remove_from`.
    """
    added: list[bytes] = []
    for member, value in members:
        record = member.remove_from(record, unescaped=unescaped)
        if value:
            added.append(member.with_value(value))
    if not added:
        return record
    rest = record.lstrip(_SPACE)[1:].lstrip(_SPACE)
    return b"{%b%b%b" % (b",".join(added), b"" if rest[:1] == b"}" else b",", rest)


class _RecordDays:
    """The day of each record, `2026-01-31`."""

    def __init__(
        self, rules: MappingRules, key: str, times: Times | None, hidden: Sequence[Path]
    ) -> None:
        self._times = times
        self._last = (-1, b"")
        if rules.timestamp is not None:
            self._expressions = Expressions(key)
            self._slot = self._expressions.add("timestamp", rules.timestamp.source)
            self._expressions.compile()
            self._hiding = (
                Redaction(hidden) if _may_hide(hidden, parse_path(rules.timestamp.source)) else None
            )

    def of(self, record: bytes, time: float | None) -> tuple[bytes, bytes]:
        """The day, and the mapping's timestamp if it gives one. Raises `Unmappable` if there is
        none, and msgspec's errors.
        """
        if self._times is not None:
            values = self._expressions.evaluate(
                record if self._hiding is None else self._hiding.apply(record)
            )
            if values is not None and values[self._slot]:
                text = self._times.read(values[self._slot], time)
                return text[1:11], text
        if time is None:
            raise Unmappable("hash.daily: the record has no time that says its day")
        number = int(time // 86_400)
        if self._last[0] != number:
            try:
                self._last = (
                    number,
                    datetime.fromtimestamp(number * 86_400, UTC).date().isoformat().encode(),
                )
            except (ValueError, OverflowError, OSError) as error:
                raise Unmappable(
                    f"hash.daily: the record's time, {time:.0f} s since 1970, is out of the "
                    "calendar"
                ) from error
        return self._last[1], b""


def _may_hide(hidden: Sequence[Path], path: Path | None) -> bool:
    """Whether what is hidden may be, or hold, what an expression (a path, or None) reads."""
    if not path or None in path:
        return bool(hidden)
    names = _names(path)
    return any(
        None in hidden_path or _names(hidden_path) == names[: len(_names(hidden_path))]
        for hidden_path in hidden
    )


def _names(path: Path) -> Path:
    return tuple(step for step in path if isinstance(step, str))


def parse_paths(written: Iterable[str], key: str) -> Sequence[Path]:
    """Paths of fields to drop or to hash. Raises `ConfigurationError`; `key` is the setting that
    has them.
    """
    paths: list[Path] = []
    for text in written:
        path = parse_path(text)
        if not path:
            what = "is the whole record" if path == () else "is no path"
            meant = f"Did you mean .{text}? " if parse_path(f".{text}") else ""
            raise misconfigured(key, f"{text!r} {what}", f"{meant}{_PATH_HINT}")
        paths.append(path)
    return paths


def read_salt(path: FilePath, key: str) -> bytes:
    """The key of hashes. Raises `ConfigurationError`; `key` is the setting that names the file."""
    try:
        salt = read_file(path).strip()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise misconfigured(
            key, f"{path} can't be read: {error_text(error)}", _SALT_HINT
        ) from error
    if not salt:
        raise misconfigured(key, f"{path} is empty", _SALT_HINT)
    return salt
