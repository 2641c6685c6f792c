"""The layer of the file: YAML, or JSON within it and in the environment, with the line of every
value.

The tree of YAML's nodes is walked along the table of keys, so that an unknown key, a key given
twice or a section that is no mapping is reported with its line. JSON is turned into such nodes, so
that one reader walks both. A key without a value counts as not set. Values are made by YAML's safe
rules; `${VAR}` and `${VAR:-default}` in them are replaced from the environment: a variable that is
empty takes the default too, as in a shell, `$${` stands for `${` itself, and what a variable holds
is never looked into again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

import yaml

from forwarder.config.keys import FIRST, Path, dotted, in_table, keys, lists, sections, short_forms
from forwarder.config.layers import (
    InvalidConfiguration,
    Layer,
    Origin,
    Place,
    Problem,
    Sourced,
    what_and_hint,
)
from forwarder.config.suggestions import explain_syntax, no_section, spelled_otherwise, suggest_key
from forwarder.core.configured_files import NotRegularFile, read_file
from forwarder.core.error_text import error_text
from forwarder.core.users import user_name

TAGS: Final = "tag:yaml.org,2002:"
_KINDS: Final = {type(None): "null", bool: "bool", int: "int", float: "float", str: "str"}
_NULL: Final = TAGS + "null"
_MERGE: Final = TAGS + "merge"
_TYPED: Final = {_NULL, *[TAGS + name for name in ("bool", "int", "float")]}
_TEXT: Final = {TAGS + "str", TAGS + "timestamp"}
"""No setting is a date: what looks like one stays text."""
_LIST_OF_SECTIONS: Final = "begin each item with a dash, and write its keys below: - name: …"
_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^${}]*))?\}|\$\{", re.ASCII
)


class _Loader(yaml.SafeLoader):
    """YAML of which JSON is a part, also where that writes a character beyond U+FFFF as two
    escapes, as most encoders of JSON do.
    """

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        """A scalar with its whole characters; a half without the other stays."""
        node = super().compose_scalar_node(anchor)
        if not node.value.isascii():
            halves = node.value.encode("utf-16-le", "surrogatepass")
            node.value = halves.decode("utf-16-le", "surrogatepass")
        return node


def read_document(file: FilePath, environ: Mapping[str, str], path: Path = ()) -> Layer:
    """What the file says, with `${VAR}` replaced from `environ`; `path`: the section that it
    holds, without which it holds all of them.

    Raises `InvalidConfiguration` if it can't be read or isn't YAML; all else that is wrong is
    among the layer's problems.
    """
    text = _read(file)
    try:
        return _parse(text, str(file), environ, path)
    except yaml.MarkedYAMLError as error:
        raise InvalidConfiguration([_syntax_problem(file, text, error)]) from error
    except RecursionError as error:
        raise InvalidConfiguration(
            [Problem(str(file), "", "is nested too deeply", "settings need six levels at most")]
        ) from error
    except yaml.YAMLError as error:
        raise InvalidConfiguration(
            [Problem(str(file), "", "holds control characters", "save it as plain text")]
        ) from error


def _parse(text: str, file: str, environ: Mapping[str, str], path: Path) -> Layer:
    layer = Layer()
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is not None:
            NodeReader(layer, loader, environ, Origin(Place.FILE, file)).section(root, path)
    finally:
        loader.dispose()
    return layer


def _read(file: FilePath) -> str:
    try:
        return read_file(file, pipe=True).decode("utf-8-sig")
    except OSError as error:
        raise InvalidConfiguration(
            [
                Problem(
                    str(file),
                    "",
                    f"can't be read: {error_text(error)}",
                    _unreadable_hint(file, error),
                )
            ]
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidConfiguration(
            [Problem(str(file), "", "isn't UTF-8 text", "save it as UTF-8")]
        ) from error


def _unreadable_hint(file: FilePath, error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return f"name the file in it: --config {file}/forwarder.yaml"
    if isinstance(error, PermissionError):
        return (
            f"run this as a user that may read it, this one is {user_name()}; or name another "
            "file: --config FILE"
        )
    if isinstance(error, NotRegularFile):
        return "name a file, or a pipe in which something writes: --config FILE"
    return "name a readable file: --config FILE"


def _syntax_problem(file: FilePath, text: str, error: yaml.MarkedYAMLError) -> Problem:
    line, what, hint = explain_syntax(text, error)
    return Problem(f"{file}:{line}" if line else str(file), "", f"isn't YAML: {what}", hint)


def read_json_list(text: str, path: Path, origin: Origin) -> Layer:
    """The layer of a list of sections that is written as JSON; whatever stands in it has that
    origin.
    """
    layer = Layer()
    loader = yaml.SafeLoader("")
    try:
        NodeReader(layer, loader, None, origin).json(text, path)
    finally:
        loader.dispose()
    return layer


def _name(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else "?"


def _beside_short(entries: Sequence[tuple[yaml.Node, yaml.Node]], path: Path) -> Path:
    """Where a key belongs: the keys of a section that is written as text may stand beside it
    (`archive: file:///srv, partition: hour`).
    """
    if in_table(path) in keys().keys() | sections().keys():
        return path
    texts = [
        (*path[:-1], _name(key)) for key, value in entries if isinstance(value, yaml.ScalarNode)
    ]
    places = [(*text, path[-1]) for text in texts if in_table(text) in short_forms()]
    return next((place for place in places if in_table(place) in keys()), path)


def _merged(node: yaml.Node) -> list[tuple[yaml.Node, yaml.Node]]:
    """The entries of a mapping, behind those that it merges; the strongest last. The node stays as
    it is: others may name it too.
    """
    if not isinstance(node, yaml.MappingNode):
        raise yaml.constructor.ConstructorError(
            problem="<< takes a section, or a list of them", problem_mark=node.start_mark
        )
    own = [entry for entry in node.value if entry[0].tag != _MERGE]
    merges = [value_node for key_node, value_node in node.value if key_node.tag == _MERGE]
    named = [
        source
        for merge in merges
        for source in (merge.value if isinstance(merge, yaml.SequenceNode) else [merge])
    ]
    return [*[entry for source_node in reversed(named) for entry in _merged(source_node)], *own]


@dataclass(slots=True)
class NodeReader:
    """Walks nodes, and adds what they say to `layer`.

    `open` are the nodes around the current one: YAML's aliases can make a node contain itself.
    """

    layer: Layer
    loader: yaml.SafeLoader
    environ: Mapping[str, str] | None
    """What references in values are replaced from; None: they are left alone."""
    whole: Origin
    """The origin of all, to which a line is added where nodes have one."""
    open: list[yaml.Node] = field(default_factory=list)

    def section(self, node: yaml.Node, path: Path) -> None:
        """Read a section's keys."""
        if node.tag == _NULL:
            return
        if isinstance(node, yaml.ScalarNode) and in_table(path) in short_forms():
            self._value(node, (*path, short_forms()[in_table(path)]), node)
            return
        if not isinstance(node, yaml.MappingNode):
            self._problem(node, path, *no_section(path, node))
            return
        entries = self._entries(node, path)
        for key_node, value_node in entries:
            self._entry(key_node, value_node, _beside_short(entries, (*path, _name(key_node))))

    def json(self, text: str, path: Path) -> None:
        """Read a list of sections that is written as JSON."""
        try:
            node = json_node(text)
        except ValueError as error:
            self.layer.problems.append(
                Problem(str(self.whole), dotted(path), *what_and_hint(error))
            )
        else:
            self._list(node, path, node)

    def _entries(self, node: yaml.MappingNode, path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
        """The nodes of a mapping's keys and values, each name once; what is given twice is
        reported.

        Only before merging (`<<`): a key may stand over a merged one.
        """
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            name = _name(key_node)
            if name in seen:
                first = f", first in line {seen[name]}" if seen[name] else ""
                self._problem(
                    key_node, (*path, name), f"is given twice{first}", "keep one of the two"
                )
            seen.setdefault(name, self._origin(key_node).line)
        return list(
            {
                _name(key_node): (key_node, value_node) for key_node, value_node in _merged(node)
            }.values()
        )

    def _entry(self, key_node: yaml.Node, value_node: yaml.Node, path: Path) -> None:
        known = in_table(path)
        if known in sections():
            self.section(value_node, path)
        elif known in lists():
            self._list(value_node, path, key_node)
        elif known in keys():
            self._value(value_node, path, key_node)
        else:
            self._problem(key_node, path, "unknown setting", suggest_key(path))
            # so that all that is wrong below it is reported too
            if meant := spelled_otherwise(path):
                self._entry(key_node, value_node, meant)

    def _list(self, node: yaml.Node, path: Path, key_node: yaml.Node) -> None:
        """Read a list of sections."""
        if isinstance(node, yaml.ScalarNode):
            self._written_list(node, path)
            return
        by_name = sections()[(*in_table(path), FIRST)].by_name
        if by_name and isinstance(node, yaml.MappingNode):
            self._named_list(node, path, key_node, by_name)
            return
        if not isinstance(node, yaml.SequenceNode):
            self._problem(node, path, "is a list", _LIST_OF_SECTIONS)
            return
        self.layer.lists[path] = self._origin(key_node)
        for number, item in enumerate(node.value):
            inner = (*path, str(number))
            self.layer.items[inner] = self._origin(item)
            self.section(item, inner)

    def _named_list(
        self, node: yaml.MappingNode, path: Path, key_node: yaml.Node, by_name: str
    ) -> None:
        """Read a list of sections that is written as a mapping of their names to them."""
        self.layer.lists[path] = self._origin(key_node)
        for number, (name_node, value_node) in enumerate(self._entries(node, path)):
            inner = (*path, str(number))
            self.layer.items[inner] = self._origin(name_node)
            self.layer.values[*inner, by_name] = Sourced(_name(name_node), self._origin(name_node))
            self.section(value_node, inner)

    def _written_list(self, node: yaml.ScalarNode, path: Path) -> None:
        """Read a list of sections that is a single value: JSON, perhaps from the environment, or
        nothing.
        """
        try:
            text = self._scalar(node)
        except (ValueError, KeyError) as error:
            self._problem(node, path, *what_and_hint(error))
            return
        if (
            isinstance(text, str)
            and self.environ is not None
            and (text.lstrip()[:1] in ("[", "{") or "${" in node.value)
        ):
            NodeReader(self.layer, self.loader, None, self._origin(node)).json(text, path)
        elif text is not None:
            self._problem(node, path, "is a list", _LIST_OF_SECTIONS)

    def _value(self, node: yaml.Node, path: Path, key_node: yaml.Node) -> None:
        structured = keys()[in_table(path)].field.kind.structured
        if isinstance(node, yaml.MappingNode) and keys()[in_table(path)].named:
            names = self._names(node, path, self._origin(key_node), structured=structured)
            self.layer.values[path] = names
            return
        try:
            value = self._construct(node, structured=structured)
        except (ValueError, KeyError) as error:  # KeyError: what YAML makes of `!!bool maybe`
            self._problem(node, path, *what_and_hint(error))
            return
        if value is not None:
            items = enumerate(node.value) if isinstance(node, yaml.SequenceNode) else ()
            self.layer.values[path] = Sourced(
                value, self._origin(key_node), {index: self._origin(item) for index, item in items}
            )

    def _names(
        self, node: yaml.MappingNode, path: Path, origin: Origin, *, structured: bool
    ) -> Sourced:
        """A mapping of names that the user chose; names without a value are left out, but null is
        a value where it is `structured`.
        """
        values = dict[str, Any]()
        items = dict[int | str, Origin]()
        for key_node, value_node in self._entries(node, path):
            name = _name(key_node)
            try:
                value = self._construct(value_node, structured=structured)
            except (ValueError, KeyError) as error:
                self._problem(value_node, (*path, name), *what_and_hint(error))
                continue
            if value is not None or (structured and "${" not in value_node.value):
                values[name], items[name] = value, self._origin(key_node)
        return Sourced(values, origin, items)

    def _construct(self, node: yaml.Node, *, structured: bool = False) -> Any:
        if any(node is outer for outer in self.open):
            raise ValueError("it contains itself: write it without the alias")
        self.open.append(node)
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self._construct(item, structured=structured) for item in node.value]
            if structured and isinstance(node, yaml.MappingNode):
                return {
                    _name(name): self._construct(value, structured=True)
                    for name, value in node.value
                }
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
        if self.environ is None or "${" not in node.value:
            return node.value
        return interpolate(node.value, self.environ).strip() or None

    def _origin(self, node: yaml.Node) -> Origin:
        if self.whole.place is Place.FILE and not self.whole.line:
            return Origin(Place.FILE, self.whole.name, node.start_mark.line + 1)
        return self.whole

    def _problem(self, node: yaml.Node, path: Path, message: str, hint: str) -> None:
        self.layer.problems.append(Problem(str(self._origin(node)), dotted(path), message, hint))


