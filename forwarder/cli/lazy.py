"""Commands whose modules are imported only when they are called: importing them all would make every health check pay for them.

Invariant: the list of commands, with a line each, is known without importing any of them (a test holds the lines against the modules).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

LAZY: Final = {
    "buffer": "Look into, check, save or empty a disk buffer, also one whose daemon is down.",
    "config": "Check the configuration, show what is in effect, print its schema.",
    "dead-letters": "Look at events that could not be delivered, send them again, or drop them.",
    "drill": "Put a sandbox and a forwarder through an outage, a kill -9 and a wrong key, and show that no event is lost.",
    "explain": "Say where one event is: buffered and since when, dead-lettered and why, else that it was delivered, or never here.",
    "import": "Move years of events into the service: run it twice, kill it anywhere, and each is there once.",
    "manage": "Administer organizations: their domains, invites, members and projects, batch exports and dashboards.",
    "mapping": "See what the rules of a mapping make of records, before any is sent.",
    "sandbox": "Run the analytics service in small, to watch events arrive and to test against.",
}
"""Name and one line each; the command lives in `forwarder.cli.<name>`, with `_` for `-`, but for those of `_MODULES`."""

_MODULES: Final = {"import": "imports"}
"""Names that no module can have."""


class LazyGroup(TyperGroup):
    """Lists placeholders, and runs the real commands in their place."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that `args` name, with its module imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in LAZY else command, rest


def register(app: typer.Typer) -> None:
    """Add the placeholders to forwarder's commands."""
    for name, line in LAZY.items():
        app.command(name, help=line)(_placeholder)


@cache
def load(name: str) -> Any:
    """The real command: the module's `app`, a group, or what its `register` adds."""
    module = import_module(f"forwarder.cli.{_MODULES.get(name, name.replace('-', '_'))}")
    if hasattr(module, "app"):
        return get_group(module.app)
    alone = typer.Typer(add_completion=False)
    module.register(alone)
    return get_command(alone)


def _placeholder() -> None:
    """Stands in the list; `LazyGroup` never runs it."""
