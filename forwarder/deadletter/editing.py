"""Editing an event by an expression of jq.

jq writes its result itself: numbers that the expression doesn't touch keep all their digits (the library's own conversion to Python would
round them). What it does change is the notation: white space goes, `1e2` becomes `1E+2`, escaped characters are written out, and of a key
that is there twice the last value stays. A computed number has the precision of a double.
"""

from __future__ import annotations

from typing import Any

import jq

from forwarder.core.errors import ConfigurationError, ForwarderError


class NotEditable(ForwarderError):
    """The expression makes no event of this one."""

    code = "not_editable"


class Edit:
    """A compiled expression."""

    def __init__(self, expression: str) -> None:
        """Raises `ConfigurationError` if it can't be compiled."""
        try:
            jq.compile(expression)
            self._program: Any = jq.compile(f"[(\n{expression}\n) | {{object: (type == \"object\"), text: tojson}}]")
        except ValueError as error:
            raise ConfigurationError(
                f"--edit: jq can't compile the expression: {str(error).strip()}", hint="""For example: --edit '.properties.plan = "free"'"""
            ) from error

    def apply(self, event: bytes) -> bytes:
        """What the event becomes. Raises `NotEditable` if that isn't exactly one object."""
        try:
            (results,) = self._program.input_text(event.decode()).all()
        except ValueError as error:
            raise NotEditable(f"jq: {str(error).strip()}") from error
        if len(results) != 1:
            raise NotEditable(f"the expression gives {len(results)} results; one is needed")
        if not results[0]["object"]:
            raise NotEditable("the expression gives something that is no object")
        text: str = results[0]["text"]
        return text.encode()
