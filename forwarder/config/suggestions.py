"""Which key a key that doesn't exist may stand for. Loaded for a mistake alone."""

from __future__ import annotations

import difflib

from forwarder.config.keys import PREFIX, SEPARATOR, Path, dotted, in_table, is_number, keys, sections, variable


def suggest_key(path: Path) -> str:
    """A hint for an unknown key of the file: a similar name beside it, or the same name elsewhere, or what there is."""
    parent, name = path[:-1], path[-1]
    siblings = [known[-1] for known in (*sections(), *keys()) if known[:-1] == in_table(parent) and not is_number(known[-1])]
    close = difflib.get_close_matches(name.lower(), siblings, n=1, cutoff=0.6)
    if close:
        return f"did you mean {dotted((*parent, close[0]))}?"
    elsewhere = [dotted(known) for known in (*sections(), *keys()) if known[-1] == name]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(siblings)}"


def suggest_variable(name: str) -> str:
    """A hint for an unknown environment variable, with the numbers of items that it has."""
    given = name.upper().removeprefix(PREFIX)
    numbers = [part for part in given.split(SEPARATOR) if is_number(part)]
    known = [variable(path).removeprefix(PREFIX) for path in keys()]
    close = [other for other in known if other.endswith(SEPARATOR + given)]
    close = close or difflib.get_close_matches(SEPARATOR.join(in_table(tuple(given.split(SEPARATOR)))), known, n=1, cutoff=0.6)
    if not close:
        return "unset it, or see `forwarder config show` for the keys (FORWARDER_SECTION__KEY)"
    return f"did you mean {' or '.join(PREFIX + _numbered(other, numbers) for other in close)}?"


def _numbered(known: str, numbers: list[str]) -> str:
    """A variable of the table with these numbers of items instead of the first one's."""
    left = iter(numbers)
    return SEPARATOR.join(next(left, part) if is_number(part) else part for part in known.split(SEPARATOR))
