"""From the command line and the configuration to the request for an import: settings, key, format,
filters, rate, and state folder.

Invariant: a key, and the text of a `--store` option, is part of no message.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta, timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import msgspec

from forwarder.cli.import_options import CommonOptions
from forwarder.cli.settings import ask_for_key, key_or_file, load_for_person
from forwarder.config.addresses import check_upstream
from forwarder.config.api_keys import check_project_key, read_key_file
from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import Loaded, load_part
from forwarder.config.section import InvalidValues
from forwarder.config.settings import FORMER_PERSON_PROPERTIES, ImportSettings, Settings
from forwarder.config.source_settings import MappingSettings
from forwarder.config.units import parse_number
from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import help_on
from forwarder.core.proposals import proposed
from forwarder.daemon.mappings import mapping_of, rules_of
from forwarder.mapping import MappingCases
from forwarder.mapping.times import zone_of
from forwarder.sources.files.record_blocks import NO_QUOTE, Framing, ReadOptions
from forwarder.sources.files.transcoding import checked_encoding
from forwarder.sources.imports import checkpoint, report
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import (
    ChosenFormat,
    ChosenMapping,
    Converter,
    FormatContext,
    ImportFormat,
    PersonProperties,
    RecordRefused,
)
from forwarder.sources.imports.formats.named import has_cases, read_mapping
from forwarder.sources.imports.job import ImportRequest, Shard
from forwarder.sources.imports.pacing import QuietHours
from forwarder.sources.imports.preflight_report import unaccepted
from forwarder.sources.imports.shards import shard_folders
from forwarder.sources.imports.times import parse_time
from forwarder.storage.directory import is_locked, state_directories

Given = TypeVar("Given")
Checked = TypeVar("Checked")

IMPORTS: Final = "imports"
_UNLIMITED: Final = "unlimited"
_MAPPING: Final = "import.mapping"
_NO_QUIET: Final = "none"
_CHANGES_RECORDS: Final = ("framing", "delimiter", "quote", "header", "encoding")
"""Options for reading that change the records."""
_KEY_WAYS: Final = (
    "Use --api-key KEY, `import.api_key` or `import.api_key_file` in the configuration, or "
    "FORWARDER_IMPORT__API_KEY(_FILE)."
)
_OFFSET: Final = re.compile(r"([+-])(\d{1,2}):?(\d{2})", re.ASCII)
_UTC: Final = frozenset({"0", "z", "utc", "+0", "-0"})
_MAX_RATE: Final = 1_000_000


def request_of(
    form: ImportFormat[Any], typed: CommonOptions, more: Mapping[str, Any]
) -> ImportRequest:
    """The request; `more` has the options that not every format has. Raises
    `ConfigurationError`.
    """
    unaccepted((), typed.accept or ())
    loaded = load_for_person(typed.config)
    settings = loaded.settings.of_destination()
    if typed.upstream is not None:
        url = _checked("--upstream", check_upstream, typed.upstream)
        settings = _delivering_to(url, loaded.settings)
    if not (settings.upstream.url or typed.via or typed.dry_run):
        hint = (
            "For example --upstream https://us.i.example.com, or `upstream.url` in the "
            "configuration."
        )
        raise ConfigurationError(
            "--upstream URL is missing: the address of the service that receives the events",
            hint=hint,
        )
    section = settings.import_
    chosen = _persons(typed.person_properties, section)
    shard = None if typed.shard is None else Shard.parse(typed.shard)
    persons: PersonProperties = chosen or "oldest"
    _check_shard(shard, persons)
    store = {**section.store, **pairs("--store", typed.store or ())}
    cells = {
        name: read(more[name]) for name, read in _OF_CELLS.items() if more.get(name) is not None
    }
    encoding = checked_encoding(
        *(
            ("--encoding", typed.encoding)
            if typed.encoding is not None
            else ("import.encoding", section.encoding)
        )
    )
    framing = Framing(more.get("framing") or form.framings[0])
    reading = ReadOptions(
        framing=framing,
        encoding=encoding,
        store=store,
        follow_links=typed.follow_links,
        **{**form.reading(), **cells},
    )
    since = moment("--since", typed.since)
    until = moment("--until", typed.until)
    if since is not None and until is not None and since >= until:
        raise ConfigurationError(
            f"--since {typed.since} is not before --until {typed.until}: no event is left",
            hint="Exchange the two.",
        )
    hours, hours_name = (
        (section.quiet_hours, "import.quiet_hours")
        if typed.quiet_hours is None
        else (typed.quiet_hours, "--quiet-hours")
    )
    return ImportRequest(
        chosen=_chosen(form, FormatContext(persons, since=since), section, reading, more),
        paths=tuple(typed.paths),
        settings=settings,
        api_key=project_key(loaded, typed.api_key, required=not typed.dry_run),
        state=typed.state,
        state_root=state_root(settings) if typed.state is None else typed.state.parent,
        via=_checked("--via", check_upstream, typed.via) if typed.via else "",
        reading=reading,
        filters=EventFilters(
            since,
            until,
            frozenset(typed.event or ()),
            frozenset(typed.exclude_event or ()),
            typed.limit,
        ),
        person_properties=persons,
        persons_chosen=chosen is not None,
        geoip=typed.geoip,
        rate=rate(str(section.rate) if typed.rate is None else typed.rate),
        quiet_hours=QuietHours.parse(hours, hours_name) if hours and hours != _NO_QUIET else None,
        sort=typed.sort or form.is_unsorted,
        accepted=frozenset(typed.accept or ()),
        shard=shard,
    )


def _persons(typed: str | None, section: ImportSettings) -> PersonProperties | None:
    """What was chosen; None: nothing was. Raises `ConfigurationError`."""
    if typed is None:
        return section.person_properties
    for choice in get_args(PersonProperties):
        if choice == typed:
            persons: PersonProperties = choice
            return persons
    choices = ", ".join(get_args(PersonProperties))
    if typed in FORMER_PERSON_PROPERTIES:
        hint = f"It is called {FORMER_PERSON_PROPERTIES[typed]} now; the choices are {choices}."
    else:
        hint = f"The choices are {choices}."
    raise ConfigurationError(f"--person-properties: there is no choice {typed!r}", hint=hint)


def _check_shard(shard: Shard | None, persons: PersonProperties) -> None:
    """Raises `ConfigurationError` if a shard alone can't know what persons get."""
    if shard is not None and persons in {"history", "newest"}:
        raise ConfigurationError(
            f"--shard can't be beside --person-properties {persons}: what a person gets follows "
            "from all files, and a shard reads only some",
            hint=(
                "Import without --shard; or in shards with --person-properties none, if the "
                "persons come from elsewhere."
            ),
        )


