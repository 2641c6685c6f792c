"""What an expression of jq may not use: the process around it, and what may never end.

jq runs inside this process and can't be interrupted. So an expression is checked before it is
compiled, token by token as jq reads it: no environment, no other input, no modules, no output of
its own; no function that calls itself, and none of jq's own that go on as long as something holds.
`range` and the repetition of texts remain, with bounds (`bounds`). What is left does a finite
number of steps on a finite record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_ENVIRONMENT: Final = "an expression can't read the daemon's environment"
_INPUT: Final = "an expression sees one record, and no other input"
_PROCESS: Final = "an expression may not stop, print or load anything"
_ENDLESS: Final = "it may never end"

RESTRICTED: Final = {
    **dict.fromkeys(("env", "$ENV", "$__prog_args"), _ENVIRONMENT),
    **dict.fromkeys(("input", "inputs", "input_filename", "input_line_number"), _INPUT),
    **dict.fromkeys(
        ("halt", "halt_error", "debug", "stderr", "import", "include", "module", "modulemeta"),
        _PROCESS,
    ),
    **dict.fromkeys(
        ("get_search_list", "get_jq_origin", "get_prog_origin", "$__prog_name"), _PROCESS
    ),
    **dict.fromkeys(("repeat", "while", "until", "combinations"), _ENDLESS),
}
"""Functions and variables that no expression may use, and why. `recurse` is
one with arguments only.
"""

LONGEST_RANGE: Final = 100_000
"""The most numbers that one `range` gives."""
LONGEST_REPEAT: Final = 1_000_000
"""The most bytes that a text times a number gives: `.price * .quantity` is that for a price that
is a text.
"""

_HINT: Final = {
    _ENDLESS: "Use what is bounded by the record: .[], map, reduce, .., range(length).",
}
_CAN_DO: Final = 'Use what the record itself holds: .user.id is a field, "fixed" a text.'

_RANGE: Final = f"""
def _range($from; $upto): range($from; $upto);
def range($from; $upto; $by):
  if [$from, $upto, $by | type] != ["number", "number", "number"] then error("range needs numbers")
  elif $by == 0 then empty
  else ($upto - $from) / $by as $count
  | if ($count | isnan) or $count > {LONGEST_RANGE}
    then error("range of more than {LONGEST_RANGE} numbers")
    else _range(0; $count | ceil) | $from + . * $by end
  end;
def range($from; $upto): range($from; $upto; 1);
def range($upto): range(0; $upto; 1);
"""
_MULTIPLY: Final = f"""
def _times($a; $b): $a * $b;
def _repeat($text; $count):
  if ($count | type) == "number" and ($text | utf8bytelength) * $count > {LONGEST_REPEAT}
  then error("a text of over {LONGEST_REPEAT} bytes")
  else _times($text; $count) end;
def _multiply(a; b): b as $b | a as $a
  | if ($a | type) == "string" then _repeat($a; $b)
    elif ($b | type) == "string" then _repeat($b; $a)
    else _times($a; $b) end;
"""
"""jq calls `_multiply` for its operator `*`."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ )
    | (?P<comment> \#[^\n]* )
    | (?P<dots> \.\. )
    | (?P<field> \.[A-Za-z_]\w* )
    | (?P<number> (?: \d+\.?\d* | \.\d+ ) (?: [eE][+-]?\d+ )? )
    | (?P<name> (?: [A-Za-z_]\w*:: )* [A-Za-z_]\w* )
    | (?P<quote> " )
    | (?P<open> [\[({] )
    | (?P<close> [\])}] )
    | (?P<other> . )
    """,
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_TEXT: Final = re.compile(r'[^"\\]*(?:\\[^(][^"\\]*)*(?P<end>"|\\\(|\Z)', re.DOTALL)


class Restricted(Exception):
    """An expression uses what it may not; the text says what, `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(slots=True)
class _Frame:
    """What a token is inside of: brackets, the parentheses in a text, or the
    body of a function (`name`).
    """

    kind: str
    name: str = ""


def check_restrictions(expression: str) -> None:
    """Raises `Restricted`. What jq can't compile anyway may pass."""
    frames: list[_Frame] = []
    before = ""
    at = 0
    defined = ""
    while at < len(expression):
        token = _TOKEN.match(expression, at)
        if token is None:
            return
        at = token.end()
        kind = token.lastgroup
        text = token[0]
        if kind == "space":
            continue
        if kind == "comment":
            if text.rstrip("\r").endswith("\\") and at < len(expression):
                raise Restricted(
                    "a comment ends in a backslash",
                    "jq reads the next line as part of it: remove the backslash.",
                )
            continue
        if kind == "quote":
            at = _text(expression, at, frames)
        elif kind == "open":
            frames.append(_Frame(text))
        elif kind == "close":
            at = _close(expression, at, text, frames)
        elif kind == "name" and before == "def":
            defined = text
        elif kind == "name" and not _is_key(before, frames, expression, at):
            _check_name(text, before, frames, called=expression[at:].lstrip().startswith("("))
        elif text == ":" and defined and (not frames or frames[-1].kind != "("):
            frames.append(_Frame("def", defined))
            defined = ""
        elif text == ";" and frames and frames[-1].kind == "def":
            frames.pop()
        before = text


def bounds(expression: str) -> str:
    """Definitions to put before an expression: those of what it uses that is bounded here."""
    # of the two, `range` comes first: its own product is jq's
    return (_RANGE if re.search(r"\brange\b", expression) else "") + (
        _MULTIPLY if "*" in expression else ""
    )


def _text(expression: str, at: int, frames: list[_Frame]) -> int:
    """Where a text ends, or where an expression within it begins."""
    token = _TEXT.match(expression, at)
    if token is None:
        return len(expression)
    if token["end"].startswith("\\"):
        frames.append(_Frame('"'))
    return token.end()


def _close(expression: str, at: int, text: str, frames: list[_Frame]) -> int:
    """Where the next token begins after a closing bracket: within a text if
    an expression in it ends.
    """
    closed = frames.pop() if frames else None
    if closed is not None and closed.kind == '"' and text == ")":
        return _text(expression, at, frames)
    return at


def _is_key(before: str, frames: list[_Frame], expression: str, at: int) -> bool:
    """Whether a name is an object's key: it stands at the beginning of a member."""
    return (
        bool(frames)
        and frames[-1].kind == "{"
        and before in {"{", ","}
        and expression[at : at + 1] != "("
    )


def _check_name(name: str, before: str, frames: list[_Frame], *, called: bool) -> None:
    shown = f"${name}" if before == "$" else name
    if before != "$" and any(frame.name == name for frame in frames):
        raise Restricted(f"{name} calls itself: {_ENDLESS}", _HINT[_ENDLESS])
    if why := RESTRICTED.get(shown):
        raise Restricted(f"{shown} can't be used: {why}", _HINT.get(why, _CAN_DO))
    if name == "recurse" and called:
        raise Restricted(
            f"recurse with an argument can't be used: {_ENDLESS}",
            "Without one, as .., it is bounded by the record.",
        )
