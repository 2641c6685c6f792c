"""`forwarder manage RESOURCE VERB`: a command for each endpoint of the management API, generated
from the contract's table.

No path, field or scope is written here: they are the table's. A command has an argument for each
id in the path (organization and project are options), an option for each field, and the options of
lists and removals.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.manage_fields import (
    NULL,
    OWNERS,
    WORDS,
    BodyField,
    FieldKind,
    endpoint_of,
    example,
    fields_of,
)
from forwarder.cli.options import (
    CommandGroup,
    Config,
    Output,
    TableOrJson,
    Yes,
    generated,
    parameter,
)
from forwarder.contract.endpoints import ENDPOINTS, Endpoint
from forwarder.core.errors import ConfigurationError, ForwarderError

_FIELDS: Final = "Fields"
_ACCESS: Final = "Access"
_SHELL: Final = "_FORWARDER_COMPLETE"
"""The variable by which a shell asks for completion."""
_CODES: Final = (
    "Exit codes: 0 done; 1 refused by the service, or not confirmed; 2 wrong usage or "
    "configuration; 3 unreachable, or not allowed."
)


def _run(endpoint: Endpoint[Any, Any], typed: Mapping[str, Any]) -> None:
    """Run a command. Ends it with an exit code."""
    from forwarder.cli.manage_calls import call, confirmed, everything, failed, page
    from forwarder.cli.manage_request import access, body_of

    as_table = typed["output"] is Output.TABLE
    try:
        _reject_conflicts(typed)
        body = body_of(endpoint, typed, typed.get("data"))
        reached = access(endpoint, typed)
        ids = {
            parameter.name: typed[parameter.name]
            for parameter in endpoint.parameters
            if parameter.name not in OWNERS
        }
        if endpoint.paginated and typed["all"]:
            everything(endpoint, reached, typed["limit"], as_table=as_table)
        elif endpoint.paginated:
            page(endpoint, reached, typed["limit"], typed["offset"], as_table=as_table)
        elif endpoint.destructive and not confirmed(endpoint, reached, ids, yes=typed["yes"]):
            raise typer.Exit(ExitCode.NO)
        elif code := call(endpoint, reached, ids, body, as_table=as_table):
            raise typer.Exit(code)
    except ForwarderError as error:
        raise typer.Exit(failed(error)) from error


def _reject_conflicts(typed: Mapping[str, Any]) -> None:
    """Raises `ConfigurationError` for options that exclude each other."""
    if typed.get("data") == "-" and typed.get("api_key_file") == "-":
        raise ConfigurationError(
            "--data and --api-key-file can't both be read from standard input",
            hint="Name a file for one of them.",
        )
    if typed.get("all") and typed.get("offset"):
        raise ConfigurationError(
            "--offset and --all exclude each other", hint="Leave out one of them."
        )


def _parameters(endpoint: Endpoint[Any, Any]) -> Iterator[inspect.Parameter]:
    for declared in endpoint.parameters:
        if declared.name not in OWNERS:
            shown = declared.name.strip("_").replace("__", "_").upper()
            yield parameter(
                declared.name,
                str,
                typer.Argument(metavar=shown, help=_origin(endpoint, declared.name)),
                ...,
            )
    for name, what in OWNERS.items():
        if any(declared.name == name for declared in endpoint.parameters):
            yield _option(what, "ID", f"Id of the {what}. Default: `management.{what}`.")
    yield from (
        _field(endpoint, field)
        for field in sorted(fields_of(endpoint), key=lambda field: not field.required)
    )
    if endpoint.takes_body:
        several = "; an array for several" if endpoint.several else ""
        yield _option(
            "data",
            "JSON|@FILE|-",
            f"All fields as one JSON value{several}; options override it.",
            _FIELDS,
        )
    if endpoint.paginated:
        yield parameter(
            "limit",
            int | None,
            typer.Option(
                "--limit", metavar="N", min=1, help="Items per page; the service's default is 100."
            ),
        )
        yield parameter(
            "offset",
            int | None,
            typer.Option("--offset", metavar="N", min=0, help="Number of items to skip."),
        )
        yield parameter(
            "all",
            bool,
            typer.Option("--all", help="All pages; as JSON, one item per line."),
            default=False,
        )
    if endpoint.destructive:
        yield inspect.Parameter(
            "yes", inspect.Parameter.KEYWORD_ONLY, annotation=Yes, default=False
        )
    yield inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, annotation=Config, default=None
    )
    yield _option(
        "url", "URL", "Address of the management API. Default: `management.url`.", _ACCESS
    )
    words = (
        "File with the personal API key, - for standard input. Default: "
        "`management.api_key_file`; else it is asked for."
    )
    yield _option("api_key_file", "FILE", words, _ACCESS)
    yield _option(
        "timeout",
        "TIME",
        "Time limit of a call, such as 10s. Default: `management.timeout`.",
        _ACCESS,
    )
    yield inspect.Parameter(
        "output", inspect.Parameter.KEYWORD_ONLY, annotation=TableOrJson, default=Output.TABLE
    )


def _origin(endpoint: Endpoint[Any, Any], name: str) -> str:
    """Where a person finds an id."""
    if endpoint_of(endpoint.resource, "list") is not None:
        return f"As shown by `manage {endpoint.resource} list`."
    return (
        "As shown by `manage batch-exports get`."
        if (endpoint.resource, name) == ("batch-export-runs", "id")
        else ""
    )


def _field(endpoint: Endpoint[Any, Any], field: BodyField) -> inspect.Parameter:
    notes = "; ".join(
        [*(["required"] if field.required else []), *([field.words] if field.words else [])]
    )
    words = f"{notes[0].upper()}{notes[1:]}." if notes else ""
    if field.kind is FieldKind.FLAG:
        declaration = f"{field.option}/--no-{field.option.removeprefix('--')}"
        return parameter(
            field.name, bool | None, typer.Option(declaration, help=words, rich_help_panel=_FIELDS)
        )
    several = field.kind is FieldKind.TEXTS or (endpoint.several and field.required)
    metavar = f"{field.kind}|{NULL}" if field.nullable else str(field.kind)
    option = typer.Option(
        field.option,
        metavar=metavar,
        help=words,
        rich_help_panel=_FIELDS,
        autocompletion=_choices(field) if field.choices else None,
    )
    return parameter(field.name, list[str] | None if several else str | None, option)


def _choices(field: BodyField) -> Callable[[str], list[str]]:
    """Completions of a field with few values. Bash inserts them unchanged, other
    shells quote them.
    """

    def complete(incomplete: str) -> list[str]:
        bash = os.environ.get(_SHELL) == "complete_bash"
        inserted = (
            (choice, choice.replace(" ", r"\ ") if bash else choice) for choice in field.choices
        )
        return [
            text for choice, text in inserted if choice.startswith(incomplete.replace("\\", ""))
        ]

    return complete


def _option(name: str, metavar: str, words: str, panel: str | None = None) -> inspect.Parameter:
    marker = typer.Option(
        f"--{name.replace('_', '-')}", metavar=metavar, help=words, rich_help_panel=panel
    )
    return parameter(name, str | None, marker)


def _command(endpoint: Endpoint[Any, Any]) -> Callable[..., None]:
    """The function that typer makes a command of: its parameters are the endpoint's."""

    def run(typed: dict[str, Any]) -> None:
        _run(endpoint, typed)

    command: Callable[..., None] = generated(run, list(_parameters(endpoint)))
    return command


def _build() -> CommandGroup:
    commands = CommandGroup(
        "manage",
        (
            "Administer organizations: domains, invites, members, projects, batch exports and "
            "dashboards."
        ),
    )
    groups: dict[str, CommandGroup] = {}
    for endpoint in ENDPOINTS:
        if endpoint.resource not in groups:
            groups[endpoint.resource] = CommandGroup(
                endpoint.resource, WORDS[endpoint.resource].help
            )
            commands.add_typer(groups[endpoint.resource])
        words = (
            f"{endpoint.summary}\n\nThe key requires the scope {endpoint.scope}.\n\n{_CODES}\n"
            f"\nExample: {example(endpoint)}"
        )
        groups[endpoint.resource].command(endpoint.verb, help=words)(_command(endpoint))
    return commands


app = _build()
