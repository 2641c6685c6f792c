"""From what was typed, and the configuration under it, to a request for an import."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from forwarder.cli.import_access import SECTIONS, project_key, settled, state_root, via
from forwarder.cli.import_options import Shared, own
from forwarder.cli.import_values import character, moment, pairs, rate, time_offset
from forwarder.cli.sections import loaded_sections
from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import DEFAULT_FILE, load_part
from forwarder.config.settings import ImportSettings, MappingSettings
from forwarder.core.errors import ConfigurationError
from forwarder.daemon.mappings import mapping_of, rules_of
from forwarder.imports.request import ImportRequest
from forwarder.sources.files.records import Framing, ReadOptions
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.format import ChosenFormat, ChosenMapping, FormatContext, ImportFormat, PersonProperties
from forwarder.sources.imports.pacing import QuietHours
from forwarder.sources.imports.preflight_report import unaccepted

_MAPPING: Final = "import.mapping"
_NO_QUIET: Final = "none"


def request_of(form: ImportFormat[Any], typed: Shared, more: Mapping[str, Any]) -> ImportRequest:
    """The request; `more` is what was typed that not every format has. Raises `ConfigurationError`."""
    unaccepted((), typed.accept or ())
    loaded = loaded_sections(SECTIONS, typed.config, DEFAULT_FILE)
    settings = settled(loaded, typed)
    section = settings.import_
    persons: PersonProperties = typed.person_properties.value if typed.person_properties else section.person_properties
    reading, filters = _reading(form, section, typed, more), _filters(typed)
    return ImportRequest(
        chosen=_chosen(form, persons, section, reading, more, since=filters.since),
        paths=tuple(typed.paths),
        settings=settings,
        api_key=project_key(loaded, typed),
        state=typed.state,
        state_root=state_root(settings) if typed.state is None else typed.state.parent,
        via=via(typed),
        reading=reading,
        filters=filters,
        person_properties=persons,
        geoip=typed.geoip,
        rate=_rate(typed.rate, section),
        quiet_hours=_quiet(typed.quiet_hours, section),
        sort=typed.sort or form.is_unsorted,
        accepted=frozenset(typed.accept or ()),
    )


def _chosen(
    form: ImportFormat[Any],
    persons: PersonProperties,
    section: ImportSettings,
    reading: ReadOptions,
    more: Mapping[str, Any],
    *,
    since: int | None,
) -> ChosenFormat:
    given, options = FormatContext(persons, since=since), _own(form, more)
    said: dict[str, Any] = {each.flag: each.of(options) for each in form.said}
    said |= _as_read(form, reading)
    if more.get("time_offset") is not None:
        given = replace(given, time_offset=time_offset(more["time_offset"]))
        said["time-offset"] = given.time_offset
    if form.takes_mapping:
        settings, key = _mapping(section, more.get("mapping"))
        given = replace(given, mapping=_rules(settings, key))
    form.make(options, given)  # what doesn't fit together is said now
    if form.takes_mapping:
        said["mapping"] = _as_json(settings)
    make, times = partial(form.make, options, given), tuple(form.times(options, given))
    return ChosenFormat(form.name, said, make, times, zone_said=form.zone_said(options, given))


def _as_read(form: ImportFormat[Any], reading: ReadOptions) -> dict[str, str]:
    """What was said about reading that makes other records."""
    usual = ReadOptions(framing=form.framings[0])
    said = {"framing": str(reading.framing), "delimiter": reading.delimiter, "quote": reading.quote}
    return {name: value for name, value in said.items() if value != getattr(usual, name)}


def _own(form: ImportFormat[Any], more: Mapping[str, Any]) -> Any:
    try:
        return own(form, more)
    except ValueError as error:
        raise ConfigurationError(str(error), hint=f"`forwarder import {form.name} --help` says what each option is.") from None


def _mapping(section: ImportSettings, file: Path | None) -> tuple[MappingSettings, str]:
    """The rules as they are written, and what errors call the place."""
    if file is not None:
        return _rules_in(file), str(file)
    if not section.mapping.given:
        hint = f"Write the rules into `{_MAPPING}` of the configuration, or into a file of their own: --mapping FILE."
        raise ConfigurationError("the format mapping has no rules", hint=hint)
    return section.mapping, _MAPPING


def _rules_in(file: Path) -> MappingSettings:
    try:
        found = load_part(_MAPPING, file, os.environ).import_.mapping
    except InvalidConfiguration as error:
        problems = "\n".join(str(each).replace(f"{_MAPPING}.", "").replace(" --config FILE", " --mapping FILE") for each in error.problems)
        raise ConfigurationError(f"--mapping: {problems}", hint="docs/mapping.md says what rules there are.") from None
    if not found.given:
        raise ConfigurationError(f"--mapping: {file} has no rules", hint="Write at least event, distinct_id and timestamp.")
    return found


def _rules(settings: MappingSettings, key: str) -> ChosenMapping:
    return ChosenMapping(rules_of(settings, key), lambda: mapping_of(settings, "import", key), settings.timestamp.zone is not None)


def _as_json(settings: MappingSettings) -> dict[str, Any]:
    """The rules as one value, whatever file they stand in; of the key of hashes what tells it from another, and nothing of itself."""
    said = settings.as_document(changed_only=True)
    if settings.hash.salt_file is not None:
        salt = hashlib.sha256(b"import" + settings.hash.salt_file.read_bytes().strip()).hexdigest()
        said["hash"]["salt_file"] = salt[:8]
    return said


def _reading(form: ImportFormat[Any], section: ImportSettings, typed: Shared, more: Mapping[str, Any]) -> ReadOptions:
    options = ReadOptions(
        framing=Framing(more.get("framing") or form.framings[0]),
        store={**section.store, **pairs("--store", typed.store or ())},
        follow_links=typed.follow_links,
    )
    delimiter, quote = more.get("delimiter"), more.get("quote")
    if delimiter is not None:
        options = replace(options, delimiter=character("--delimiter", delimiter))
    return options if quote is None else replace(options, quote=character("--quote", quote))


def _filters(typed: Shared) -> EventFilters:
    since = None if typed.since is None else moment("--since", typed.since)
    until = None if typed.until is None else moment("--until", typed.until)
    if since is not None and until is not None and since >= until:
        raise ConfigurationError(f"--since {typed.since} isn't before --until {typed.until}: no event is left", hint="Exchange the two.")
    return EventFilters(since, until, frozenset(typed.event or ()), frozenset(typed.exclude_event or ()), typed.limit)


def _rate(text: str | None, section: ImportSettings) -> float | None:
    return rate(str(section.rate) if text is None else text)


def _quiet(text: str | None, section: ImportSettings) -> QuietHours | None:
    said = section.quiet_hours if text is None else text
    return None if not said or said == _NO_QUIET else QuietHours.parse(said)


