"""Editing an event by an expression of jq, or putting a file's content in its place.

jq writes its result itself: numbers that the expression doesn't touch keep all their digits (the
library's own conversion to Python would round them). What it does change is the notation: white
space goes, `1e2` becomes `1E+2`, escaped characters are written out, and of a key that is there
twice the last value stays. A computed number has the precision of a double.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jq
import msgspec

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.mapping.restrictions import Restricted, bounds, check_restrictions

_any = msgspec.json.Decoder(msgspec.Raw).decode
_members = msgspec.json.Decoder(dict[str, Any]).decode


class NotEditable(ForwarderError):
    """The expression makes no event of this one."""

    code = "not_editable"


class UnreadableEvent(NotEditable):
    """It is nothing that jq can read."""


class Edit:
    """A compiled expression."""

    def __init__(self, expression: str) -> None:
        """Raises `ConfigurationError` if it can't be compiled, or may not be used."""
        try:
            check_restrictions(expression)
            jq.compile(expression)
            self._program: Any = jq.compile(
                f'{bounds(expression)}[(\n{expression}\n) | {{object: (type == "object"), text: '
                f"tojson}}]"
            )
        except Restricted as error:
            raise ConfigurationError(f"--edit: {error}", hint=error.hint) from error
        except ValueError as error:
            raise ConfigurationError(
                f"--edit: jq can't compile the expression: {str(error).strip()}",
                hint="""For example: --edit '.properties.plan = "free"'""",
            ) from error

    def apply(self, event: bytes) -> bytes:
        """What the event becomes. Raises `NotEditable` if that isn't exactly one object,
        `UnreadableEvent` if the event isn't JSON.
        """
        try:
            (results,) = self._program.input_text(event.decode()).all()
        except ValueError as error:
            kind = NotEditable if _is_json(event) else UnreadableEvent
            raise kind(f"jq: {error_text(error)}") from error
        if len(results) != 1:
            raise NotEditable(f"the expression gives {len(results)} results; one is needed")
        if not results[0]["object"]:
            raise NotEditable("the expression gives something that is no object")
        text: str = results[0]["text"]
        return text.encode()


class Replacement:
    """What a file holds: it takes an event's place, whatever that is."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigurationError` if it doesn't hold one JSON object."""
        try:
            self._data = path.read_bytes().strip()
            _members(self._data)
        except OSError as error:
            raise ConfigurationError(
                f"--with: {path} can't be read: {error_text(error)}", hint="Name a file."
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            hint = "It replaces the whole record. `jq . FILE` shows where it isn't JSON."
            raise ConfigurationError(
                f"--with: {path} isn't one JSON object: {error_text(error)}", hint=hint
            ) from error

    def apply(self, event: bytes) -> bytes:  # noqa: ARG002 - see the class
        return self._data


def _is_json(event: bytes) -> bool:
    try:
        _any(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
