"""From a file and an environment to settings, or to a list of everything that is wrong
with them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from forwarder.config.api_keys import read_key_file, read_key_list
from forwarder.config.checks import conflicts
from forwarder.config.environment import read_environment
from forwarder.config.keys import PREFIX, SEPARATOR, dotted, leaves, parts
from forwarder.config.keys import Path as KeyPath
from forwarder.config.layers import (
    DEFAULT,
    InvalidConfiguration,
    Layer,
    Origin,
    Problem,
    nested,
    overlay,
    what_and_hint,
)
from forwarder.config.section import InvalidValues, Location
from forwarder.config.settings import Settings
from forwarder.core.proposals import proposed

DEFAULT_FILE: Final = Path("/etc/forwarder/forwarder.yaml")


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, with the origin of each key by its dotted name, and the file that was
    read, if any.
    """

    settings: Settings
    origins: Mapping[str, Origin]
    file: Path | None

    @property
    def is_said(self) -> bool:
        """Whether anything is configured: not all is a default."""
        return any(origin is not DEFAULT for origin in self.origins.values())

    def where(self, name: str) -> str:
        """Where a key stands, or what it is part of, or what is part of it; nothing
        for a default.
        """
        near = [
            known
            for known in self.origins
            if f"{name}.".startswith(f"{known}.") or known.startswith(f"{name}.")
        ]
        said = [
            str(self.origins[known])
            for known in sorted(near, key=len, reverse=True)
            if self.origins[known] is not DEFAULT
        ]
        return next(iter(said), "")


@dataclass(frozen=True, slots=True)
class Examined:
    """Everything that is wrong with a configuration, and what can be known beside that.

    `loaded` has the defaults in the places of values that can't be used.
    """

    loaded: Loaded
    problems: Sequence[Problem]

    def add(self, problems: Iterable[Problem]) -> Examined:
        """The same with further problems, but for those that may only be there because of others:
        they name a key that has one.
        """
        return replace(
            self,
            problems=_in_order(
                [*self.problems, *_independent(problems, self.problems)], self.loaded.file
            ),
        )


def load_settings(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    default_file: Path = DEFAULT_FILE,
    require_upstream: bool = True,
    read_keys: bool = True,
) -> Loaded:
    """The settings of `environ`, over those of the file, over the defaults.

    Without `path`, `default_file` is read if it is there. Raises `InvalidConfiguration` with every
    problem at once; a missing `upstream.url` is one, unless `require_upstream` is false.
    Without `read_keys` the files of project keys aren't read: they may be the daemon's alone.
    """
    examined = examine(
        path,
        environ,
        default_file=default_file,
        require_upstream=require_upstream,
        read_keys=read_keys,
    )
    if examined.problems:
        raise InvalidConfiguration(examined.problems)
    return examined.loaded


def examine(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    default_file: Path = DEFAULT_FILE,
    require_upstream: bool = True,
    read_keys: bool = True,
) -> Examined:
    """As `load_settings`, but nothing is raised: what is wrong is returned."""
    file, said = _said(path, environ, default_file)
    problems = [*said.problems, *_gaps(said)]
    settings, wrong, unfit = _validate(said, read_keys=read_keys)
    if (
        require_upstream
        and ("upstream", "url") not in said.values
        and ("upstreams",) not in {item[:1] for item in said.items}
    ):
        unfit.append(_no_upstream(file))
    problems += wrong
    # the whole file was understood
    if not any(not problem.key and problem.where.startswith(str(file)) for problem in problems):
        problems += _independent(unfit, problems)
    origins = {dotted(path): said.origin(path) for path, _ in leaves(settings.as_document())}
    return Examined(Loaded(settings, origins, file), _in_order(problems, file))


def _no_upstream(file: Path | None) -> Problem:
    what = "is missing: the address of the service that events go to"
    write = (
        f"write upstream: {{url: https://us.i.example.com}} into {file}, or "
        if file
        else "name a file with --config FILE, or set it: "
    )
    return Problem(
        "",
        "upstream.url",
        what,
        f"{write}FORWARDER_UPSTREAM__URL=https://us.i.example.com {proposed('run')}",
    )


_NAME: Final = re.compile(
    rf"{PREFIX}[A-Z0-9_]+|[a-z_0-9]+(?:\[\d+\])?(?:\.[a-z_0-9]+(?:\[\d+\])?)+|^[a-z_]+$"
)
"""A variable or a key in a problem's text."""


def _names(*texts: str) -> set[str]:
    """The dotted names of all keys and variables in texts."""
    names = {name for text in texts for name in _NAME.findall(text)}
    return {
        dotted(tuple(name.removeprefix(PREFIX).lower().split(SEPARATOR)))
        if name.startswith(PREFIX)
        else name
        for name in names
    }


def _independent(candidates: Iterable[Problem], problems: Sequence[Problem]) -> list[Problem]:
    """The problems among `candidates` that name no key of which another problem says something:
    they may go when that is fixed.
    """
    known = {
        name for problem in problems for name in _names(problem.key, problem.where, problem.hint)
    }
    return [
        problem
        for problem in candidates
        if not any(
            _related(one, other)
            for one in _names(problem.key, problem.message, problem.hint)
            for other in known
        )
    ]


def _related(one: str, other: str) -> bool:
    """Whether a key is the other, or part of it."""
    return one == other or one.startswith((f"{other}.", f"{other}["))


def _in_order(problems: Iterable[Problem], file: Path | None) -> list[Problem]:
    """Those of the file by line, then the others as they come."""

    def line(problem: Problem) -> float:
        number = problem.where.removeprefix(f"{file}:") if file else ""
        return (
            int(number)
            if number.isdecimal()
            else 0
            if file and problem.where == str(file)
            else math.inf
        )

    return sorted(problems, key=line)


