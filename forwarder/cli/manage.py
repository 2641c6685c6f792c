"""`forwarder manage RESOURCE VERB`: a command for each endpoint of the management API, made of the contract's table.

Nothing here knows a path, a field or a scope: they are the table's. What is made: an argument for each id in the path (organization and
project are options), an option for each field, and what lists and removals need.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from forwarder.cli.formats import Output
from forwarder.cli.manage_fields import NULL, Field, Kind, fields_of
from forwarder.cli.manage_words import OWNERS, WORDS, endpoint_of, example
from forwarder.contract.endpoints import ENDPOINTS, Endpoint
from forwarder.core.errors import ConfigurationError, ForwarderError

HELP = "Administer organizations: their domains, invites, members and projects, batch exports and dashboards."
NO: Final = 1

_FIELDS: Final = "Fields"
_ACCESS: Final = "Access"
_SHELL: Final = "_FORWARDER_COMPLETE"
"""The variable by which a shell asks for completion."""
_CODES: Final = "Exit codes: 0 done; 1 the service says no, or you do; 2 wrong usage or configuration; 3 unreachable, or not allowed."


def build() -> typer.Typer:
    """All commands."""
    app = typer.Typer(name="manage", no_args_is_help=True, help=HELP)
    groups: dict[str, typer.Typer] = {}
    for endpoint in ENDPOINTS:
        if endpoint.resource not in groups:
            groups[endpoint.resource] = typer.Typer(name=endpoint.resource, no_args_is_help=True, help=WORDS[endpoint.resource].help)
            app.add_typer(groups[endpoint.resource])
        groups[endpoint.resource].command(endpoint.verb, help=_help(endpoint), epilog=f"Example: {example(endpoint)}")(_command(endpoint))
    return app


def _help(endpoint: Endpoint[Any, Any]) -> str:
    return f"{endpoint.summary}\n\nThe key needs the scope {endpoint.scope}.\n\n{_CODES}"


def _command(endpoint: Endpoint[Any, Any]) -> Callable[..., None]:
    """The function that typer makes a command of: its parameters are the endpoint's."""

    def command(**typed: Any) -> None:
        _run(endpoint, typed)

    parameters = list(_parameters(endpoint))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _run(endpoint: Endpoint[Any, Any], typed: Mapping[str, Any]) -> None:
    """Run a command; it ends with the exit code that says what came of it."""
    from forwarder.cli.manage_access import access
    from forwarder.cli.manage_body import body_of
    from forwarder.cli.manage_calls import agreed, call, everything, failed, page

    as_table = typed["output"] is Output.TABLE
    try:
        _only_once(typed)
        body = body_of(endpoint, typed, typed.get("data"))
        gate = access(endpoint, typed)
        ids = {each.name: typed[each.name] for each in endpoint.parameters if each.name not in OWNERS}
        if endpoint.paginated and typed["all"]:
            everything(endpoint, gate, typed["limit"], as_table=as_table)
        elif endpoint.paginated:
            page(endpoint, gate, typed["limit"], typed["offset"], as_table=as_table)
        elif endpoint.destructive and not agreed(endpoint, gate, ids, yes=typed["yes"]):
            raise typer.Exit(NO)
        elif code := call(endpoint, gate, ids, body, as_table=as_table):
            raise typer.Exit(code)
    except ForwarderError as error:
        raise typer.Exit(failed(error)) from error


def _only_once(typed: Mapping[str, Any]) -> None:
    """What can't be typed together."""
    if typed.get("data") == "-" and typed.get("api_key_file") == "-":
        raise ConfigurationError("--data and --api-key-file can't both be read from standard input", hint="Name a file for one of them.")
    if typed.get("all") and typed.get("offset"):
        raise ConfigurationError("--offset can't be beside --all, which begins at the first", hint="Leave out one of them.")


