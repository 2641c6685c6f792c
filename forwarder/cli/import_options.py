"""The options of `forwarder import FORMAT`: those of every format, and those of one, as parameters that typer reads."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_type_hints

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
    from forwarder.sources.imports.preflight_report import STOPPING

    return [code for code in STOPPING if code.startswith(incomplete)]


def _option(panel: str | None, words: str, metavar: str | None = None, **more: Any) -> dict[str, Any]:
    """What an option has beside its name, which is that of its field."""
    return {"help": words, "rich_help_panel": panel, "metavar": metavar, **more}


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """What can be typed for any format; each field is an option."""

    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH", help="Files, folders, patterns or addresses (s3:// gs:// az://); - is standard input."),
    ]
    upstream: Annotated[str | None, _option(_WHERE, "Address of the service. Default: `upstream.url`.", "URL")] = None
    api_key: Annotated[str | None, _option(_WHERE, "Project key. Default: `import.api_key` or its file; else it is asked for.", "KEY")] = (
        None
    )
    via: Annotated[str | None, _option(_WHERE, "Send through a running forwarder, which gives live events priority.", "URL")] = None
    state: Annotated[Path | None, _option(_WHERE, "State folder of the import. Default: one in `import.state` per command.", "DIR")] = None
    config: Config = None
    dry_run: Annotated[bool, _option(None, "Only analyze the source, and report what would be sent.")] = False
    accept: Annotated[list[str] | None, _option(None, "Start despite this finding; repeatable.", "CODE", autocompletion=_codes)] = None
    yes: Annotated[bool, _option(None, "Send without asking. Required without a terminal, also to resume.")] = False
    output: TextOrJson = TextOutput.TEXT
    since: Annotated[str | None, _option(_WHAT, "Only events from then on: 2024-01-31, or an ISO 8601 time; UTC.", "TIME")] = None
    until: Annotated[str | None, _option(_WHAT, "Only events before then. Default: 48 h ago.", "TIME")] = None
    event: Annotated[list[str] | None, _option(_WHAT, "Only events of this name; repeatable.", "NAME")] = None
    exclude_event: Annotated[list[str] | None, _option(_WHAT, "No events of this name; repeatable.", "NAME")] = None
    limit: Annotated[int | None, _option(_WHAT, "At most this many events, the first.", "N", min=1)] = None
    person_properties: Annotated[
        PersonsOption | None,
        _option(_WHAT, "What $set does: set only what a person lacks (set_once), nothing, or overwrite current values."),
    ] = None
    geoip: Annotated[bool, _option(_WHAT, "Let the service look up the location of an event's $ip.")] = False
    rate: Annotated[str | None, _option(_HOW, "Events a second. Default: `import.rate`, 2000.", "N|unlimited")] = None
    quiet_hours: Annotated[str | None, _option(_HOW, "Hours without sending: 08:00-20:00 Europe/Berlin, or `none`.", "HOURS")] = None
    sort: Annotated[bool, _option(_HOW, "Sort by time on disk first: for files that are not oldest first.")] = False
    follow_links: Annotated[bool, _option(_READING, "Also read the targets of links that lead out of the named folder.")] = False
    store: Annotated[
        list[str] | None, _option(_READING, "An option of the object store, such as region=eu-central-1; repeatable.", "NAME=TEXT")
    ] = None


_SOMETIMES: Final = {
    "time_offset": ("Offset from UTC of times without a zone: +02:00, or 0 for UTC.", "+HH:MM"),
    "mapping": ("YAML file of the rules. Default: `import.mapping`.", "FILE"),
    "framing": ("How records are separated; auto: by content and name.", None),
    "delimiter": ("Between cells. Default: comma; in .tsv files, tab.", "CHARACTER"),
    "quote": ('Around a cell that contains delimiters. Default: ".', "CHARACTER"),
}
"""What can be typed for some formats."""


def parameters(form: ImportFormat[Any]) -> Iterator[inspect.Parameter]:
    """The parameters of a format's command."""
    for option in form.said:
        yield _own(form, option)
    cell = str if Framing.CSV in form.framings else None
    kinds: dict[str, Any] = {
        "time_offset": str if form.takes_time_offset else None,
        "mapping": Path if form.takes_mapping else None,
        "framing": _framings(form) if len(form.framings) > 1 else None,
        "delimiter": cell,
        "quote": cell,
    }
    for name, kind in kinds.items():
        if kind is not None:
            words, metavar = _SOMETIMES[name]
            yield _parameter(name, kind | None, None, _option(_READING, words, metavar))
    hints = get_type_hints(CommonOptions, include_extras=True)
    for each in dataclasses.fields(CommonOptions):
        default = ... if each.default is dataclasses.MISSING else each.default
        kind, marker = get_args(hints[each.name])
        yield _parameter(each.name, kind, default, marker)


def common_options(typed: Mapping[str, Any]) -> CommonOptions:
    """The typed options of every format."""
    return CommonOptions(**{each.name: typed[each.name] for each in dataclasses.fields(CommonOptions)})


def own_options(form: ImportFormat[Any], typed: Mapping[str, Any]) -> Any:
    """The typed options of this format alone. Raises `ValueError` if they contradict each other."""
    values = {each.field: typed[each.name] for each in form.said if typed[each.name] not in (None, [], ())}
    return form.options(**{name: frozenset(value) if isinstance(value, list | tuple) else value for name, value in values.items()})


def _own(form: ImportFormat[Any], option: FormatOption) -> inspect.Parameter:
    default, words = option.default, option.help
    is_set, is_switch = isinstance(default, frozenset), isinstance(default, bool)
    if is_set:
        words = f"{words[:-1]}; repeatable."
    elif isinstance(default, str) and default:
        words = f"{words} Default: {default}."
    kind = bool if is_switch else list[str] | None if is_set else str | None
    metavar = None if is_switch else option.metavar
    return _parameter(option.name, kind, False if is_switch else None, _option(f"Format {form.name}", words, metavar))


def _parameter(name: str, kind: Any, default: Any, marker: Any) -> inspect.Parameter:
    """`marker` is what `_option` gives, or typer's own."""
    return parameter(name, kind, typer.Option(f"--{name.replace('_', '-')}", **marker) if isinstance(marker, dict) else marker, default)


def _framings(form: ImportFormat[Any]) -> Any:
    """The framings that a format can have, to choose from."""
    members: Any = [(each.name, each.value) for each in form.framings]
    return StrEnum("Framing", members)
