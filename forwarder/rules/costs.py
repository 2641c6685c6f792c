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
_PRODUCT: Final = 200.0
"""For a product, which repeats a text if one of its factors is a text."""
_MATCH_STEP: Final = 0.01
"""For a step of a regular expression."""
_LONGEST_MATCH: Final = 500_000.0
"""jq ends one after ten million steps."""
_MOST_NESTED: Final = 4

_ITERATION: Final = re.compile(
    r"""\[\s*\]|\.\.|\b(?:all|any|add|contains|flatten|foreach|from_entries|getpath|group_by
    |index|indices|inside|join|leaf_paths|limit|ltrimstr|map|map_values|max_by|min_by|paths|range
    |recurse|reduce|rindex|sort|sort_by|splits|to_entries|tostream|unique|unique_by|walk
    |with_entries)\b""",
    re.VERBOSE,
)
_UNSIZED: Final = re.compile(r"\brange\b|\bsetpath\b|\]\s*[-+*/%|]?=[^=]")
"""What may take long for a short event: what a number in it says."""
_REGULAR: Final = re.compile(r"\b(?:test|match|capture|scan|splits?|sub|gsub)\s*\(\s*")
_MADE: Final = re.compile(
    r"\\\(|[+*@]|\b(?:tostring|tojson|join|add|implode|gsub|sub|todate|strftime)\b"
)
"""What makes a text that may be longer than any in the event."""
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
    """What a condition in jq costs."""

    def __init__(self, expression: str) -> None:
        path = parse_path(expression)
        self._is_path = path is not None and None not in path
        code = _LITERAL.sub(lambda match: match[0] if "\\(" in match[0] else '""', expression)
        self._nested = min(len(_ITERATION.findall(code)), _MOST_NESTED)
        """Iterations that may stand within each other."""
        self._products = code.count("*") * _PRODUCT
        self._is_unsized = _UNSIZED.search(code) is not None
        self._makes_texts = _MADE.search(code) is not None
        self._powers = [_power(expression, match.end()) for match in _REGULAR.finditer(expression)]

    def of(self, events: Sequence[bytes]) -> float:
        """For these events."""
        if self._is_path:
            return sum([_EVENT + _BYTE * len(event) for event in events])
        if self._is_unsized or None in self._powers:
            return _LONGEST_MATCH * len(events)
        return sum([self._of_one(event) for event in events])

    def _of_one(self, event: bytes) -> float:
        cost = reading_cost(event) * (1 + self._nested / 2)
        cost += self._products
        if self._nested > 1:
            elements = event.count(b",") + event.count(b"[") + event.count(b"{")
            cost += _STEP * float(elements) ** self._nested
        if self._powers and cost < LONG:
            longest = len(event)
            if not self._makes_texts:
                longest = max(map(len, event.replace(b'\\"', b"__").split(b'"')))
            for power in self._powers:
                if power is not None:
                    cost += min(_MATCH_STEP * float(longest) ** power, _LONGEST_MATCH)
        return cost


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
