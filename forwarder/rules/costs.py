"""What rules cost, estimated from an event's text before they are applied, in microseconds.

Rules take time for what they look at: for each member and element of the event, far more than for
its bytes. A comma stands between any two of those, and a bracket before the first, so that both
together bound their number; commas within texts make an estimate too high, never too low. The
figures are those of a usual machine, rounded up (docs/decisions/0038-rules-have-an-effort.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from forwarder.mapping.paths import parse_path
from forwarder.mapping.restrictions import LONGEST_REPEAT

_EVENT: Final = 4.0
_BYTE: Final = 0.01
_COMMA: Final = 2.0
_OPENING: Final = 8.0

LOOKUP: Final = 2.0
"""For an id that is looked up in a file, or hashed for a sample."""
NAME: Final = 0.2
"""For an event's name."""

LONG: Final = 200_000.0
"""What costs more than this is never short; how much more is not estimated."""

_CONDITION: Final = 20.0
_CONDITION_BYTE: Final = 0.04
_CONDITION_ELEMENT: Final = 1.0
_STEP: Final = 0.6
"""For a step of nested iterations."""
_LIGHT_BYTE: Final = 0.001
_WORK_BYTE: Final = 0.06
_CHARACTER: Final = 8.0
"""For a character whose case is changed: jq does that one by one."""
_PRODUCT: Final = 200.0
"""For a product, which repeats a text if one of its factors is a text."""
_LONGEST_PRODUCT: Final = float(LONGEST_REPEAT)
_MATCH_STEP: Final = 0.01
"""For a step of a regular expression."""
_GLOBAL_STEP: Final = 0.03
"""For one that is searched again behind each match."""
_LONGEST_MATCH: Final = 500_000.0
"""jq ends one after ten million steps."""
_MOST_NESTED: Final = 12
_MOST_GROWN: Final = 64


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FREE: Final = _words(
    """and or not as if then elif else end try catch true false null select empty error type has in
    values nulls booleans numbers strings arrays objects iterables scalars tonumber floor
    ceil round sqrt fabs abs isnan isinfinite isnormal nan infinite first last nth isempty
    min max"""
)
"""What takes no longer than reading does."""
_BEFORE_VALUES: Final = _words("and or as if then elif else try catch")
_LIGHT: Final = _words(
    """length utf8bytelength startswith endswith ltrimstr rtrimstr trim ltrim rtrim"""
)
"""What goes through a text quickly."""
_WORK: Final = _words(
    """keys keys_unsorted reverse tostring tojson fromjson explode implode split getpath
    todate fromdate fromdateiso8601 todateiso8601 strptime strftime mktime gmtime"""
)
"""What goes through a value once."""
_CASES: Final = frozenset(("ascii_downcase", "ascii_upcase"))
_FORMATS: Final = _words("@text @json @csv @tsv @html @uri @sh @base64 @base64d @base32 @base32d")
_SEARCHES: Final = _words("contains inside index rindex indices IN")
_ITERATIONS: Final = {
    **dict.fromkeys(
        _words(""".. all any add flatten from_entries group_by join limit map map_values max_by
        min_by recurse sort sort_by to_entries unique unique_by with_entries"""),
        1,
    ),
    **dict.fromkeys(_words("leaf_paths paths tostream walk"), 2),
}
"""How many iterations may stand within each other."""
_REGULAR: Final = _words("test match capture scan splits sub gsub")
_GLOBAL: Final = _words("scan splits sub gsub")
_SPLITS: Final = _words("explode split scan splits match")
"""What makes elements of a text."""
_GROWTH: Final = {
    "tojson": 2,
    "tostring": 2,
    "join": 2,
    "@html": 6,
    "@sh": 4,
    "@uri": 3,
    "@json": 2,
} | (dict.fromkeys(_words("add implode gsub sub todate strftime @csv @tsv @base64 @base32"), 2))
"""How much longer a text may become than those in the event are together."""
_PLAIN_OPERATORS: Final = _words("| , ; : . ? // ( ) [ ] { } %")
_COMPARISONS: Final = _words("== != < <= > >=")
_TOKEN: Final = re.compile(
    r"""(?:\s|\#[^\n]*)*+
    (\.[A-Za-z_]\w*|\$[A-Za-z_]\w*|@\w+|[A-Za-z_]\w*
    |\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?
    |\.\.|\?//|//=?|[=!<>|+\-*/%]=|"|.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_TEXT: Final = re.compile(r'[^"\\]*(?:\\[^(][^"\\]*)*(?:"|\\\(|\Z)', re.DOTALL)
_MADE_TEXT: Final = '"\\('
"""In place of a text with an expression in it."""
_LITERAL: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_QUANTIFIER: Final = re.compile(r"\\\\.|\\.|\[(?:\\\\.|[^\]])*\]|([*+{?])|(\)[*+{?])", re.DOTALL)


def edit_cost(text: bytes, passes: int) -> float:
    """Of a change that goes through an event so often."""
    openings = text.count(b"[") + text.count(b"{")
    return passes * (_EVENT + _BYTE * len(text) + _COMMA * text.count(b",") + _OPENING * openings)


def reading_cost(text: bytes) -> float:
    """Of an expression in jq that reads a text, and repeats nothing."""
    elements = text.count(b",") + text.count(b"[") + text.count(b"{")
    return _CONDITION + _CONDITION_BYTE * len(text) + _CONDITION_ELEMENT * elements


class ConditionCost:
    """What a condition in jq costs. What isn't known to be cheap is taken to be long."""

    def __init__(self, expression: str) -> None:
        path = parse_path(expression)
        self._is_path = path is not None and None not in path
        self._nested = self._light = self._work = self._products = self._cases = 0
        self._grown = self._branches = self._joined = 1
        self._is_unknown = self._makes_texts = self._splits = False
        self._powers: list[tuple[int, bool]] = []
        """Of regular expressions, and whether each is searched again behind a match."""
        tokens = _tokens(expression)
        self._own_elements = tokens.count(",") + tokens.count("[") + tokens.count("{")
        self._own_text = max([len(text) for text in tokens if text[0] == '"'], default=0)
        self._size = len(expression)
        for at, token in enumerate(tokens):
            self._note(token, at, tokens)
        self._note_commas(tokens)
        self._is_unknown |= (
            self._nested > _MOST_NESTED or self._grown * self._branches > _MOST_GROWN
        )

    def _note(self, word: str, at: int, tokens: Sequence[str]) -> None:
        behind, next_but_one = (*tokens[at + 1 : at + 3], "", "")[:2]
        if word in _GROWTH:
            self._grow(_GROWTH[word])
        self._splits |= word in _SPLITS
        arguments = tokens[at + 1 : _end_of(tokens, at + 1)] if behind == "(" else ()
        if word in _REGULAR or (word == "split" and ";" in arguments):
            self._note_regular(word, at, tokens)
        elif word in _WORK or word in _FORMATS:
            self._work += 1
        elif word in _CASES:
            self._cases += 1
        elif word in _LIGHT:
            self._light += 1
        elif word in _ITERATIONS:
            self._nested += _ITERATIONS[word]
            # of a function, `recurse` has no bound by the event's size; by any text, `join` grows
            self._is_unknown |= behind == "(" and (
                word in ("recurse", "walk") or (word == "join" and next_but_one[:1] != '"')
            )
        elif word in _SEARCHES:
            if not all(argument == "," or _is_literal(argument) for argument in arguments[1:]):
                self._nested += 2
                self._work += 1
            elif word != "IN":
                self._nested += 1
                self._work += 1
        else:
            self._note_operator(word, at, tokens)

    def _note_operator(self, word: str, at: int, tokens: Sequence[str]) -> None:
        before = tokens[at - 1] if at else ""
        behind = (*tokens[at + 1 : at + 2], "")[0]
        beside_number = before[:1].isdigit() or behind[:1].isdigit()
        if word == _MADE_TEXT or (word == "+" and not beside_number):
            self._grow(2)
            self._joined *= 2 if word == "+" else 1
            self._work += 1
        elif word == "*":
            self._products += 1
        elif word == "-" and not beside_number:
            self._nested += 2
        elif word == "/" and not behind[:1].isdigit():
            self._work += 1
            self._splits = True
        elif word in _COMPARISONS:
            self._light += not (_is_literal(before) or _is_literal(behind))
        elif word == "[":
            self._note_brackets(before, at, tokens)
        else:
            self._is_unknown |= not (
                word in _FREE
                or word in _PLAIN_OPERATORS
                or word in ("+", "-", "/")
                or (behind == ":" and before in ("{", ","))
                or (word[0] in ".$" and len(word) > 1)
                or word[0] == '"'
                or word[0].isdigit()
            )

    def _grow(self, factor: int) -> None:
        self._makes_texts = True
        self._grown = min(self._grown * factor, _MOST_GROWN + 1)

    def _note_regular(self, word: str, at: int, tokens: Sequence[str]) -> None:
        pattern = tokens[at + 2] if tokens[at + 1 : at + 2] == ["("] else ""
        power = None
        if tokens[at + 3 : at + 4] in ([")"], [";"]) and pattern != _MADE_TEXT:
            power = _power(pattern, 0)
        if power is None:
            self._is_unknown = True
            return
        flags = tokens[at + 4 : at + 6] if _has_flags(tokens, at) else ['""', ")"]
        is_once = word not in _GLOBAL and word != "split" and flags[1:] == [")"]
        self._powers.append((power, not (is_once and flags[0][:1] == '"' and "g" not in flags[0])))

    def _note_brackets(self, before: str, at: int, tokens: Sequence[str]) -> None:
        """An array, or what an index or an iteration is in."""
        inside = tokens[at + 1 : _end_of(tokens, at)]
        is_index = (
            before in (".", "]", ")", "}", "?")
            or before[:1] == '"'
            or (before[:1] in ".$" and len(before) > 1)
            or (before.isidentifier() and before not in _BEFORE_VALUES)
        )
        if not inside:
            self._nested += 1
        elif is_index and ":" in inside:
            self._work += 1
        elif is_index and not _is_literal(inside[-1]):
            self._nested += 2  # by an array it is a search

    def _note_commas(self, tokens: Sequence[str]) -> None:
        """How many results there may be of each, and how often things stand in an array."""
        groups = [[1, 1, 0]]
        for at, word in enumerate(tokens):
            if word in ("(", "[", "{") or word == _MADE_TEXT:
                is_choice = word == "(" and tokens[at - 1 : at] == ["IN"]
                groups.append([1, 1, int(word in ("[", "{") or is_choice)])
            elif word in (")", "]", "}"):
                self._close(groups.pop() if len(groups) > 1 else [1, 1, 0])
            elif word == ",":
                groups[-1][0] += 1
                groups[-1][1] += not (
                    _is_literal(tokens[at - 1]) and _is_literal((*tokens[at + 1 : at + 2], "")[0])
                )
        for group in groups:
            self._close(group)

    def _close(self, group: Sequence[int]) -> None:
        results, computed, is_one = group
        self._branches = min(self._branches * (computed if is_one else results), _MOST_GROWN + 1)

    def of(self, events: Sequence[bytes]) -> float:
        """For these events."""
        if self._is_path:
            return sum([_EVENT + _BYTE * len(event) for event in events])
        if self._is_unknown:
            return _LONGEST_MATCH * len(events)
        return sum([self._of_one(event) for event in events])

    def _of_one(self, event: bytes) -> float:
        cost = reading_cost(event) * (1 + self._nested / 2) * self._branches
        grown = self._grown * self._branches
        if not (self._nested or self._work or self._cases or self._powers):
            return cost + self._products * _PRODUCT * grown + self._light * _LIGHT_BYTE * len(event)
        size = float(len(event) + self._size) * grown
        longest = float(
            max(self._own_text, *map(len, event.replace(b'\\"', b"__").split(b'"')))
            if cost < LONG
            else len(event)
        )
        if self._makes_texts:
            longest = size
        if self._products:
            size += _LONGEST_PRODUCT
            longest += _LONGEST_PRODUCT
        elements = float(event.count(b",") + event.count(b"[") + event.count(b"{"))
        elements = (elements + self._own_elements) * self._joined * self._branches + (
            longest if self._splits else 0.0
        )
        steps = elements**self._nested
        if self._nested or self._splits:
            cost += _STEP * steps
        cost += steps * (
            self._products * _PRODUCT
            + self._cases * _CHARACTER * longest
            + size * (self._light * _LIGHT_BYTE + self._work * _WORK_BYTE)
        )
        for power, again in self._powers:
            cost += steps * (
                _GLOBAL_STEP * longest ** (power + 1)
                if again
                else min(_MATCH_STEP * longest**power, _LONGEST_MATCH)
            )
        return cost


def _tokens(expression: str) -> list[str]:
    """The tokens as jq reads them; a text is one, or begins as `_MADE_TEXT` and ends with `)`."""
    found: list[str] = []
    in_texts: list[bool] = []
    at = 0
    while (token := _TOKEN.match(expression, at)) is not None:
        text = token[1]
        at = token.end()
        if text == "(":
            in_texts.append(False)
        if text == '"' or (text == ")" and in_texts and in_texts.pop()):
            part = _TEXT.match(expression, at)
            end = at if part is None else part.end()
            is_made = expression[at:end].endswith("\\(")
            if text == ")":
                found.append(text)
            if is_made:
                in_texts.append(True)
                found.append(_MADE_TEXT)
            elif text == '"':
                found.append(f'"{expression[at:end]}')
            at = end
            continue
        found.append(text)
    return found


def _is_literal(token: str) -> bool:
    return (
        token in ("true", "false", "null")
        or token[:1].isdigit()
        or (token[:1] == '"' and token != _MADE_TEXT)
    )


def _end_of(tokens: Sequence[str], at: int) -> int:
    """Where the bracket at `at` is closed."""
    depth = 0
    for end in range(at, len(tokens)):
        if tokens[end] in ("(", "[", "{", _MADE_TEXT):
            depth += 1
        elif tokens[end] in (")", "]", "}"):
            depth -= 1
            if not depth:
                return end
    return len(tokens)


def _has_flags(tokens: Sequence[str], at: int) -> bool:
    """Whether a function has a second argument, behind a first that is a literal."""
    return tokens[at + 1 : at + 2] == ["("] and tokens[at + 3 : at + 4] == [";"]


def _power(expression: str, at: int) -> int | None:
    """How the steps of a regular expression grow with the text that it is for: with which power
    of its length. None: with no such power, or it isn't known.
    """
    literal = _LITERAL.match(expression, at)
    if literal is None or "\\(" in literal[1]:
        return None
    found = 0
    for match in _QUANTIFIER.finditer(literal[1]):
        if match[2] or (match[1] and literal[1][: match.start()].endswith(")")):
            return None
        found += bool(match[1])
    return max(1, found + (not literal[1].startswith("^")))
