"""`forwarder rules`: try the configured rules on sample events or on those that pass the daemon,
and make hashes for files of ids.

Nothing is sent or counted. What looks like a key is masked, and text of the sample can't control
the terminal.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import msgspec
import typer
from msgspec import Raw

from forwarder.cli.exit_codes import ExitCode
from forwarder.cli.options import Admin, CommandGroup, Config, Output, TableOrJson, one_of
from forwarder.cli.output import visible_lines
from forwarder.config.rule_settings import SourceKind
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.proposals import proposed
from forwarder.core.secrets import mask_secrets
from forwarder.telemetry.readable import plural

if TYPE_CHECKING:
    from forwarder.config.settings import Settings
    from forwarder.rules.event_rules import EventRules

*_others, _last = get_args(SourceKind)
_SOURCES: Final = f"{', '.join(_others)} or {_last}"
_SAMPLE_KEY = "phc_sample"
"""The project key of events that name none."""

app = CommandGroup(
    "rules",
    (
        "Try the configured rules on events before they hold, and hash ids for files of "
        "suppressed people."
    ),
)


@app.callback()
def options() -> None:
    """Try the configured rules on events before they hold, and hash ids for
    files of suppressed people.
    """


@dataclass(frozen=True, slots=True)
class RuledEvent:
    """What the rules make of one event."""

    fate: str
    """unchanged, changed, dropped or dead letter."""
    rules: Sequence[str]
    """Those that changed or dropped it."""
    before: bytes
    after: bytes
    """Empty if it isn't sent."""
    why: str = ""


