"""The evidence of a world, and what of it is about one promise at one entrance."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from tests.promises.promises import PromiseRow
from tests.support.commands import Finished

if TYPE_CHECKING:
    from tests.promises.entrance import Entrance

_LINE: Final = re.compile(r"^ ?(\S+?)(?:@(\w+))? +([\d,]+) +([\d,]+) +([\d,]+) ")
_REASON: Final = re.compile(r"\b([\d,]+) ((?:rule:)?[a-z][a-z0-9_-]*)\b")


@dataclass(frozen=True, slots=True)
class PromisedEvent:
    """An event in flight through one entrance."""

    cell: str
    """Entrance and promise, as its properties name it."""
    data: Mapping[str, Any]
    verbatim: str
    to: frozenset[str]
    """The destinations that it is for."""

    def json(self, **changes: object) -> str:
        """The event as JSON, with changes; None removes a member."""
        members = {**self.data, **changes}
        properties = json.dumps({"cell": self.cell, **members.pop("properties")})
        if self.verbatim:
            properties = f"{properties[:-1]}, {self.verbatim}}}"
        text = json.dumps({name: value for name, value in members.items() if value is not None})
        return f'{text[:-1]}, "properties": {properties}}}'


@dataclass(frozen=True, slots=True)
class Arrival:
    """An event at a destination. `key`: the project key that it came with, if it is one of the
    entrance's.
    """

    destination: str
    raw: str
    event: Mapping[str, Any]
    key: str

    @property
    def properties(self) -> Mapping[str, Any]:
        """Its properties."""
        properties: Mapping[str, Any] = self.event["properties"]
        return properties

    def is_of(self, sent: PromisedEvent) -> bool:
        """Whether it is this one, of those of its cell."""
        same = ("event", "distinct_id")
        return all(self.event[name] == sent.data[name] for name in same)


@dataclass(slots=True)
class LaneBooks:
    """A line of `forwarder audit`. `reasons`: of dead letters and drops alike."""

    received: int
    delivered: int
    buffered: int
    reasons: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class WorldEvidence:
    """What a world leaves behind. By entrance, where it is a mapping of names."""

    sent: dict[str, list[PromisedEvent]] = field(default_factory=lambda: defaultdict(list))
    arrivals: list[Arrival] = field(default_factory=list)
    letters_before: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Dead letters as `ls` shows them, before any was replayed."""
    letters: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The same in the end."""
    listed: list[dict[str, Any]] = field(default_factory=list)
    """All that `ls` showed last."""
    audited: Finished | None = None
    """`forwarder audit`."""
    books: dict[tuple[str, str], LaneBooks] = field(default_factory=dict)
    """Its lines, by label and destination."""
    tapped: list[dict[str, Any]] = field(default_factory=list)
    explained: dict[str, str] = field(default_factory=dict)
    """What was said of an event while it was buffered."""
    explained_letters: dict[str, str] = field(default_factory=dict)
    early: dict[str, bool] = field(default_factory=dict)
    """Whether an event was acknowledged while the services were down."""
    late: dict[str, bool] = field(default_factory=dict)
    """Whether it was in the end."""
    texts: dict[str, str] = field(default_factory=dict)
    """What logs, pages and commands showed, by what it is."""
    conflicts: list[Any] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)
    """What went wrong before anything could be looked at."""
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    sent_by: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When all was sent."""

    def check_audit(self) -> None:
        """Raise `AssertionError` unless `forwarder audit` says that the books balance."""
        assert self.audited is not None
        assert self.audited.code == 0, self.audited.out


