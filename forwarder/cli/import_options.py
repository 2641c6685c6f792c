"""What can be typed behind `forwarder import FORMAT`: the options that every format has, once, and those that its description names.

Of both the parameters of a command are made, as typer reads them.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from forwarder.sources.files.records import Framing
from forwarder.sources.imports.format import FormatOption, ImportFormat

_WHERE: Final = "From where, to where"
_WHAT: Final = "What is sent"
_HOW: Final = "How it is sent"
_READING: Final = "How the source is read"


class Form(StrEnum):
    """How a command writes what it found."""

    TEXT = "text"
    JSON = "json"


class Persons(StrEnum):
    """What becomes of `$set`."""

    SET_ONCE = "set_once"
    NONE = "none"
    SET = "set"


def _codes(incomplete: str) -> list[str]:
    """What completes --accept."""
    from forwarder.sources.imports.preflight_report import SEVERITIES, FindingSeverity

    return [code for code, severity in SEVERITIES.items() if severity is FindingSeverity.STOPS and code.startswith(incomplete)]


def _option(*declaration: str, words: str, panel: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*declaration, help=words, rich_help_panel=panel, metavar=metavar, **more)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What is typed for any format; each field is an option."""

    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, folders, patterns, addresses (s3:// gs:// az://); - is standard input."),
    ]
    upstream: Annotated[str | None, _option("--upstream", metavar="URL", words="The service; else `upstream.url`.", panel=_WHERE)] = None
    api_key: Annotated[
        str | None,
        _option("--api-key", metavar="KEY", words="The project's key; else `import.api_key` or its file, or you are asked.", panel=_WHERE),
    ] = None
    via: Annotated[
        str | None, _option("--via", metavar="URL", words="Send through the forwarder that runs there: live events go first.", panel=_WHERE)
    ] = None
    state: Annotated[
        Path | None,
        _option("--state", metavar="DIR", words="The import's folder; else the same command finds one in `import.state`.", panel=_WHERE),
    ] = None
    config: Annotated[
        Path | None,
        _option("--config", metavar="FILE", words="The configuration; else /etc/forwarder/forwarder.yaml if it is there.", panel=_WHERE),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look at the source, and say what would be sent.")] = False
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="CODE", help="Start in spite of this finding; may be given again.", autocompletion=_codes),
    ] = None
    yes: Annotated[bool, typer.Option("--yes", help="Send without asking; required without a terminal, also to resume.")] = False
    output: Annotated[Form, typer.Option("--output", help="Text for a person, or JSON.")] = Form.TEXT
    since: Annotated[
        str | None, _option("--since", metavar="TIME", words="Events from then on: 2024-01-31, or an ISO 8601 time. UTC.", panel=_WHAT)
    ] = None
    until: Annotated[str | None, _option("--until", metavar="TIME", words="Events before then; else before 48 h ago.", panel=_WHAT)] = None
    event: Annotated[
        list[str] | None, _option("--event", metavar="NAME", words="Only events of this name; may be given again.", panel=_WHAT)
    ] = None
    exclude_event: Annotated[
        list[str] | None, _option("--exclude-event", metavar="NAME", words="No events of this name; may be given again.", panel=_WHAT)
    ] = None
    limit: Annotated[int | None, _option("--limit", metavar="N", min=1, words="At most so many events, the first.", panel=_WHAT)] = None
    person_properties: Annotated[
        Persons | None,
        _option(
            "--person-properties",
            words="What becomes of $set: only what a person hasn't yet (set_once), nothing, or old values over today's.",
            panel=_WHAT,
        ),
    ] = None
    geoip: Annotated[bool, _option("--geoip", words="Let the service look up where an event's $ip is.", panel=_WHAT)] = False
    rate: Annotated[
        str | None, _option("--rate", metavar="N|unlimited", words="Events a second; else `import.rate`, 2000.", panel=_HOW)
    ] = None
    quiet_hours: Annotated[
        str | None,
        _option("--quiet-hours", metavar="HOURS", words="Send nothing then: 08:00-20:00 Europe/Berlin; `none` for none.", panel=_HOW),
    ] = None
    sort: Annotated[bool, _option("--sort", words="Sort by time first, on disk: for files that aren't oldest first.", panel=_HOW)] = False
    follow_links: Annotated[
        bool, _option("--follow-links", words="Read what links lead to outside of the folder that is named.", panel=_READING)
    ] = False
    store: Annotated[
        list[str] | None,
        _option(
            "--store",
            metavar="NAME=TEXT",
            words="An option of the object store, such as region=eu-central-1; may be given again.",
            panel=_READING,
        ),
    ] = None


_TIME_OFFSET: Final = _option(
    "--time-offset", metavar="+HH:MM", words="How far ahead of UTC times without a zone are: +02:00, or 0 for UTC.", panel=_READING
)
_DELIMITER: Final = _option("--delimiter", metavar="CHARACTER", words="Between cells; else a comma, in .tsv files a tab.", panel=_READING)
_QUOTE: Final = _option("--quote", metavar="CHARACTER", words='Around a cell with delimiters in it; else ".', panel=_READING)
_MAPPING: Final = _option("--mapping", metavar="FILE", words="YAML file of the rules; else `import.mapping`.", panel=_READING)
_FRAMING: Final = _option("--framing", words="How records are told from each other; auto: by content and name.", panel=_READING)


def parameters(form: ImportFormat[Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a format's command."""
    for said in form.said:
        yield _own(form, said)
    if form.takes_time_offset:
        yield _parameter("time_offset", str | None, _TIME_OFFSET)
    if form.takes_mapping:
        yield _parameter("mapping", Path | None, _MAPPING)
    if len(form.framings) > 1:
        yield _parameter("framing", _framings(form) | None, _FRAMING)
    if Framing.CSV in form.framings:
        yield _parameter("delimiter", str | None, _DELIMITER)
        yield _parameter("quote", str | None, _QUOTE)
    hints = get_type_hints(Shared, include_extras=True)
    for each in dataclasses.fields(Shared):
        default = inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name], default=default)


def shared(typed: Mapping[str, Any]) -> Shared:
    """What was typed of that which any format has."""
    return Shared(**{each.name: typed[each.name] for each in dataclasses.fields(Shared)})


def own(form: ImportFormat[Any], typed: Mapping[str, Any]) -> Any:
    """What was typed of that which only this format has, as its options. Raises `ValueError` if they don't fit together."""
    values = {each.field: typed[each.name] for each in form.said if typed[each.name] not in (None, [], ())}
    return form.options(**{name: frozenset(value) if isinstance(value, list | tuple) else value for name, value in values.items()})


def _own(form: ImportFormat[Any], said: FormatOption) -> inspect.Parameter:
    words = f"{said.help[:-1]}; may be given again." if isinstance(said.default, frozenset) else said.help
    if isinstance(said.default, str) and said.default:
        words = f"{words[:-1]}; else {said.default}."
    panel = f"Of the format {form.name}"
    if isinstance(said.default, bool):
        return _parameter(said.name, bool, _option(f"--{said.flag}", words=words, panel=panel), default=False)
    kind = list[str] | None if isinstance(said.default, frozenset) else str | None
    return _parameter(said.name, kind, _option(f"--{said.flag}", metavar=said.metavar, words=words, panel=panel))


def _framings(form: ImportFormat[Any]) -> Any:
    """A choice of the framings that a format can have."""
    members: Any = [(each.name, each.value) for each in form.framings]
    return StrEnum("Framing", members)


def _parameter(name: str, kind: Any, marker: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, marker], default=default)
