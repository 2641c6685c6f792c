"""The commands in docs/reference/commands.md, made from their own help: a heading for each.

.venv/bin/python -m tests.support.commands_page      writes them into the page again
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from typer.main import get_command

from forwarder.cli.app import app, load
from tests.support.documents import page
from tests.support.manual import ALONE, TOGETHER, help_of, leaves_of, options_of

FILE: Final = page("commands")
MARK: Final = "<!-- help -->\n"
"""Stands between what is written by hand about a command and its help."""
_MARKED: Final = re.compile(
    rf"^(## `([^`\n]+)`\n(?:(?!## ).*\n)*?{MARK})(?:(?!## ).*\n)*", re.MULTILINE
)
_COMMON: Final = re.compile(r"(<!-- common -->\n\n)(?:\|.*\n)*")
_SHARED_BY: Final = 3
"""Commands with the same option, in the same words, from which on it is described once."""


@cache
def commands() -> Mapping[str, Mapping[str, Any]]:
    """What has a heading: a command, or a group whose commands share one; and each command of it
    by its words.
    """
    headings = dict[str, dict[str, Any]]()
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        for path, command in leaves_of(name, load(name)):
            is_grouped = name in TOGETHER and path not in ALONE
            headings.setdefault(f"forwarder {name if is_grouped else path}", {})[path] = command
    return headings


def _usage(path: str, command: Any) -> str:
    """The command with its arguments; empty if it has none."""
    given = [
        (parameter.metavar or parameter.name.upper(), parameter.required)
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    words = [name if required else f"[{name.strip('[]')}]" for name, required in given]
    return f"`forwarder {' '.join([path, *words])}`\n" if words else ""


@cache
def common() -> Mapping[str, str]:
    """The options that many commands have, in the same words."""
    seen = Counter[tuple[str, str]]()
    for leaves in commands().values():
        entries = [item for path, one in leaves.items() for item in options_of(path, one).items()]
        seen.update(dict.fromkeys(entries, 1))
    return dict(entry for entry, count in seen.items() if count >= _SHARED_BY)


def below(heading: str) -> str:
    """The help of a command, as Markdown."""
    leaves = commands()[heading]
    if len(leaves) == 1:
        ((path, command),) = leaves.items()
        usage = _usage(path, command)
        return "\n".join(
            [
                *([usage] if usage else []),
                *_paragraphs(help_of(command)),
                *_table(options_of(path, command)),
            ]
        )
    name = heading.split()[1]
    usage = f"`forwarder {name} {TOGETHER[name]}`\n"
    return "\n".join([usage, *_paragraphs(help_of(load(name))), *_table(_merged(name, leaves))])


def _merged(group: str, leaves: Mapping[str, Any]) -> dict[str, str]:
    """The options of a group. Those that few formats of imports have name these formats."""
    options = dict[str, tuple[str, str]]()
    having = defaultdict[str, list[str]](list)
    for path, command in leaves.items():
        for name, words in options_of(path, command).items():
            options[_short(name)] = max(
                (name, words), options.get(_short(name), ("", "")), key=_length
            )
            having[_short(name)].append(path.removeprefix(f"{group} "))
    return {
        name: words
        if group != "import" or 2 * len(having[short]) > len(leaves)
        else f"{words} Only {', '.join(map(_code, having[short]))}."
        for short, (name, words) in options.items()
    }


def _length(option: tuple[str, str]) -> int:
    return len(option[0])


def _paragraphs(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        text = " ".join(part.split())
        if text.startswith("Example: "):
            yield f"```\n{text.removeprefix('Example: ')}\n```\n"
        else:
            yield f"{text}\n"


def _table(options: Mapping[str, str]) -> Iterator[str]:
    own = {name: words for name, words in options.items() if common().get(name) != words}
    if own:
        yield from _rows(own)
        yield ""
    others = [_code(_short(name)) for name in options if name not in own]
    if others:
        yield f"[Common options](#common-options): {', '.join(others)}\n"


def _rows(options: Mapping[str, str]) -> Iterator[str]:
    yield from ("| Option | Meaning |", "|---|---|")
    for name, words in options.items():
        text = " ".join(words.split()).replace("|", "\\|")
        yield f"| {_code(name.replace('|', chr(92) + '|'))} | {text} |"


def _short(name: str) -> str:
    return name.split(maxsplit=1)[0].rstrip(",")


def _code(name: str) -> str:
    return f"`{name}`"


def current() -> str:
    """The page as it should be."""
    text = FILE.read_text("utf-8")
    text = _COMMON.sub(lambda match: match[1] + "\n".join([*_rows(common()), ""]), text)
    return _MARKED.sub(lambda match: f"{match[1]}\n{below(match[2])}\n", text).rstrip() + "\n"


if __name__ == "__main__":
    FILE.write_text(current(), "utf-8")
