"""`forwarder sandbox`: the analytics service in one process, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from forwarder.config.addresses import check_host
from forwarder.core.errors import ForwarderError
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.app import split_address
from forwarder.sandbox.http import RequestRejected
from forwarder.sandbox.ingest.validation import check_token
from forwarder.sandbox.manage.dns import FileResolver, Resolver

EXAMPLE = "Example: forwarder sandbox --listen 127.0.0.1:8322 --database events.db --strict"


def sandbox(
    *,
    listen: Annotated[str, typer.Option(help="Address to listen on, host:port.")] = "127.0.0.1:8322",
    host: Annotated[list[str] | None, typer.Option(help="A further name of this host (repeatable), for its page and its lists.")] = None,
    database: Annotated[Path | None, typer.Option(help="SQLite file that keeps everything; without it, memory.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="A project key that exists (repeatable); none: every well-formed one.")] = None,
    seed: Annotated[Path | None, typer.Option(help="YAML or JSON file of what there is from the start.")] = None,
    dns: Annotated[Path | None, typer.Option(help="YAML file of TXT records (name: text) that domains are verified by; none: DNS.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Answer as the real service does, not by its contract.")] = False,
) -> None:
    """Run the analytics service in small, to watch events arrive and to test against."""
    keys = frozenset(api_key or ())
    split_address(listen)
    for key in keys:
        _check(key)
    hosts = frozenset(map(_host, host or ()))
    kept = SandboxOptions(listen=listen, hosts=hosts, database=database, api_keys=keys, seed=seed)
    uvloop.run(_serve(replace(kept, strict=strict, resolver=_resolver(dns))))


def register(app: typer.Typer) -> None:
    """Add the command to forwarder's."""
    app.command(epilog=EXAMPLE)(sandbox)


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
        raise ForwarderError(f"--host: {error}", hint="An address or localhost needs no option.") from None


def _check(key: str) -> None:
    try:
        check_token(key)
    except RequestRejected as refusal:
        raise ForwarderError(f"--api-key: {refusal.message}", hint="A project key looks like phc_….") from None


def _management(organizations: int) -> str:
    """What there is for the management API."""
    if not organizations:
        return "The management API knows nobody yet: --seed FILE gives it organizations and personal keys (config/sandbox-seed.yaml)."
    count = "1 organization" if organizations == 1 else f"{organizations} organizations"
    return f"The management API has {count}; call it with a personal key of the seed (forwarder manage --help)."


async def _serve(options: SandboxOptions) -> None:
    """Serve until SIGINT or SIGTERM; what is under way then is answered. Cancellation does the same."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Sandbox(options) as running:
        kept = f"in {options.database}" if options.database else "in memory, gone when it stops (--database FILE keeps them)"
        typer.echo(f"Sandbox listening on {running.url}\nEvents are kept {kept}.\n{_management(await running.organizations())}")
        await stop.wait()
        typer.echo("Sandbox stopping.")
