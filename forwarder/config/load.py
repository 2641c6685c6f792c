"""From a file and an environment to settings, or to a list of everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from forwarder.config.checks import conflicts
from forwarder.config.document import read_document
from forwarder.config.environment import read_environment
from forwarder.config.key_file import read_key_file
from forwarder.config.keys import keys
from forwarder.config.origins import DEFAULT, Layer, Origin, Sourced, Values, nested, overlay
from forwarder.config.problems import InvalidConfiguration, Problem, what_and_hint
from forwarder.config.settings import Settings

DEFAULT_FILE: Final = Path("/etc/forwarder/forwarder.yaml")
EXAMPLE: Final = "FORWARDER_UPSTREAM__URL=https://us.i.example.com forwarder run"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, with the origin of each key by its dotted name, and the file that was read, if any."""

    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None


def load_settings(
    path: Path | None, environ: Mapping[str, str], *, default_file: Path = DEFAULT_FILE, require_upstream: bool = True
) -> Loaded:
    """The settings of `environ`, over those of the file, over the defaults.

    Without `path`, `default_file` is read if it is there. Raises `InvalidConfiguration` with every problem at once; a missing
    `upstream.url` is one, unless `require_upstream` is false.
    """
    file = path or (default_file if _is_there(default_file) else None)
    document = read_document(file, environ) if file else Layer()
    environment = read_environment(environ)
    values = overlay(document, environment)
    problems = [*document.problems, *environment.problems]
    settings = _validate(values, problems)
    if require_upstream and ("upstream", "url") not in values and not any(problem.key == "upstream.url" for problem in problems):
        problems.append(Problem("", "upstream.url", "is missing: the address of the service that events go to", f"for example: {EXAMPLE}"))
    if problems or settings is None:
        raise InvalidConfiguration(problems)
    origins = {key.name: values[path].origin if path in values else DEFAULT for path, key in keys().items()}
    return Loaded(settings, origins, file)


def _is_there(file: Path) -> bool:
    """Whether the file exists. One in a folder that may not be looked into counts: reading it will say so."""
    try:
        return file.exists()
    except PermissionError:
        return True


def _validate(values: Values, problems: list[Problem]) -> Settings | None:
    """The settings, if the values allow it; what doesn't is added to `problems`."""
    try:
        settings = Settings(**nested(values))
    except ValidationError as error:
        problems += [_problem(dict(details), values) for details in error.errors(include_url=False, include_input=False)]
        return None
    problems += [Problem(_where(values, conflict.key), conflict.key, conflict.message, conflict.hint) for conflict in conflicts(settings)]
    return _with_key_file(settings, values, problems)


def _with_key_file(settings: Settings, values: Values, problems: list[Problem]) -> Settings:
    """The settings with the keys of `sources.http.api_keys_file` among `api_keys`."""
    http = settings.sources.http
    if http.api_keys_file is None:
        return settings
    try:
        known = tuple(dict.fromkeys([*http.api_keys, *read_key_file(http.api_keys_file)]))
    except ValueError as error:
        name = "sources.http.api_keys_file"
        problems.append(Problem(_where(values, name), name, *what_and_hint(error)))
        return settings
    sources = settings.sources.model_copy(update={"http": http.model_copy(update={"api_keys": known})})
    return settings.model_copy(update={"sources": sources})


def _where(values: Values, name: str) -> str:
    """Where a key's value stands; nothing for a default."""
    sourced = values.get(tuple(name.split(".")))
    return str(sourced.origin) if sourced else ""


def _problem(details: dict[str, Any], values: Values) -> Problem:
    """A problem from pydantic's description of it."""
    location = tuple(details["loc"])
    path = next((location[:length] for length in range(len(location), 0, -1) if location[:length] in values), location)
    sourced = values.get(path, Sourced(None, DEFAULT))
    item = location[len(path)] if len(location) > len(path) else None
    name = ".".join(map(str, path)) + (f"[{item}]" if isinstance(item, int) else "")
    message = str(details["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return Problem(str(sourced.at(item)), name, *what_and_hint(message))
