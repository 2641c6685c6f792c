"""The configuration as it is shown: what is in effect, with the origin of each value and no
secret, and the schema of the file.

The schema (JSON Schema, draft 2020-12) is for editors and for checks outside of forwarder: one
closed object a section, an array of them a list; each key with its description and its default as
it is written in YAML. Beside its own values each key may be null (not set) or a reference to the
environment.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from forwarder.config.keys import (
    FIRST,
    Path,
    dotted,
    in_table,
    is_number,
    keys,
    leaves,
    lists,
    sections,
)
from forwarder.config.load import Loaded
from forwarder.config.section import Items, Kind, Nested, Section, keys_of
from forwarder.config.settings import Settings
from forwarder.config.source_settings import KafkaSettings, LogSourceSettings
from forwarder.config.units import format_size
from forwarder.config.values import KeyList
from forwarder.core.secrets import mask_credentials, mask_key

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE: Final = {
    "description": "A value from the environment: ${VAR} or ${VAR:-default}.",
    "type": "string",
    "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^${}]*)?\}",
}


def effective(settings: Settings) -> dict[str, Any]:
    """The settings as JSON can say them: sizes and times as text, secrets masked, and for keys
    that aren't set what they amount to.
    """
    tree: dict[str, Any] = settings.as_document()
    tree["buffer"] |= {
        "max_bytes": format_size(settings.buffer.limit),
        "ack": settings.buffer.ack_level.value,
    }
    tree["dead_letters"]["max_bytes"] = format_size(settings.dead_letter_limit)
    bounded: list[KafkaSettings | LogSourceSettings] = [
        *settings.sources.kafka,
        *settings.sources.logs,
    ]
    for shown, source in zip(
        [*tree["sources"]["kafka"], *tree["sources"]["logs"]], bounded, strict=True
    ):
        shown["max_in_flight"] = format_size(settings.max_in_flight(source))
    for path, value in [*leaves(tree)]:
        if keys()[in_table(path)].secret:
            _section(tree, path)[path[-1]] = _masked(path, value)
    return tree


def shown_names() -> Sequence[str]:
    """What can be shown alone: sections and keys by their dotted names; lists as a whole."""
    return [dotted(path) for path in (*sections(), *keys()) if path and FIRST not in path]


def as_yaml(loaded: Loaded, only: Sequence[str] = ()) -> str:
    """YAML with the origin of each value in a comment; `only`: of these names of `shown_names`."""
    lines = list(_lines(_pruned(effective(loaded.settings), only)))
    width = max(len(text) for text, _ in lines) + 2
    commented = [
        f"{text:<{width}}# {loaded.origins[name]}" if name else text for text, name in lines
    ]
    return "\n".join(commented) + "\n"


def as_json(loaded: Loaded, only: Sequence[str] = ()) -> dict[str, Any]:
    """The settings, the origin of each key by its dotted name, and the file, for programs; `only`
    as in `as_yaml`.
    """
    origins = {
        name: str(origin)
        for name, origin in loaded.origins.items()
        if not only or any(_within(name, prefix) for prefix in only)
    }
    settings = _pruned(effective(loaded.settings), only)
    return {
        "settings": settings,
        "origins": origins,
        "file": str(loaded.file) if loaded.file else None,
    }


def _within(name: str, outer: str) -> bool:
    """Whether a key is this one, or part of this section or list."""
    return name == outer or name.startswith((f"{outer}.", f"{outer}["))


def _pruned(tree: dict[str, Any], only: Sequence[str], path: Path = ()) -> dict[str, Any]:
    """The tree with what `only` names; all of it if that is empty."""
    if not only:
        return tree
    pruned = {}
    for name, value in tree.items():
        inner = dotted((*path, name))
        if any(_within(inner, chosen) for chosen in only):
            pruned[name] = value
        elif any(_within(chosen, inner) for chosen in only):
            pruned[name] = _pruned(value, only, (*path, name))
    return pruned


def inline(value: Any) -> str:
    """A value as YAML writes it on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def _lines(tree: dict[str, Any], path: Path = (), depth: int = 0) -> Iterator[tuple[str, str]]:
    """The lines of a tree, each with the dotted name of its key (empty for a section)."""
    indent = "  " * depth
    for name, value in tree.items():
        inner = (*path, name)
        known = in_table(inner)
        if known in lists() and value:
            yield f"{indent}{name}:", dotted(inner)
            yield from _items(value, inner, depth + 1)
        elif known in keys():
            yield f"{indent}{name}: {inline(value)}", dotted(inner)
        else:
            yield f"{indent}{name}:", ""
            yield from _lines(value, inner, depth + 1)


def _items(items: list[dict[str, Any]], path: Path, depth: int) -> Iterator[tuple[str, str]]:
    """The lines of a list of sections: each item's first one has the dash."""
    for number, item in enumerate(items):
        dash = "  " * depth + "- "
        for text, name in _lines(item, (*path, str(number)), depth + 1):
            yield dash + text[len(dash) :], name
            dash = " " * len(dash)


def _section(tree: Any, path: Path) -> dict[str, Any]:
    for part in path[:-1]:
        tree = tree[int(part) if is_number(part) else part]
    section: dict[str, Any] = tree
    return section


_IN_PART: Final = {"proxy": mask_credentials, "api_key": mask_key, "api_keys": mask_key}
"""What is shown of a secret, by its name; of all others nothing is."""


def _masked(path: Path, value: Any) -> Any:
    name = path[-1]
    if isinstance(value, list):
        return [_masked(path, item) for item in value]
    mask = _IN_PART.get(name)
    if isinstance(value, dict) and mask:
        if isinstance(keys()[in_table(path)].field.kind, KeyList):
            return {inner: mask(item) for inner, item in value.items()}
        return {mask(inner): mask(item) for inner, item in value.items()}  # secrets by secrets
    if isinstance(value, dict):  # of names that the user chose
        return {inner: _masked((*path, inner), item) for inner, item in value.items()}
    return _IN_PART.get(name, _hidden)(value) if isinstance(value, str) else value


def _hidden(_: str) -> str:
    return "…"


def json_schema() -> dict[str, Any]:
    """The schema of the whole file."""
    return {
        "$schema": DIALECT,
        "title": "forwarder",
        **_object(Settings, ()),
        "$defs": {"reference": _REFERENCE},
    }


def _object(section: type[Section], path: Path) -> dict[str, Any]:
    types = ["object", "null", *(["string"] if section.short else [])]
    properties = {
        name: _property(key.kind, (*path, name)) for name, key in keys_of(section).items()
    }
    # the keys of a section that is written as text may stand beside it
    for name, key in keys_of(section).items():
        if isinstance(key.kind, Nested) and key.kind.section.short:
            properties = _object(key.kind.section, (*path, name))["properties"] | properties
    description = inspect.getdoc(section) or ""
    return {
        "description": description,
        "type": types,
        "additionalProperties": False,
        "properties": properties,
    }


def _property(kind: Kind, path: Path) -> dict[str, Any]:
    if isinstance(kind, Nested):
        return _object(kind.section, path)
    key = keys()[path]
    if isinstance(kind, Items) and isinstance(kind.item, Nested):
        item = _object(kind.item.section, (*path, FIRST))
        alternatives = [{"type": "array", "items": item}]
        if kind.item.section.by_name:
            alternatives.append({"type": "object", "additionalProperties": item})
    else:
        alternatives = kind.schemas()
    alternatives += [{"$ref": "#/$defs/reference"}, {"type": "null"}]
    return {"description": key.description, "default": key.default, "anyOf": alternatives}
