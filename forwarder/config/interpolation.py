"""`${VAR}` and `${VAR:-default}` inside values of the file.

A variable that is empty takes the default too, as in a shell. `$${` stands for `${` itself. What a variable holds is never looked
into again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\}|\$\{", re.ASCII)


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """`text` with its references replaced. Raises `ValueError` for one that has no value, or that can't be read."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match["name"] is None:
            raise ValueError("${ begins a reference that can't be read: write ${VAR} or ${VAR:-default}; $${ stands for itself")
        value = environ.get(match["name"], "")
        if not value and match["default"] is not None:
            return match["default"]
        if match["name"] not in environ:
            raise ValueError(f"the environment has no {match['name']}: set it, or write ${{{match['name']}:-default}}")
        return value

    return _REFERENCE.sub(replace, text)
