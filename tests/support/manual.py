"""Makes the manual page of the commands: `python -m tests.support.manual` writes man/forwarder.1,
which the wheel installs.

Commands that come in dozens (`manage RESOURCE VERB`, `import FORMAT`) are listed, and their
options stand there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from typer.main import get_command

from forwarder import __version__
from forwarder.cli.app import HELP, app, load
from forwarder.config.load import DEFAULT_FILE
from tests.support.repository import ROOT

PAGE: Final = ROOT / "man" / "forwarder.1"
TOGETHER: Final = {"manage": "RESOURCE VERB", "import": "FORMAT PATH…"}
"""Groups whose commands share a description."""
ALONE: Final = frozenset({"import status", "import verify"})
_FIELDS: Final = "Fields"
_NOTES: Final = {
    "FILES": (
        (str(DEFAULT_FILE), "Configuration, if no --config FILE is given."),
        ("/var/lib/forwarder", "Buffer, dead letters and positions of a daemon, by default."),
    ),
    "ENVIRONMENT": (
        (
            "FORWARDER_SECTION__KEY",
            (
                "A key of the configuration, such as FORWARDER_UPSTREAM__URL; it takes precedence "
                "over the file."
            ),
        ),
        ("PAGER", "The program by which `forwarder help TOPIC` shows a document."),
        ("NO_COLOR", "If set, nothing is coloured."),
    ),
}


def manual() -> str:
    """The page, as roff for `man`."""
    summary, _, rest = HELP.partition("\n\n")
    codes, _, example = rest.partition("\n\n")
    return "\n".join(
        [
            f'.TH FORWARDER 1 "" "forwarder {__version__}" "User Commands"',
            ".ad l",
            ".SH NAME",
            f"forwarder \\- {_escaped(summary[0].lower() + summary[1:].rstrip('.'))}",
            ".SH SYNOPSIS",
            ".B forwarder",
            r"\fICOMMAND\fR [\fIOPTIONS\fR]",
            ".SH DESCRIPTION",
            *_paragraphs([summary, example]),
            *_paragraphs(
                [
                    (
                        "`forwarder help` lists the documents that come with it, and `forwarder "
                        "help TOPIC` shows one."
                    )
                ]
            ),
            ".SH COMMANDS",
            *_commands(),
            *(
                line
                for title, entries in _NOTES.items()
                for line in (f".SH {title}", *_entries(entries))
            ),
            ".SH EXIT STATUS",
            *_paragraphs([codes.removeprefix("Exit codes: ")]),
            "",
        ]
    )


def _commands() -> Iterator[str]:
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        leaves = dict(leaves_of(name, load(name)))
        together = {
            path: command
            for path, command in leaves.items()
            if name in TOGETHER and path not in ALONE
        }
        if together:
            yield from _group(name, load(name), together)
        for path, command in leaves.items():
            if path not in together:
                yield from _command(path, command)


def leaves_of(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that can be run, by the words that run them."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from leaves_of(f"{path} {name}", child)


def _command(path: str, command: Any) -> Iterator[str]:
    given = [
        (parameter.metavar or parameter.name.upper(), parameter.required)
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    words = [path, *(name if required else f"[{name}]" for name, required in given)]
    yield f".SS forwarder {_escaped(' '.join(words))}"
    yield from _paragraphs(help_of(command))
    yield from _entries(options_of(path, command).items())


def _group(name: str, group: Any, leaves: dict[str, Any]) -> Iterator[str]:
    """Commands that share their options, in a list."""
    yield f".SS forwarder {_escaped(f'{name} {TOGETHER[name]}')}"
    yield from _paragraphs(help_of(group))
    yield from _entries((path, help_of(command)[0]) for path, command in leaves.items())
    yield from _paragraphs(["Options:"])
    options: dict[str, str] = {}
    for path, command in leaves.items():
        options = {**options_of(path, command), **options}
    yield from _entries(options.items())


def options_of(path: str, command: Any) -> dict[str, str]:
    """What help says of each option; of the fields of single endpoints nothing."""
    shown = [
        parameter
        for parameter in command.params
        if parameter.param_type_name != "argument"
        and getattr(parameter, "rich_help_panel", None) != _FIELDS
    ]
    records = [parameter.get_help_record(_context(path, command)) for parameter in shown]
    return {names: words for names, words in filter(None, records) if names != "-h, --help"}


def _context(path: str, command: Any) -> Any:
    return command.context_class(command, info_name=f"forwarder {path}")


def help_of(command: Any) -> list[str]:
    """The paragraphs of a command's help."""
    return [part.replace("\b\n", "") for part in (command.help or "").split("\n\n")]


def _paragraphs(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        text = " ".join(part.split())
        yield ".PP"
        if text.startswith("Example: "):
            yield from (".EX", _escaped(text.removeprefix("Example: ")), ".EE")
        else:
            yield _escaped(text)


def _entries(entries: Iterable[tuple[str, str]]) -> Iterator[str]:
    for name, words in entries:
        yield from (".TP", f"\\fB{_escaped(name)}\\fR", _escaped(" ".join(words.split())))


def _escaped(text: str) -> str:
    """Text in which nothing is a request or an escape, and a hyphen can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in {".", "'"} else escaped


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(manual(), "utf-8")
