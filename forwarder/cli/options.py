"""What command lines share: options that select the same things, forms of output, and the layout
of help.

Help is plain text: typer's richer one takes longer to import than most commands take to run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from forwarder.core.proposals import use_configuration

Function = TypeVar("Function", bound=Callable[..., Any])

_SLOWEST: Final = Decimal("0.01")
WIDTH: Final = 110
"""Help is at most this wide, or as wide as the terminal."""
_OF_A_PARSER: Final = re.compile(r"^Value error, |, unable to parse string as an? \w+$")
"""Words that the library's messages have beside what is wrong."""
_JSON_ELSEWHERE: Final = frozenset({"--json", "-j", "-o"})
"""Options for JSON in other programs."""
_CONTEXT: Final = {"max_content_width": WIDTH, "help_option_names": ["-h", "--help"]}


class Output(StrEnum):
    """The form of a command's results."""

    TABLE = "table"
    JSON = "json"


class TextOutput(StrEnum):
    """The form of results that are no table."""

    TEXT = "text"
    JSON = "json"


TableOrJson = Annotated[Output, typer.Option("--output", help="A table, or JSON for programs.")]
TextOrJson = Annotated[TextOutput, typer.Option("--output", help="Text, or JSON for programs.")]


def _remember(file: Path | None) -> Path | None:
    """Have the commands that messages propose name the file, too."""
    use_configuration(file)
    return file


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_remember,
        help="Configuration file. Default: /etc/forwarder/forwarder.yaml, if it exists.",
    ),
]
Admin = Annotated[
    str | None,
    typer.Option(
        "--admin", metavar="ADDRESS", help="Admin address of the daemon: host:port or unix:/path."
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--path", metavar="DIR", help="State directory to read instead of the configured one."
    ),
]
INTERVAL: Final = 2.0
"""Seconds between two looks at the daemon, if nothing else was asked for."""

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        metavar="[SECONDS]",
        min=0.1,
        max=3600,
        help=f"Show it again and again, every {INTERVAL:g} or so many seconds; Ctrl-C ends it.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", help="Print only errors: the exit code is the answer."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Don't ask for confirmation.")]
Port = Annotated[
    int,
    typer.Option(
        "--port",
        min=0,
        max=65533,
        metavar="PORT",
        help="Port for events; admin and sandbox use the next two. 0: any free ports.",
    ),
]


class Group(TyperGroup):
    """A group whose help lists each command with its whole first sentence."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.help = _example_on_one_line(self.help)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(WIDTH * 2))
                    for name, command in commands
                    if command is not None
                ]
            )


class PlainCommand(TyperCommand):
    """A command whose help lists its options by section (`rich_help_panel`)."""

    def __init__(self, name: str | None, **attributes: Any) -> None:
        super().__init__(name, **attributes)
        self.help = _example_on_one_line(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line. An option whose metavar is in brackets may stand without its
        value, which is `INTERVAL` then.
        """
        bare = {
            name for param in self.get_params(ctx) if _may_be_bare(param) for name in param.opts
        }
        completed: list[str] = []
        for arg, following in pairwise([*args, "-"]):
            completed += (
                [arg, f"{INTERVAL:g}"] if arg in bare and following.startswith("-") else [arg]
            )
        try:
            return super().parse_args(ctx, completed)
        except Exception as error:  # its class is the library's own
            message = _OF_A_PARSER.sub("", str(getattr(error, "message", "")))
            if message:
                error.message = message  # type: ignore[attr-defined]
            wrong = getattr(error, "option_name", "")
            if wrong in _JSON_ELSEWHERE and self._writes_json(ctx):
                ctx.fail(f"No such option: {wrong}. JSON is --output json.")
            file = next((name for name in args if name.endswith((".yaml", ".yml"))), None)
            if (
                file
                and "unexpected extra argument" in message
                and any("--config" in param.opts for param in self.params)
            ):
                ctx.fail(f"{message}. Did you mean --config {quote(file)}?")
            raise

    def _writes_json(self, ctx: Any) -> bool:
        """Whether the forms of its `--output` include JSON."""
        records = (param.get_help_record(ctx) for param in self.params if "--output" in param.opts)
        return any(record is not None and "json" in record[0] for record in records)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options of no section, then each section."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            is_argument = param.param_type_name == "argument"
            record = param.get_help_record(ctx)
            if record is not None:
                section = getattr(param, "rich_help_panel", None) or (
                    "Arguments" if is_argument else "Options"
                )
                sections.setdefault(section, []).append(
                    (param.metavar or param.name.upper(), record[1]) if is_argument else record
                )
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandGroup(typer.Typer):
    """Commands with plain help."""

    def __init__(
        self,
        name: str,
        help_text: str,
        *,
        cls: type[TyperGroup] = Group,
        add_completion: bool = False,
    ) -> None:
        super().__init__(
            name=name,
            cls=cls,
            help=help_text,
            no_args_is_help=True,
            add_completion=add_completion,
            rich_markup_mode=None,
            context_settings=_CONTEXT,
            pretty_exceptions_enable=False,
        )

    def command(self, name: str | None = None, **more: Any) -> Callable[[Function], Function]:
        """Add a command."""
        return super().command(name, cls=PlainCommand, context_settings=_CONTEXT, **more)


def _may_be_bare(parameter: Any) -> bool:
    return parameter.param_type_name == "option" and (parameter.metavar or "").startswith("[")


def _example_on_one_line(text: str | None) -> str | None:
    """The help without wrapping of its example, which is to be copied."""
    return text and text.replace("\n\nExample: ", "\n\n\b\nExample: ")


def one_of(words: Sequence[str]) -> dict[str, Any]:
    """The parts of an option that takes one of these words: a parser, which raises
    `typer.BadParameter`, and the shell's completions. For words that are no enumeration.
    """

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(map(repr, words))}.")
        return text

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return {"parser": parse, "autocompletion": complete}


def events_per_second(most: int = 1_000_000) -> Callable[[str], float]:
    """A parser of rates: `100`, `0.5`, `10k`, `100/s`. It raises `typer.BadParameter`."""

    def parse(text: str) -> float:
        from forwarder.config.units import parse_number

        rate = parse_number(str(text), per_second=True)
        if rate is None or not _SLOWEST <= rate <= most:
            raise typer.BadParameter(
                f"{text!r} is not a rate: write events a second from {_SLOWEST} to {most}, such as "
                "100, 10k or 100/s"
            )
        return float(rate)

    return parse


def whole_number(most: int) -> Callable[[str], int]:
    """A parser of numbers from 1 on: `10000`, `10k`. It raises `typer.BadParameter`."""

    def parse(text: str) -> int:
        from forwarder.config.units import parse_number

        number = parse_number(str(text))
        if number is None or number != int(number) or not 1 <= number <= most:
            raise typer.BadParameter(
                f"{text!r} can't be used: write a whole number from 1 to {most}, such as 500 or 10k"
            )
        return int(number)

    return parse


def parameter(name: str, kind: Any, marker: Any, default: Any = None) -> inspect.Parameter:
    """A parameter of a generated command, as typer reads it; `...` for no default."""
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, marker], default=default
    )


def generated(run: Any, parameters: list[inspect.Parameter]) -> Any:
    """A function that typer makes a command of: it passes what was typed, by name, to `run`."""

    def command(**typed: Any) -> None:
        run(typed)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