def load_part(section: str, file: Path, environ: Mapping[str, str]) -> Settings:
    """Settings of a file that holds one section alone, by its dotted name, such as
    `import.mapping`. Raises `InvalidConfiguration`.
    """
    part = _read_file(file, environ, parts(section))
    try:
        settings = Settings.parse(nested(part.values))
    except InvalidValues as error:
        problems = _problems(error, part)
        raise InvalidConfiguration([*part.problems, *problems]) from None
    if part.problems:
        raise InvalidConfiguration(part.problems)
    return settings


def _said(
    path: Path | None, environ: Mapping[str, str], default_file: Path
) -> tuple[Path | None, Layer]:
    """The file that is read, if any, and what it and the environment say."""
    file = path or (default_file if _is_there(default_file) else None)
    try:
        written = _read_file(file, environ)
    except InvalidConfiguration as error:
        written = Layer(problems=[*error.problems])
    return file, overlay(written, read_environment(environ))


def _read_file(file: Path | None, environ: Mapping[str, str], section: KeyPath = ()) -> Layer:
    if file is None:
        return Layer()
    # The module loads YAML, which only a file needs.
    from forwarder.config.document import read_document  # noqa: PLC0415

    return read_document(file, environ, section)


def _is_there(file: Path) -> bool:
    """Whether the file exists. One in a folder that may not be looked into counts: reading it will
    say so.
    """
    try:
        return file.exists()
    except PermissionError:
        return True


def _gaps(said: Layer) -> Iterator[Problem]:
    """Items whose numbers come after one that isn't there: each list's first is reported, and all
    of them are left out.
    """
    for path in sorted({item[:-1] for item in said.items}):
        numbers = sorted(int(item[-1]) for item in said.items if item[:-1] == path)
        present = next(
            (count for count, number in enumerate(numbers) if number != count), len(numbers)
        )
        beyond = [(*path, str(number)) for number in numbers[present:]]
        if beyond:
            missing = dotted((*path, str(present)))
            yield Problem(
                str(said.items[beyond[0]]),
                dotted(beyond[0]),
                f"there is no {missing}",
                "number the items from 0, without a gap",
            )
        for item in beyond:
            said.forget(item)


def _validate(said: Layer, *, read_keys: bool) -> tuple[Settings, list[Problem], list[Problem]]:
    """The settings, without values that can't be used, which are left out of what is said; what is
    wrong with those; what doesn't fit.
    """
    wrong: list[Problem] = []
    try:
        settings = Settings.parse(nested(said.values, said.items))
    except InvalidValues as error:
        wrong = _problems(error, said)
        for location, _ in error.found:
            said.forget(_known(location, said))
        settings = Settings.parse(nested(said.values, said.items))
    problems = [
        Problem(_where(said, conflict.key), conflict.key, conflict.message, conflict.hint)
        for conflict in conflicts(settings)
    ]
    if read_keys:
        settings = _with_key_files(settings, said, problems)
    return settings, wrong, problems


def _with_key_files(settings: Settings, said: Layer, problems: list[Problem]) -> Settings:
    """The settings with the project keys that files hold in their places."""
    http = settings.sources.http
    found: dict[str, object] = {}
    if http.api_keys_file is not None:
        try:
            found["sources.http.api_keys"] = read_key_list(http.api_keys_file, http.api_keys)
        except ValueError as error:
            name = "sources.http.api_keys_file"
            problems.append(Problem(_where(said, name), name, *what_and_hint(error)))
    for key, source in settings.sources.keyed():
        name = f"{key}.api_key_file"
        keys = _keys_of(source.api_key_file, name, said, problems)
        if len(keys) > 1:
            problems.append(
                Problem(
                    _where(said, name),
                    name,
                    f"{source.api_key_file} holds {len(keys)} keys",
                    "leave the one that is meant",
                )
            )
        if keys:
            found[f"{key}.api_key"] = keys[0]
    for name, value in found.items():
        settings = _with_value(settings, parts(name), value)
    return settings


def _with_value(section: Any, path: KeyPath, value: object) -> Any:
    """A section, or a list of them, with this value at a path in it."""
    if not path:
        return value
    name = path[0]
    inner = path[1:]
    if isinstance(section, tuple):
        items = list(section)
        items[int(name)] = _with_value(items[int(name)], inner, value)
        return tuple(items)
    return replace(section, **{name: _with_value(getattr(section, name), inner, value)})


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
    path = _known(location, said)
    item = location[len(path)] if len(names) > len(path) else None
    name = dotted(path) + (
        "" if item is None else f"[{item}]" if isinstance(item, int) else f".{item}"
    )
    if path not in said.values:
        return Problem(_where(said, dotted(path)), name, *what_and_hint(message))
    sourced = said.values[path]
    what, hint = what_and_hint(message)
    reference = _BARE.fullmatch(sourced.value) if isinstance(sourced.value, str) else None
    return Problem(
        str(sourced.at(item)),
        name,
        what,
        f"write ${{{reference[1]}}} for a variable's value" if reference else hint,
    )


_BARE: Final = re.compile(r"\$([A-Za-z_]\w*)", re.ASCII)
"""A variable as shells know it."""


def _known(location: Location, said: Layer) -> KeyPath:
    """The path of the value that a location is in."""
    names = tuple(map(str, location))
    return next(
        (names[:length] for length in range(len(names), 0, -1) if names[:length] in said.values),
        names,
    )
