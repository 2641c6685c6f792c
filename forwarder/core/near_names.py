"""What a message proposes for a name that doesn't exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_ALIKE: Final = 0.6
"""How alike a name is, from 0 to 1."""
_SAME_WORD: Final = 0.8
"""The same of a word in a name."""
_LONG_ENOUGH: Final = 4
"""Characters of a word that says something."""


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, whatever the case, or else shares a word with it;
    None if none does.
    """
    by_spelling = {other.lower(): other for other in known}
    by_word = {word: other for other in by_spelling.values() for word in _words(other)}
    attempts = [(name.lower(), by_spelling, _ALIKE), (name.lower(), by_word, _SAME_WORD)]
    attempts += [(word, by_spelling, _SAME_WORD) for word in _words(name)]
    for text, names, alike in attempts:
        if close := difflib.get_close_matches(text, names, n=1, cutoff=alike):
            return names[close[0]]
    return None


def _words(name: str) -> list[str]:
    return [word for word in name.lower().split("_") if len(word) >= _LONG_ENOUGH]


def propose_name(name: str, known: Iterable[str]) -> str:
    """A hint for a name that doesn't exist: one that is like it, or all there are."""
    names = sorted(known)
    near = near_name(name, names)
    return f"did you mean {near}?" if near else f"known here: {', '.join(names)}"
