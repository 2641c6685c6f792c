"""`forwarder drill`: an outage, held on purpose, with the books at each step."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from forwarder.demo.demo import Ports
    from forwarder.demo.drill.checks import Check, DrillVerdict, Step

INTERRUPTED = 130
EXAMPLE = "Example: forwarder drill --port 0"


def drill(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65533, help="Where events go in; admin and sandbox take the next two. 0: any free ones.")
    ] = 8320,
) -> None:
    """Put a sandbox and a forwarder through an outage, a kill -9 and a wrong key, and show that no event is lost.

    Both are processes of their own with files in a temporary directory; events come from the official Python SDK. It takes about
    half a minute, and exits with 0 only if every event arrived unchanged and the books balance; else it says what is missing.
    """
    from forwarder.demo.demo import choose_ports

    verdict = asyncio.run(_hold(choose_ports(port)))
    if verdict is None:
        sys.stderr.write("Interrupted: the drill's processes and files are gone.\n")
        raise typer.Exit(INTERRUPTED)
    print_verdict(verdict)
    raise typer.Exit(0 if verdict.good else 1)


def register(app: typer.Typer) -> None:
    """Add the command to forwarder's."""
    app.command(epilog=EXAMPLE)(drill)


async def _hold(ports: Ports) -> DrillVerdict | None:
    """The verdict; None if a signal ended the drill."""
    from forwarder.demo.drill.drill import run_drill
    from forwarder.demo.drill.processes import DrillFailed

    task = asyncio.create_task(run_drill(ports, print_step()))
    _obey_signals(task)
    _print_addresses(ports)
    try:
        return await task
    except asyncio.CancelledError:
        return None
    except DrillFailed as error:
        from forwarder.cli.main import report

        report(error)
        raise typer.Exit(1) from error


def _obey_signals(task: asyncio.Task[DrillVerdict]) -> None:
    """End the drill at the first signal; later ones change nothing, or they would interrupt the cleaning up."""
    told: list[bool] = []

    def end() -> None:
        if not told:
            told.append(True)
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, end)


def _print_addresses(ports: Ports) -> None:
    for name in ports.moved:
        sys.stdout.write(f"The usual port for {name} is taken; another one is used.\n")
    sys.stdout.write(
        f"forwarder  http://127.0.0.1:{ports.ingestion}, status http://127.0.0.1:{ports.admin}/status\n"
        f"sandbox    http://127.0.0.1:{ports.sandbox}/\n"
    )
    sys.stdout.flush()


def print_step() -> Callable[[Step], None]:
    """Prints steps, numbered in the order in which they come."""
    from itertools import count

    from forwarder.cli.output import console

    screen, numbers = console(), count(1)

    def tell(step: Step) -> None:
        screen.print(step_page(step, next(numbers)))
        sys.stdout.flush()

    return tell


def step_page(step: Step, number: int) -> RenderableType:
    """What was done, what that shows, and the books."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    from forwarder.cli.output import lane_table

    head = Text(f"\n{number}. {step.title}", style="bold").append(f"  {step.seconds:.1f} s", style="not bold dim")
    lines = [Text(step.did), *(_check(check) for check in step.checks)]
    books = Padding(lane_table(step.lanes, books=True), (0, 0, 0, 2), expand=False)
    return Group(head, *(Padding(line, (0, 0, 0, 3), expand=False) for line in lines), books)


def _check(check: Check) -> Text:
    from rich.text import Text

    style = "green" if check.good else "bold red"
    return Text("✓" if check.good else "✗", style=style).append(f" {check.claim}: ", style="default").append(check.seen)


def print_verdict(verdict: DrillVerdict) -> None:
    """One line if all is good; else what isn't, on standard error."""
    from forwarder.cli.output import console

    if verdict.good:
        console().print(
            f"\nGood: {len(verdict.sent):,} events sent, all of them in the sandbox, 0 missing, 0 changed on the way; the books balance.",
            style="green",
        )
        return
    sys.stderr.write("Not good:\n" + "".join(f"  {line}\n" for line in verdict.problems()))
