"""What a format is, as data: its name, what a user may say about an export of it, and how its records become events.

Each file of `formats` ends with the description of what it reads; `catalog` lists them. The command line is made of these, so that a new
format is one file and one line of the catalog.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from forwarder.sources.files.options import Framing

if TYPE_CHECKING:
    from forwarder.mapping import Mapping, MappingRules
    from forwarder.sources.imports.events import Converter
    from forwarder.sources.imports.policy import PersonProperties
    from forwarder.sources.imports.raw_events import RawConverter

Options = TypeVar("Options")
_HELP: Final = "help"
_FLAG: Final = "flag"
_METAVAR: Final = "metavar"

OF_JSON: Final = (Framing.AUTO, Framing.LINES, Framing.JSON, Framing.PARQUET)


def option(default: Any, help: str, *, flag: str = "", metavar: str = "NAME") -> Any:  # noqa: A002 - as it is called everywhere
    """A field of a format's options that a user may say, by whose default it is seen how it is typed: a text, a switch, or a set.

    `flag`: what it is called on the command line; without it the field's name.
    """
    return dataclasses.field(default=default, metadata={_HELP: help, _FLAG: flag, _METAVAR: metavar})


@dataclass(frozen=True, slots=True)
class FormatOption:
    """One thing that a user may say about an export."""

    field: str
    flag: str
    """Without its hyphens in front: `group-type`."""
    help: str
    metavar: str
    default: Any

    @property
    def name(self) -> str:
        """The flag as a parameter's name: `group_type`."""
        return self.flag.replace("-", "_")

    def of(self, options: object) -> Any:
        """What was said, as a JSON value; None if it is the default."""
        value = getattr(options, self.field)
        if value == self.default:
            return None
        return sorted(value) if isinstance(value, frozenset) else value


@dataclass(frozen=True, slots=True)
class NoOptions:
    """A format of which nothing needs to be said."""


@dataclass(frozen=True, slots=True)
class ChosenMapping:
    """A mapping: its rules as they were written, and what compiles them."""

    rules: MappingRules
    compile: Callable[[], Mapping]
    zone_said: bool = False
    """Whether the rules name the zone of times without one."""


@dataclass(frozen=True, slots=True)
class FormatContext:
    """What is said of any import, as far as formats need it."""

    person_properties: PersonProperties = "set_once"
    time_offset: int | None = None
    """Minutes that the clock of times without a zone is ahead of UTC; None: nobody said."""
    since: int | None = None
    """Microseconds since 1970: earlier events are left out, so what a format says only once is to be said of the first from then on."""
    mapping: ChosenMapping | None = None
    """For formats that `takes_mapping`."""

    @property
    def minutes(self) -> int:
        """The offset; without one, UTC."""
        return self.time_offset or 0


def offset_is_said(_: object, given: FormatContext) -> bool:
    """Whether it is known what a time without a zone means: only where somebody says it."""
    return given.time_offset is not None


@dataclass(frozen=True)
class ImportFormat(Generic[Options]):
    """One format."""

    name: str
    """As it is typed."""
    summary: str
    """One line."""
    example: str
    """What may stand behind its name on the command line."""
    options: type[Options]
    make: Callable[[Options, FormatContext], Converter | RawConverter]
    """A new converter, for one pass over a source from its start. Raises `ConfigurationError` for options that don't fit together."""
    times: Callable[[Options, FormatContext], Sequence[str]]
    """Where its records have their times: the first of these that is there; `name.name` one level down. For the preflight's look."""
    zone_said: Callable[[Options, FormatContext], bool] = offset_is_said
    """Whether it is known what a time without a zone means."""
    framings: tuple[Framing, ...] = OF_JSON
    """How its records may be told from each other; the first unless somebody says otherwise."""
    takes_time_offset: bool = True
    takes_mapping: bool = False
    is_unsorted: bool = False
    """Whether its exports are in no order of time: they are always sorted, or each event would be a request of its own."""

    @property
    def said(self) -> Iterator[FormatOption]:
        """What a user may say about an export, beside what holds for every format."""
        for each in dataclasses.fields(self.options):  # type: ignore[arg-type]  # a dataclass, each of them
            named = each.metadata
            if named:
                flag = named[_FLAG] or each.name.replace("_", "-")
                yield FormatOption(each.name, flag, named[_HELP], named[_METAVAR], each.default)
