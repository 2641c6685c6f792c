"""`forwarder plan`: what a load needs, before anything is installed."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Config

if TYPE_CHECKING:
    from rich.table import Table

    from forwarder.config.settings import Settings
    from forwarder.core.errors import ConfigurationError
    from forwarder.planning.plan import CapacityPlan

_MOST: Final = 10**15
_UNLIMITED: Final = "unlimited"


class PlannedSource(StrEnum):
    """Where events come from."""

    HTTP = "http"
    KAFKA = "kafka"
    IMPORT = "import"


class PlannedFormat(StrEnum):
    """The formats of imports whose throughput was measured."""

    NATIVE = "native"
    POSTHOG = "posthog"
    AMPLITUDE = "amplitude"
    MIXPANEL = "mixpanel"
    SEGMENT = "segment"
    CSV = "csv"
    MAPPING = "mapping"


class PlannedBuffer(StrEnum):
    """Where events are buffered."""

    MEMORY = "memory"
    DISK = "disk"


class PlanOutput(StrEnum):
    """The form of a plan."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def plan(
    *,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            metavar="N",
            help="Events a second at peak. For an import: at most, or unlimited.",
        ),
    ] = None,
    outage: Annotated[
        str,
        typer.Option(
            "--outage", metavar="TIME", help="How long the service may be down without a loss."
        ),
    ] = "1h",
    source: Annotated[
        PlannedSource | None,
        typer.Option(
            "--source",
            help="Where events come from. Default: http, or kafka if that is configured.",
        ),
    ] = None,
    buffer: Annotated[
        PlannedBuffer | None,
        typer.Option(
            "--buffer",
            help="Where events are buffered. Default: as configured; else disk, for Kafka memory.",
        ),
    ] = None,
    event_bytes: Annotated[
        str,
        typer.Option("--event-bytes", metavar="SIZE", help="Size of an event's JSON, at the mean."),
    ] = "600",
    events_per_request: Annotated[
        int,
        typer.Option(
            "--events-per-request",
            metavar="N",
            min=1,
            max=100_000,
            help="Events in a sender's request, at the mean.",
        ),
    ] = 50,
    unstamped: Annotated[
        bool, typer.Option("--unstamped", help="Events come without uuid and timestamp.")
    ] = False,
    keys: Annotated[
        int,
        typer.Option(
            "--keys", metavar="N", min=1, max=10_000, help="Project keys that share the load."
        ),
    ] = 1,
    cores: Annotated[
        int,
        typer.Option(
            "--cores", metavar="N", min=1, max=1024, help="Cores of a machine, or of a pod."
        ),
    ] = 4,
    machines: Annotated[
        int | None,
        typer.Option(
            "--machines",
            metavar="N",
            min=1,
            max=100_000,
            help="Machines there are. Default: as many as needed.",
        ),
    ] = None,
    latency: Annotated[
        str,
        typer.Option(
            "--latency", metavar="TIME", help="How long the service takes to answer a batch."
        ),
    ] = "500ms",
    service_rate: Annotated[
        str | None,
        typer.Option(
            "--service-rate",
            metavar="N",
            help="Events a second that the service accepts. Default: twice the load.",
        ),
    ] = None,
    events: Annotated[
        str | None,
        typer.Option("--events", metavar="N", help="For an import: events in all, such as 10e9."),
    ] = None,
    form: Annotated[
        PlannedFormat, typer.Option("--format", help="For an import: its format.")
    ] = PlannedFormat.NATIVE,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            metavar="N",
            min=1,
            max=10_000,
            help="For an import: shards. Default: as many as needed.",
        ),
    ] = None,
    config: Config = None,
    output: Annotated[
        PlanOutput,
        typer.Option("--output", help="Text, JSON for programs, or only the settings to write."),
    ] = PlanOutput.TEXT,
) -> None:
    """Say what a load needs: cores, machines, memory, disk for an outage, requests to the service,
    and the settings to write.

    A core is planned for half of what was measured. With a configuration, its batches, concurrency,
    order and compression are used, and its limits are listed, the first to be reached first; of
    several destinations, what the routes may bring each.

    Exit codes: 0 done; 1 the configuration doesn't carry the load; 2 wrong usage or configuration.

    Example: forwarder plan --rate 20000 --outage 8h
    """
    from forwarder.cli.settings import load_for_person
    from forwarder.cli.target import checked
    from forwarder.config.values import Duration, Size

    loaded = load_for_person(config)
    chosen = source or (
        PlannedSource.KAFKA if loaded.settings.sources.kafka else PlannedSource.HTTP
    )
    size = checked("--event-bytes", Size("1", "1GiB").read, event_bytes)
    if chosen is PlannedSource.IMPORT:
        if buffer or machines or unstamped or service_rate:
            raise _usage(
                "--buffer, --machines, --unstamped and --service-rate are for HTTP and Kafka",
                "Leave them out for an import.",
            )
        if events is None:
            raise _usage(
                "--events is missing: how many events there are in all",
                "For example: --source import --events 10e9",
            )
        from forwarder.planning.capacity import MigrationLoad
        from forwarder.planning.plan import plan_import

        most = _import_rate(loaded.settings, rate)
        migration = MigrationLoad(
            events=_number("--events", events),
            form=str(form),
            rate=most,
            event_bytes=size,
            shards=shards,
        )
        done = plan_import(migration, loaded.settings)
    else:
        if events or shards:
            raise _usage("--events and --shards are for imports", "Add --source import.")
        if rate is None:
            raise _usage(
                "--rate is missing: how many events a second",
                "For example: --rate 20000 --outage 8h",
            )
        from forwarder.planning.capacity import Load, LoadSource
        from forwarder.planning.plan import plan_load

        load = Load(
            rate=_number("--rate", rate),
            outage=checked("--outage", Duration("0s", "365d").read, outage) or 0.0,
            event_bytes=size,
            request_events=events_per_request,
            source=LoadSource(chosen),
            unstamped=unstamped,
            keys=keys,
            cores=cores,
            latency=checked("--latency", Duration("1ms", "1h").read, latency) or 0.0,
            service_rate=None if service_rate is None else _number("--service-rate", service_rate),
            machines=machines,
        )
        done = plan_load(
            load,
            _buffered(loaded.settings, buffer, chosen, configured=loaded.is_said),
            configured=loaded.is_said,
        )
    _print(done, output, str(loaded.file or "the environment") if loaded.is_said else "")
    raise typer.Exit(ExitCode.DONE if done.carried else ExitCode.NO)


