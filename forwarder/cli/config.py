"""`forwarder config`: check the configuration, show the effective values, print the schema."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.config_init import Force, init, schema_text, write_schema
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import CommandGroup, Config, Quiet, TextOrJson, TextOutput
from forwarder.cli.output import as_json
from forwarder.cli.signals import run_to_end

if TYPE_CHECKING:
    from forwarder.cli.online import UpstreamAnswer
    from forwarder.config.layers import Problem
    from forwarder.config.load import Loaded
    from forwarder.config.settings import Settings

app = CommandGroup("config", "Write, check and show the configuration, and its schema.")
app.command()(init)


class YamlOutput(StrEnum):
    """The form of `show`."""

    YAML = "yaml"
    JSON = "json"


@app.command()
def check(
    config: Config = None,
    *,
    online: Annotated[
        bool,
        typer.Option(
            "--online", help="Also ask the upstream: is it the service, does it know the keys?"
        ),
    ] = False,
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="The daemon runs on another machine: don't check directories and addresses here.",
        ),
    ] = False,
    output: TextOrJson = TextOutput.TEXT,
    quiet: Quiet = False,
) -> None:
    """Report every problem of the configuration: file, line, key, and how to fix it.

    Directories and addresses are checked too: run it as the daemon's user.

    Exit codes: 0 valid; 1 the upstream doesn't know a key; 2 invalid configuration; 3 the upstream
    can't be reached, or isn't the analytics service.

    Example: forwarder config check --config forwarder.yaml --online
    """
    from forwarder.config.checks import advice
    from forwarder.config.layers import Problem
    from forwarder.config.load import examine
    from forwarder.core.users import user_name
    from forwarder.daemon.memory import memory_risks
    from forwarder.daemon.surroundings import surrounding_risks, unusable_surroundings

    examined = examine(config, os.environ)
    loaded = examined.loaded
    settings = loaded.settings
    unusable = [] if elsewhere else unusable_surroundings(settings)
    here = [Problem(loaded.where(risk.key), risk.key, risk.message, risk.hint) for risk in unusable]
    examined = examined.add([*_mapping_problems(loaded), *_own_address_problems(loaded), *here])
    valid = not examined.problems
    hints = []
    if valid:
        hints = [*advice(settings), *memory_risks(settings, elsewhere=elsewhere)]
        hints += [] if elsewhere else surrounding_risks(settings)
    said = valid and not quiet and output is TextOutput.TEXT
    if output is TextOutput.TEXT:
        if here:
            typer.echo(
                f"checked on this machine as user {user_name()}; for another machine: --elsewhere",
                err=True,
            )
        _end_with(examined.problems)
    worst = ExitCode.DONE if valid else ExitCode.WRONG_USAGE
    answers = list(_answers(settings)) if online and valid else []
    worst = max([worst, *[answer.exit_code() for _, answer in answers]])
    if said:
        checked = "" if elsewhere else f"; checked as user {user_name()}"
        variables = _variables(loaded)
        # what can't be reached is no fault of the file
        word = "OK" if worst is ExitCode.DONE else "The configuration is valid"
        typer.echo(
            f"{word}: {loaded.file or 'no file'}, and {variables} from the environment{checked}"
        )
        for hint in hints:
            typer.echo(f"hint: {hint.key} {hint.message}: {hint.hint}", err=True)
    for url, answer in answers:
        code = answer.exit_code()
        if said or (output is TextOutput.TEXT and code != ExitCode.DONE):
            typer.echo("\n".join(answer.lines(url, settings.key_names)), err=code != ExitCode.DONE)
    if output is TextOutput.JSON and not quiet:
        document = {
            "valid": valid,
            "file": str(loaded.file) if loaded.file else None,
            "checked_as": None if elsewhere else user_name(),
            "problems": [problem.as_json() for problem in examined.problems],
            "hints": [Problem("", hint.key, hint.message, hint.hint).as_json() for hint in hints],
            "upstreams": [answer.as_json(url, settings.key_names) for url, answer in answers]
            if online and valid
            else None,
        }
        typer.echo(as_json(document, indent=2))
    raise typer.Exit(worst)


def _answers(settings: Settings) -> Iterator[tuple[str, UpstreamAnswer]]:
    """How each upstream answers, with its address."""
    from forwarder.cli.online import ask_upstream

    for _, own in settings.of_each():
        if own.destination.archive.url:
            continue
        mapped = own.destination.api_keys
        api_keys = [mapped.get(key, key) for key in settings.sources.http.api_keys]
        yield own.upstream.url, run_to_end(ask_upstream(own.upstream, api_keys))


def _offered(incomplete: str) -> list[str]:
    """Completions of a key."""
    from forwarder.config.display import shown_names

    return [name for name in shown_names() if name.startswith(incomplete)]


@app.command()
def show(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help="Only these keys or sections; default: all.",
            autocompletion=_offered,
        ),
    ] = None,
    *,
    config: Config = None,
    output: Annotated[
        YamlOutput, typer.Option("--output", help="YAML with origins in comments, or JSON.")
    ] = YamlOutput.YAML,
) -> None:
    """Show every key's effective value and its origin, or those of some keys and sections. Secrets
    are masked.

    Example: forwarder config show buffer sources.http.listen
    """
    from forwarder.config.display import as_json as settings_as_json
    from forwarder.config.display import as_yaml
    from forwarder.config.layers import InvalidConfiguration
    from forwarder.config.load import load_settings

    _check_names(names or [])
    try:
        loaded = load_settings(config, os.environ, require_upstream=False)
    except InvalidConfiguration as error:
        _end_with(error.problems)
        raise
    only = names or []
    text = (
        json.dumps(settings_as_json(loaded, only), indent=2, ensure_ascii=False)
        if output is YamlOutput.JSON
        else as_yaml(loaded, only)
    )
    if output is YamlOutput.YAML and os.isatty(1):
        from rich.console import Console
        from rich.syntax import Syntax

        Console().print(Syntax(text.rstrip("\n"), "yaml", background_color="default"))
    else:
        typer.echo(text.rstrip("\n"))


def _check_names(names: Sequence[str]) -> None:
    """Raises `ConfigurationError` for a name of neither a key nor a section."""
    from forwarder.config.display import shown_names
    from forwarder.config.keys import parts
    from forwarder.config.suggestions import suggest_key
    from forwarder.core.errors import ConfigurationError

    for name in names:
        if name not in shown_names():
            raise ConfigurationError(
                f"there is no key or section {name!r}", hint=suggest_key(parts(name))
            )


@app.command()
def schema(
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write to this file.")
    ] = None,
    force: Force = False,
) -> None:
    """Print the JSON Schema (draft 2020-12) of the configuration file, for editors.

    Example: forwarder config schema --output forwarder.schema.json
    """
    if output is None:
        typer.echo(schema_text().rstrip("\n"))
    else:
        write_schema(output, force=force)


def _end_with(problems: Iterable[Problem]) -> None:
    """Report the problems, and end the command if there are any."""
    from forwarder.cli.output import report
    from forwarder.config.layers import InvalidConfiguration

    listed = list(problems)
    if listed:
        report(InvalidConfiguration(listed))
        raise typer.Exit(ExitCode.WRONG_USAGE)


def _mapping_problems(loaded: Loaded) -> Iterable[Problem]:
    """Expressions of mappings, formats of logs, and rules that don't compile."""
    from functools import partial

    from forwarder.config.layers import Problem
    from forwarder.core.clock import SystemClock
    from forwarder.core.errors import ConfigurationError
    from forwarder.daemon.configured_rules import ConfiguredRules
    from forwarder.daemon.mappings import kafka_mapping, mapping_of, without_zone_alone

    sources = loaded.settings.sources
    checks: list[Callable[[], object]] = [
        partial(kafka_mapping, cluster, number) for number, cluster in enumerate(sources.kafka)
    ]
    if sources.logs:
        from forwarder.daemon.logs import policy_of

        checks += [
            partial(policy_of, loaded.settings, number) for number in range(len(sources.logs))
        ]
    if sources.http.otlp.mapping.given:
        checks.append(
            partial(
                mapping_of,
                without_zone_alone(sources.http.otlp.mapping),
                "otlp",
                "sources.http.otlp.mapping",
            )
        )
    if loaded.settings.rules:
        checks.append(partial(ConfiguredRules, loaded.settings, SystemClock()))
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            key, _, what = error.message.partition(": ")
            yield Problem(loaded.where(key), key, what, error.hint)


def _own_address_problems(loaded: Loaded) -> Iterable[Problem]:
    """An upstream that is this forwarder itself."""
    from forwarder.config.layers import Problem
    from forwarder.daemon.own_address import HINT, own_addresses

    return [
        Problem(loaded.where(own.key), own.key, own.message, HINT)
        for own in own_addresses(loaded.settings)
    ]


def _variables(loaded: Loaded) -> str:
    from forwarder.telemetry.readable import plural

    return plural(
        len({origin.name for origin in loaded.origins.values() if origin.place == "environment"}),
        "key",
    )
