"""The layer of the file: YAML, with the line of every value.

The tree of YAML nodes is walked along the table of keys, so that an unknown key, a key given twice or a section that is no mapping
is told with its line. A key without a value counts as not set. Values are made by YAML's safe rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

import yaml

from forwarder.config.interpolation import interpolate
from forwarder.config.keys import Path, keys, sections
from forwarder.config.origins import Layer, Origin, Place, Sourced
from forwarder.config.problems import InvalidConfiguration, Problem, what_and_hint
from forwarder.config.suggestions import suggest_key

_YAML: Final = "tag:yaml.org,2002:"
_NULL: Final = _YAML + "null"
_TYPED: Final = {_NULL, *[_YAML + name for name in ("bool", "int", "float")]}
_TEXT: Final = {_YAML + "str", _YAML + "timestamp"}
"""No setting is a date: what looks like one stays text."""


def read_document(file: FilePath, environ: Mapping[str, str]) -> Layer:
    """What the file says, with `${VAR}` replaced from `environ`.

    Raises `InvalidConfiguration` if it can't be read or isn't YAML; all else that is wrong is among the layer's problems.
    """
    text = _read(file)
    try:
        return _parse(text, str(file), environ)
    except yaml.MarkedYAMLError as error:
        raise InvalidConfiguration([_syntax_problem(file, error)]) from error
    except RecursionError as error:
        raise InvalidConfiguration([Problem(str(file), "", "is nested too deeply", "settings need four levels at most")]) from error
    except yaml.YAMLError as error:
        raise InvalidConfiguration([Problem(str(file), "", "holds control characters", "save it as plain text")]) from error


def _parse(text: str, file: str, environ: Mapping[str, str]) -> Layer:
    loader = yaml.SafeLoader(text)
    try:
        reader = _Reader(file, environ, loader)
        root = loader.get_single_node()
        if root is not None:
            reader.section(root, ())
    finally:
        loader.dispose()
    return reader.layer


def _read(file: FilePath) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror or "can't be read"
        raise InvalidConfiguration([Problem(str(file), "", f"can't be read: {reason}", "name a readable file: --config FILE")]) from error
    except UnicodeDecodeError as error:
        raise InvalidConfiguration([Problem(str(file), "", "isn't UTF-8 text", "save it as UTF-8")]) from error


def _syntax_problem(file: FilePath, error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = f"{file}:{mark.line + 1}" if mark else str(file)
    return Problem(where, "", f"isn't YAML: {error.problem or error.context}", "quote values that hold any of [ ] { } : # *")


def _name(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "?"


@dataclass(slots=True)
class _Reader:
    """Walks the nodes. `open` are the nodes around the current one: YAML's aliases can make a node contain itself."""

    file: str
    environ: Mapping[str, str]
    loader: yaml.SafeLoader
    layer: Layer = field(default_factory=Layer)
    open: list[yaml.Node] = field(default_factory=list)

    def section(self, node: yaml.Node, path: Path) -> None:
        """Read a section's keys."""
        if node.tag == _NULL:
            return
        if not isinstance(node, yaml.MappingNode):
            example = next(key.path[len(path)] for key in keys().values() if key.path[: len(path)] == path)
            self._problem(node, path, "is a section, and needs keys below it", f"such as {example}: …")
            return
        self._tell_repeated(node, path)
        self.loader.flatten_mapping(node)
        entries = {_name(key_node): (key_node, value_node) for key_node, value_node in node.value}
        for name, (key_node, value_node) in entries.items():
            self._entry(key_node, value_node, (*path, name))

    def _tell_repeated(self, node: yaml.MappingNode, path: Path) -> None:
        """Tell of keys that are given twice, before merging (`<<`), where a key may stand over a merged one."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if _name(key_node) in seen:
                self._problem(key_node, (*path, _name(key_node)), "is given twice", "keep one of the two")
            seen.add(_name(key_node))

    def _entry(self, key_node: yaml.Node, value_node: yaml.Node, path: Path) -> None:
        if path in sections():
            self.section(value_node, path)
        elif path in keys():
            self._value(value_node, path, key_node)
        else:
            self._problem(key_node, path, "is no setting", suggest_key(path))

    def _value(self, node: yaml.Node, path: Path, key_node: yaml.Node) -> None:
        try:
            value = self._construct(node)
        except (ValueError, KeyError) as error:  # KeyError: what YAML makes of `!!bool maybe`
            self._problem(node, path, *what_and_hint(error))
            return
        if value is not None:
            items = tuple(self._origin(item) for item in node.value) if isinstance(node, yaml.SequenceNode) else ()
            self.layer.values[path] = Sourced(value, self._origin(key_node), items)

    def _construct(self, node: yaml.Node) -> Any:
        if any(node is outer for outer in self.open):
            raise ValueError("it contains itself: write it without the alias")
        self.open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._construct(item) for item in node.value]
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node)
        finally:
            self.open.pop()
        raise ValueError("it is a mapping: this key takes a single value or a list")

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        if node.tag in _TYPED:
            return self.loader.construct_object(node)
        if node.tag not in _TEXT:
            raise ValueError(f"{node.tag} can't be read: write the value without a tag")
        if "${" not in node.value:
            return node.value
        return interpolate(node.value, self.environ).strip() or None

    def _origin(self, node: yaml.Node) -> Origin:
        return Origin(Place.FILE, self.file, node.start_mark.line + 1)

    def _problem(self, node: yaml.Node, path: Path, message: str, hint: str) -> None:
        self.layer.problems.append(Problem(str(self._origin(node)), ".".join(path), message, hint))