def _delivering_to(url: str, settings: Settings) -> Settings:
    """The settings of the destination at this address; of one that isn't configured, those of the
    first without the project keys that stand for others there.
    """
    for upstream in settings.upstreams:
        if upstream.url.rstrip("/") == url.rstrip("/"):
            return settings.of_destination(upstream.name)
    own = settings.of_destination()
    return replace(own, upstream=replace(own.destination, url=url, api_keys={}))


def project_key(loaded: Loaded, typed: str | None, *, required: bool) -> str:
    """The project key: typed, or configured, or else asked for; empty if there is none and none is
    `required`.

    Raises `ConfigurationError`.
    """
    if typed is not None:
        return _checked("--api-key", check_project_key, typed.strip())
    section = loaded.settings.import_
    key, file = key_or_file(loaded, "import", section.api_key, section.api_key_file)
    if file and not key:
        key, *more = _checked("import.api_key_file", read_key_file, file)
        if more:
            raise ConfigurationError(
                f"import.api_key_file: {file} contains {len(more) + 1} keys",
                hint="Keep only the project's key.",
            )
    return key or (ask_for_key("project key", check_project_key, _KEY_WAYS) if required else "")


def state_root(settings: Settings) -> Path:
    """The directory with a state folder for each import. Raises `ConfigurationError` if this user
    has none.
    """
    if settings.import_.state is not None:
        return settings.import_.state
    if settings.buffer.kind == "disk":
        return settings.buffer.path / IMPORTS
    for directory in state_directories(os.environ, is_root=os.geteuid() == 0):
        return directory / IMPORTS
    raise ConfigurationError(
        "there is no directory for the import's state: this user has no HOME",
        hint="Name one with --state DIR.",
    )


def folders(root: Path) -> list[Path]:
    """The state folders of imports in `root`, by name. Raises `ConfigurationError` if they can't
    be listed.
    """
    names = checkpoint.FILE, report.MANIFEST
    try:
        inside = sorted(root.iterdir()) if root.is_dir() else []
        return [
            folder
            for folder in inside
            if any((folder / name).is_file() for name in names)
            or is_locked(folder)
            or shard_folders(folder)
        ]
    except OSError as error:
        hint = "Run this as the user that imports, or name one folder with --state DIR."
        raise ConfigurationError(
            f"{root} can't be listed: {error_text(error)}", hint=hint
        ) from error


