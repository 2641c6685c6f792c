"""`forwarder config`: check the configuration, show what is in effect, print its schema."""

from __future__ import annotations

import asyncio
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.run import Config

if TYPE_CHECKING:
    from forwarder.config.load import Loaded

WRONG_CONFIGURATION = 2
"""Exit code."""

app = typer.Typer(name="config", no_args_is_help=True, help="Check the configuration, show what is in effect, print its schema.")


class Output(StrEnum):
    """How `show` writes."""

    YAML = "yaml"
    JSON = "json"


def _load(file: Path | None, *, require_upstream: bool) -> Loaded:
    """The configuration; if it can't be used, all that is wrong with it on standard error, and exit code 2."""
    from forwarder.cli.main import report
    from forwarder.config.layers import InvalidConfiguration
    from forwarder.config.load import load_settings

    try:
        return load_settings(file, os.environ, require_upstream=require_upstream)
    except InvalidConfiguration as error:
        report(error)
        raise typer.Exit(WRONG_CONFIGURATION) from error


@app.command()
def check(
    config: Config = None,
    *,
    online: Annotated[bool, typer.Option("--online", help="Also ask the upstream if it is there and knows the api_keys.")] = False,
) -> None:
    """Say what is wrong with the configuration: file, line, key, and how to mend it.

    Exit codes: 0 all is well; 1 the upstream doesn't know a key; 2 the configuration can't be used; 3 the upstream can't be reached.

    Example: forwarder config check --config forwarder.yaml --online
    """
    from forwarder.config.checks import advice

    loaded = _load(config, require_upstream=True)
    _compile_mappings(loaded)
    _look_for_a_loop(loaded)
    typer.echo(f"OK: {loaded.file or 'no file'}, and {_variables(loaded)} from the environment")
    for each in advice(loaded.settings):
        typer.echo(f"hint: {each.key} {each.message}: {each.hint}", err=True)
    if online:
        _ask(loaded)


def _compile_mappings(loaded: Loaded) -> None:
    """Compile what is written in jq; what can't be is told like all else that is wrong."""
    from forwarder.cli.main import report
    from forwarder.config.layers import InvalidConfiguration, Problem
    from forwarder.core.errors import ConfigurationError
    from forwarder.daemon.mappings import kafka_mapping

    problems = []
    for number, cluster in enumerate(loaded.settings.sources.kafka):
        try:
            kafka_mapping(cluster, number)
        except ConfigurationError as error:
            key, _, what = error.message.partition(": ")
            problems.append(Problem(loaded.where(key), key, what, error.hint))
    if problems:
        report(InvalidConfiguration(problems))
        raise typer.Exit(WRONG_CONFIGURATION)


def _look_for_a_loop(loaded: Loaded) -> None:
    """Report an upstream that is this forwarder itself."""
    from forwarder.cli.main import report
    from forwarder.config.layers import InvalidConfiguration, Problem
    from forwarder.daemon.own_address import HINT, own_addresses

    problems = [Problem(loaded.where(own.key), own.key, own.message, HINT) for own in own_addresses(loaded.settings)]
    if problems:
        report(InvalidConfiguration(problems))
        raise typer.Exit(WRONG_CONFIGURATION)


def _ask(loaded: Loaded) -> None:
    """Tell what the upstream answers, and exit with the code that says it."""
    from forwarder.cli.upstream_check import ask_upstream

    upstream = loaded.settings.upstream
    findings = asyncio.run(ask_upstream(upstream, loaded.settings.sources.http.api_keys))
    code = findings.exit_code()
    typer.echo("\n".join(findings.lines(upstream.url)), err=code != 0)
    raise typer.Exit(code)


def _variables(loaded: Loaded) -> str:
    count = len({origin.name for origin in loaded.origins.values() if origin.place == "environment"})
    return "1 key" if count == 1 else f"{count} keys"


@app.command()
def show(
    config: Config = None,
    output: Annotated[Output, typer.Option("--output", help="YAML with origins in comments, or JSON.")] = Output.YAML,
) -> None:
    """Show every key's effective value and where it came from; secrets are masked.

    Example: forwarder config show --output json
    """
    from forwarder.config.display import as_json, as_yaml

    loaded = _load(config, require_upstream=False)
    text = json.dumps(as_json(loaded), indent=2, ensure_ascii=False) if output is Output.JSON else as_yaml(loaded)
    if output is Output.YAML and os.isatty(1):
        _print_coloured(text)
    else:
        typer.echo(text.rstrip("\n"))


def _print_coloured(text: str) -> None:
    from rich.console import Console
    from rich.syntax import Syntax

    Console().print(Syntax(text.rstrip("\n"), "yaml", background_color="default"))


@app.command()
def schema() -> None:
    """Print the JSON Schema (draft 2020-12) of the configuration file, for editors.

    Example: forwarder config schema > forwarder.schema.json
    """
    from forwarder.config.display import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
