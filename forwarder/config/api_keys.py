"""Project keys, their names, and personal keys: what can be one, and files of keys: one a line;
empty lines and those that begin with # don't count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from forwarder.core.configured_files import names_descriptor, read_file
from forwarder.core.error_text import error_text

_PROJECT_KEY: Final = re.compile(r"[\x01-\x7f]{1,64}")
_PERSONAL_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_NAMED_KEY: Final = re.compile(rf"({_KEY_NAME.pattern})=(.+)")
_RESERVED: Final = ("none", "other")
"""What lanes are called whose key is unknown, or that have no label of their own."""


def check_project_key(text: str) -> str:
    """`text`, if it can be a project key (wire facts: Token validity). Raises `ValueError` if not,
    not repeating it.
    """
    if text.startswith("phx_"):
        raise ValueError(
            "it is a personal key, which must not be here: use the project's key (phc_…)"
        )
    if not text.strip() or not _PROJECT_KEY.fullmatch(text):
        raise ValueError("it can't be a project key: one has 1 to 64 ASCII characters")
    return text


def check_key_name(text: str) -> str:
    """`text`, if it can be the name of a project key. Raises `ValueError` if not, not repeating
    what may be a key.
    """
    if text.startswith(("phc_", "phx_")):
        raise ValueError("a key stands where its name belongs: write the name first, {shop: phc_…}")
    if not _KEY_NAME.fullmatch(text):
        raise ValueError(
            "the name isn't a plain word: use letters, digits, _ and -, 32 at most, no - or _ first"
        )
    if text in _RESERVED:
        raise ValueError(f"{text} can't be a name: lanes without a name are called so")
    return text


class NamedKeys(dict[str, str]):
    """Project keys, each with its name; the name is empty where a key has none."""

    def add(self, name: str, key: str) -> None:
        """Add a key, with its name if that isn't empty. Raises `ValueError` if it can't be a key,
        or either has another partner already.
        """
        check_project_key(key)
        if name and name in self.values():
            raise ValueError(f"{name} names two keys: give each a name of its own")
        other = self.get(key, "")
        if name and other:
            raise ValueError(f"{other} and {name} have the same key: leave one name")
        self[key] = name or other


def split_name(text: str) -> tuple[str, str]:
    """Name and key of `shop=phc_…`; the name is empty where there is none."""
    match = _NAMED_KEY.fullmatch(text)
    return (match[1], match[2]) if match else ("", text)


def check_personal_key(text: str) -> str:
    """`text`, if it can be a personal API key. Raises `ValueError` if not, not repeating it."""
    if text.startswith("phc_"):
        raise ValueError(
            "it is a project key, which is only good for events: use a personal API key (phx_…)"
        )
    if not _PERSONAL_KEY.fullmatch(text):
        raise ValueError(
            "it can't be a personal API key: one has 1 to 200 ASCII characters, and no blanks"
        )
    return text


def read_key_file(file: Path) -> tuple[str, ...]:
    """The project keys in `file`. Raises `ValueError`, repeating no key, if it can't be read,
    holds none, or one that can't be one.
    """
    return _read_keys(file, check_project_key)


def read_key_list(file: Path, known: Mapping[str, str]) -> NamedKeys:
    """The `known` keys, and those of a file, whose lines may be `NAME=KEY`. Raises `ValueError` as
    `read_key_file`, and if a name or key has another partner already.
    """
    keys = NamedKeys(known)

    def add(line: str) -> str:
        name, key = split_name(line)
        keys.add(check_key_name(name) if name else "", key)
        return key

    _read_keys(file, add)
    return keys


def read_personal_key(file: Path) -> str:
    """The one personal API key in `file`. Raises `ValueError`, without repeating it, if it can't
    be read, or holds anything else.
    """
    return personal_key_in(_text(file), str(file))


def personal_key_in(text: str, place: str) -> str:
    """The one personal API key in the text of a file; `place` is what messages call that. Raises
    `ValueError` as `read_personal_key`.
    """
    keys = tuple(_keys(text, place, check_personal_key))
    if len(keys) != 1:
        raise ValueError(
            f"{place} holds {len(keys) or 'no'} {'keys' if keys else 'key'}: leave one personal "
            "API key in it"
        )
    return keys[0]


def _read_keys(file: Path, check: Callable[[str], str]) -> tuple[str, ...]:
    keys = tuple(_keys(_text(file), str(file), check))
    if not keys:
        raise ValueError(
            f"{file} holds no key: write one a line (without the file every well-formed key is "
            "accepted)"
        )
    return keys


def _text(file: Path) -> str:
    try:
        # a key may be handed over by a descriptor, which is read once
        return read_file(file, pipe=names_descriptor(file)).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{file} can't be read ({error_text(error)}): name a text file in UTF-8, with one key "
            "a line"
        ) from error


def _keys(text: str, place: str, check: Callable[[str], str]) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if key and not key.startswith("#"):
            try:
                yield check(key)
            except ValueError as error:
                raise ValueError(f"{place}, line {number}: {error}") from error