@app.command("try")
def try_rules(
    sample: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Events: one a line, or a body that the daemon accepts; - reads standard input.",
        ),
    ] = None,
    *,
    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Try them on events that pass the running daemon, until Ctrl-C."
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="End after so many events.")
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--source",
            metavar="SOURCE",
            **one_of(get_args(SourceKind)),
            help=f"The source of the file's events: {_SOURCES}.",
        ),
    ] = "http",
    api_key: Annotated[
        str, typer.Option("--api-key", metavar="KEY", help="Project key of events that name none.")
    ] = _SAMPLE_KEY,
    output: TableOrJson = Output.TABLE,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Show events before and after the configured rules, with the rules that changed or dropped
    them. Nothing is sent.

    With --live, events are those that the running daemon has accepted, after its own rules; values
    that look like secrets are hidden. JSON is an object a line.

    Exit codes: 0 done; 1 some events would become dead letters, or can't be read; 2 invalid rules;
    3 no daemon answers.

    Example: forwarder rules try --config forwarder.yaml events.jsonl
    """
    from forwarder.config.load import load_settings

    if live == (sample is not None):
        raise ConfigurationError(
            "there is nothing to try the rules on, or two things",
            hint="Name a FILE of events, or --live.",
        )
    settings = load_settings(config, os.environ, require_upstream=False).settings
    rules = _compiled(settings)
    unreadable: list[int] = []
    events = (
        _live_events(settings, admin, config)
        if live
        else _sample_events(settings, sample or "-", api_key, source, unreadable)
    )
    counts: Counter[str] = Counter()
    with suppress(KeyboardInterrupt):
        for number, (data, key, origin) in enumerate(events, 1):
            ruled = _apply(rules, data, key, origin)
            counts[ruled.fate] += 1
            _print(number, ruled, output)
            if number == limit:
                break
    if output is Output.TABLE:
        kinds = ("changed", "dropped", "dead letter", "unchanged")
        typer.echo(
            f"{plural(sum(counts.values()), 'event')}: "
            f"{', '.join(f'{counts[kind]:,} {kind}' for kind in kinds)}"
        )
    raise typer.Exit(ExitCode.NO if counts["dead letter"] or unreadable else ExitCode.DONE)


def _compiled(settings: Settings) -> EventRules:
    from forwarder.core.clock import SystemClock
    from forwarder.rules.event_rules import compile_rules
    from forwarder.rules.id_files import IdFiles

    rules = compile_rules(settings.rules, IdFiles(SystemClock()), settings.upstream.max_event)
    if rules is None:
        raise ConfigurationError(
            "there are no rules in the configuration",
            hint=f"Write `rules:`; `{proposed('help rules')}` has examples.",
        )
    return rules


def _apply(rules: EventRules, data: bytes, api_key: str, source: str) -> RuledEvent:
    ruled = rules.apply(data, 1, api_key, source)
    if ruled is None:
        return RuledEvent("unchanged", (), data, data)
    names = [name for name, outcome in ruled.outcomes if outcome.value != "failed"]
    why = "; ".join(f"{name} failed: {why}" for name, why in ruled.errors.items())
    if ruled.failed:
        return RuledEvent("dead letter", names, data, b"", ruled.failed[0].why)
    if ruled.dropped:
        return RuledEvent("dropped", names, data, b"", why)
    return RuledEvent(
        "unchanged" if ruled.data == data else "changed", names, data, ruled.data, why
    )


def _sample_events(
    settings: Settings, sample: str, api_key: str, source: str, unreadable: list[int]
) -> Iterator[tuple[bytes, str, str]]:
    """The events of a file, stamped as at receipt; what can't be read is reported. Raises
    `ConfigurationError` for an unreadable file.
    """
    from forwarder.core.error_text import error_text

    try:
        data = sys.stdin.buffer.read() if sample == "-" else Path(sample).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{sample} can't be read: {error_text(error)}") from error
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        bodies = [line for line in data.splitlines() if line.strip()]
    else:
        bodies = [data]
    for number, body in enumerate(bodies, 1):
        try:
            for event, key in _events_of(settings, body, api_key):
                yield event, key, source
        except ForwarderError as error:
            typer.echo(f"line {number}: {error.message}", err=True)
            unreadable.append(number)


def _events_of(settings: Settings, body: bytes, api_key: str) -> Iterator[tuple[bytes, str]]:
    from forwarder.core.event import split_events
    from forwarder.core.ports import Incoming
    from forwarder.stamping.stamp import stamp
    from forwarder.stamping.stamp_event import StampContext
    from forwarder.wire.encodings import decode_body
    from forwarder.wire.shapes import read_request, split_by_token

    request = read_request(
        decode_body(Incoming(body), settings.sources.http.max_body), sys.maxsize, foreign=True
    )
    parts = (
        split_by_token(request.events, api_key)
        if request.token is None
        else {request.token: bytes(request.events)}
    )
    for key, events in parts.items():
        stamped = stamp(events, StampContext(time.time(), max_event=settings.upstream.max_event))
        for rejected in stamped.rejected:
            typer.echo(f"an event is rejected before rules: {rejected.reason.value}", err=True)
        for raw in split_events(b"[%b]" % stamped.data):
            yield bytes(raw), key


def _live_events(
    settings: Settings, admin: str | None, config: Path | None
) -> Iterator[tuple[bytes, str, str]]:
    """Events that the daemon has accepted. Their keys are known by their labels, as far as rules
    name them.
    """
    from forwarder.cli.admin_client import label_of, resolve, tap_events

    known = {label_of(key): key for rule in settings.rules for key in rule.match.api_key}
    for record in tap_events(resolve(admin, config), {"outcome": ["received"]}, 20.0):
        label = str(record["lane"]).removesuffix("/historical")
        yield msgspec.json.encode(record["data"]), known.get(label, label), str(record["source"])


def _print(number: int, ruled: RuledEvent, output: Output) -> None:
    if output is not Output.TABLE:
        typer.echo(_visible(msgspec.json.encode(_as_json(ruled)).decode()))
        return
    from rich.text import Text

    from forwarder.cli.tables import console

    out = console()
    by = f" by {', '.join(ruled.rules)}" if ruled.rules else ""
    style = {"changed": "green", "dropped": "yellow", "dead letter": "red"}.get(ruled.fate, "dim")
    why = f"; {_visible(ruled.why)}" if ruled.why else ""
    out.print(Text(f"event {number}: {ruled.fate}{by}{why}", style=style), soft_wrap=True)
    if ruled.fate != "unchanged":
        out.print(Text(f"  - {_visible(ruled.before.decode())}", style="dim"), soft_wrap=True)
        if ruled.after:
            out.print(Text(f"  + {_visible(ruled.after.decode())}"), soft_wrap=True)


def _as_json(ruled: RuledEvent) -> dict[str, Any]:
    after = Raw(ruled.after) if ruled.after else None
    return {
        "fate": ruled.fate,
        "rules": list(ruled.rules),
        "before": Raw(ruled.before),
        "after": after,
        "why": ruled.why,
    }


def _visible(text: str) -> str:
    return visible_lines(mask_secrets(text))


@app.command("hash")
def hash_ids(
    sample: Annotated[
        str, typer.Argument(metavar="FILE", help="One distinct_id a line; - reads standard input.")
    ] = "-",
    *,
    salt_file: Annotated[
        Path,
        typer.Option(
            "--salt-file", metavar="FILE", help="The key of the hashes: `salt_file` of the rule."
        ),
    ],
) -> None:
    """Print the keyed hash of each distinct_id, for a `distinct_id_file` that holds no ids.

    Example: forwarder rules hash --salt-file salt ids.txt > suppressed.new &&
    mv suppressed.new suppressed
    """
    from forwarder.core.error_text import error_text
    from forwarder.mapping.privacy import read_salt
    from forwarder.rules.id_files import digest_of

    key = read_salt(salt_file, "--salt-file")
    try:
        with sys.stdin.buffer if sample == "-" else Path(sample).open("rb") as lines:
            for line in lines:
                if text := line.decode().removesuffix("\n").removesuffix("\r"):
                    sys.stdout.write(digest_of(text, key).hex() + "\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{sample} can't be read: {error_text(error)}") from error
