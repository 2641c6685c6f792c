"""What somebody may have meant by a key that doesn't exist."""

from __future__ import annotations

import difflib

from forwarder.config.keys import PREFIX, SEPARATOR, Path, keys, sections, variable


def suggest_key(path: Path) -> str:
    """A hint for an unknown key of the file: a similar name beside it, or the same name elsewhere, or what there is."""
    parent, name = path[:-1], path[-1]
    siblings = [known[-1] for known in (*sections(), *keys()) if known[:-1] == parent]
    close = difflib.get_close_matches(name.lower(), siblings, n=1, cutoff=0.6)
    if close:
        return f"did you mean {'.'.join([*parent, close[0]])}?"
    elsewhere = [".".join(known) for known in (*sections(), *keys()) if known[-1] == name]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(siblings)}"


def suggest_variable(name: str) -> str:
    """A hint for an unknown environment variable."""
    given = name.upper().removeprefix(PREFIX)
    known = [variable(path).removeprefix(PREFIX) for path in keys()]
    close = [other for other in known if other.endswith(SEPARATOR + given)] or difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    if not close:
        return "unset it, or see `forwarder config show` for the keys (FORWARDER_SECTION__KEY)"
    return f"did you mean {' or '.join(PREFIX + other for other in close)}?"
