"""What an unknown key, or a mistake in YAML, may have meant, and how to write it. Loaded for a
mistake alone, or with YAML.

Invariant: no value of a key is repeated unless it is an address, a number or a word: any other may
be a secret.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final

from forwarder.config.keys import (
    PREFIX,
    SEPARATOR,
    Path,
    dotted,
    in_table,
    is_number,
    keys,
    parts,
    sections,
    variable,
)
from forwarder.config.section import Kind, Members, Optional, Words
from forwarder.config.values import Duration, Size, Text
from forwarder.core.proposals import proposed

if TYPE_CHECKING:
    import yaml

_SYNTAX: Final = (
    (
        r"'\\t'",
        "a tab stands here, and YAML is indented with blanks alone",
        "replace each tab with blanks",
    ),
    (r"cannot start any token", "a value can't begin with {found}", "put the value in quotes"),
    (
        r"while scanning an alias",
        "* at the beginning of a value names an alias",
        "put the value in quotes",
    ),
    (
        r"undefined alias",
        "* at the beginning of a value names an alias, and this one doesn't exist",
        "put the value in quotes",
    ),
    (
        r"mapping values are not",
        "this line can't have a key",
        "indent it like the keys beside it, or see whether the line above lacks a colon",
    ),
    (
        r"while scanning a quoted scalar",
        "the quote that begins here has no end",
        "close it in the same line",
    ),
    (
        r"another document",
        "a second document begins here",
        "remove the line with ---, or what follows",
    ),
    (
        r"expected <block end>",
        "this line is indented otherwise than the keys beside it",
        "indent it like them, with blanks",
    ),
    (
        r"could not find expected ':'",
        "a line has no colon after its key",
        "write key: value, with a blank after the colon",
    ),
    (
        r"expected the node content|expected ',' or",
        "[ or { begins a list or a section here",
        "quote values that hold any of [ ] { } : # *",
    ),
)
"""What the parser of YAML reports, and the same for a person who doesn't know its terms."""


def suggest_key(path: Path) -> str:
    """A hint for an unknown key of the file: a similar name beside it, or the same name elsewhere,
    or what there is.
    """
    parent = path[:-1]
    name = path[-1]
    if meant := spelled_otherwise(path):
        inside = f"{parent[-1]}, as " if parent and not is_number(parent[-1]) else ""
        nested = len(meant) > len(path)
        return (
            f"write it below {inside}{_nested(meant[len(parent) :])}"
            if nested
            else f"did you mean {dotted(meant)}?"
        )
    siblings = [
        known[-1]
        for known in (*sections(), *keys())
        if known[:-1] == in_table(parent) and not is_number(known[-1])
    ]
    close = difflib.get_close_matches(name.lower(), siblings, n=1, cutoff=0.6)
    if close:
        return f"did you mean {dotted((*parent, close[0]))}?"
    elsewhere = [dotted(known) for known in (*sections(), *keys()) if known[-1] == name]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"known here: {', '.join(siblings)}"


def spelled_otherwise(path: Path) -> Path | None:
    """The key that an unknown one surely means: it differs in capitals or dashes alone, or has the
    dots of a whole name.
    """
    name = path[-1]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for spelled in (name.lower(), name.lower().replace("-", "_"), snake):
        meant = (*path[:-1], *parts(spelled))
        if spelled != name or len(meant) > len(path):
            known = in_table(meant)
            if known in sections() or known in keys():
                return meant if not any(map(is_number, meant[len(path) - 1 :])) else None
    return None


def _nested(names: Path) -> str:
    """The names as nested keys: `{upstream: {url: …}}` without the outermost braces."""
    return ": {".join(names) + ": …" + "}" * (len(names) - 1)


def suggest_variable(name: str) -> str:
    """A hint for an unknown environment variable, with the numbers of items that it has."""
    given = name.upper().removeprefix(PREFIX)
    if given in {"CONFIG", "CONFIG_FILE", "CONFIG_PATH"}:
        return "name the file on the command line: --config FILE"
    numbers = [part for part in given.split(SEPARATOR) if is_number(part)]
    known = [variable(path).removeprefix(PREFIX) for path in keys()]
    close = [other for other in known if other.endswith(SEPARATOR + given)]
    close = close or difflib.get_close_matches(
        SEPARATOR.join(in_table(tuple(given.split(SEPARATOR)))), known, n=1, cutoff=0.6
    )
    if not close:
        return f"unset it, or see `{proposed('config show')}` for the keys (FORWARDER_SECTION__KEY)"
    return f"did you mean {' or '.join(PREFIX + _numbered(other, numbers) for other in close)}?"


def _numbered(known: str, numbers: list[str]) -> str:
    """A variable of the table with these numbers of items instead of the first one's."""
    left = iter(numbers)
    return SEPARATOR.join(
        next(left, part) if is_number(part) else part for part in known.split(SEPARATOR)
    )


def no_section(path: Path, node: yaml.Node) -> tuple[str, str]:
    """What is wrong with a value, or a list, where a section belongs, and how to write it."""
    inside = [
        known[-1]
        for known in (*keys(), *sections())
        if known[:-1] == in_table(path) and not is_number(known[-1])
    ]
    text = node.value if isinstance(node.value, str) else ""
    what = (
        "is a section, and needs keys below it"
        if path
        else "holds no keys: a file of settings needs keys at its beginning"
    )
    if (
        (name := re.match(r"[\w-]+", text))
        and name[0] in inside
        and text[name.end() :].startswith(":")
    ):
        return what, f"put a blank after the colon: {name[0]}: …"
    if not path and text.startswith(PREFIX):
        hint = (
            "set them in the environment instead, or write the settings as YAML: upstream: {url: …}"
        )
        return "holds environment variables, and no YAML", hint
    for name_of_key in inside if path else ():
        key = keys().get((*in_table(path), name_of_key))
        if key is not None and _fits(key.field.kind, text):
            return what, f"write it as {_nested((path[-1], name_of_key)).replace('…', text)}"
    return (
        what,
        f"such as {inside[0]}: …"
        if path
        else "begin a line with a key, such as upstream: {url: …}",
    )


def _fits(kind: Kind, text: str) -> bool:
    """Whether a text is surely a value of this kind, and no secret: an address, a word, a size or
    a time.
    """
    inner = kind.inner if isinstance(kind, Optional) else kind
    is_address = isinstance(inner, Text) and "@" not in text and re.search(r"://|:\d", text)
    if not (is_address or isinstance(inner, Words | Members | Size | Duration)):
        return False
    try:
        inner.read(text)
    except ValueError:
        return False
    return True


def explain_syntax(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str, str]:
    """The line of a mistake in YAML (0: none is known), what is wrong, and what to do."""
    said = f"{error.context or ''} {error.problem or ''}"
    mark = error.problem_mark or error.context_mark
    for pattern, what, hint in _SYNTAX:
        if re.search(pattern, said):
            if "quoted scalar" in pattern or "could not find" in pattern:
                mark = error.context_mark or mark
            seen = (
                text.splitlines()[mark.line][mark.column : mark.column + 1]
                if mark and mark.line < len(text.splitlines())
                else ""
            )
            return (mark.line + 1 if mark else 0), what.replace("{found}", seen), hint
    what = error.problem or error.context or "it can't be parsed"
    return (mark.line + 1 if mark else 0), what, "quote values that hold any of [ ] { } : # *"
