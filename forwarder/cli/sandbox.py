"""`forwarder sandbox`: a small analytics service in one process."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from forwarder.config.addresses import check_host
from forwarder.core.error_text import error_text
from forwarder.core.errors import ForwarderError
from forwarder.core.installation import shipped
from forwarder.core.proposals import proposed
from forwarder.core.stop_requests import STOP_SIGNALS, remove_handlers
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.app import split_address
from forwarder.sandbox.ingest.validation import check_token
from forwarder.sandbox.manage.dns import FileResolver, Resolver
from forwarder.sandbox.protocol.http import RequestRejected

EXAMPLE_SEED: Final = Path("example")


def sandbox(
    *,
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on, host:port.")
    ] = "127.0.0.1:8322",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A further name of this host, for its page and lists; repeatable."
        ),
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="SQLite file that stores everything. Default: memory."),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY", help="A known project key; repeatable. Default: any well-formed key."
        ),
    ] = None,
    seed: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "File with the initial organizations, keys, flags and exports, or `example`: "
                "a shipped one."
            ),
        ),
    ] = None,
    dns: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file of TXT records (name: text) to verify domains with. Default: DNS.",
        ),
    ] = None,
    export_root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder that batch exports to folders write below. Default: they fail.",
        ),
    ] = None,
    allow_private_destinations: Annotated[
        bool,
        typer.Option(
            "--allow-private-destinations",
            help="Let batch exports write to private and loopback addresses.",
        ),
    ] = False,
    geoip: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Database of places (.mmdb), for flags by a user's country or city.",
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Answer like the real service rather than by its contract."),
    ] = False,
) -> None:
    """Run a small analytics service, to watch events arrive and to test against.

    It evaluates flags, runs batch exports, and answers the management API.

    Example: forwarder sandbox --listen 127.0.0.1:8322 --database events.db --strict
    """
    keys = frozenset(api_key or ())
    split_address(listen)
    for key in keys:
        _check(key)
    hosts = frozenset(map(_host, host or ()))
    options = SandboxOptions(
        listen=listen, hosts=hosts, database=database, api_keys=keys, seed=_seed(seed), geoip=geoip
    )
    exporting = replace(
        options,
        export_root=_folder(export_root),
        allow_private_destinations=allow_private_destinations,
    )
    uvloop.run(_serve(replace(exporting, strict=strict, resolver=_resolver(dns))))


def _seed(path: Path | None) -> Path | None:
    """The seed's file; a file that is called as the shipped one comes first."""
    return (
        shipped("config") / "sandbox-seed.yaml"
        if path == EXAMPLE_SEED and not path.exists()
        else path
    )


def _folder(path: Path | None) -> Path | None:
    """The folder, which is made unless it exists."""
    if path is not None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ForwarderError(
                f"--export-root: {path}: {error_text(error)}",
                hint="Name a directory that can be written to.",
            ) from None
    return path


def _resolver(dns: Path | None) -> Resolver | None:
    if dns is None:
        return None
    resolver = FileResolver(dns)
    resolver.check()
    return resolver


def _host(name: str) -> str:
    try:
        return check_host(name)
    except ValueError as error:
        raise ForwarderError(
            f"--host: {error}", hint="An address or localhost needs no option."
        ) from None


def _check(key: str) -> None:
    try:
        check_token(key)
    except RequestRejected as refusal:
        raise ForwarderError(
            f"--api-key: {refusal.message}", hint="A project key looks like phc_…."
        ) from None


def _management(organizations: int, seed: Path | None) -> str:
    if not organizations:
        return (
            "The management API has no organizations yet: add some, and personal keys, with "
            "--seed example, or --seed FILE."
        )
    from forwarder.telemetry.readable import plural

    count = plural(organizations, "organization")
    return (
        f"The management API has {count}; call it with a personal key of {seed or 'the seed'} "
        f"({proposed('manage --help')})."
    )


async def _serve(options: SandboxOptions) -> None:
    """Serve until SIGINT or SIGTERM, then answer the requests in flight.
    Cancellation does the same.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    async with Sandbox(options) as running:
        place = (
            f"in {options.database}"
            if options.database
            else "in memory until it stops (--database FILE stores them)"
        )
        management = _management(await running.organizations(), options.seed)
        typer.echo(f"Sandbox listening on {running.url}\nEvents are kept {place}.\n{management}")
        await stop.wait()
        typer.echo("Sandbox stopping.")
    remove_handlers(loop, STOP_SIGNALS, ends=True)
