"""What programs do with their logs in a life: lines that they write, rotations, removals; and the
log source that reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.simulation.plan import Event

LOGS: Final = "logs"
CUT_LINE: Final = "logs: a line was cut"
"""What is counted where a file was truncated, or its reader gave up waiting, within a line."""
LOG_FAULTS: Final = ("forbidden", "broken", "unlisted")
"""What the logs' files do for a while: they can't be opened, read, or found."""
ROTATIONS: Final = ("rename", "rename, written on", "copy", "compress")
SOURCE: Final = "shop"
FOLDER: Final = "/var/log/simulated"
LONGEST: Final = 4000
"""Bytes of a line that is read as a whole."""
PROGRAMS: Final = 2
TIME: Final = "2025-12-31T12:00:00.000Z"
KINDS: Final = (
    *("event",) * 8,
    "odd bytes",
    "filtered",
    "foreign",
    "broken",
    "nobody's",
    "too long",
)
"""What lines are."""
READ: Final = ("event", "odd bytes")
"""Kinds of which events are made."""
REFUSED: Final[Mapping[str, str]] = {
    "broken": "unmappable",
    "nobody's": "missing_distinct_id",
    "too long": "too_large",
}
"""Kinds that become dead letters, and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and the event that it is of, or would have been."""

    event: Event
    kind: str

    @property
    def text(self) -> bytes:
        """Its bytes without its end."""
        data = self.event.data
        if self.kind == "filtered":
            return json.dumps({"n": self.event.number, "level": "info"}).encode()
        if self.kind == "foreign":
            return f"{self.event.number} is no line of this format".encode()
        if self.kind == "nobody's":
            del data["distinct_id"]
        if self.kind == "too long":
            data["more"] = "y" * (LONGEST + self.event.padding)
        text = json.dumps(data).encode()
        if self.kind == "broken":
            return text[: 20 + self.event.number % 20] + b", %d" % self.event.number
        if self.kind == "odd bytes":
            return text[:-1] + b', "odd": "\xff\xfe"}'
        return text

    @property
    def letter(self) -> tuple[str, bytes | int]:
        """What the dead letter is known by that it becomes: the reason, and what it holds."""
        reason = REFUSED[self.kind]
        return reason, self.event.number if self.kind == "nobody's" else self.text[:LONGEST]


@dataclass(frozen=True, slots=True)
class LogWrite:
    """A program writes lines to its log."""

    at: float
    program: int
    lines: tuple[Line, ...]
    half: float
    """How much of the last line it writes now, the rest when it writes next; 1: all of it."""
    calls: int
    """Before which of the daemon's next calls of the system, counted from 1; 0: at once."""

    @property
    def events(self) -> tuple[Event, ...]:
        """Those of the lines."""
        return tuple(line.event for line in self.lines)

    def told(self) -> str:
        """As a line of a story."""
        lines = ", ".join(f"{line.event.number} ({line.kind})" for line in self.lines[:6])
        half = "" if self.half == 1 else ", half of the last one"
        more = "…" if len(self.lines) > 6 else ""
        return f"program {self.program} writes lines {lines}{more}{half}{_in_call(self.calls)}"


@dataclass(frozen=True, slots=True)
class LogRotation:
    """A log is rotated, or a rotated one is compressed."""

    at: float
    program: int
    how: str
    gap: float
    """Seconds until its second half: the truncation, or the removal of what was compressed."""
    calls: int

    def told(self) -> str:
        """As a line of a story."""
        return f"the log of program {self.program} is rotated: {self.how}{_in_call(self.calls)}"


@dataclass(frozen=True, slots=True)
class LogRemoval:
    """The oldest rotated log of a program is removed."""

    at: float
    program: int
    calls: int

    def told(self) -> str:
        """As a line of a story."""
        return f"the oldest log of program {self.program} is removed{_in_call(self.calls)}"


LogAct = LogWrite | LogRotation | LogRemoval


