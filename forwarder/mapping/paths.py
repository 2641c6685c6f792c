"""Plain paths, which need no jq: `.user.id`, `.["odd name"]`, `.items[0].sku`; and how the values
at them are read.

Values are read by one typed pass a level, as the record's own bytes; none becomes a Python object.
Where a name is there twice the last one counts, as it does for jq. What isn't there, and null, is
empty. What is dropped and hashed is named by such paths too, and there also by `.items[].email`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw

from forwarder.mapping.problems import Unmappable, described

Step: TypeAlias = str | int | None
"""A member's name, an element's index, or None for every element (or member)."""

Path: TypeAlias = tuple[Step, ...]

LEADS_NOWHERE: Final = b"\x00"
"""How a value begins that stands for a path which leads into something that has no such members;
the message follows.
"""

_STEP: Final = re.compile(
    r"""\.(?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | \.(?P<quoted>"(?:[^"\\]|\\.)*")
      | \.?\[\s*(?P<bracketed>"(?:[^"\\]|\\.)*")\s*\]
      | \.?\[\s*(?P<index>\d{1,9})\s*\]
      | \.?(?P<every>\[\s*\])""",
    re.VERBOSE,
)


PATH: Final = re.compile(rf"(?:{_STEP.pattern})+|\.", re.VERBOSE)
"""A path at the beginning of a longer text."""


def parse_path(text: str) -> Path | None:
    """The steps of a path; none for `.`, which is the whole record. None if the text is no path."""
    text = text.strip()
    if text == ".":
        return ()
    steps: list[Step] = []
    at = 0
    while match := _STEP.match(text, at):
        try:
            steps.append(_step(match))
        except msgspec.DecodeError:
            return None  # jq's own strings: "\(.a)"
        at = match.end()
    return tuple(steps) if steps and at == len(text) and text.startswith(".") else None


def _step(match: re.Match[str]) -> Step:
    name = match["name"]
    quoted = match["quoted"] or match["bracketed"]
    if quoted is not None:
        return msgspec.json.decode(quoted, type=str)
    if name is not None:
        return name
    return None if match["index"] is None else int(match["index"])


def spelled(path: Path) -> str:
    """A path as jq has it."""
    text = "".join([_spelled(step) for step in path])
    return text if text.startswith(".") else f".{text}"


def _spelled(step: Step) -> str:
    if isinstance(step, str):
        return (
            f".{step}"
            if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step)
            else f"[{msgspec.json.encode(step).decode()}]"
        )
    return "[]" if step is None else f"[{step}]"


_ABSENT: Final = Raw(b"")
_NULL: Final = b"null"
_decode_array = msgspec.json.Decoder(list[Raw]).decode


class PathReader:
    """Reads the values at some paths of a record."""

    def __init__(self) -> None:
        self._root = _PathNode(())
        self.open: Callable[[bytes], Sequence[Raw]] = _opener([])
        self._leaves: Sequence[tuple[int, int]] | None = None
        """The members by their indexes, and the slot of each, where each is read into one, and
        nothing below or beside them is read.
        """

    def add(self, path: Path, slot: int, rule: str, *, is_optional: bool = False) -> None:
        """Read the value at `path` into `slot`; `rule` is whose error it is if there can't be any.
        `is_optional`: such an error comes as the value (`LEADS_NOWHERE`). Before the first record
        only.
        """
        node = self._root
        for step in path:
            node.is_optional = node.is_optional and is_optional
            node = node.child(step, rule)
        node.slots.append(slot)
        self._root.compile()
        self.open = _opener(self._root.names)
        leaves = [(index, leaf) for index, leaf, _ in self._root.leaves if leaf is not None]
        self._leaves = leaves if len(leaves) == len(self._root.children) else None

    def read(self, record: bytes, values: list[bytes]) -> list[bytes]:
        """Open a record, and put its values into their slots. Raises what both raise."""
        opened = self.open(record)
        if self._leaves is None:
            self.fill(opened, record, values)
            return values
        for index, leaf in self._leaves:
            text = bytes(opened[index])
            if text != _NULL:
                values[leaf] = text
        for slot in self._root.slots:
            values[slot] = record.strip()
        return values

    def fill(self, opened: Sequence[Raw], record: bytes, values: list[bytes]) -> None:
        """Put the values of a record into their slots; `opened` is what `open` gave of it (it
        raises msgspec's errors).

        Raises `Unmappable` where a path leads into something that has no such members, as jq does.
        """
        root = self._root
        for slot in root.slots:
            values[slot] = record.strip()
        if root.elements:
            raise root.wrong(b"{", root.elements[0][1])
        for index, leaf, child in root.leaves:
            if leaf is None:
                child.read(opened[index], values)
            elif (text := bytes(opened[index])) != _NULL:
                values[leaf] = text


class _PathNode:
    """A place in the record that paths lead to or through."""

    def __init__(self, path: Path, rule: str = "") -> None:
        self.path = path
        self.rule = rule
        self.slots: list[int] = []
        self.children: dict[Step, _PathNode] = {}
        self.names: list[str] = []
        self.members: list[_PathNode] = []
        self.leaves: list[tuple[int, int | None, _PathNode]] = []
        """The members by their indexes, each with its slot if it is read into
        one, and has nothing below.
        """
        self.elements: list[tuple[int, _PathNode]] = []
        self.is_optional = True
        """Whether all paths through it are."""
        self._open: Callable[[Raw], Sequence[Raw]] | None = None

    def child(self, step: Step, rule: str) -> _PathNode:
        """The node below; a new one is the rule's."""
        if step not in self.children:
            self.children[step] = _PathNode((*self.path, step), rule)
        self.children[step].rule = self.children[step].rule or rule
        return self.children[step]

    def compile(self) -> None:
        """Make the decoders."""
        named = [(step, child) for step, child in self.children.items() if isinstance(step, str)]
        self.names = [step for step, _ in named]
        self.members = [child for _, child in named]
        self.elements = [
            (step, child) for step, child in self.children.items() if isinstance(step, int)
        ]
        self._open = _opener(self.names) if named else None
        for child in self.children.values():
            child.compile()
        self.leaves = [
            (
                index,
                member.slots[0] if len(member.slots) == 1 and not member.children else None,
                member,
            )
            for index, member in enumerate(self.members)
        ]

    def read(self, raw: Raw, values: list[bytes]) -> None:
        """Put this value, and what is wanted below it, into the slots."""
        text = bytes(raw)
        if not text or text == _NULL:
            return
        for slot in self.slots:
            values[slot] = text
        if self._open is not None:
            if text[:1] != b"{":
                self._fail(text, self.members[0], values)
                return
            opened = self._open(raw)
            for index, _, child in self.leaves:
                child.read(opened[index], values)
        if self.elements:
            self._read_elements(raw, text, values)

    def _read_elements(self, raw: Raw, text: bytes, values: list[bytes]) -> None:
        if text[:1] != b"[":
            self._fail(text, self.elements[0][1], values)
            return
        elements = _decode_array(raw)
        for index, child in self.elements:
            if index < len(elements):
                child.read(elements[index], values)

    def _fail(self, text: bytes, child: _PathNode, values: list[bytes]) -> None:
        """This value can't have such a child: raise that, or put it into the slots below."""
        if not self.is_optional:
            raise self.wrong(text, child)
        self._fill_below(LEADS_NOWHERE + self.wrong(text, child).message.encode(), values)

    def _fill_below(self, value: bytes, values: list[bytes]) -> None:
        for child in self.children.values():
            for slot in child.slots:
                values[slot] = value
            child._fill_below(value, values)

    def wrong(self, text: bytes, child: _PathNode) -> Unmappable:
        """The error for a value that can't have such a child."""
        return Unmappable(
            f"{child.rule}: {spelled(self.path)} is {described(text)}, which has no "
            f"{spelled(child.path[-1:])}"
        )


def _opener(names: Sequence[str]) -> Callable[[bytes | Raw], Sequence[Raw]]:
    """What decodes an object, and gives the values of these members."""
    fields = [
        (f"m{at}", Raw, msgspec.field(name=name, default=_ABSENT)) for at, name in enumerate(names)
    ]
    try:
        decode = msgspec.json.Decoder(msgspec.defstruct("Members", fields, gc=False)).decode
    except ValueError:  # a name that would have to be escaped
        return _dict_opener(names)
    astuple = msgspec.structs.astuple
    return lambda text: astuple(decode(text))


def _dict_opener(names: Sequence[str]) -> Callable[[bytes | Raw], Sequence[Raw]]:
    decode = msgspec.json.Decoder(dict[str, Raw]).decode

    def opened(text: bytes | Raw) -> Sequence[Raw]:
        members = decode(text)
        return [members.get(name, _ABSENT) for name in names]

    return opened
