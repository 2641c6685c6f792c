"""From a file and an environment to settings, or to a list of everything that is wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from forwarder.config.api_keys import read_key_file
from forwarder.config.checks import conflicts
from forwarder.config.environment import read_environment
from forwarder.config.keys import PREFIX, SEPARATOR, dotted, keys, leaves, parts
from forwarder.config.keys import Path as KeyPath
from forwarder.config.layers import DEFAULT, InvalidConfiguration, Layer, Origin, Problem, nested, overlay, what_and_hint
from forwarder.config.section import InvalidValues, Location
from forwarder.config.settings import Settings
from forwarder.config.source_settings import KafkaSettings, LogSourceSettings, OtlpSettings, SourcesSettings

DEFAULT_FILE: Final = Path("/etc/forwarder/forwarder.yaml")
_Keyed = TypeVar("_Keyed", KafkaSettings, LogSourceSettings, OtlpSettings)
EXAMPLE: Final = "FORWARDER_UPSTREAM__URL=https://us.i.example.com forwarder run"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, with the origin of each key by its dotted name, and the file that was read, if any."""

    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None

    def where(self, name: str) -> str:
        """Where a key stands, or what it is part of, or what is part of it; nothing for a default."""
        near = [known for known in self.origins if f"{name}.".startswith(f"{known}.") or known.startswith(f"{name}.")]
        said = [str(self.origins[known]) for known in sorted(near, key=len, reverse=True) if self.origins[known] is not DEFAULT]
        return next(iter(said), "")


def load_settings(
    path: Path | None, environ: Mapping[str, str], *, default_file: Path = DEFAULT_FILE, require_upstream: bool = True
) -> Loaded:
    """The settings of `environ`, over those of the file, over the defaults.

    Without `path`, `default_file` is read if it is there. Raises `InvalidConfiguration` with every problem at once; a missing
    `upstream.url` is one, unless `require_upstream` is false.
    """
    file, said = _said(path, environ, default_file)
    problems = [*said.problems, *_gaps(said)]
    settings = _validate(said, problems)
    if require_upstream and ("upstream", "url") not in said.values and not any(problem.key == "upstream.url" for problem in problems):
        problems.append(Problem("", "upstream.url", "is missing: the address of the service that events go to", f"for example: {EXAMPLE}"))
    if problems or settings is None:
        raise InvalidConfiguration(problems)
    origins = {dotted(path): said.origin(path) for path, _ in leaves(settings.as_document())}
    return Loaded(settings, origins, file)


def load_section(section: str, path: Path | None, environ: Mapping[str, str], *, default_file: Path = DEFAULT_FILE) -> Loaded:
    """As `load_sections`, of one alone."""
    return load_sections([section], path, environ, default_file=default_file)


def load_sections(sections: Collection[str], path: Path | None, environ: Mapping[str, str], *, default_file: Path = DEFAULT_FILE) -> Loaded:
    """As `load_settings`, of some sections alone: the others keep their defaults, whatever is said of them, and no file is read that a
    value of theirs names. For commands of people who may not read all that the daemon may. Raises `InvalidConfiguration`.
    """
    file, said = _said(path, environ, default_file)
    part = Layer({known: value for known, value in said.values.items() if known[0] in sections})
    others = {known[0] for known in keys()}.difference(sections)
    problems = [problem for problem in said.problems if _top(problem) not in others]
    try:
        settings = Settings.parse(nested(part.values))
    except InvalidValues as error:
        problems += _problems(error, part)
        raise InvalidConfiguration(problems) from None
    problems += [Problem(_where(part, conflict.key), conflict.key, conflict.message, conflict.hint) for conflict in conflicts(settings)]
    if problems:
        raise InvalidConfiguration(problems)
    return Loaded(settings, {dotted(known): value.origin for known, value in part.values.items()}, file)


def load_part(section: str, file: Path, environ: Mapping[str, str]) -> Settings:
    """Settings of a file that holds one section alone, by its dotted name, such as `import.mapping`. Raises `InvalidConfiguration`."""
    part = _read_file(file, environ, parts(section))
    try:
        settings = Settings.parse(nested(part.values))
    except InvalidValues as error:
        problems = _problems(error, part)
        raise InvalidConfiguration([*part.problems, *problems]) from None
    if part.problems:
        raise InvalidConfiguration(part.problems)
    return settings


def _top(problem: Problem) -> str:
    """The section that a problem is about, as it is written."""
    return parts(problem.key)[0] if problem.key else problem.where.removeprefix(PREFIX).lower().split(SEPARATOR)[0]


