"""The `forwarder` command: its list of commands and its version.

Invariant: this module imports no command. The list shows names and summaries that are written
here; a command's module is imported when the command is called, so that a health check doesn't pay
for all of them.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from forwarder import __version__
from forwarder.cli.options import CommandGroup, Group

COMMANDS: Final = {
    "run": ("run", "Run the daemon: receive events and deliver them to the upstream."),
    "status": (
        "status",
        "Show the running daemon: what needs attention, and events in, buffered and out.",
    ),
    "health": ("status", "Exit with 0 if the running daemon is healthy, else with 1."),
    "send": ("send", "Send one test event, wait until it is delivered, and report where it is."),
    "generate": (
        "generate",
        "Send realistic traffic at a steady rate, and report latencies and answers.",
    ),
    "audit": (
        "status",
        "Print the books of each lane: received = delivered + buffered + dead-lettered + dropped.",
    ),
    "explain": (
        "status",
        "Find one event: buffered, dead-lettered and why, or else delivered or never received.",
    ),
    "top": (
        "top",
        "Watch the running daemon live: rates, buffer, upstream, lanes and what needs attention.",
    ),
    "tap": (
        "tap",
        (
            "Show events as they pass the running daemon: a sample of those received, delivered, "
            "dead-lettered, dropped."
        ),
    ),
    "plan": (
        "plan",
        (
            "Say what a load needs: cores, machines, memory, disk for an outage, requests to the "
            "service, and the settings to write."
        ),
    ),
    "logs": (
        "logs",
        (
            "Show how far the files of log sources are read: position, size, lag and last line of "
            "each."
        ),
    ),
    "config": ("config", "Write, check and show the configuration, and its schema."),
    "buffer": (
        "buffer",
        "List, verify, export or drain a disk buffer, also while its daemon is down.",
    ),
    "dead-letters": (
        "dead_letters",
        "List, show, replay or drop events that could not be delivered.",
    ),
    "mapping": ("mapping", "Try the rules of a mapping on sample records before any is sent."),
    "rules": (
        "rule_commands",
        (
            "Try the configured rules on events before they hold, and hash ids for files of "
            "suppressed people."
        ),
    ),
    "import": (
        "imports",
        "Import historical events from files; an interrupted import resumes without duplicates.",
    ),
    "manage": (
        "manage",
        (
            "Administer organizations: domains, invites, members, projects, batch exports and "
            "dashboards."
        ),
    ),
    "sandbox": (
        "sandbox",
        "Run a small analytics service, to watch events arrive and to test against.",
    ),
    "help": (
        "help",
        (
            "Show a document in the terminal, or the help of a command; without a topic, list the "
            "topics."
        ),
    ),
    "demo": ("demo", "Run a sandbox and a forwarder, and send sample events through them."),
    "drill": (
        "demo",
        "Simulate an outage, a kill -9 and a wrong key, and show that no event is lost.",
    ),
}
"""Name, module in `forwarder.cli`, and the first sentence of its help.

A module has a group as `app`, or the command as a function of the command's name."""


_ELSEWHERE: Final = {
    "start": "The command `run` starts the daemon.",
    "stop": "The signal TERM stops the daemon: `forwarder help restart`.",
    "restart": "The signal USR2 restarts the daemon: `forwarder help restart`.",
    "reload": "The signal HUP reloads the configuration: `forwarder help restart`.",
}
"""What people try that is no command, with what does it."""


class LazyGroup(Group):
    """Lists placeholders, and imports a command when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, summary) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary, rich_markup_mode=None))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that `args` name, with its module imported."""
        if args and args[0] in _ELSEWHERE and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. {_ELSEWHERE[args[0]]}")
        name, placeholder, rest = super().resolve_command(ctx, args)
        return name, placeholder if name is None else load(name), rest


@cache
def load(name: str) -> Any:
    """The command of that name."""
    module = import_module(f"forwarder.cli.{COMMANDS[name][0]}")
    if hasattr(module, "app"):
        return get_group(module.app)
    alone = CommandGroup(name, "")
    alone.command(name)(getattr(module, name))
    return get_command(alone)


HELP: Final = """Forward product-analytics events to your analytics service: buffered, unchanged, \
and accounted for.

Exit codes: 0 done; 1 the answer is no; 2 wrong usage or configuration; 3 unreachable; \
130 interrupted.

Example: FORWARDER_UPSTREAM__URL=https://us.i.example.com forwarder run"""

app = CommandGroup("forwarder", HELP, cls=LazyGroup, add_completion=True)


def _version(requested: bool) -> None:  # noqa: FBT001 - typer calls it so
    if requested:
        sys.stdout.write(f"forwarder {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept the options that stand before a command."""
