"""The kinds of value that settings have beside the plain ones of `section.py`: sizes, times,
numbers, lists, names, addresses, keys.

What a kind can't read is an error that says what is wrong and how to write it. Secrets are never
repeated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from forwarder.config.addresses import (
    Network,
    check_archive,
    check_broker,
    check_host,
    check_listen,
    check_management,
    check_origin,
    check_path_prefix,
    check_proxy,
    check_token_url,
    check_upstream,
    parse_network,
)
from forwarder.config.api_keys import (
    NamedKeys,
    check_key_name,
    check_personal_key,
    check_project_key,
    split_name,
)
from forwarder.config.section import (
    InvalidValues,
    Items,
    JsonSchema,
    Kind,
    Location,
    Words,
    collecting,
    kind_of,
    read_text,
)
from forwarder.config.units import (
    NEVER,
    TIMES,
    format_duration,
    format_size,
    parse_duration,
    parse_number,
    parse_size,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """Bytes, from `minimum` to `maximum` (both as people write them)."""

    minimum: str = "1"
    maximum: str = "1TiB"

    def read(self, value: Any) -> int:
        """The bytes that `value` says."""
        if not isinstance(value, str | int):
            raise ValueError(  # noqa: TRY004 - collected
                f"{value!r} is not a size: write it as 20MB, 16MiB or a number of bytes"
            )
        size = parse_size(value)
        if not parse_size(self.minimum) <= size <= parse_size(self.maximum):
            raise ValueError(
                f"{format_size(size)} is out of range: write a size from {self.minimum} to "
                f"{self.maximum}"
            )
        return size

    def write(self, value: Any) -> Any:
        """In the largest unit that divides it; plain bytes as a number."""
        text = format_size(value)
        return value if text.isdigit() else text

    def schemas(self) -> list[JsonSchema]:
        """A string with a unit, or a number of bytes."""
        number = {
            "type": "integer",
            "minimum": parse_size(self.minimum),
            "maximum": parse_size(self.maximum),
        }
        return [
            {
                "type": "string",
                "pattern": r"^\d+(\.\d+)?\s*([KkMmGgTt]?[Ii]?[Bb]|[KkMmGgTt][Ii])?$",
            },
            number,
        ]


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """Seconds, from `minimum` to `maximum` (both as people write them); None is `never`, where
    that is allowed.
    """

    minimum: str = "0s"
    maximum: str = "30d"
    never: bool = False

    def read(self, value: Any) -> float | None:
        """The seconds that `value` says."""
        if self.never and (value is None or value == NEVER):
            return None
        if not isinstance(value, str | int | float):
            raise ValueError(  # noqa: TRY004 - collected
                f"{value!r} is not a time: write it as 30s, 500ms, 5m or 1h"
            )
        seconds = parse_duration(value)
        if not parse_duration(self.minimum) <= seconds <= parse_duration(self.maximum):
            allowed = f"a time from {self.minimum} to {self.maximum}" + (
                f", or {NEVER}" if self.never else ""
            )
            raise ValueError(f"{format_duration(seconds)} is out of range: write {allowed}")
        return seconds

    def write(self, value: Any) -> Any:
        """In the largest unit that divides it."""
        return format_duration(value)

    def schemas(self) -> list[JsonSchema]:
        """A string with a unit; 0 needs none."""
        never = f"|^{NEVER}$" if self.never else ""
        text = {"type": "string", "pattern": rf"^\d+(\.\d+)?\s*({'|'.join(TIMES)})$|^0${never}"}
        return [text, {"const": 0}] if parse_duration(self.minimum) == 0 else [text]


@dataclass(frozen=True, slots=True)
class Count(Kind):
    """A whole number from `minimum` to `maximum`, also as `10k`, or one of `words`."""

    minimum: int
    maximum: int
    words: tuple[str, ...] = ()
    per_second: bool = False
    """Whether it may be written as `10k/s`."""

    def read(self, value: Any) -> int | str:
        """The number or word that `value` says."""
        if value in self.words:
            return str(value)
        allowed = " or ".join(
            [*self.words, f"a whole number from {self.minimum} to {self.maximum}"]
        )
        number = None
        if isinstance(value, int | str) and re.fullmatch(self._pattern, str(value), re.ASCII):
            number = int(parse_number(str(value), per_second=self.per_second) or 0)
        if number is None or not self.minimum <= number <= self.maximum:
            without = (
                " without separators"
                if isinstance(value, str) and re.fullmatch(r"\d+([,._' ]\d{3})+", value, re.ASCII)
                else ""
            )
            raise ValueError(f"{value!r} can't be used: write {allowed}{without}")
        return number

    def schemas(self) -> list[JsonSchema]:
        """An integer, or a word."""
        number: JsonSchema = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        words: list[JsonSchema] = [{"enum": list(self.words)}] if self.words else []
        short: list[JsonSchema] = (
            [{"type": "string", "pattern": f"^{self._pattern}$"}] if self.maximum >= 1000 else []
        )
        return [*words, number, *short]

    @property
    def _pattern(self) -> str:
        return r"\d{1,18}[kKM]?(/s)?" if self.per_second else r"\d{1,18}[kKM]?"


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text that `check` accepts, or changes. Raises `ValueError` with what it says."""

    check: Callable[[str], str] = str
    shortest: int = 0

    def read(self, value: Any) -> Any:
        """The text."""
        text = read_text(value)
        if len(text) < self.shortest:
            raise ValueError("must have at least 1 character")
        return self.check(text)

    def schemas(self) -> list[JsonSchema]:
        """A string."""
        return [
            {"type": "string", "minLength": self.shortest} if self.shortest else {"type": "string"}
        ]


