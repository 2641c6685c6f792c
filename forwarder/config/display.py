"""The effective configuration as a person or a program reads it: each value, where it came from, and no secret."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from forwarder.config.keys import Path, keys
from forwarder.config.load import Loaded
from forwarder.config.settings import Settings
from forwarder.config.units import format_size
from forwarder.core.secrets import mask_credentials, mask_key


def effective(settings: Settings) -> dict[str, Any]:
    """The settings as JSON can say them: sizes and times as text, secrets masked, and for keys that aren't set what they amount to."""
    tree: dict[str, Any] = settings.model_dump(mode="json")
    tree["buffer"] |= {"max_bytes": format_size(settings.buffer.limit), "ack": settings.buffer.ack_level.value}
    tree["dead_letters"]["max_bytes"] = format_size(settings.dead_letter_limit)
    for path in (path for path, key in keys().items() if key.secret):
        section = _section(tree, path)
        section[path[-1]] = _masked(section[path[-1]])
    return tree


def as_yaml(loaded: Loaded) -> str:
    """YAML with the origin of each value in a comment."""
    lines = list(_lines(effective(loaded.settings)))
    width = max(len(text) for text, _ in lines) + 2
    commented = [f"{text:<{width}}# {loaded.origins[name]}" if name else text for text, name in lines]
    return "\n".join(commented) + "\n"


def as_json(loaded: Loaded) -> dict[str, Any]:
    """The settings, the origin of each key by its dotted name, and the file, for programs."""
    origins = {name: str(origin) for name, origin in loaded.origins.items()}
    return {"settings": effective(loaded.settings), "origins": origins, "file": str(loaded.file) if loaded.file else None}


def inline(value: Any) -> str:
    """A value as YAML writes it on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True).removesuffix("\n").removesuffix("\n...")


def _lines(tree: dict[str, Any], path: Path = ()) -> Iterator[tuple[str, str]]:
    """The lines of a tree, each with the dotted name of its key (empty for a section)."""
    for name, value in tree.items():
        inner = (*path, name)
        indent = "  " * len(path)
        if inner in keys():
            yield f"{indent}{name}: {inline(value)}", keys()[inner].name
        else:
            yield f"{indent}{name}:", ""
            yield from _lines(value, inner)


def _section(tree: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in path[:-1]:
        tree = tree[name]
    return tree


def _masked(value: Any) -> Any:
    if isinstance(value, list):
        return [mask_key(item) for item in value]
    return mask_credentials(value) if isinstance(value, str) else value
