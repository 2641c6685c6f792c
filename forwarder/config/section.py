"""What settings are made of: sections, which are frozen dataclasses, and kinds, which say how the
values of their fields are written.

The type of a field is what code sees. A `Kind` in its `Annotated` type says how a value of the
file or the environment is read, how it is written as JSON, and how it stands in the JSON Schema;
bool, str, Path, literals, enums and sections have kinds of their own. The docstring under a field
is its description.

A module of sections has no `from __future__ import annotations`: types that are texts aren't
evaluated.

The daemon keeps every module that it loads: this one costs it a hundredth of what a validation
library would.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, dataclass, fields
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

MB: Final = 1_000_000
MIB: Final = 1_048_576
GIB: Final = 1024 * MIB

JsonSchema: TypeAlias = dict[str, Any]
Location: TypeAlias = tuple[str | int, ...]
"""Where a value stands in a section: names of keys, and numbers of items."""

_TRUTHS: Final = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class InvalidValues(ValueError):
    """Values that can't be used: where each stands, and what is wrong with it."""

    def __init__(self, found: Sequence[tuple[Location, str]]) -> None:
        super().__init__("\n".join(message for _, message in found))
        self.found = tuple(found)


class Kind:
    """How values of a field are written."""

    structured: ClassVar[bool] = False
    """Whether a value may hold mappings."""

    def read(self, value: Any) -> Any:
        """The value that `value` stands for. One that is of the kind already is left as it is.
        Raises `ValueError`.
        """
        raise NotImplementedError

    def write(self, value: Any) -> Any:
        """The value as JSON can say it."""
        return value

    def schemas(self) -> list[JsonSchema]:
        """The ways of writing it, as alternatives of a JSON Schema."""
        raise NotImplementedError

    def of(self, _annotation: Any) -> Kind:
        """The kind, for a field of this type."""
        return self


class Section:
    """A group of settings: each is a frozen dataclass, whose fields have defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    short: ClassVar[str | None] = None
    """The key that a text stands for, where one may be written instead of the section."""
    by_name: ClassVar[str | None] = None
    """The key that names a section in a list, where the list may be written as a mapping of names
    to sections.
    """

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """The section with these values, by their keys, over the defaults. Raises `InvalidValues`
        with everything that is wrong.
        """
        found: dict[str, Any] = {}
        keys = keys_of(cls)
        wrong: list[tuple[Location, str]] = [
            ((name,), "unknown setting") for name in values if name not in keys
        ]
        for name, key in keys.items():
            if name in values:
                with collecting(wrong, name):
                    found[key.attribute] = key.kind.read(values[name])
        if wrong:
            raise InvalidValues(wrong)
        return cls(**found)

    def as_document(self, *, changed_only: bool = False) -> dict[str, Any]:
        """All values by their keys, as JSON can say them; `changed_only`: without those that are
        the default.
        """
        document = {}
        for name, key in keys_of(type(self)).items():
            value = getattr(self, key.attribute)
            if changed_only and value == key.default:
                continue
            inner = isinstance(value, Section) and changed_only
            document[name] = (
                value.as_document(changed_only=True) if inner else key.kind.write(value)
            )
        return document


@contextmanager
def collecting(wrong: list[tuple[Location, str]], place: str | int) -> Iterator[None]:
    """Add what is wrong with a value to a list, with its place."""
    try:
        yield
    except InvalidValues as error:
        wrong += [((place, *location), message) for location, message in error.found]
    except ValueError as error:
        wrong.append(((place,), str(error)))


@dataclass(frozen=True, slots=True)
class SectionKey:
    """A field of a section."""

    attribute: str
    kind: Kind
    default: Any
    secret: bool
    """Its value is left out of the section's own text."""


_keys: Final[dict[type[Section], Mapping[str, SectionKey]]] = {}
_descriptions: Final[dict[type[Section], Mapping[str, str]]] = {}


