"""The command line of `forwarder import FORMAT`: the options of every format, and those of one, as parameters that typer reads."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from forwarder.cli.options import Config, TextOrJson, TextOutput, parameter
from forwarder.sources.files.records import Framing
from forwarder.sources.imports.format import FormatOption, ImportFormat

_WHERE: Final = "Source and target"
_WHAT: Final = "What is sent"
_HOW: Final = "How it is sent"
_READING: Final = "How the source is read"


class PersonsOption(StrEnum):
    """What becomes of `$set`."""

    SET_ONCE = "set_once"
    NONE = "none"
    SET = "set"


def _codes(incomplete: str) -> list[str]:
    """Completions of --accept."""
    from forwarder.sources.imports.preflight_report import SEVERITIES, FindingSeverity

    return [code for code, severity in SEVERITIES.items() if severity is FindingSeverity.STOPS and code.startswith(incomplete)]


def _option(*declaration: str, words: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*declaration, help=words, rich_help_panel=panel, metavar=metavar, **more)


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What can be typed for any format; each field is an option."""

    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, folders, patterns or addresses (s3:// gs:// az://); - is standard input."),
    ]
    upstream: Annotated[
        str | None, _option("--upstream", metavar="URL", words="Address of the service. Default: `upstream.url`.", panel=_WHERE)
    ] = None
    api_key: Annotated[
        str | None,
        _option(
            "--api-key", metavar="KEY", words="Project key. Default: `import.api_key` or its file; else it is asked for.", panel=_WHERE
        ),
    ] = None
    via: Annotated[
        str | None,
        _option("--via", metavar="URL", words="Send through a running forwarder, which gives live events priority.", panel=_WHERE),
    ] = None
    state: Annotated[
        Path | None,
        _option("--state", metavar="DIR", words="State folder of the import. Default: one in `import.state` per command.", panel=_WHERE),
    ] = None
    config: Config = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only analyze the source, and report what would be sent.")] = False
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="CODE", help="Start despite this finding; repeatable.", autocompletion=_codes),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Send without asking. Required without a terminal, also to resume.")] = False
    output: TextOrJson = TextOutput.TEXT
    since: Annotated[
        str | None, _option("--since", metavar="TIME", words="Only events from then on: 2024-01-31, or an ISO 8601 time; UTC.", panel=_WHAT)
    ] = None
    until: Annotated[str | None, _option("--until", metavar="TIME", words="Only events before then. Default: 48 h ago.", panel=_WHAT)] = (
        None
    )
    event: Annotated[list[str] | None, _option("--event", metavar="NAME", words="Only events of this name; repeatable.", panel=_WHAT)] = (
        None
    )
    exclude_event: Annotated[
        list[str] | None, _option("--exclude-event", metavar="NAME", words="No events of this name; repeatable.", panel=_WHAT)
    ] = None
    limit: Annotated[int | None, _option("--limit", metavar="N", min=1, words="At most this many events, the first.", panel=_WHAT)] = None
    person_properties: Annotated[
        PersonsOption | None,
        _option(
            "--person-properties",
            words="What $set does: set only what a person lacks (set_once), nothing, or overwrite current values.",
            panel=_WHAT,
        ),
    ] = None
    geoip: Annotated[bool, _option("--geoip", words="Let the service look up the location of an event's $ip.", panel=_WHAT)] = False
    rate: Annotated[
        str | None, _option("--rate", metavar="N|unlimited", words="Events a second. Default: `import.rate`, 2000.", panel=_HOW)
    ] = None
    quiet_hours: Annotated[
        str | None,
        _option("--quiet-hours", metavar="HOURS", words="Hours without sending: 08:00-20:00 Europe/Berlin, or `none`.", panel=_HOW),
    ] = None
    sort: Annotated[bool, _option("--sort", words="Sort by time on disk first: for files that are not oldest first.", panel=_HOW)] = False
    follow_links: Annotated[
        bool, _option("--follow-links", words="Also read the targets of links that lead out of the named folder.", panel=_READING)
    ] = False
    store: Annotated[
        list[str] | None,
        _option(
            "--store",
            metavar="NAME=TEXT",
            words="An option of the object store, such as region=eu-central-1; repeatable.",
            panel=_READING,
        ),
    ] = None


_TIME_OFFSET: Final = _option(
    "--time-offset", metavar="+HH:MM", words="Offset from UTC of times without a zone: +02:00, or 0 for UTC.", panel=_READING
)
_DELIMITER: Final = _option("--delimiter", metavar="CHARACTER", words="Between cells. Default: comma; in .tsv files, tab.", panel=_READING)
_QUOTE: Final = _option("--quote", metavar="CHARACTER", words='Around a cell that contains delimiters. Default: ".', panel=_READING)
_MAPPING: Final = _option("--mapping", metavar="FILE", words="YAML file of the rules. Default: `import.mapping`.", panel=_READING)
_FRAMING: Final = _option("--framing", words="How records are separated; auto: by content and name.", panel=_READING)


def parameters(form: ImportFormat[Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a format's command."""
    for option in form.said:
        yield _own(form, option)
    if form.takes_time_offset:
        yield parameter("time_offset", str | None, _TIME_OFFSET)
    if form.takes_mapping:
        yield parameter("mapping", Path | None, _MAPPING)
    if len(form.framings) > 1:
        yield parameter("framing", _framings(form) | None, _FRAMING)
    if Framing.CSV in form.framings:
        yield parameter("delimiter", str | None, _DELIMITER)
        yield parameter("quote", str | None, _QUOTE)
    hints = get_type_hints(CommonOptions, include_extras=True)
    for each in dataclasses.fields(CommonOptions):
        default = inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name], default=default)


def common_options(typed: Mapping[str, Any]) -> CommonOptions:
    """The typed options of every format."""
    return CommonOptions(**{each.name: typed[each.name] for each in dataclasses.fields(CommonOptions)})


def own_options(form: ImportFormat[Any], typed: Mapping[str, Any]) -> Any:
    """The typed options of this format alone. Raises `ValueError` if they contradict each other."""
    values = {each.field: typed[each.name] for each in form.said if typed[each.name] not in (None, [], ())}
    return form.options(**{name: frozenset(value) if isinstance(value, list | tuple) else value for name, value in values.items()})


def _own(form: ImportFormat[Any], option: FormatOption) -> inspect.Parameter:
    words = f"{option.help[:-1]}; repeatable." if isinstance(option.default, frozenset) else option.help
    if isinstance(option.default, str) and option.default:
        words = f"{words} Default: {option.default}."
    panel = f"Format {form.name}"
    if isinstance(option.default, bool):
        return parameter(option.name, bool, _option(f"--{option.flag}", words=words, panel=panel), default=False)
    kind = list[str] | None if isinstance(option.default, frozenset) else str | None
    return parameter(option.name, kind, _option(f"--{option.flag}", metavar=option.metavar, words=words, panel=panel))


def _framings(form: ImportFormat[Any]) -> Any:
    """The framings that a format can have, to choose from."""
    members: Any = [(each.name, each.value) for each in form.framings]
    return StrEnum("Framing", members)
