"""What commands write beside their tables: errors, questions, and text that comes from outside.

Invariants: errors and questions go to standard error; text that comes from outside can't control
the terminal: control characters, marks of direction and lone surrogates are written as escapes.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

from forwarder.core.errors import ForwarderError

_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 controls, marks of direction, line separators, and surrogates, which can't be encoded.
"""


def report(error: ForwarderError) -> None:
    """Write an error to standard error: what happened, then what to do."""
    sys.stderr.write(f"Error: {error.message}\n")
    if error.hint:
        sys.stderr.write(f"  {error.hint}\n")


def report_visible(error: ForwarderError) -> None:
    """The same for an error that may quote text from outside."""
    report(ForwarderError(visible_lines(error.message), hint=visible_lines(error.hint)))


def can_ask() -> bool:
    """Whether standard input and standard error are a terminal, so that a question can
    be answered.
    """
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool) -> bool:
    """Ask before something irreversible. True if the answer is yes, or with `yes` without asking;
    no input counts as no.
    """
    if yes:
        return True
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not (answer and sys.stdin.isatty()):  # no Enter has ended the line
        sys.stderr.write("\n")
    agreed = answer.strip().lower() in ("y", "yes")
    if not agreed:
        sys.stderr.write("Nothing was changed. Use --yes to skip this question.\n")
    return agreed


def visible(text: str) -> str:
    """`text` with control characters as `\\u001b`."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def visible_lines(text: str) -> str:
    """The same, keeping line breaks."""
    return "\n".join(map(visible, text.split("\n")))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON; control characters that JSON permits inside strings are escaped, too."""
    return visible_lines(json.dumps(value, ensure_ascii=False, indent=indent))