def keys_of(section: type[Section]) -> Mapping[str, SectionKey]:
    """The fields of a section by the keys that users write."""
    if section not in _keys:
        _keys[section] = {
            field.metadata.get("key", field.name): SectionKey(
                field.name, kind_of(field.type), _default(field), not field.repr
            )
            for field in fields(section)
        }
    return _keys[section]


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if callable(field.default_factory) else field.default


def descriptions(section: type[Section]) -> Mapping[str, str]:
    """What the docstrings under a section's fields say, by the fields' names, each as one line.

    Reads the source: only documents and schemas need it.
    """
    if section not in _descriptions:
        found: dict[str, str] = {}
        for base in reversed(section.__mro__[: section.__mro__.index(Section)]):
            (tree,) = ast.parse(inspect.getsource(base)).body
            found |= _described(tree.body if isinstance(tree, ast.ClassDef) else [])
        _descriptions[section] = found
    return _descriptions[section]


def _described(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, below in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = (
                below.value.value
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                else ""
            )
            yield statement.target.id, " ".join(str(text).split())


def kind_of(annotation: Any) -> Kind:
    """The kind of a field of this type."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        kind: Kind = next(marker for marker in annotation.__metadata__ if isinstance(marker, Kind))
        return kind.of(annotation.__origin__)
    if origin in (Union, UnionType):
        (inner,) = [argument for argument in arguments if argument is not NoneType]
        return Optional(kind_of(inner))
    if origin is Literal:
        return Words(arguments)
    if origin is tuple:
        return Items(kind_of(arguments[0]))
    return _plain_kind(annotation)


def _plain_kind(annotation: type[Any]) -> Kind:
    if issubclass(annotation, Section):
        return Nested(annotation)
    if issubclass(annotation, Enum):
        return Members(annotation)
    return _PLAIN[annotation]


def read_text(value: object) -> str:
    """`value`, if it is text. What YAML takes for something else isn't shown: it may be a secret.
    Raises `ValueError`.
    """
    if isinstance(value, list | tuple):
        raise ValueError(  # noqa: TRY004 - collected
            "it is a list, and this key takes one value: write one item without [ ] and -"
        )
    if not isinstance(value, str):
        kind = "boolean (as it does yes, no, on and off)" if isinstance(value, bool) else "number"
        raise ValueError(  # noqa: TRY004 - collected
            f"it isn't text, as YAML reads it as a {kind}: put it in quotes"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half a character: write it as UTF-8") from error
    return value


class PlainText(Kind):
    """Any text."""

    def read(self, value: Any) -> Any:
        """The text."""
        return read_text(value)

    def schemas(self) -> list[JsonSchema]:
        """A string."""
        return [{"type": "string"}]


class _Truth(Kind):
    """Yes or no, in the words of YAML."""

    def read(self, value: Any) -> Any:
        """True or false."""
        if isinstance(value, bool):
            return value
        truth = _TRUTHS.get(str(value).lower()) if isinstance(value, str | int) else None
        if truth is None:
            raise ValueError(f"{value!r} is not a boolean: write true or false")
        return truth

    def schemas(self) -> list[JsonSchema]:
        """A boolean."""
        return [{"type": "boolean"}]


class _FilePath(Kind):
    """A path of a file or a directory."""

    def read(self, value: Any) -> Any:
        """The path."""
        if isinstance(value, Path):
            return value
        text = read_text(value)
        if text.startswith("~"):
            raise ValueError(
                f"{text!r} begins with ~, which only a shell expands: write the whole path"
            )
        if _CONTROL.search(text):
            raise ValueError(f"{text!r} has a control character in it: write the path in one line")
        return Path(text)

    def write(self, value: Any) -> Any:
        """As text."""
        return str(value)

    def schemas(self) -> list[JsonSchema]:
        """A string."""
        return [{"type": "string", "format": "path"}]


_PLAIN: Final[Mapping[type[Any], Kind]] = {str: PlainText(), bool: _Truth(), Path: _FilePath()}


@dataclass(frozen=True, slots=True)
class Words(Kind):
    """One of some words."""

    words: tuple[str, ...]

    def read(self, value: Any) -> Any:
        """The word."""
        if value not in self.words:
            raise ValueError(_must_be(self.words, value))
        return value

    def schemas(self) -> list[JsonSchema]:
        """One of the words."""
        return [{"type": "string", "enum": list(self.words)}]


@dataclass(frozen=True, slots=True)
class Members(Kind):
    """A member of an enum of texts, as its value."""

    members: type[Enum]

    def read(self, value: Any) -> Any:
        """The member."""
        try:
            return self.members(value)
        except ValueError:
            raise ValueError(
                _must_be([str(member.value) for member in self.members], value)
            ) from None

    def write(self, value: Any) -> Any:
        """Its value."""
        return value.value

    def schemas(self) -> list[JsonSchema]:
        """One of the values."""
        return [{"type": "string", "enum": [member.value for member in self.members]}]


def _must_be(words: Sequence[str], value: object) -> str:
    *others, last = map(repr, words)
    hint = _suggest_word(words, value)
    return f"must be {', '.join(others)} or {last}" + (f": {hint}" if hint else "")


def _suggest_word(words: Sequence[str], value: object) -> str:
    """The word that `value` may mean; empty if it is far from each."""
    import difflib  # noqa: PLC0415 - only a mistake needs it

    if isinstance(value, bool):
        return "YAML reads yes, no, on and off as booleans, so put a word in quotes"
    said = str(value).lower().replace("-", "_")
    spelled = {word.lower().replace("-", "_"): word for word in words}
    close = difflib.get_close_matches(said, spelled, n=1, cutoff=0.6)
    return f"write {spelled[close[0]]}" if close else ""


@dataclass(frozen=True, slots=True)
class Optional(Kind):
    """A value, or None, which is "not set"."""

    inner: Kind

    def read(self, value: Any) -> Any:
        """None, or what the inner kind reads."""
        return None if value is None else self.inner.read(value)

    def write(self, value: Any) -> Any:
        """None, or what the inner kind writes."""
        return None if value is None else self.inner.write(value)

    def schemas(self) -> list[JsonSchema]:
        """Those of the inner kind: every key may be null."""
        return self.inner.schemas()


@dataclass(frozen=True, slots=True)
class Items(Kind):
    """A list of values of one kind."""

    item: Kind

    def read(self, value: Any) -> Any:
        """A tuple of what the items stand for."""
        if not isinstance(value, list | tuple):
            # TRY004: errors of values are collected as `ValueError`.
            raise ValueError("is a list: write it as [a, b], or one item a line")  # noqa: TRY004
        found = list[Any]()
        wrong = list[tuple[Location, str]]()
        for number, item in enumerate(value):
            with collecting(wrong, number):
                found.append(self.item.read(item))
        if wrong:
            raise InvalidValues(wrong)
        return tuple(found)

    def write(self, value: Any) -> Any:
        """A list of the items as they are written."""
        return [self.item.write(item) for item in value]

    def schemas(self) -> list[JsonSchema]:
        """An array."""
        (item,) = self.item.schemas()
        return [{"type": "array", "items": item}]


@dataclass(frozen=True, slots=True)
class Nested(Kind):
    """A section inside another."""

    section: type[Section]

    def read(self, value: Any) -> Any:
        """The section."""
        if isinstance(value, self.section):
            return value
        if not isinstance(value, Mapping):
            # TRY004: errors of values are collected as `ValueError`.
            raise ValueError("is a section, and needs keys below it")  # noqa: TRY004
        return self.section.parse(value)

    def write(self, value: Any) -> Any:
        """Its values by their keys."""
        return value.as_document()

    def schemas(self) -> list[JsonSchema]:
        """Sections stand in the schema by themselves."""
        return [{"type": "object"}]