class _Id(Text):
    """An id; one that is a number may be written as such."""

    def read(self, value: Any) -> Any:
        """The id as text."""
        return super().read(
            str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        )

    def schemas(self) -> list[JsonSchema]:
        """A string, or an integer."""
        return [*super().schemas(), {"type": "integer"}]


class _AddressRange(Kind):
    """A network or a single address."""

    def read(self, value: Any) -> Any:
        """The network."""
        return parse_network(str(value))

    def write(self, value: Any) -> Any:
        """With the length of its prefix."""
        return str(value)

    def schemas(self) -> list[JsonSchema]:
        """A string."""
        return [{"type": "string"}]


class AnyCase(Kind):
    """One of the words of a `Literal` in capitals, in capitals or not."""

    def of(self, annotation: Any) -> Kind:
        """The kind for these words."""
        return _AnyCase(get_args(annotation))


class _AnyCase(Words):
    """Words in capitals."""

    def read(self, value: Any) -> Any:
        """The word as it is known."""
        return super().read(value.upper() if isinstance(value, str) else value)

    def schemas(self) -> list[JsonSchema]:
        """The words, and a pattern that accepts them in any case."""
        spelled = "|".join(
            "".join(
                f"[{character}{character.lower()}]" if character.isalpha() else character
                for character in word
            )
            for word in self.words
        )
        return [{"enum": list(self.words)}, {"type": "string", "pattern": f"^({spelled})$"}]


class Renamed(Kind):
    """One of the words of a `Literal`, some of which had other names: an error says the new one."""

    def __init__(self, former: Mapping[str, str]) -> None:
        """`former`: the words by their former names."""
        self._former = former

    def of(self, annotation: Any) -> Kind:
        """The kind for these words."""
        return _Renamed(get_args(annotation), self._former)


@dataclass(frozen=True, slots=True)
class _Renamed(Words):
    former: Mapping[str, str]

    def read(self, value: Any) -> Any:
        """The word."""
        if isinstance(value, str) and value in self.former:
            new = self.former[value]
            raise ValueError(f"{value} is called {new} now: write {new}")
        return Words.read(self, value)


@dataclass(frozen=True, slots=True)
class Listed(Kind):
    """A list, which may also be written as text: JSON, or items separated by commas. `check` sees
    all items.
    """

    check: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple

    def of(self, annotation: Any) -> Kind:
        """The kind for items of this type."""
        return _Listed(kind_of(get_args(annotation)[0]), self.check)


@dataclass(frozen=True, slots=True)
class _Listed(Items):
    check: Callable[[tuple[Any, ...]], tuple[Any, ...]]

    def read(self, value: Any) -> Any:
        """A tuple of what the items stand for."""
        return self.check(Items.read(self, split_list(value)))

    def schemas(self) -> list[JsonSchema]:
        """An array, or a string."""
        return [*Items.schemas(self), {"type": "string"}]


