"""The layer of the environment: `FORWARDER_SECTION__KEY`. An empty variable counts as not set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from forwarder.config.keys import PREFIX, SEPARATOR, keys, sections, variable
from forwarder.config.origins import Layer, Origin, Place, Sourced
from forwarder.config.problems import Problem
from forwarder.config.suggestions import suggest_variable

_FAILPOINTS: Final = frozenset({"FORWARDER_FAILPOINTS", "FORWARDER_FAILPOINTS_LOG"})
"""Not settings: they make a process fail at named places, for tests (`storage/failpoints.py`)."""

_SERVICE_LINK: Final = re.compile(r"FORWARDER(_[A-Z0-9]+)*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://\S+")


def read_environment(environ: Mapping[str, str]) -> Layer:
    """What the environment says. Unknown variables with our prefix are problems of the layer."""
    known = {key.variable: path for path, key in keys().items()}
    passed_over = {*known, *_FAILPOINTS}
    layer = Layer()
    for name, value in environ.items():
        if name in known and value.strip():
            layer.values[known[name]] = Sourced(value.strip(), Origin(Place.ENVIRONMENT, name))
        elif name.startswith(PREFIX) and name not in passed_over and not _is_service_link(name, value):
            layer.problems.append(_unknown(name))
    return layer


def _is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made the variable for a service whose name begins with `forwarder`: it does so unasked, in every pod."""
    return bool(_SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and SEPARATOR not in name and _SERVICE_ADDRESS.fullmatch(value)))


def _unknown(name: str) -> Problem:
    section = {variable(path): path for path in sections()}.get(name)
    if section:
        inside = [key.variable for path, key in keys().items() if path[: len(section)] == section]
        return Problem(name, "", "names a section, not a key", f"its keys are {', '.join(inside)}")
    return Problem(name, "", "is no setting", suggest_variable(name))