def _usage(message: str, hint: str) -> ConfigurationError:
    from forwarder.core.errors import ConfigurationError

    return ConfigurationError(message, hint=hint)


def _number(option: str, text: str) -> int:
    """A whole number as people write large ones: 20000, 20_000, 10e9, 20k; a rate also as 20k/s.
    Raises `ConfigurationError`.
    """
    from forwarder.config.units import parse_number

    value = parse_number(text, per_second=option.endswith("rate"))
    if value is None or not (1 <= value <= _MOST and value == int(value)):
        raise _usage(
            f"{option}: {text!r} is not a whole number from 1 on",
            "Write it as 20000, 20_000, 20e3 or 20k.",
        )
    return int(value)


def _buffered(
    settings: Settings, kind: PlannedBuffer | None, source: PlannedSource, *, configured: bool
) -> Settings:
    """The settings with the kind of buffer to plan: what was typed, else what is configured, else
    what fits the source.
    """
    if kind is None and configured:
        return settings
    on_disk = source is PlannedSource.HTTP if kind is None else kind is PlannedBuffer.DISK
    return replace(settings, buffer=replace(settings.buffer, kind="disk" if on_disk else "memory"))


def _import_rate(settings: Settings, typed: str | None) -> float:
    """Events a second of an import at most: what was typed, else what is configured."""
    text = str(settings.import_.rate) if typed is None else typed
    return inf if text == _UNLIMITED else _number("--rate", text)


def _print(done: CapacityPlan, output: PlanOutput, configured: str) -> None:
    """`configured`: what says the configuration, if there is one."""
    import yaml

    written = yaml.safe_dump(done.settings, sort_keys=False)
    if output is PlanOutput.YAML:
        sys.stdout.write(written)
        return
    if output is PlanOutput.JSON:
        from dataclasses import asdict

        from forwarder.cli.output import as_json

        sys.stdout.write(as_json({**asdict(done), "carried": done.carried}, indent=2) + "\n")
        return
    from rich.text import Text

    from forwarder.cli.tables import console
    from forwarder.planning.plan import about

    shown = console()
    shown.print(Text(done.title, style="bold"))
    shown.print()
    figures = _table("", "plan", "because", "moved by")
    for figure in done.figures:
        figures.add_row(
            figure.name, Text(figure.text, style="bold"), figure.why, Text(figure.knob, style="dim")
        )
    shown.print(figures)
    if done.limits:
        shown.print()
        if configured:
            shown.print(Text(f"limits of {configured}:"), soft_wrap=True)
        limits = _table(
            "limit", "carries up to", "times the load", "" if done.carried else "do this"
        )
        for limit in done.limits:
            style = "" if limit.holds else "red"
            row = limit.name, limit.reached, about(limit.factor), "" if limit.holds else limit.fix
            limits.add_row(*[Text(cell, style=style) for cell in row])
        shown.print(limits)
    shown.print()
    for line in ("settings to write:", "", *written.splitlines(), "", *done.notes):
        shown.print(Text(line), soft_wrap=True)


def _table(*names: str) -> Table:
    """A table whose first two columns stay on one line."""
    from rich.table import Table

    table = Table(box=None, pad_edge=True, header_style="dim")
    for number, name in enumerate(names):
        table.add_column(name, no_wrap=number < 2)
    return table
