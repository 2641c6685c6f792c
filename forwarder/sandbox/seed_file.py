"""`--seed FILE`: how a file of YAML or JSON becomes a checked `Seed` (`seed_entries`).

What is wrong is an error that names the file, the entry and the expected value. `seeding` writes a
seed to the database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import (
    ValidationError,
)

from forwarder.core.configured_files import read_file
from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import help_on
from forwarder.sandbox.seed_entries import (
    SETTINGS,
    Seed,
    SeedEvent,
    SeedGroup,
    SeedOrganization,
    SeedPerson,
    SeedProject,
    folded,
    seed_json,
)

MAX_FILE_BYTES: Final = 10_000_000
"""Bytes of a seed file."""
_OUR_NAME: Final = re.compile(r" or instance of \w+")
"""What pydantic adds to the name of a shape: a class name, which means nothing
to the author of a seed.
"""


def read_seed(path: Path) -> Seed:
    """The seed in a file. Raises `ConfigurationError`, which names the file, the entry and the
    expected value.
    """
    seed = _validate(path, _load(path))
    _check_unique(path, seed)
    for section in ("persons", "groups", "events"):
        for index, entry in enumerate(getattr(seed, section)):
            _check_entry(path, f"{section}[{index}]", entry, seed)
    return seed


def _load(path: Path) -> Any:
    hint = f"A seed is a file in YAML or JSON; {help_on('sandbox')} shows one."
    try:
        content = read_file(path, pipe=True)
        if len(content) > MAX_FILE_BYTES:
            raise ConfigurationError(
                f"{path} is larger than {MAX_FILE_BYTES:,} bytes",
                hint="Send the events to the sandbox instead.",
            )
        return _parse(content.decode())
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error_text(error)}", hint=hint) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{path} is neither YAML nor JSON{where}", hint=hint) from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deep", hint=hint) from None


def _parse(text: str) -> Any:
    """A text in JSON, or else in YAML, which has almost all of JSON in it and is a hundred times
    as slow to parse.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return yaml.safe_load(text)


def _validate(path: Path, content: Any) -> Seed:
    try:
        return Seed.model_validate({} if content is None else content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = _path_text(first["loc"])
        problem = _OUR_NAME.sub("", first["msg"].removeprefix("Value error, "))
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            sections = ", ".join(Seed.model_fields)
            raise ConfigurationError(
                f"{path}: there is no section {where!r}", hint=f"A seed has {sections}."
            ) from None
        raise ConfigurationError(
            f"{path}: {where or 'the file'}: {problem}", hint=f"{help_on('sandbox')} shows a seed."
        ) from None


def _check_unique(path: Path, seed: Seed) -> None:
    """No two entries have the same unique value; a top-level project can be repeated, which
    changes nothing.
    """
    seen = {("project", project.api_key) for project in seed.projects}
    for where, kind, value in unique_values(seed.organizations):
        if value and (kind, value) in seen:
            raise ConfigurationError(
                f"{path}: {where} stands there already", hint="Name each thing once."
            )
        seen.add((kind, value))


def unique_values(organizations: list[SeedOrganization]) -> Iterator[tuple[str, str, str]]:
    """The unique values: the path of each in the file, its kind, and the value."""
    for index, organization in enumerate(organizations):
        place = f"organizations[{index}]"
        yield place, "organization", str(organization.id or f"named {organization.name}")
        yield from _unique_among_members(place, organization)
        for number, domain in enumerate(organization.domains):
            yield f"{place}.domains[{number}]", f"domain of {place}", domain.domain
            if domain.verified_at is not None:
                yield f"{place}.domains[{number}]", "verified domain", domain.domain
            yield f"{place}.domains[{number}].id", "id", str(domain.id or "")
        for number, invite in enumerate(organization.invites):
            yield (
                f"{place}.invites[{number}].target_email",
                f"invite of {place}",
                folded(invite.settings["target_email"]),
            )
            yield f"{place}.invites[{number}].id", "id", str(invite.id or "")
        for number, project in enumerate(organization.projects):
            yield from _unique_in_project(f"{place}.projects[{number}]", project)


def _check_entry(
    path: Path, where: str, entry: SeedPerson | SeedGroup | SeedEvent, seed: Seed
) -> None:
    if entry.api_key is None and seed.only_project is None:
        raise ConfigurationError(
            f"{path}: {where} doesn't say whose it is",
            hint="Give it an api_key, or the file exactly one project.",
        )
    if entry.api_key is not None and seed.api_keys and entry.api_key not in seed.api_keys:
        raise ConfigurationError(
            f"{path}: {where}.api_key is none of the projects", hint="Add it under projects."
        )
    try:
        seed_json(entry.properties)
    except (TypeError, ValueError):
        hint = "Use text, numbers, true, false, null, lists and mappings of text to these."
        raise ConfigurationError(
            f"{path}: {where}.properties can't be written as JSON", hint=hint
        ) from None


def _path_text(location: Sequence[int | str]) -> str:
    text = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for part in location
        if part != SETTINGS
    )
    return text.removeprefix(".")


def _unique_among_members(
    place: str, organization: SeedOrganization
) -> Iterator[tuple[str, str, str]]:
    for number, member in enumerate(organization.members):
        yield f"{place}.members[{number}].email", f"member of {place}", folded(member.email)
        for position, key in enumerate(member.personal_api_keys):
            yield (
                f"{place}.members[{number}].personal_api_keys[{position}].key",
                "personal key",
                key.key,
            )


def _unique_in_project(place: str, project: SeedProject) -> Iterator[tuple[str, str, str]]:
    yield f"{place}.api_key", "project", project.api_key
    yield f"{place}.uuid", "id", str(project.uuid or "")
    for number, export in enumerate(project.batch_exports):
        yield f"{place}.batch_exports[{number}].id", "id", str(export.id or "")
        for position, run in enumerate(export.runs):
            yield f"{place}.batch_exports[{number}].runs[{position}].id", "id", str(run.id or "")
