"""The regular expressions of a configuration, in time that grows only with the text.

Python's `re` tries one way after the other: a pattern with nested repeats takes twice as long for
each further character, and most patterns take the square of a line's length. RE2 follows all ways
at once. A pattern is parsed by Python and written anew for RE2, construct by construct.

Invariants:
- A pattern means what it means to `re`, or `PatternError` says what it must be instead. That
  includes digits, letters, spaces and case beyond ASCII.
- A text doesn't end with a line feed: `$` is the text's end.
- Only named groups are captured.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from re import _constants as codes  # see decision 39
from re import _parser as python_parser
from typing import Any, Final

import re2

from forwarder.core.error_text import error_text

_LARGEST: Final = 32 * 1024 * 1024
"""Bytes that a pattern may take: some 1,300 repeats of `\\w`, whose alphabet is large."""
_MOST_REPEATS: Final = 1000
_NEVER: Final = "[^\\x00-\\x{10FFFF}]"
_PLANES: Final = 0x40000
"""All that are digits, letters or spaces, or have another case, are below."""
_NATIVE: Final = f"utf-32-{'le' if sys.byteorder == 'little' else 'be'}"
_CATEGORIES: Final = {
    codes.CATEGORY_DIGIT: "\\d",
    codes.CATEGORY_NOT_DIGIT: "\\D",
    codes.CATEGORY_SPACE: "\\s",
    codes.CATEGORY_NOT_SPACE: "\\S",
    codes.CATEGORY_WORD: "\\w",
    codes.CATEGORY_NOT_WORD: "\\W",
}


class PatternError(ValueError):
    """A regular expression that can't be used, with what is to be written instead."""


class LinearPattern:
    """A compiled regular expression."""

    def __init__(self, pattern: str | bytes) -> None:
        """Text is searched in UTF-8 by characters, a pattern of bytes by bytes. Raises
        `PatternError`.
        """
        try:
            tree = python_parser.parse(pattern)
            writer = _Writer(isinstance(pattern, bytes))
            written = writer.write(tree, tree.state.flags)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(f"is no regular expression ({error_text(error)}): fix it") from error
        options = re2.Options()
        options.max_mem = _LARGEST
        options.log_errors = False
        if isinstance(pattern, bytes):
            options.encoding = re2.Options.Encoding.LATIN1
        try:
            self._compiled = re2.compile(
                written.encode() if isinstance(pattern, bytes) else written, options
            )
        except re2.error as error:
            raise PatternError(
                "is too large: write smaller numbers in {…}, or * and + instead of them"
            ) from error
        self.pattern: Final = pattern
        self.names: Final[Sequence[str]] = tuple(writer.names)
        """The named groups, in their order."""

    def search(self, text: bytes) -> bool:
        """Whether it is found anywhere in the text."""
        return self._compiled.search(text) is not None

    def match(self, text: bytes) -> bool:
        """Whether the text begins with it."""
        return self._compiled.match(text) is not None

    def fields(self, text: bytes) -> dict[str, str] | None:
        """What the named groups have captured, without those that took no part; None if it isn't
        found. The text is valid UTF-8.
        """
        match = self._compiled.search(text)
        if match is None:
            return None
        found = {}
        for name, value in zip(self.names, match.groups(), strict=True):
            if value is not None:
                found[name] = value.decode()
        return found


class _Writer:
    """Writes what Python has parsed as RE2 understands it."""

    def __init__(self, of_bytes: bool) -> None:  # noqa: FBT001 -- the one thing that it depends on
        self.names: list[str] = []
        self._of_bytes = of_bytes
        self._groups: dict[int, str] = {}

    def write(self, tree: Any, flags: int) -> str:
        """The whole pattern."""
        self._groups = {number: name for name, number in tree.state.groupdict.items()}
        return self._sequence(tree, flags)

    def _sequence(self, items: Iterable[tuple[Any, Any]], flags: int) -> str:
        return "".join([self._item(code, argument, flags) for code, argument in items])

    def _item(self, code: Any, argument: Any, flags: int) -> str:
        if code is codes.LITERAL:
            return self._class([(code, argument)], flags)
        if code is codes.NOT_LITERAL:
            return self._class([(codes.NEGATE, None), (codes.LITERAL, argument)], flags)
        if code is codes.IN:
            return self._class(argument, flags)
        if code is codes.ANY:
            return "(?s:.)" if flags & re.DOTALL else "[^\\n]"
        if code is codes.BRANCH:
            return f"(?:{'|'.join([self._sequence(branch, flags) for branch in argument[1]])})"
        if code is codes.SUBPATTERN:
            return self._group(argument, flags)
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            lazy = "?" if code is codes.MIN_REPEAT else ""
            return self._repeat(argument, flags) + lazy
        if code is codes.AT:
            return self._at(argument, flags)
        raise PatternError(_unsupported(code, argument))

    def _group(self, argument: tuple[int | None, int, int, Any], flags: int) -> str:
        number, added, removed, items = argument
        if added & (re.ASCII | re.LOCALE | re.UNICODE):
            flags &= ~(re.ASCII | re.LOCALE | re.UNICODE)
        flags = (flags | added) & ~removed
        name = self._groups.get(number or 0)
        if name is not None:
            self.names.append(name)
        return f"({'' if name is not None else '?:'}{self._sequence(items, flags)})"

    def _repeat(self, argument: tuple[int, int, Any], flags: int) -> str:
        least, most, items = argument
        body = f"(?:{self._sequence(items, flags)})"
        if most > 1 and items.getwidth()[0] == 0:
            raise PatternError(
                "repeats something that may be empty, such as (?:a*)+, and engines differ in what "
                "that matches: write what is repeated so that it has at least one character, such "
                "as a*"
            )
        endless = most is codes.MAXREPEAT
        if max(least, 0 if endless else most) > _MOST_REPEATS:
            raise PatternError(
                f"repeats something more than {_MOST_REPEATS} times: write * or + instead of {{…}}"
            )
        if endless and least < 2:
            return body + "*+"[least]
        return f"{body}{{{least},{'' if endless else most}}}"

    def _at(self, where: Any, flags: int) -> str:
        if where is codes.AT_BEGINNING:
            return "(?m:^)" if flags & re.MULTILINE else "\\A"
        if where is codes.AT_END:
            return "(?m:$)" if flags & re.MULTILINE else "\\z"
        if where is codes.AT_BEGINNING_STRING:
            return "\\A"
        if where is codes.AT_END_STRING:
            return "\\z"
        if where is codes.AT_BOUNDARY and (self._of_bytes or flags & re.ASCII):
            return "\\b"
        if where is codes.AT_BOUNDARY:
            raise PatternError(
                "has \\b, which isn't available for letters beyond ASCII: write (?a:\\b), for "
                "which only the letters of ASCII are letters"
            )
        raise PatternError("has \\B, which isn't available: match the character next to it instead")

    def _class(self, items: Sequence[tuple[Any, Any]], flags: int) -> str:
        """A set of characters: as it is, if it has nothing but ASCII; or those that `re` says."""
        if flags & re.LOCALE:
            raise PatternError("has the flag L, which isn't available: leave it out")
        negated = "^" if items[0][0] is codes.NEGATE else ""
        members = items[1:] if negated else items
        if not flags & re.IGNORECASE and all(map(_is_ascii, members)):
            ranges = [_range(*_ends(member)) for member in members]
            return f"[{negated}{''.join(ranges)}]"
        python = f"[{negated}{''.join(map(_python, members))}]"
        if self._of_bytes:
            return _matching_bytes(python, flags & re.IGNORECASE)
        return _matching_characters(python, flags & (re.IGNORECASE | re.ASCII))