class CellEvidence:
    """The evidence for one cell, out of that of its world."""

    def __init__(self, promise: PromiseRow, entrance: Entrance, evidence: WorldEvidence) -> None:
        self.promise = promise
        self.entrance = entrance
        self.began = evidence.began
        """When its world was started."""
        self.sent_by: datetime = evidence.sent_by
        """When all was sent."""
        self._evidence = evidence
        self._cell = f"{entrance.name}/{promise.name}"

    def check_worked(self) -> None:
        """Raise what went wrong before anything of the entrance could be looked at."""
        if error := self._evidence.failures.get(self.entrance.name):
            raise error

    @property
    def sent(self) -> list[PromisedEvent]:
        """The events of the cell."""
        return [
            event for event in self._evidence.sent[self.entrance.name] if event.cell == self._cell
        ]

    def count_of(self, name: str) -> int:
        """How many events of this name went through the entrance, of all cells."""
        sent = self._evidence.sent[self.entrance.name]
        return sum(event.data["event"] == name for event in sent)

    def everywhere(self) -> list[Arrival]:
        """What arrived of the cell, at whichever destination."""
        arrived = self._evidence.arrivals
        return [arrival for arrival in arrived if arrival.properties["cell"] == self._cell]

    def arrivals(self) -> list[Arrival]:
        """What arrived of the cell where the entrance's events are looked for."""
        view = self.entrance.view
        return [arrival for arrival in self.everywhere() if arrival.destination == view]

    def arrived(self, name: str) -> list[Arrival]:
        """The same, of one name."""
        return [arrival for arrival in self.arrivals() if arrival.event["event"] == name]

    def only(self) -> Arrival:
        """The one that arrived."""
        arrivals = self.arrivals()
        assert len(arrivals) == 1, f"{len(arrivals)} events arrived, not one"
        return arrivals[0]

    def letters(self, name: str) -> list[dict[str, Any]]:
        """The dead letters of the entrance with this name, in the end."""
        return self._named(self._evidence.letters, name)

    def letters_before(self, name: str) -> list[dict[str, Any]]:
        """The same, before any was replayed."""
        return self._named(self._evidence.letters_before, name)

    def _named(self, letters: Mapping[str, list[dict[str, Any]]], name: str) -> list[Any]:
        return [letter for letter in letters.get(self.entrance.name, []) if letter["event"] == name]

    @property
    def reasons(self) -> Counter[str]:
        """How many events of the entrance's lane were dropped or are dead letters, by reason."""
        return self.entrance.reasons(self._evidence)

    def check_dropped(self, count: int) -> None:
        """Raise `AssertionError` unless the promise's rule has dropped so many events."""
        (rule,) = (rule_settings["name"] for rule_settings in self.promise.rules)
        self.entrance.check_dropped(self, rule, count)

    def check_books(self) -> None:
        """Raise `AssertionError` if the books don't balance, or don't say what happened."""
        self.entrance.check_books(self._evidence)

    @property
    def exceeded(self) -> tuple[object, object]:
        """What became of something beyond the entrance's limit, and what should have."""
        return self.entrance.exceeded

    @property
    def acknowledged(self) -> tuple[bool, bool]:
        """Whether the event was acknowledged while the service was down, and in the end."""
        name = self.entrance.name
        return self._evidence.early[name], self._evidence.late[name]

    def taps(self, outcome: str) -> list[dict[str, Any]]:
        """What a tap showed of the cell with this outcome."""
        return [
            line
            for line in self._evidence.tapped
            if line["outcome"] == outcome and line["data"]["properties"].get("cell") == self._cell
        ]

    @property
    def explained_while_buffered(self) -> str:
        """What was said of an event while the service was down."""
        return self._evidence.explained[self.entrance.name]

    @property
    def explained_letter(self) -> str:
        """What was said of a dead letter."""
        return self._evidence.explained_letters[self.entrance.name]

    def shown(self) -> Mapping[str, str]:
        """What logs, pages and commands showed, by what it is."""
        return self._evidence.texts

    @property
    def conflicts(self) -> list[Any]:
        """Events of the cell that a service has with other bytes than before."""
        return [conflict for conflict in self._evidence.conflicts if self._cell in str(conflict)]


def read_audit(text: str) -> Iterator[tuple[tuple[str, str], LaneBooks]]:
    """The lines of `forwarder audit`, by label and destination; what is below a line is of it."""
    books: LaneBooks | None = None
    for line in text.splitlines():
        if match := _LINE.match(line):
            label, destination, *figures = match.groups()
            received, delivered, buffered = (int(figure.replace(",", "")) for figure in figures)
            books = LaneBooks(received, delivered, buffered)
            yield (label, destination or ""), books
            line = line[match.end() :]  # noqa: PLW2901
        if books is not None:
            for count, reason in _REASON.findall(line):
                books.reasons[reason] += int(count.replace(",", ""))
