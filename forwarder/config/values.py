"""The kinds of value a setting can have: how each is read, what it may be, and how it stands in the JSON Schema.

Each marker goes into an `Annotated` type: what comes from YAML or the environment is read by it, and its errors say what is
wrong and how to mend it. A value that is already of the right kind (a default, a setting made by a program) passes unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic.functional_validators import AfterValidator
from pydantic_core import CoreSchema, core_schema

from forwarder.config.addresses import (
    Network,
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
from forwarder.config.units import NEVER, TIMES, format_duration, format_size, parse_duration, parse_size

JsonSchema: TypeAlias = dict[str, Any]

_PROJECT_KEY: Final = re.compile(r"[\x01-\x7f]{1,64}")
_PERSONAL_KEY: Final = re.compile(r"[\x21-\x7e]{1,200}")


def _written_size(size: int) -> str | int:
    text = format_size(size)
    return size if text.isdigit() else text


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, from `minimum` to `maximum` (both as people write them)."""

    minimum: str = "1"
    maximum: str = "1TiB"

    def read(self, value: object) -> int:
        """The bytes that `value` says."""
        if not isinstance(value, str | int):
            raise ValueError(f"{value!r} is not a size: write it as 20MB, 16MiB or a number of bytes")  # noqa: TRY004 - pydantic collects ValueError only
        size = parse_size(value)
        if not parse_size(self.minimum) <= size <= parse_size(self.maximum):
            raise ValueError(f"{format_size(size)} is out of range: write a size from {self.minimum} to {self.maximum}")
        return size

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads and writes it."""
        written = core_schema.plain_serializer_function_ser_schema(_written_size, when_used="json")
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """A string with a unit, or a number of bytes."""
        number = {"type": "integer", "minimum": parse_size(self.minimum), "maximum": parse_size(self.maximum)}
        return {"anyOf": [{"type": "string", "pattern": r"^\d+(\.\d+)?\s*([KkMmGgTt]?[Ii]?[Bb])?$"}, number]}


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, from `minimum` to `maximum` (both as people write them); None is `never`, where that is allowed."""

    minimum: str = "0s"
    maximum: str = "30d"
    never: bool = False

    def read(self, value: object) -> float | None:
        """The seconds that `value` says."""
        if self.never and (value is None or value == NEVER):
            return None
        if not isinstance(value, str | int | float):
            raise ValueError(f"{value!r} is not a time: write it as 30s, 500ms, 5m or 1h")  # noqa: TRY004 - pydantic collects ValueError only
        seconds = parse_duration(value)
        if not parse_duration(self.minimum) <= seconds <= parse_duration(self.maximum):
            allowed = f"a time from {self.minimum} to {self.maximum}" + (f", or {NEVER}" if self.never else "")
            raise ValueError(f"{format_duration(seconds)} is out of range: write {allowed}")
        return seconds

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads and writes it."""
        written = core_schema.plain_serializer_function_ser_schema(format_duration, when_used="json")
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """A string with a unit; 0 needs none."""
        never = f"|^{NEVER}$" if self.never else ""
        text = {"type": "string", "pattern": rf"^\d+(\.\d+)?\s*({'|'.join(TIMES)})$|^0${never}"}
        return {"anyOf": [text, {"const": 0}]} if parse_duration(self.minimum) == 0 else text


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number from `minimum` to `maximum`, or one of `words`."""

    minimum: int
    maximum: int
    words: tuple[str, ...] = ()

    def read(self, value: object) -> int | str:
        """The number or word that `value` says."""
        if value in self.words:
            return str(value)
        wanted = " or ".join([*self.words, f"a whole number from {self.minimum} to {self.maximum}"])
        number = int(value) if isinstance(value, int | str) and re.fullmatch(r"\d{1,18}", str(value), re.ASCII) else None
        if number is None or not self.minimum <= number <= self.maximum:
            raise ValueError(f"{value!r} can't be used: write {wanted}")
        return number

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads it."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """An integer, or a word."""
        number: JsonSchema = {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}
        return {"anyOf": [{"enum": list(self.words)}, number]} if self.words else number


def split_list(value: object) -> object:
    """A list written as text: JSON, or items separated by commas. Anything else unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ValueError("it begins like a JSON list and isn't one: write a,b,c or [\"a\", \"b\", \"c\"]") from error
    return [item.strip() for item in value.split(",") if item.strip()]


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, which may also be written as text: JSON, or items separated by commas."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads it."""
        return core_schema.no_info_before_validator_function(split_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """An array, or a string."""
        return {"anyOf": [handler(schema), {"type": "string"}]}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the words of `words` (a `Literal`), in capitals or not."""

    words: Any

    def read(self, value: object) -> object:
        """The word as it is known, if `value` is one."""
        return value.upper() if isinstance(value, str) and value.upper() in get_args(self.words) else value

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads it."""
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """The words, and a pattern that takes them in any case."""
        words = list(get_args(self.words))
        spelled = "|".join("".join(f"[{letter}{letter.lower()}]" if letter.isalpha() else letter for letter in word) for word in words)
        return {"anyOf": [{"enum": words}, {"type": "string", "pattern": f"^({spelled})$"}]}


@dataclass(frozen=True, slots=True)
class Named:
    """An expression, or a mapping of names that the user chooses to expressions."""

    def read(self, value: object, handler: ValidatorFunctionWrapHandler) -> str | dict[str, str] | None:
        """The text, or the mapping without the names that have nothing."""
        if not isinstance(value, Mapping):
            return None if value is None else read_text(value)
        found: dict[str, str] = handler({name: each for name, each in value.items() if each is not None})
        return found

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads it: an error in the mapping has the name in its location."""
        expression = core_schema.no_info_before_validator_function(read_text, core_schema.str_schema())
        names = core_schema.dict_schema(core_schema.str_schema(), expression)
        unchanged = core_schema.plain_serializer_function_ser_schema(lambda value: value)
        return core_schema.no_info_wrap_validator_function(self.read, names, serialization=unchanged)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """A string, or an object of strings."""
        text = {"type": ["string", "null"]}
        return {"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": text}]}


@dataclass(frozen=True, slots=True)
class Pairs(Named):
    """Names that the user chooses, with a text each; as a text `name=text,name=text`."""

    def read(self, value: object, handler: ValidatorFunctionWrapHandler) -> str | dict[str, str] | None:
        """The mapping. Numbers and truths are taken as they are written; nothing of a value is shown: it may be a secret."""
        if isinstance(value, str):
            value = dict(map(_pair, filter(None, map(str.strip, value.split(",")))))
        if not isinstance(value, Mapping):
            raise ValueError("it is no mapping: write {region: eu-central-1}, or region=eu-central-1")  # noqa: TRY004 - pydantic collects ValueError only
        found: dict[str, str] = handler({name: _plain_text(each) for name, each in value.items() if each is not None})
        return found

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """An object of strings, or a string."""
        plain = {"type": ["string", "number", "boolean", "null"]}
        return {"anyOf": [{"type": "object", "additionalProperties": plain}, {"type": "string"}]}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError("it is no list of name=text: write region=eu-central-1,endpoint=https://store.example.com")
    return name.strip(), value.strip()


def _plain_text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def read_text(value: object) -> str:
    """`value`, if it is text. What YAML takes for something else isn't shown: it may be a secret."""
    if not isinstance(value, str):
        raise ValueError("it isn't text: put it in quotes")  # noqa: TRY004 - pydantic collects ValueError only
    return value


def _matching(pattern: str, message: str) -> AfterValidator:
    """Takes texts that the whole pattern matches."""
    wanted = re.compile(pattern)

    def check(text: str) -> str:
        if not wanted.fullmatch(text):
            raise ValueError(f"{text!r} {message}")
        return text

    return AfterValidator(check)


def check_pattern(text: str) -> str:
    """`text`, if it is a regular expression. Raises `ValueError` if not."""
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression ({error}): mend it, or name the topics") from error
    return text


def check_project_key(text: str) -> str:
    """`text`, if it can be a project key (wire facts: Token validity). Raises `ValueError` if not, not repeating it."""
    if text.startswith("phx_"):
        raise ValueError("it is a personal key, which must not be here: use the project's key (phc_…)")
    if not text.strip() or not _PROJECT_KEY.fullmatch(text):
        raise ValueError("it can't be a project key: one has 1 to 64 ASCII characters")
    return text


def check_personal_key(text: str) -> str:
    """`text`, if it can be a personal API key. Raises `ValueError` if not, not repeating it."""
    if text.startswith("phc_"):
        raise ValueError("it is a project key, which is only good for events: use a personal API key (phx_…)")
    if not _PERSONAL_KEY.fullmatch(text):
        raise ValueError("it can't be a personal API key: one has 1 to 200 ASCII characters, and no blanks")
    return text


def _read_id(value: object) -> str:
    """An id as text; numbers are some, too."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else read_text(value)


def _read_network(value: object) -> Network:
    return parse_network(str(value))


Listen = Annotated[str, AfterValidator(check_listen)]
HostName = Annotated[str, AfterValidator(check_host)]
UpstreamUrl = Annotated[str, AfterValidator(lambda text: check_upstream(text) if text else text)]
ManagementUrl = Annotated[str, AfterValidator(lambda text: check_management(text) if text else text)]
ProxyUrl = Annotated[str, AfterValidator(check_proxy)]
TokenUrl = Annotated[str, AfterValidator(check_token_url)]
Origin = Annotated[str, AfterValidator(check_origin)]
PathPrefix = Annotated[str, AfterValidator(check_path_prefix)]
ProjectKey = Annotated[str, AfterValidator(check_project_key)]
PersonalKey = Annotated[str, AfterValidator(check_personal_key), BeforeValidator(read_text)]
Id = Annotated[
    str,
    Field(min_length=1),
    BeforeValidator(_read_id),
    WithJsonSchema({"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]}),
]
BrokerAddress = Annotated[str, AfterValidator(check_broker)]
Text = Annotated[str, Field(min_length=1), BeforeValidator(read_text)]
Password = Annotated[str, Field(min_length=1), BeforeValidator(read_text)]
Expression = Annotated[str, Field(min_length=1), BeforeValidator(read_text)]
Expressions = Annotated[str | Mapping[str, str] | None, Named()]
Pattern = Annotated[str, Field(min_length=1), BeforeValidator(read_text), AfterValidator(check_pattern)]
ClusterName = Annotated[str, _matching(r"[A-Za-z0-9_-]{1,64}", "can't be a name: use letters, digits, _ and -, 64 at most")]
Topic = Annotated[
    str, _matching(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}", "can't be a name of Kafka's: use letters, digits, dots, _ and -, 249 at most")
]
AddressRange = Annotated[Network, BeforeValidator(_read_network), PlainSerializer(str), WithJsonSchema({"type": "string"})]
Concurrency: TypeAlias = Annotated[int | Literal["adaptive"], Count(1, 256, words=("adaptive",))]