@dataclass(frozen=True, slots=True)
class OneOrMore(Kind):
    """A list, or one item without brackets: a comma is part of an item."""

    def of(self, annotation: Any) -> Kind:
        """The kind for items of this type."""
        return _OneOrMore(kind_of(get_args(annotation)[0]))


class _OneOrMore(Items):
    def read(self, value: Any) -> Any:
        """A tuple of what the items stand for."""
        one = isinstance(value, str) and not value.lstrip().startswith("[")
        return super().read([value] if one else split_list(value))

    def schemas(self) -> list[JsonSchema]:
        """An array, or one item."""
        return [*super().schemas(), *self.item.schemas()]


def split_list(value: object) -> object:
    """A list written as text: JSON, or items separated by commas. Anything else unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(
                'it begins like a JSON list and isn\'t one: write a,b,c or ["a", "b", "c"]'
            ) from error
    return [item.strip() for item in value.split(",") if item.strip()]


class Named(Kind):
    """An expression, or a mapping of names that the user chooses to expressions; None is none of
    them.
    """

    def read(self, value: Any) -> str | dict[str, str] | None:
        """The text, or the mapping without the names that have nothing."""
        if not isinstance(value, Mapping):
            return None if value is None else read_text(value)
        return self.names(value, read_text)

    def names(self, value: Mapping[Any, Any], read: Callable[[Any], _T]) -> dict[str, _T]:
        """The mapping. What is wrong with a name's value is found at that name."""
        names = dict[str, _T]()
        wrong = list[tuple[Location, str]]()
        for name, item in value.items():
            with collecting(wrong, name):
                if item is not None:
                    names[read_text(name)] = read(item)
        if wrong:
            raise InvalidValues(wrong)
        return names

    def schemas(self) -> list[JsonSchema]:
        """A string, or an object of strings."""
        return [
            {"type": "string"},
            {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        ]


class NamedLists(Named):
    """Names that the user chooses, with a list of texts each; None is none of them."""

    def read(self, value: Any) -> Any:
        """The mapping without the names that have nothing."""
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ValueError(  # noqa: TRY004 - collected
                "it is no mapping of names to lists: write {visitor: [.remote_addr, .user_agent]}"
            )
        return self.names(
            value, lambda members: tuple(read_text(item) for item in _several(members))
        )

    def write(self, value: Any) -> Any:
        """With lists."""
        return value if value is None else {name: list(members) for name, members in value.items()}

    def schemas(self) -> list[JsonSchema]:
        """An object of lists of strings, or of strings."""
        texts = {"type": "array", "items": {"type": "string"}}
        return [
            {
                "type": "object",
                "additionalProperties": {"anyOf": [texts, {"type": "string"}, {"type": "null"}]},
            }
        ]


def _several(value: object) -> list[object]:
    parts = split_list(value)
    return parts if isinstance(parts, list) else [parts]


class Pairs(Named):
    """Names that the user chooses, with a text each; as a text `name=text,name=text`."""

    def read(self, value: Any) -> str | dict[str, str] | None:
        """The mapping. Numbers and booleans are read as they are written; nothing of a value is
        shown: it may be a secret.
        """
        if isinstance(value, str):
            value = dict(map(_pair, filter(None, map(str.strip, value.split(",")))))
        if not isinstance(value, Mapping):
            raise ValueError(  # noqa: TRY004 - collected
                "it is no mapping: write {region: eu-central-1}, or region=eu-central-1"
            )
        return self.names(value, _plain_text)

    def schemas(self) -> list[JsonSchema]:
        """An object of strings, or a string."""
        plain = {"type": ["string", "number", "boolean", "null"]}
        return [{"type": "object", "additionalProperties": plain}, {"type": "string"}]


class NamePairs(Named):
    """Names that the user chooses, with a text each."""

    def read(self, value: Any) -> Any:
        """The mapping."""
        return self.names(_mapping(value, "{.properties.old: .properties.new}"), read_text)

    def schemas(self) -> list[JsonSchema]:
        """An object of strings."""
        return [{"type": "object", "additionalProperties": {"type": "string"}}]


class KeyList(Named):
    """Project keys: a list, or a mapping of names that the user chooses to keys; in a list, a
    mapping of one name stands for a key, too. As a text: JSON, or `key,name=key`.
    """

    structured = True

    def read(self, value: Any) -> Any:
        """The keys. Nothing of a key is shown."""
        if isinstance(value, NamedKeys):
            return value
        if isinstance(value, str):
            value = _written_keys(value)
        found = NamedKeys()
        wrong: list[tuple[Location, str]] = []
        for place, name, key in _named_keys(value):
            with collecting(wrong, place):
                if name is not None:
                    check_key_name(read_text(name))
                if key is not None:
                    found.add(name or "", read_text(key))
        if wrong:
            raise InvalidValues(wrong)
        return found

    def write(self, value: Any) -> Any:
        """A list without names, a mapping with names alone, else a list with both."""
        if value and all(value.values()):
            return {name: key for key, name in value.items()}
        return [{name: key} if name else key for key, name in value.items()]

    def schemas(self) -> list[JsonSchema]:
        """An array, an object, or a string."""
        names = {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
        item = {"anyOf": [{"type": "string"}, names]}
        return [{"type": "array", "items": item}, names, {"type": "string"}]


def _written_keys(text: str) -> object:
    """The list or mapping that a text stands for."""
    if text.lstrip().startswith("{"):
        return _mapping(text, '{"shop": "phc_…"}')
    found = split_list(text)
    if not isinstance(found, list) or text.lstrip().startswith("["):
        return found
    return [{name: key} if name else key for name, key in map(split_name, found)]


def _named_keys(value: object) -> Iterator[tuple[str | int, Any, Any]]:
    """Where each key stands, its name (None: it has none), and the key."""
    if isinstance(value, Mapping):
        for name, key in value.items():
            yield name, name, key
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            for name, key in item.items() if isinstance(item, Mapping) else [(None, item)]:
                yield number, name, key
    else:
        message = "is a list of keys, or a mapping of names to keys: {shop: phc_…}"
        raise ValueError(message)  # noqa: TRY004 - collected


class JsonValues(Named):
    """Names that the user chooses, with any JSON value each."""

    structured = True

    def read(self, value: Any) -> Any:
        """The mapping; null is a value, too."""
        values: dict[str, Any] = {}
        for name, item in _mapping(value, "{.properties.environment: staging}").items():
            try:
                values[read_text(name)] = json.loads(json.dumps(item, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise ValueError(f"the value of {name} is no JSON: put it in quotes") from error
        return values

    def schemas(self) -> list[JsonSchema]:
        """An object."""
        return [{"type": "object"}]


def _mapping(value: object, example: str) -> Mapping[Any, Any]:
    mapping = (
        json.loads(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    )
    if not isinstance(mapping, Mapping):
        # TRY004: errors of values are collected as `ValueError`.
        raise ValueError(f"it is no mapping: write {example}")  # noqa: TRY004
    return mapping


@dataclass(frozen=True, slots=True)
class Ratio(Kind):
    """A number from 0 to 1."""

    def read(self, value: Any) -> float:
        """The number."""
        try:
            number = (
                float(value)
                if isinstance(value, int | float | str) and not isinstance(value, bool)
                else -1.0
            )
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= 1.0:
            raise ValueError(
                f"{value!r} is no share: write a number from 0 to 1, such as 0.1 for a tenth"
            )
        return number

    def schemas(self) -> list[JsonSchema]:
        """A number."""
        return [{"type": "number", "minimum": 0, "maximum": 1}]


@dataclass(frozen=True, slots=True)
class RouteTarget:
    """A destination that a route names; `sample`: the share of all people whose events go there,
    None for all.
    """

    name: str
    sample: float | None = None


class RouteTargets(Kind):
    """Destinations: names, or mappings of names to `{sample: RATE}`; one alone needs no list."""

    structured = True

    def read(self, value: Any) -> tuple[RouteTarget, ...]:
        """The destinations."""
        targets: list[RouteTarget] = []
        wrong: list[tuple[Location, str]] = []
        for number, item in enumerate(_several(value)):
            with collecting(wrong, number):
                if isinstance(item, RouteTarget):
                    targets.append(item)
                elif isinstance(item, Mapping):
                    targets += [
                        RouteTarget(read_text(name), _sample(options))
                        for name, options in item.items()
                    ]
                else:
                    targets.append(RouteTarget(read_text(item)))
        if wrong:
            raise InvalidValues(wrong)
        return tuple(targets)

    def write(self, value: Any) -> Any:
        """A list."""
        return [
            action.name if action.sample is None else {action.name: {"sample": action.sample}}
            for action in value
        ]

    def schemas(self) -> list[JsonSchema]:
        """A name, or an array of names and objects."""
        rate = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        options = {
            "type": ["object", "null"],
            "properties": {"sample": rate},
            "additionalProperties": False,
        }
        sampled = {"type": "object", "additionalProperties": options}
        return [
            {"type": "array", "items": {"anyOf": [{"type": "string"}, sampled]}},
            {"type": "string"},
        ]


def _sample(options: object) -> float | None:
    if options is None:
        return None
    rate = (
        options.get("sample") if isinstance(options, Mapping) and set(options) <= {"sample"} else ""
    )
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
        raise ValueError(
            "it is no share of people: write {name: {sample: 0.05}}, with a number above 0, at "
            "most 1"
        )
    return float(rate)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(
            "it is no list of name=text: write "
            "region=eu-central-1,endpoint=https://store.example.com"
        )
    return name.strip(), value.strip()


def _plain_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return read_text(str(value) if isinstance(value, int | float) else value)


def _matching(pattern: str, message: str) -> Text:
    """Texts that the whole pattern matches."""
    whole = re.compile(pattern)

    def check(text: str) -> str:
        if not whole.fullmatch(text):
            raise ValueError(f"{text!r} {message}")
        return text

    return Text(check)


def check_pattern(text: str) -> str:
    """`text`, if it is a regular expression that is found in linear time. Raises `ValueError` if
    not.
    """
    return _check_pattern(text, text)


def _check_bytes_pattern(text: str) -> str:
    """The same for one that is searched in the bytes of UTF-8."""
    return _check_pattern(text, text.encode())


def _check_pattern(text: str, pattern: str | bytes) -> str:
    from forwarder.core.patterns import (  # noqa: PLC0415 -- few have a pattern
        LinearPattern,
        PatternError,
    )

    try:
        LinearPattern(pattern)
    except PatternError as error:
        raise ValueError(f"{text!r} {error}") from error
    return text


def _unless_empty(check: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: check(text) if text else text


class _Listen(Text):
    """An address to listen on. A port alone is a number to YAML, and so are two numbers with a
    colon between them.
    """

    def read(self, value: Any) -> Any:
        """The address as text."""
        return super().read(
            str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        )


Listen = Annotated[str, _Listen(check_listen)]
HostName = Annotated[str, Text(check_host)]
ArchiveUrl = Annotated[str, Text(_unless_empty(check_archive))]
UpstreamUrl = Annotated[str, Text(_unless_empty(check_upstream))]
ManagementUrl = Annotated[str, Text(_unless_empty(check_management))]
ProxyUrl = Annotated[str, Text(check_proxy)]
TokenUrl = Annotated[str, Text(check_token_url)]
Origin = Annotated[str, Text(check_origin)]
PathPrefix = Annotated[str, Text(check_path_prefix)]
ProjectKey = Annotated[str, Text(check_project_key)]
PersonalKey = Annotated[str, Text(check_personal_key)]
Id = Annotated[str, _Id(shortest=1)]
BrokerAddress = Annotated[str, Text(check_broker)]
NonEmpty = Annotated[str, Text(shortest=1)]
"""A text, an expression or a password."""
Expressions = Annotated[str | Mapping[str, str] | None, Named()]
PathLists = Annotated[Mapping[str, tuple[str, ...]] | None, NamedLists()]
Pattern = Annotated[str, Text(check_pattern, shortest=1)]
BytesPattern = Annotated[str, Text(_check_bytes_pattern, shortest=1)]
SourceName = Annotated[
    str,
    _matching(r"[A-Za-z0-9_-]{1,64}", "can't be a name: use letters, digits, _ and -, 64 at most"),
]
DestinationName = Annotated[
    str,
    _matching(
        r"(?:[a-z0-9][a-z0-9_-]{0,31})?",
        "can't be a name: use small letters, digits, _ and -, 32 at most, no - or _ first",
    ),
]
Topic = Annotated[
    str,
    _matching(
        r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}",
        "can't be a name of Kafka's: use letters, digits, dots, _ and -, 249 at most",
    ),
]
AddressRange = Annotated[Network, _AddressRange()]
Concurrency: TypeAlias = Annotated[int | Literal["adaptive"], Count(1, 256, words=("adaptive",))]
Rate: TypeAlias = Annotated[
    int | Literal["unlimited"], Count(1, 1_000_000, words=("unlimited",), per_second=True)
]
