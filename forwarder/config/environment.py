"""The layer of the environment: `FORWARDER_SECTION__KEY`, `FORWARDER_LIST__0__KEY`. An empty
variable counts as not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from forwarder.config.keys import (
    PREFIX,
    SEPARATOR,
    Path,
    in_table,
    is_number,
    keys,
    lists,
    sections,
    short_forms,
    variable,
)
from forwarder.config.layers import Layer, Origin, Place, Problem, Sourced

_FAILPOINTS: Final = frozenset({"FORWARDER_FAILPOINTS", "FORWARDER_FAILPOINTS_LOG"})
"""Not settings: they make a process fail at named places, for tests (`storage/failpoints.py`)."""

_SERVICE_LINK: Final = re.compile(
    r"FORWARDER(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|POR"
    r"T|ADDR))?)"
)
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://\S+")


def read_environment(environ: Mapping[str, str]) -> Layer:
    """What the environment says. Unknown variables with our prefix are problems of the layer."""
    layer = Layer()
    ours = {name: value for name, value in environ.items() if name.startswith(PREFIX)}
    # single keys go over the whole list that they are part of
    for name in sorted(ours, key=lambda name: _path(name) not in lists()):
        _read(layer, name, ours[name])
    return layer


def _read(layer: Layer, name: str, value: str) -> None:
    path = _path(name)
    origin = Origin(Place.ENVIRONMENT, name)
    if path is None:
        if name not in _FAILPOINTS and not _is_service_link(name, value):
            layer.problems.append(_unknown(name))
    elif not value.strip():
        return
    elif path in lists():
        # The module loads YAML, which only a list in JSON needs.
        from forwarder.config.document import read_json_list  # noqa: PLC0415

        layer.lay(read_json_list(value, path, origin))
    else:
        layer.values[path] = Sourced(value.strip(), origin)
        for length in [at + 1 for at, part in enumerate(path) if is_number(part)]:
            layer.items.setdefault(path[:length], origin)


def _path(name: str) -> Path | None:
    """The path of the key that a variable sets, if there is one."""
    said = tuple(name.removeprefix(PREFIX).lower().split(SEPARATOR))
    short = short_forms().get(in_table(said))
    path = (*said, short) if short else said
    return path if in_table(path) in keys() and variable(said) == name else None


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made the variable for a service whose name begins with `forwarder`: it
    does so unasked, in every pod.
    """
    return bool(
        _SERVICE_LINK.fullmatch(name)
        or (name.endswith("_PORT") and SEPARATOR not in name and _SERVICE_ADDRESS.fullmatch(value))
    )


def _unknown(name: str) -> Problem:
    path = tuple(name.removeprefix(PREFIX).lower().split(SEPARATOR))
    if in_table(path) in sections() and variable(path) == name:
        inside = [
            variable((*path, *known[len(path) :]))
            for known in keys()
            if known[: len(path)] == in_table(path)
        ]
        return Problem(name, "", "names a section, not a key", f"its keys are {', '.join(inside)}")
    # Only a mistake needs the suggestions.
    from forwarder.config.suggestions import suggest_variable  # noqa: PLC0415

    return Problem(name, "", "unknown setting", suggest_variable(name))
