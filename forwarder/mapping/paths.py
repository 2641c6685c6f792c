"""Plain paths, which need no jq: `.user.id`, `.["odd name"]`, `.items[0].sku`. What is dropped and
hashed is named by such paths too, and there also by `.items[].email`.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import msgspec

Step: TypeAlias = str | int | None
"""A member's name, an element's index, or None for every element (or member)."""

Path: TypeAlias = tuple[Step, ...]

LEADS_NOWHERE: Final = b"\x00"
"""How a value begins that stands for a path which leads into something that has no such members;
the message follows.
"""

_STEP: Final = re.compile(
    r"""\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | \.(?P<quoted>"(?:[^"\\]|\\.)*")
      | \.?\[\s*(?P<bracketed>"(?:[^"\\]|\\.)*")\s*\]
      | \.?\[\s*(?P<index>\d{1,9})\s*\]
      | \.?(?P<every>\[\s*\])""",
    re.VERBOSE,
)


PATH: Final = re.compile(rf"(?:{_STEP.pattern})+|\.", re.VERBOSE)
"""A path at the beginning of a longer text."""


def parse_path(text: str) -> Path | None:
    """The steps of a path; none for `.`, which is the whole record. None if the text is no path."""
    text = text.strip()
    if text == ".":
        return ()
    steps: list[Step] = []
    at = 0
    while match := _STEP.match(text, at):
        try:
            steps.append(_step(match))
        except msgspec.DecodeError:
            return None  # jq's own strings: "\(.a)"
        at = match.end()
    return tuple(steps) if steps and at == len(text) and text.startswith(".") else None


def _step(match: re.Match[str]) -> Step:
    name = match["name"]
    quoted = match["quoted"] or match["bracketed"]
    if quoted is not None:
        return msgspec.json.decode(quoted, type=str)
    if name is not None:
        return name
    return None if match["index"] is None else int(match["index"])


def spelled(path: Path) -> str:
    """A path as jq has it."""
    text = "".join([_spelled(step) for step in path])
    return text if text.startswith(".") else f".{text}"


def _spelled(step: Step) -> str:
    if isinstance(step, str):
        return (
            f".{step}"
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step)
            else f"[{msgspec.json.encode(step).decode()}]"
        )
    return "[]" if step is None else f"[{step}]"