class _Pairs(list[tuple[str, Any]]):
    """An object, as it is written."""


def json_node(text: str) -> yaml.Node:
    """The node of a list. Raises `ValueError`, not repeating the text, which may hold secrets, if
    it isn't a list in JSON.
    """
    try:
        value = json.loads(text, object_pairs_hook=_Pairs)
        if isinstance(value, _Pairs) or not isinstance(value, list):
            # TRY004: errors of values are collected as `ValueError`.
            raise ValueError("it is JSON, but no list: put it between [ and ]")  # noqa: TRY004
        return _node(value)
    except json.JSONDecodeError as error:
        raise ValueError(
            f'it isn\'t JSON ({error.msg} at character {error.pos})\nwrite [{{"name": "…"}}], a '
            "list of sections"
        ) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply: settings need six levels at most") from error


def _node(value: Any) -> yaml.Node:
    if isinstance(value, _Pairs):
        return yaml.MappingNode(TAGS + "map", [(_node(name), _node(item)) for name, item in value])
    if isinstance(value, list):
        return yaml.SequenceNode(TAGS + "seq", [_node(item) for item in value])
    return yaml.ScalarNode(
        TAGS + _KINDS[type(value)], value if isinstance(value, str) else json.dumps(value)
    )


def interpolate(text: str, environ: Mapping[str, str]) -> str:
    """`text` with its references replaced. Raises `ValueError` for one that has no value, or that
    can't be read.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match["name"] is None:
            raise ValueError(
                "${ begins a reference that can't be read: write ${VAR} or ${VAR:-default}; $${ "
                "stands for itself"
            )
        value = environ.get(match["name"], "")
        if not value and match["default"] is not None:
            return match["default"]
        if match["name"] not in environ:
            raise ValueError(
                f"the environment has no {match['name']}: set it, or write "
                f"${{{match['name']}:-default}}"
            )
        return value

    return _REFERENCE.sub(replace, text)