def _checked(name: str, check: Callable[[Given], Checked], given: Given) -> Checked:
    """What a check makes of a value; its ValueError as a `ConfigurationError` with the name of the
    option or setting.
    """
    try:
        return check(given)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from None


def _chosen(
    form: ImportFormat[Any],
    given: FormatContext,
    section: ImportSettings,
    reading: ReadOptions,
    more: Mapping[str, Any],
) -> ChosenFormat:
    own = {
        option.field: more[option.name]
        for option in form.said
        if more[option.name] not in (None, [], ())
    }
    try:
        options = form.options(
            **{
                name: frozenset(value) if isinstance(value, list | tuple) else value
                for name, value in own.items()
            }
        )
    except ValueError as error:
        raise ConfigurationError(
            str(error), hint=f"`{proposed(f'import {form.name} --help')}` describes each option."
        ) from None
    usual = ReadOptions(framing=form.framings[0], **form.reading())
    values: dict[str, Any] = {option.flag: option.of(options) for option in form.said}
    values |= {
        name: _as_text(getattr(reading, name))
        for name in _CHANGES_RECORDS
        if getattr(reading, name) != getattr(usual, name)
    }
    if form.takes_zone:
        zone, said = _zone(section, more)
        values |= said
        given = replace(given, zone=zone)
    if form.takes_mapping or form.mapping_file:
        file: Path | None = form.mapping_file or more.get("mapping")
        in_cases = file is not None and has_cases(file)
        chosen, identity = _cases(file) if file and in_cases else _mapping(section, file)
        given = replace(given, mapping=chosen)
    form.make(options, given)  # raises now if the options contradict each other
    if given.mapping is not None:
        values["mapping"] = identity()

    def make(until: int | None) -> Converter:
        return form.make(options, replace(given, until=until))

    times = tuple(form.times(options, given))
    return ChosenFormat(
        form.name,
        values,
        make,
        times,
        zone_said=form.zone_said(options, given),
        receipts=form.receipts,
        shifts_epochs=form.shifts_epochs,
        clock=given.clock,
    )


def _mapping(
    section: ImportSettings, file: Path | None
) -> tuple[ChosenMapping, Callable[[], dict[str, Any]]]:
    """The rules of one mapping, and what gives the JSON that tells them from others."""
    settings, place = import_mapping(section, file)
    compiled = partial(mapping_of, settings, "import", place, has_time=False)
    zone_said = settings.timestamp.zone is not None
    chosen = ChosenMapping(rules_of(settings, place), compiled, zone_said)
    return chosen, partial(_mapping_as_json, settings)


def _cases(file: Path) -> tuple[ChosenMapping, Callable[[], dict[str, Any]]]:
    """The same of a file of several cases."""
    document = read_mapping(file)
    cases = []
    for number, case in enumerate(document.cases):
        place = f"{file}: cases[{number}]"
        try:
            cases.append((MappingSettings.parse(case), place))
        except InvalidValues as error:
            raise ConfigurationError(
                f"{place}: {error}", hint=f"{help_on('mapping')} describes the rules."
            ) from None
    if not cases:
        raise ConfigurationError(f"{file}: it has no case", hint="Write at least one.")

    def compiled() -> MappingCases:
        return MappingCases(
            [mapping_of(case, "import", place, has_time=False) for case, place in cases]
        )

    chosen = ChosenMapping(
        rules_of(*cases[0]),
        compiled,
        all(mapping.timestamp.zone is not None for mapping, _ in cases if mapping.timestamp.source),
        None if document.table is None else document.table.cells.reader(),
    )

    def identity() -> dict[str, Any]:
        said = [
            [_mapping_as_json(case) for case, _ in cases],
            msgspec.to_builtins(document.table),
        ]
        return {"digest": hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]}

    return chosen, identity


def import_mapping(section: ImportSettings, file: Path | None) -> tuple[MappingSettings, str]:
    """The rules as written, of a file of their own or of the configuration, and the place that
    errors name. Raises `ConfigurationError`.
    """
    if file is None:
        if not section.mapping.given:
            hint = (
                f"Write them under `{_MAPPING}` in the configuration, or into a file of their "
                "own: --mapping FILE."
            )
            raise ConfigurationError("the format mapping has no rules", hint=hint)
        return section.mapping, _MAPPING
    try:
        mapping = load_part(_MAPPING, file, os.environ).import_.mapping
    except InvalidConfiguration as error:
        problems = "\n".join(
            str(problem).replace(f"{_MAPPING}.", "").replace(" --config FILE", " --mapping FILE")
            for problem in error.problems
        )
        raise ConfigurationError(
            f"--mapping: {problems}", hint=f"{help_on('mapping')} describes the rules."
        ) from None
    if not mapping.given:
        raise ConfigurationError(
            f"--mapping: {file} has no rules",
            hint="Write at least event, distinct_id and timestamp.",
        )
    return mapping, str(file)