def _in_call(calls: int) -> str:
    return f", before the daemon's call {calls} of the system" if calls else ""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """How the logs are written, and read."""

    settings: Mapping[str, Any]
    """Of the source, beside what is always the same."""
    key: str
    reported: bool
    """Whether the system reports changes."""
    shifts: tuple[bool, ...]
    """Of each program: whether rotated files get other numbers with each rotation."""
    headers: tuple[bool, ...]
    """Whether each of its files begins with the same line."""
    appends: tuple[bool, ...]
    """Whether it goes on at the file's end, when that was truncated."""
    ends: tuple[bytes, ...]
    """What ends its lines."""

    @property
    def rotate_wait(self) -> float:
        """Seconds."""
        return float(self.settings["rotate_wait"].removesuffix("s"))

    @property
    def quiet(self) -> float:
        """Seconds after which all is read, while deliveries work."""
        return 2.0 * self.rotate_wait + 180.0

    @property
    def source(self) -> Mapping[str, Any]:
        """The source's settings."""
        return {
            "name": SOURCE,
            "path": f"{FOLDER}/*.log*",
            "exclude": ["*.tmp"],
            "api_key": self.key,
            "host": "here",
            "max_line": LONGEST,
            **self.settings,
        }


@dataclass
class LogDrawing:
    """Draws what programs do: `event` makes the next event of a life that ends at `ends`."""

    chance: Random
    ends: float
    event: Callable[[], Event]
    timed: bool = False
    """Whether the mapping names a time."""
    last: tuple[float, int] = (0.0, 0)
    """When which program wrote last."""

    def plan(self, key: str, *, durable: bool) -> LogPlan:
        """How logs are written and read; `durable`: into a buffer on disk."""
        chance = self.chance
        slow = self.ends > 60
        mapping: dict[str, Any] = {
            "where": ".event != null",
            "event": ".event",
            "distinct_id": ".distinct_id",
            "uuid": ".uuid",
            "properties": ".properties",
        }
        self.timed = chance.random() < 0.7
        if self.timed:
            mapping["timestamp"] = {"from": ".timestamp"}
        settings = {
            "mapping": mapping,
            "commit": chance.choice(("delivered", "delivered", "disk" if durable else "delivered")),
            "commit_interval": chance.choice(("100ms", "1s")),
            "poll_interval": chance.choice(("20s", "60s") if slow else ("500ms", "5s")),
            "rotate_wait": chance.choice(("100s", "300s") if slow else ("5s", "30s")),
            "max_open_files": chance.choice((1, 2, 256)),
            "max_in_flight": chance.choice(("1kB", "20kB", "1MB")),
        }

        def each(*which: Any) -> tuple[Any, ...]:
            return tuple(chance.choice(which) for _ in range(PROGRAMS))

        return LogPlan(
            settings,
            key,
            chance.random() < 0.7,
            each(True, False),
            each(True, False, False),
            each(True, True, True, False),
            each(b"\n", b"\n", b"\r\n"),
        )

    def acts(self) -> list[LogAct]:
        """What programs do."""
        chance = self.chance
        made: list[LogAct] = [self._write() for _ in range(chance.choice((2, 8, 20)))]
        made += [
            LogRotation(
                self._moment(),
                chance.randrange(PROGRAMS),
                chance.choice(ROTATIONS),
                chance.choice((0.0, 0.01, 1.0)),
                self._calls(),
            )
            for _ in range(chance.choice((0, 1, 3, 8)))
        ]
        made += [
            LogRemoval(self._moment(), chance.randrange(PROGRAMS), self._calls())
            for _ in range(chance.choice((0, 0, 0, 1)))
        ]
        return made

    def trouble(self) -> tuple[float, float, str]:
        """From when until when the files do what."""
        at = self._moment()
        last = self.chance.choice((0.5, 5.0, 60.0, 600.0))
        until = min(at + self.chance.uniform(0.0, last), self.ends)
        return at, until, self.chance.choice(LOG_FAULTS)

    def _moment(self) -> float:
        return round(self.chance.uniform(0.0, self.ends), 3)

    def _calls(self) -> int:
        return self.chance.choice((0, 0, 0, 1, 2, 3, 5, 8, 13))

    def _write(self) -> LogWrite:
        chance = self.chance
        count = chance.choice((1, 1, 2, 5, 30))
        if chance.random() < 0.5:
            self.last = self._moment(), chance.randrange(PROGRAMS)
        else:  # the same program writes on
            at, program = self.last
            self.last = min(round(at + chance.uniform(0.0, 2.0), 3), self.ends), program
        return LogWrite(
            *self.last,
            tuple(Line(self._event(), chance.choice(KINDS)) for _ in range(count)),
            chance.choice((1.0, 1.0, 1.0, 0.1, 0.9)),
            self._calls(),
        )

    def _event(self) -> Event:
        """One with a time, if it has any, as mappings write it."""
        event = self.event()
        return replace(event, time=TIME if event.time and self.timed else None)
