"""The options of `forwarder import FORMAT`: those of any format, and those of one by its
description.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer

from forwarder.cli.options import Config, TextOrJson, TextOutput, parameter
from forwarder.sources.files.record_blocks import Framing
from forwarder.sources.imports.format import ImportFormat, PersonProperties

_WHERE: Final = "Source and target"
_WHAT: Final = "What is sent"
_HOW: Final = "How it is sent"
_READING: Final = "How the source is read"


def _codes(incomplete: str) -> list[str]:
    """Completions of --accept."""
    from forwarder.sources.imports.preflight_report import STOPPING

    return [code for code in STOPPING if code.startswith(incomplete)]


def _choices(incomplete: str) -> list[str]:
    """Completions of --person-properties."""
    return [choice for choice in get_args(PersonProperties) if choice.startswith(incomplete)]


def _option(
    panel: str | None, words: str, metavar: str | None = None, **more: Any
) -> dict[str, Any]:
    """What an option has beside its name, which is that of its field."""
    return {"help": words, "rich_help_panel": panel, "metavar": metavar, **more}


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What can be typed for any format; each field is an option."""

    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Files, folders, patterns or addresses (s3:// gs:// az://); - is standard input.",
        ),
    ]
    upstream: Annotated[
        str | None, _option(_WHERE, "Address of the service. Default: `upstream.url`.", "URL")
    ] = None
    api_key: Annotated[
        str | None,
        _option(
            _WHERE,
            "Project key. Default: `import.api_key` or its file; else it is asked for.",
            "KEY",
        ),
    ] = None
    via: Annotated[
        str | None,
        _option(
            _WHERE, "Send through a running forwarder, which gives live events priority.", "URL"
        ),
    ] = None
    state: Annotated[
        Path | None,
        _option(
            _WHERE, "State folder of the import. Default: one in `import.state` per command.", "DIR"
        ),
    ] = None
    config: Config = None
    dry_run: Annotated[
        bool, _option(None, "Only analyze the source, and report what would be sent.")
    ] = False
    accept: Annotated[
        list[str] | None,
        _option(None, "Start despite this finding; repeatable.", "CODE", autocompletion=_codes),
    ] = None
    yes: Annotated[
        bool, _option(None, "Send without asking. Required without a terminal, also to resume.")
    ] = False
    output: TextOrJson = TextOutput.TEXT
    since: Annotated[
        str | None,
        _option(_WHAT, "Only events from then on: 2024-01-31, or an ISO 8601 time; UTC.", "TIME"),
    ] = None
    until: Annotated[
        str | None, _option(_WHAT, "Only events before then. Default: 48 h ago.", "TIME")
    ] = None
    event: Annotated[
        list[str] | None, _option(_WHAT, "Only events of this name; repeatable.", "NAME")
    ] = None
    exclude_event: Annotated[
        list[str] | None, _option(_WHAT, "No events of this name; repeatable.", "NAME")
    ] = None
    limit: Annotated[
        int | None, _option(_WHAT, "At most this many events, the first.", "N", min=1)
    ] = None
    person_properties: Annotated[
        str | None,
        _option(
            _WHAT,
            (
                "Properties of persons: as of each event's time (history), the newest or oldest "
                "that persons lack, or none. Required if the source has some."
            ),
            "history|newest|oldest|none",
            autocompletion=_choices,
        ),
    ] = None
    geoip: Annotated[
        bool, _option(_WHAT, "Let the service look up the location of an event's $ip.")
    ] = False
    rate: Annotated[
        str | None, _option(_HOW, "Events a second. Default: `import.rate`, 2000.", "N|unlimited")
    ] = None
    quiet_hours: Annotated[
        str | None,
        _option(_HOW, "Hours without sending: 08:00-20:00 Europe/Berlin, or `none`.", "HOURS"),
    ] = None
    shard: Annotated[
        str | None,
        _option(
            _HOW,
            (
                "Only every N-th file, from number K on, with 1/N of the rate: 0/8 to 7/8 on "
                "eight machines."
            ),
            "K/N",
        ),
    ] = None
    sort: Annotated[
        bool, _option(_HOW, "Sort by time on disk first: for files that are not oldest first.")
    ] = False
    encoding: Annotated[
        str | None,
        _option(
            _READING,
            (
                "Encoding of text files, also packed ones: utf-16, cp1252 … Default: "
                "`import.encoding`, utf-8."
            ),
            "NAME",
        ),
    ] = None
    follow_links: Annotated[
        bool, _option(_READING, "Also read the targets of links that lead out of the named folder.")
    ] = False
    store: Annotated[
        list[str] | None,
        _option(
            _READING,
            "An option of the object store, such as region=eu-central-1; repeatable.",
            "NAME=TEXT",
        ),
    ] = None


def parameters(form: ImportFormat[Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a format's command."""
    for option in form.said:
        default = option.default
        words = option.help
        is_set = isinstance(default, frozenset)
        is_switch = isinstance(default, bool)
        if is_set:
            words = f"{words[:-1]}; repeatable."
        elif isinstance(default, str) and default:
            words = f"{words} Default: {default}."
        kind: Any = bool if is_switch else list[str] | None if is_set else str | None
        marker = _option(f"Format {form.name}", words, None if is_switch else option.metavar)
        yield _parameter(option.name, kind, False if is_switch else None, marker)
    framings: Any = [(framing.name, framing.value) for framing in form.framings]
    cell = Framing.CSV in form.framings and str
    sometimes: dict[str, tuple[Any, str, str | None]] = {
        "zone": (
            form.takes_zone and str,
            "Zone of times without one, such as Europe/Berlin. Default: `import.zone`.",
            "ZONE",
        ),
        "time_offset": (
            form.takes_zone and str,
            "Instead of --zone, a fixed offset from UTC: +02:00, or 0 for UTC.",
            "+HH:MM",
        ),
        "mapping": (
            form.takes_mapping and Path,
            "YAML file of the rules. Default: `import.mapping`.",
            "FILE",
        ),
        "framing": (
            len(framings) > 1 and StrEnum("Framing", framings),
            "How records are separated; auto: by content and name.",
            None,
        ),
        "delimiter": (cell, "Between cells. Default: comma; in .tsv files, tab.", "CHARACTER"),
        "quote": (
            cell,
            'Around a cell that contains delimiters, or `none`. Default: "; between tabs, none.',
            "CHARACTER",
        ),
        "header": (
            cell,
            "Names of the columns, separated by commas, for files without a header.",
            "NAMES",
        ),
    }
    for name, (kind, words, metavar) in sometimes.items():
        if kind:
            yield _parameter(name, kind | None, None, _option(_READING, words, metavar))
    hints = get_type_hints(CommonOptions, include_extras=True)
    for field in dataclasses.fields(CommonOptions):
        kind, marker = get_args(hints[field.name])
        yield _parameter(
            field.name, kind, ... if field.default is dataclasses.MISSING else field.default, marker
        )


def _parameter(name: str, kind: Any, default: Any, marker: Any) -> inspect.Parameter:
    """`marker` is what `_option` gives, or typer's own."""
    return parameter(
        name,
        kind,
        typer.Option(f"--{name.replace('_', '-')}", **marker)
        if isinstance(marker, dict)
        else marker,
        default,
    )


def common_options(typed: dict[str, Any]) -> CommonOptions:
    """The typed options of every format."""
    return CommonOptions(
        **{option.name: typed[option.name] for option in dataclasses.fields(CommonOptions)}
    )