def _is_ascii(member: tuple[Any, Any]) -> bool:
    return member[0] is not codes.CATEGORY and _ends(member)[1] < 128


def _ends(member: tuple[Any, Any]) -> tuple[int, int]:
    code, argument = member
    return argument if code is codes.RANGE else (argument, argument)


def _python(member: tuple[Any, Any]) -> str:
    """A member of a class, as `re` understands it."""
    if member[0] is codes.CATEGORY:
        return _CATEGORIES[member[1]]
    first, last = _ends(member)
    return f"\\x{first:02x}-\\x{last:02x}" if last < 256 else f"\\U{first:08x}-\\U{last:08x}"


def _range(first: int, last: int) -> str:
    """Some characters of a class, as RE2 understands them."""
    return f"\\x{{{first:x}}}-\\x{{{last:x}}}" if last > first else f"\\x{{{first:x}}}"


@lru_cache(maxsize=256)
def _matching_bytes(python: str, flags: int) -> str:
    runs = re.compile(b"%b+" % python.encode(), flags | re.DOTALL).finditer(bytes(range(256)))
    ranges = [_range(run.start(), run.end() - 1) for run in runs]
    return f"[{''.join(ranges)}]" if ranges else "[^\\x00-\\xff]"


@lru_cache(maxsize=256)
def _matching_characters(python: str, flags: int) -> str:
    """The characters that a class of `re` matches: no table of ours can differ from it.

    Past the planes that have letters it is asked once for each piece between numbers in the class.
    """
    compiled = re.compile(f"{python}+", flags)
    planes = array("I", range(_PLANES)).tobytes().decode(_NATIVE, "surrogatepass")
    ranges = [(run.start(), run.end() - 1) for run in compiled.finditer(planes)]
    cuts = {_PLANES, sys.maxunicode + 1}
    for number in re.findall(r"\\U([0-9a-f]{8})", python):
        cuts |= {cut for cut in (int(number, 16), int(number, 16) + 1) if cut > _PLANES}
    for first, after in pairwise(sorted(cuts)):
        if compiled.match(chr(first)):
            ranges.append((first, after - 1))
    return f"[{''.join([_range(*bounds) for bounds in ranges])}]" if ranges else _NEVER


def _unsupported(code: Any, argument: Any) -> str:
    if code in (codes.ASSERT, codes.ASSERT_NOT):
        behind = argument[0] < 0
        if code is codes.ASSERT:
            what = "a lookbehind, (?<=…)" if behind else "a lookahead, (?=…)"
            fix = "write that text itself beside the group: (?P<user>\\w+); for (?P<user>\\w+)(?=;)"
        else:
            what = "a negative lookbehind, (?<!…)" if behind else "a negative lookahead, (?!…)"
            fix = "exclude characters by a class: [^;]* for (?:(?!;).)*"
    elif code is codes.GROUPREF:
        what = "a reference to a group, \\1 or (?P=…)"
        fix = "write out what may stand there: (?:\"[^\"]*\"|'[^']*')"
    elif code is codes.GROUPREF_EXISTS:
        what = "a condition, (?(…)…)"
        fix = "write both forms: (?:\\[[^]]*\\]|\\S+)"
    elif code is codes.POSSESSIVE_REPEAT:
        what = "a possessive repeat, ++, *+ or ?+"
        fix = "write it without the last +, because nothing is tried twice here"
    elif code is codes.ATOMIC_GROUP:
        what = "an atomic group, (?>…)"
        fix = "write (?:…), because nothing is tried twice here"
    else:
        what = f"{str(code).lower()}"
        fix = "write it otherwise"
    return f"has {what}, which isn't available, so that no line takes long: {fix}"