def _said(path: Path | None, environ: Mapping[str, str], default_file: Path) -> tuple[Path | None, Layer]:
    """The file that is read, if any, and what it and the environment say."""
    file = path or (default_file if _is_there(default_file) else None)
    return file, overlay(_read_file(file, environ), read_environment(environ))


def _read_file(file: Path | None, environ: Mapping[str, str], section: KeyPath = ()) -> Layer:
    if file is None:
        return Layer()
    from forwarder.config.document import read_document  # noqa: PLC0415 - no YAML in memory where there is no file

    return read_document(file, environ, section)


def _is_there(file: Path) -> bool:
    """Whether the file exists. One in a folder that may not be looked into counts: reading it will say so."""
    try:
        return file.exists()
    except PermissionError:
        return True


def _gaps(said: Layer) -> Iterator[Problem]:
    """Items whose numbers come after one that isn't there: each list's first is reported, and all of them are left out."""
    for path in sorted({item[:-1] for item in said.items}):
        numbers = sorted(int(item[-1]) for item in said.items if item[:-1] == path)
        present = next((count for count, number in enumerate(numbers) if number != count), len(numbers))
        beyond = [(*path, str(number)) for number in numbers[present:]]
        if beyond:
            missing = dotted((*path, str(present)))
            yield Problem(str(said.items[beyond[0]]), dotted(beyond[0]), f"there is no {missing}", "number the items from 0, without a gap")
        for item in beyond:
            said.forget(item)


def _validate(said: Layer, problems: list[Problem]) -> Settings | None:
    """The settings, if the values allow it; what doesn't is added to `problems`."""
    try:
        settings = Settings.parse(nested(said.values, said.items))
    except InvalidValues as error:
        problems += _problems(error, said)
        return None
    problems += [Problem(_where(said, conflict.key), conflict.key, conflict.message, conflict.hint) for conflict in conflicts(settings)]
    return _with_key_files(settings, said, problems)


def _with_key_files(settings: Settings, said: Layer, problems: list[Problem]) -> Settings:
    """The settings with the project keys that files hold in their places."""
    http = settings.sources.http
    known = tuple(dict.fromkeys([*http.api_keys, *_keys_of(http.api_keys_file, "sources.http.api_keys_file", said, problems)]))
    otlp = _with_key_file(http.otlp, "sources.http.otlp", said, problems)
    kafka = [_with_key_file(each, f"sources.kafka[{number}]", said, problems) for number, each in enumerate(settings.sources.kafka)]
    logs = [_with_key_file(each, f"sources.logs[{number}]", said, problems) for number, each in enumerate(settings.sources.logs)]
    return replace(settings, sources=SourcesSettings(http=replace(http, api_keys=known, otlp=otlp), kafka=tuple(kafka), logs=tuple(logs)))


def _with_key_file(source: _Keyed, key: str, said: Layer, problems: list[Problem]) -> _Keyed:
    """The section at `key` with the project key that its file holds."""
    name = f"{key}.api_key_file"
    found = _keys_of(source.api_key_file, name, said, problems)
    if len(found) > 1:
        problems.append(Problem(_where(said, name), name, f"{source.api_key_file} holds {len(found)} keys", "leave the one that is meant"))
    return replace(source, api_key=found[0]) if found else source


def _keys_of(file: Path | None, name: str, said: Layer, problems: list[Problem]) -> tuple[str, ...]:
    """The keys in a file, none without one; what is wrong with it is added to `problems`."""
    try:
        return read_key_file(file) if file else ()
    except ValueError as error:
        problems.append(Problem(_where(said, name), name, *what_and_hint(error)))
        return ()


def _where(said: Layer, name: str) -> str:
    """Where a key's value stands, or the item that it would be part of; nothing for a default."""
    origin = said.nearest(parts(name))
    return "" if origin is DEFAULT else str(origin)


def _problems(error: InvalidValues, said: Layer) -> list[Problem]:
    """What is wrong with values, each with where it stands."""
    return [_problem(location, message, said) for location, message in error.found]


def _problem(location: Location, message: str, said: Layer) -> Problem:
    names = tuple(map(str, location))
    length = next((length for length in range(len(names), 0, -1) if names[:length] in said.values), len(names))
    path, item = names[:length], location[length] if len(names) > length else None
    name = dotted(path) + ("" if item is None else f"[{item}]" if isinstance(item, int) else f".{item}")
    where = str(said.values[path].at(item)) if path in said.values else _where(said, dotted(path))
    return Problem(where, name, *what_and_hint(message))