def _parameters(endpoint: Endpoint[Any, Any]) -> Iterator[inspect.Parameter]:
    for parameter in endpoint.parameters:
        if parameter.name not in OWNERS:
            shown = parameter.name.strip("_").replace("__", "_").upper()
            yield _parameter(parameter.name, str, typer.Argument(metavar=shown, help=_where_shown(endpoint, parameter.name)), ...)
    for name, what in OWNERS.items():
        if any(parameter.name == name for parameter in endpoint.parameters):
            yield _option(what, f"--{what}", "ID", f"Whose they are; else `management.{what}` of the configuration.")
    yield from _fields(endpoint)
    if endpoint.paginated:
        yield _number("limit", "Items of a page; the service takes 100 without it.", 1)
        yield _number("offset", "How many items to pass over.", 0)
        yield _switch("all", "--all", "All pages; as JSON, an item a line.")
    if endpoint.destructive:
        yield _switch("yes", "--yes", "Don't ask.")
    yield from _common()


def _where_shown(endpoint: Endpoint[Any, Any], name: str) -> str:
    """Where a person finds an id."""
    if endpoint_of(endpoint.resource, "list") is not None:
        return f"As `manage {endpoint.resource} list` shows it."
    return "As `manage batch-exports get` shows it." if (endpoint.resource, name) == ("batch-export-runs", "id") else ""


def _fields(endpoint: Endpoint[Any, Any]) -> Iterator[inspect.Parameter]:
    for field in sorted(fields_of(endpoint), key=lambda field: not field.required):
        yield _field(endpoint, field)
    if endpoint.takes_body:
        words = "All fields, and others; an array of such, too." if endpoint.several else "All fields, and others; options go over them."
        yield _option("data", "--data", "JSON|@FILE|-", words, _FIELDS)


def _field(endpoint: Endpoint[Any, Any], field: Field) -> inspect.Parameter:
    said = "; ".join([*(["needed"] if field.required else []), *([field.words] if field.words else [])])
    words = f"{said[0].upper()}{said[1:]}." if said else ""
    if field.kind is Kind.FLAG:
        declaration = f"{field.option}/--no-{field.option.removeprefix('--')}"
        return _parameter(field.name, bool | None, typer.Option(declaration, help=words, rich_help_panel=_FIELDS), None)
    several = field.kind is Kind.TEXTS or (endpoint.several and field.required)
    metavar = f"{field.kind}|{NULL}" if field.nullable else str(field.kind)
    option = typer.Option(
        field.option, metavar=metavar, help=words, rich_help_panel=_FIELDS, autocompletion=_choices(field) if field.choices else None
    )
    return _parameter(field.name, list[str] | None if several else str | None, option, None)


def _choices(field: Field) -> Callable[[str], list[str]]:
    """What completes a field of few values. Bash inserts it as it is, other shells quote it."""
    bash = os.environ.get(_SHELL) == "complete_bash"

    def complete(incomplete: str) -> list[str]:
        inserted = ((choice, choice.replace(" ", r"\ ") if bash else choice) for choice in field.choices)
        return [text for choice, text in inserted if choice.startswith(incomplete.replace("\\", ""))]

    return complete


def _common() -> Iterator[inspect.Parameter]:
    words = "The configuration; without it /etc/forwarder/forwarder.yaml if it is there."
    yield _parameter("config", Path | None, typer.Option("--config", metavar="FILE", help=words, rich_help_panel=_ACCESS), None)
    yield _option("url", "--url", "URL", "Address of the management API; else `management.url`.", _ACCESS)
    words = "File of the personal API key, - for standard input; else `management.api_key_file`, or you are asked."
    yield _option("api_key_file", "--api-key-file", "FILE", words, _ACCESS)
    yield _option("timeout", "--timeout", "TIME", "How long a call may take, such as 10s; else `management.timeout`.", _ACCESS)
    yield _parameter("output", Output, typer.Option("--output", help="A table for a person, or what the service answers."), Output.TABLE)


def _option(name: str, declaration: str, metavar: str, words: str, panel: str | None = None) -> inspect.Parameter:
    return _parameter(name, str | None, typer.Option(declaration, metavar=metavar, help=words, rich_help_panel=panel), None)


def _number(name: str, words: str, least: int) -> inspect.Parameter:
    return _parameter(name, int | None, typer.Option(f"--{name}", metavar="N", min=least, help=words), None)


def _switch(name: str, declaration: str, words: str) -> inspect.Parameter:
    return _parameter(name, bool, typer.Option(declaration, help=words), False)


def _parameter(name: str, kind: Any, marker: Any, default: Any) -> inspect.Parameter:
    """A parameter as typer reads it; `...` for no default."""
    default = inspect.Parameter.empty if default is ... else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, marker], default=default)


app = build()
