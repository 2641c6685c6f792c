"""`forwarder tap`: events as they pass the running daemon.

The daemon selects by name, key, source and outcome, and redacts; expressions are evaluated here,
where they can hold up nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final, get_args

import typer

from forwarder.cli.admin_client import NoDaemon, label_of, resolve, tap_events
from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import (
    Admin,
    Config,
    TextOrJson,
    TextOutput,
    events_per_second,
    one_of,
)
from forwarder.config.rule_settings import DaemonSource
from forwarder.core.secrets import mask_emails
from forwarder.core.taps import TapOutcome

MAX_RESULTS: Final = 1000
"""Results of an expression for one event."""


_SOURCES: Final = (*get_args(DaemonSource), "replay")
"""Where events come from that pass a daemon: replayed dead letters have a source of their own."""


_Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event", metavar="NAME", help="Only this name; * and ? are wildcards. Repeatable."
    ),
]
_Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="KEY", help="Only this project key, or its name or label. Repeatable."
    ),
]
_Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="|".join(_SOURCES),
        **one_of(_SOURCES),
        help="Only from this source. Repeatable.",
    ),
]
_Outcomes = Annotated[
    list[TapOutcome] | None,
    typer.Option(
        "--outcome", metavar="|".join(TapOutcome), help="Only with this outcome. Repeatable."
    ),
]
_Expression = Annotated[
    str | None,
    typer.Option(
        "--jq", metavar="EXPRESSION", help="Print what this makes of each event, as JSON."
    ),
]
_Rate = Annotated[
    float,
    typer.Option(
        "--rate",
        parser=events_per_second(1000),
        metavar="N",
        help="Show so many a second of each outcome at most; count the others.",
    ),
]
_Emails = Annotated[
    bool, typer.Option("--show-emails", help="Show e-mail addresses, which are masked otherwise.")
]
_Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="End after so many events.")
]


def tap(  # noqa: PLR0917 - a command's options
    event: _Events = None,
    key: _Keys = None,
    source: _Sources = None,
    outcome: _Outcomes = None,
    jq: _Expression = None,
    rate: _Rate = 20.0,
    limit: _Limit = None,
    show_emails: _Emails = False,
    output: TextOrJson = TextOutput.TEXT,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Show events as they pass the running daemon: a sample of those received, delivered,
    dead-lettered, dropped.

    Values of properties whose names look like secrets are hidden, e-mail addresses are masked, and
    keys are shown as names or labels.

    Exit codes: 0 after --limit events; 3 no daemon answers, or it ended; 130 ended by Ctrl-C.

    Example: forwarder tap --event 'order*' --outcome received --jq .data.properties.total
    """
    address = resolve(admin, config)
    show = printer(output, jq, show_emails=show_emails)
    wanted = {
        "event": event,
        "key": [label_of(lane) for lane in key or ()],
        "source": source,
        "outcome": outcome,
    }
    shown = 0
    try:
        for record in tap_events(address, wanted, rate):
            shown += show(record)
            if limit is not None and shown >= limit:
                return
    except NoDaemon as error:
        from forwarder.cli.output import report

        report(error)
        raise typer.Exit(ExitCode.UNREACHABLE) from error


def printer(
    output: TextOutput, expression: str | None, *, show_emails: bool
) -> Callable[[dict[str, Any]], int]:
    """Prints a record; how many events that shows: one, or none if the expression makes nothing of
    it. An expression sees the addresses that aren't shown.

    Raises `ConfigurationError` for an expression that can't be used.
    """
    masked: Callable[[Any], Any] = (lambda value: value) if show_emails else mask_emails
    if expression is not None:
        return _evaluated(expression, masked)
    show = _as_json if output is TextOutput.JSON else _as_text()
    return lambda record: show(masked(record))


def _as_json(record: dict[str, Any]) -> int:
    from forwarder.cli.output import as_json

    sys.stdout.write(as_json(record) + "\n")
    sys.stdout.flush()
    return 1


def _evaluated(expression: str, masked: Callable[[Any], Any]) -> Callable[[dict[str, Any]], int]:
    import jq

    from forwarder.cli.output import as_json, visible
    from forwarder.mapping.expressions import check

    check("--jq", expression)
    program = jq.compile(f"limit({MAX_RESULTS}; (\n{expression}\n\n))")

    def show(record: dict[str, Any]) -> int:
        try:
            results = program.input_text(json.dumps(record)).all()
        except ValueError as error:
            sys.stderr.write(f"jq: {visible(str(error))}\n")
            return 0
        sys.stdout.write("".join(as_json(masked(result)) + "\n" for result in results))
        sys.stdout.flush()
        return bool(results)

    return show


def _as_text() -> Callable[[dict[str, Any]], int]:
    from rich.text import Text

    from forwarder.cli.output import as_json, visible
    from forwarder.cli.tables import console

    target = console()

    def show(record: dict[str, Any]) -> int:
        data = record.get("data")
        reason = ": ".join(record[part] for part in ("reason", "why") if record.get(part))
        text = Text(f"{record['time'][11:23]} ", style="dim", end="")
        text.append(
            f"{record['outcome']:<13} ", style=f"not dim {_STYLES.get(record['outcome'], 'red')}"
        )
        at = f"@{record['destination']}" if record.get("destination") else ""
        text.append(f"{record.get('lane_name') or record['lane']}{at} {record['source']}  ")
        text.append(_word(record.get("event")), style="not dim bold")
        text.append(f"  {_word(record.get('distinct_id'))}  ", style="not dim")
        text.append(visible(f"{reason}  ") if reason else "", style="not dim red")
        text.append(
            as_json(data.get("properties", {})) if isinstance(data, dict) else visible(str(data))
        )
        if target.is_terminal:
            target.print(text, no_wrap=True, overflow="ellipsis")
        else:
            sys.stdout.write(f"{text.plain}\n")
            sys.stdout.flush()
        return 1

    return show


def _word(value: object) -> str:
    """A name or id for a person, whatever it is."""
    from forwarder.cli.output import as_json, visible

    if value is None:
        return "-"
    return visible(value) if isinstance(value, str) else as_json(value)


_STYLES: Final = {
    TapOutcome.RECEIVED: "cyan",
    TapOutcome.REPLAYED: "cyan",
    TapOutcome.DELIVERED: "green",
    TapOutcome.DEAD_LETTERED: "red",
    TapOutcome.DROPPED: "red",
}
