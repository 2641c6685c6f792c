"""Fenced blocks of Markdown, and the steps of a page that a reader follows: what is typed, and
what the terminal shows then.

A block of `sh` is pasted; a block of `text` or `json`, or without a language, has lines that the
last command shows, in this order, with `…` for any text. A comment in a line of its own, which no
reader sees, says how a block is used where that isn't so:

    <!-- terminal NAME -->   the next block runs in a terminal of its own, and the page continues
    once it has shown its lines <!-- interrupt NAME -->  Ctrl-C in that terminal; lines that follow
    are what it shows as it ends <!-- file NAME -->       the next block, of any language, is saved
    under this name <!-- exit CODE -->       the next block ends with this exit code, which is 0
    otherwise <!-- skip -->            the next block isn't followed
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Action: TypeAlias = Literal["run", "start", "interrupt", "save"]

_BLOCK: Final = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_STEP: Final = re.compile(
    rf"^<!-- (terminal|interrupt|file|exit|skip)(?: (\S+))? -->$|{_BLOCK.pattern}",
    re.DOTALL | re.MULTILINE,
)
SHELL: Final = "sh"
SHOWN: Final = frozenset({"", "text", "json"})
"""Languages of blocks that show what a command writes."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, or nothing, its text, and the line of the page on which the
    text begins.
    """

    language: str
    text: str
    line: int


@dataclass(slots=True)
class Step:
    """What a reader does: runs or starts `text`, interrupts the terminal `name`, or saves `text`
    as the file `name`.
    """

    action: Action
    text: str
    name: str
    line: int
    shows: tuple[str, ...] = ()
    """Lines that appear then, in this order."""
    code: int = 0
    """The exit code of what is run."""


def blocks(text: str, *languages: str) -> list[Block]:
    """The blocks of a page in these languages, or all."""
    all_blocks = [
        Block(match[1], match[2], _line(text, match.start(2))) for match in _BLOCK.finditer(text)
    ]
    return [block for block in all_blocks if not languages or block.language in languages]


def texts(text: str, *languages: str) -> list[str]:
    """The texts of `blocks`."""
    return [block.text for block in blocks(text, *languages)]


def steps(text: str) -> list[Step]:
    """What a reader of the page does, in this order. Raises `ValueError` for a comment that
    doesn't fit what follows it.
    """
    all_steps: list[Step] = []
    pending: dict[str, str] = {}
    for match in _STEP.finditer(text):
        word, argument, language, body = match.groups()
        if word == "interrupt":
            all_steps.append(Step("interrupt", "", argument, _line(text, match.start())))
        elif word:
            pending[word] = argument or ""
        else:
            _add(all_steps, Block(language, body, _line(text, match.start(4))), pending)
            pending = {}
    if pending:
        raise ValueError(f"no block follows the comment {pending}")
    return all_steps


def _add(steps: list[Step], block: Block, pending: dict[str, str]) -> None:
    if "skip" in pending:
        return
    if "file" in pending:
        steps.append(Step("save", block.text, pending["file"], block.line))
    elif block.language == SHELL:
        terminal = pending.get("terminal", "")
        steps.append(
            Step(
                "start" if terminal else "run",
                block.text,
                terminal,
                block.line,
                code=int(pending.get("exit", "0")),
            )
        )
    elif pending:
        raise ValueError(
            f"line {block.line}: {pending} stands before a block of {block.language!r}"
        )
    elif block.language in SHOWN and steps:
        steps[-1].shows += tuple(line for line in block.text.splitlines() if line.strip())


def unseen(shows: tuple[str, ...], output: str) -> str:
    """The first of the lines of a page that isn't in an output after those before it; nothing if
    all are. How many spaces there are doesn't matter.
    """
    rest = iter(output.splitlines())
    return next(
        (
            line
            for line in shows
            if not any(_pattern(line).fullmatch(_plain(other)) for other in rest)
        ),
        "",
    )


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, _plain(line).split("…"))))


def _plain(line: str) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).split())


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
