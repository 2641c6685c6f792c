"""`forwarder config`: check the configuration, show the effective values, print the schema."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forwarder.cli.config_init import Force, init, schema_text, write_schema
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import CommandGroup, Config

if TYPE_CHECKING:
    from forwarder.config.layers import Problem
    from forwarder.config.load import Loaded
    from forwarder.config.settings import UpstreamSettings

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
    online: Annotated[bool, typer.Option("--online", help="Also check that the upstream answers and knows the api_keys.")] = False,
) -> None:
    """Report every problem of the configuration: file, line, key, and how to fix it.

    Exit codes: 0 valid; 1 the upstream doesn't know a key; 2 invalid configuration; 3 the upstream can't be reached.

    Example: forwarder config check --config forwarder.yaml --online
    """
    from forwarder.config.checks import advice
    from forwarder.config.load import examine

    examined = examine(config, os.environ)
    loaded = examined.loaded
    examined = examined.add([*_mapping_problems(loaded), *_own_address_problems(loaded)])
    _end_with(examined.problems)
    typer.echo(f"OK: {loaded.file or 'no file'}, and {_variables(loaded)} from the environment")
    for each in advice(loaded.settings):
        typer.echo(f"hint: {each.key} {each.message}: {each.hint}", err=True)
    if online:
        upstream = loaded.settings.upstream
        answer = asyncio.run(ask_upstream(upstream, loaded.settings.sources.http.api_keys))
        code = answer.exit_code()
        typer.echo("\n".join(answer.lines(upstream.url)), err=code != ExitCode.DONE)
        raise typer.Exit(code)


def _offered(incomplete: str) -> list[str]:
    """Completions of a key."""
    from forwarder.config.display import shown_names

    return [name for name in shown_names() if name.startswith(incomplete)]


@app.command()
def show(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="KEY", help="Only these keys or sections; default: all.", autocompletion=_offered)
    ] = None,
    *,
    config: Config = None,
    output: Annotated[YamlOutput, typer.Option("--output", help="YAML with origins in comments, or JSON.")] = YamlOutput.YAML,
) -> None:
    """Show every key's effective value and its origin, or those of some keys and sections. Secrets are masked.

    Example: forwarder config show buffer sources.http.listen
    """
    from forwarder.config.display import as_json, as_yaml
    from forwarder.config.layers import InvalidConfiguration
    from forwarder.config.load import load_settings

    _check_names(names or [])
    try:
        loaded = load_settings(config, os.environ, require_upstream=False)
    except InvalidConfiguration as error:
        _end_with(error.problems)
        raise
    only = names or []
    text = json.dumps(as_json(loaded, only), indent=2, ensure_ascii=False) if output is YamlOutput.JSON else as_yaml(loaded, only)
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
            raise ConfigurationError(f"there is no key or section {name!r}", hint=suggest_key(parts(name)))


@app.command()
def schema(
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write to this file.")] = None, force: Force = False
) -> None:
    """Print the JSON Schema (draft 2020-12) of the configuration file, for editors.

    Example: forwarder config schema --output forwarder.schema.json
    """
    if output is None:
        typer.echo(schema_text().rstrip("\n"))
    else:
        write_schema(output, force=force)


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """How the service answered for each key ("" if none is configured), and why it can't be reached, if so."""

    statuses: Mapping[str, int]
    error: str = ""

    def exit_code(self) -> ExitCode:
        """`UNREACHABLE` also if an answer is neither 200 nor 401, as an analytics service's is."""
        if self.error or self._undecided():
            return ExitCode.UNREACHABLE
        return ExitCode.NO if self._unknown() else ExitCode.DONE

    def lines(self, url: str) -> list[str]:
        """The answer in words."""
        if self.error:
            return [f"{url} can't be reached: {self.error}", "    check upstream.url, upstream.proxy and upstream.ca_file"]
        from forwarder.core.secrets import mask_key

        known = len(self.statuses) - len(self._unknown()) - len(self._undecided()) - ("" in self.statuses)
        answers = f"{url} answers" + (f" (HTTP {self.statuses['']})" if "" in self.statuses else f" and knows {known} of the api_keys")
        unknown = [f"{mask_key(key)} is unknown to it: events with this key would be lost" for key in self._unknown()]
        return [answers, *unknown, *[f"{mask_key(key)} can't be checked (HTTP {status})" for key, status in self._undecided().items()]]

    def _unknown(self) -> list[str]:
        return [key for key, status in self.statuses.items() if key and status == 401]

    def _undecided(self) -> dict[str, int]:
        return {key: status for key, status in self.statuses.items() if key and status not in {200, 401}}


async def ask_upstream(upstream: UpstreamSettings, keys: Sequence[str]) -> UpstreamAnswer:
    """Ask the service once for each key, or once without any, as the daemon does. Cancelling drops the connection."""
    from forwarder.core.clock import SystemClock
    from forwarder.core.secrets import mask_secrets
    from forwarder.daemon.policies import open_sink

    statuses: dict[str, int] = {}
    sink = open_sink(upstream, SystemClock())
    try:
        for key in keys or [""]:
            reply = await sink.decide(key)
            if reply.status is None:
                return UpstreamAnswer(statuses, mask_secrets(reply.error))
            statuses[key] = reply.status
    finally:
        await sink.close()
    return UpstreamAnswer(statuses)


def _end_with(problems: Iterable[Problem]) -> None:
    """Report the problems, and end the command if there are any."""
    from forwarder.cli.output import report
    from forwarder.config.layers import InvalidConfiguration

    found = list(problems)
    if found:
        report(InvalidConfiguration(found))
        raise typer.Exit(ExitCode.WRONG_USAGE)


def _mapping_problems(loaded: Loaded) -> Iterable[Problem]:
    """Expressions of mappings, and formats of logs, that don't compile."""
    from functools import partial

    from forwarder.config.layers import Problem
    from forwarder.core.errors import ConfigurationError
    from forwarder.daemon.mappings import kafka_mapping, mapping_of, without_zone_alone

    sources = loaded.settings.sources
    checks: list[Callable[[], object]] = [partial(kafka_mapping, cluster, number) for number, cluster in enumerate(sources.kafka)]
    if sources.logs:
        from forwarder.daemon.logs import policy_of

        checks += [partial(policy_of, loaded.settings, number) for number in range(len(sources.logs))]
    if sources.http.otlp.mapping.given:
        checks.append(partial(mapping_of, without_zone_alone(sources.http.otlp.mapping), "otlp", "sources.http.otlp.mapping"))
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

    return [Problem(loaded.where(own.key), own.key, own.message, HINT) for own in own_addresses(loaded.settings)]


def _variables(loaded: Loaded) -> str:
    count = len({origin.name for origin in loaded.origins.values() if origin.place == "environment"})
    return "1 key" if count == 1 else f"{count} keys"
