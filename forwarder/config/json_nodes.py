"""JSON in the form of YAML's nodes, so that one reader walks both, and a key given twice isn't lost before it is seen."""

from __future__ import annotations

import json
from typing import Any, Final

import yaml

TAGS: Final = "tag:yaml.org,2002:"
_KINDS: Final = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}


class _Pairs(list[tuple[str, Any]]):
    """An object, as it is written."""


def json_node(text: str) -> yaml.Node:
    """The node of a list. Raises `ValueError`, not repeating the text, which may hold secrets, if it isn't a list in JSON."""
    try:
        found = json.loads(text, object_pairs_hook=_Pairs)
        if isinstance(found, _Pairs) or not isinstance(found, list):
            raise ValueError("it is JSON, but no list: put it between [ and ]")  # noqa: TRY004 - told like the others
        return _node(found)
    except json.JSONDecodeError as error:
        raise ValueError(f'it isn\'t JSON ({error.msg} at character {error.pos}): write [{{"name": "…"}}]') from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply: settings need six levels at most") from error


def _node(value: Any) -> yaml.Node:
    if isinstance(value, _Pairs):
        return yaml.MappingNode(TAGS + "map", [(_node(name), _node(each)) for name, each in value])
    if isinstance(value, list):
        return yaml.SequenceNode(TAGS + "seq", [_node(each) for each in value])
    return yaml.ScalarNode(TAGS + _KINDS[type(value)], value if isinstance(value, str) else json.dumps(value))