def _mapping_as_json(settings: MappingSettings) -> dict[str, Any]:
    """The rules as one value, whatever file has them; of the salt only a digest that distinguishes
    it from another.
    """
    values = settings.as_document(changed_only=True)
    if settings.hash.salt_file is not None:
        salt = hashlib.sha256(b"import" + read_file(settings.hash.salt_file).strip()).hexdigest()
        values["hash"]["salt_file"] = salt[:8]
    return values


def moment(option: str, text: str | None) -> int | None:
    """Microseconds since 1970 of a date or a time; without a zone it is UTC."""
    try:
        return None if text is None else parse_time(text)
    except RecordRefused:
        hint = (
            "Write a date, 2024-01-31, or a time, 2024-01-31T12:00:00Z: fixed ones, so that "
            "the same command resumes tomorrow."
        )
        raise ConfigurationError(f"{option}: {text!r} is not a time", hint=hint) from None


def _zone(section: ImportSettings, more: Mapping[str, Any]) -> tuple[tzinfo | None, dict[str, Any]]:
    """The zone of times without one; and what was given, by its option."""
    named = more.get("zone")
    offset = more.get("time_offset")
    if named is not None and offset is not None:
        hint = (
            "Keep one of the two: a zone knows daylight saving time, an offset is the same "
            "all year."
        )
        raise ConfigurationError(
            "--zone can't be beside --time-offset: both say what clocks showed", hint=hint
        )
    if offset is not None:
        minutes = time_offset(offset)
        return timezone(timedelta(minutes=minutes)), {"time-offset": minutes}
    name, text = ("import.zone", section.zone) if named is None else ("--zone", named)
    return (zone_of(name, text.strip()), {"zone": text.strip()}) if text is not None else (None, {})


def time_offset(text: str) -> int:
    """Minutes ahead of UTC."""
    if text.strip().lower() in _UTC:
        return 0
    match = _OFFSET.fullmatch(text.strip())
    hours, minutes = (int(match[2]), int(match[3])) if match else (99, 0)
    if match is None or minutes > 59 or hours > 14:
        hint = (
            "Write +02:00 for two hours ahead of UTC, -08:00 for eight behind, 0 for UTC; a "
            "zone is given by --zone Europe/Berlin."
        )
        raise ConfigurationError(f"--time-offset: {text!r} is not an offset", hint=hint)
    return (hours * 60 + minutes) * (-1 if match[1] == "-" else 1)


def rate(text: str) -> float | None:
    """Events a second; None for no limit."""
    if text.strip().lower() == _UNLIMITED:
        return None
    number = parse_number(text.replace(",", ""), per_second=True)
    if number is None or not 0 < number <= _MAX_RATE:
        raise ConfigurationError(
            f"--rate: invalid rate {text!r}",
            hint="Write events a second, such as 2000, 10k or 100/s, or `unlimited`.",
        )
    return float(number)


def pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Names with their texts."""
    parts = [text.partition("=") for text in texts]
    if any(not (name.strip() and equals) for name, equals, _ in parts):
        raise ConfigurationError(
            f"{option}: not of the form NAME=TEXT", hint=f"Write {option} region=eu-central-1."
        )
    return {name.strip(): value for name, _, value in parts}


def _as_text(value: str | tuple[str, ...]) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def header(text: str) -> tuple[str, ...]:
    """The names of the columns of a table, separated as in CSV."""
    [names] = csv.reader([text], skipinitialspace=True)
    if not all(name.strip() for name in names) or len({*names}) < len(names):
        raise ConfigurationError(
            f"--header: {text!r} has an empty name, or one twice",
            hint="Write the name of each column, in the order of the file: --header id,time,kind.",
        )
    return tuple(names)


def quote(text: str) -> str:
    """What is around cells: one character, or `none`."""
    return NO_QUOTE if text == NO_QUOTE else character("--quote", text)


def character(option: str, text: str) -> str:
    """One character; a tab may be written as \\t."""
    character = "\t" if text in (r"\t", "tab") else text
    if len(character) != 1:
        raise ConfigurationError(
            f"{option}: {text!r} is not one character",
            hint=f"Write {option} ';', or {option} '\\t' for a tab.",
        )
    return character


_OF_CELLS: Final[Mapping[str, Callable[[str], Any]]] = {
    "delimiter": partial(character, "--delimiter"),
    "quote": quote,
    "header": header,
}
"""Options of tables, and what reads each."""
