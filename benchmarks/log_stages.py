"""What a log source does with each line, in one process and without a network: split, parse, map,
complete with uuid and time.

Beside it what anyone would write in an afternoon: read a line, decode it, build the event, encode
it. That has no offsets, no uuid, no limit of a line's length, and no other form of a line than the
usual one.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.cases import matching
from benchmarks.report import measured
from benchmarks.throughput import Figure, measure_here
from forwarder.mapping import Mapping, MappingRules, TimestampRule
from forwarder.sources.hand_over import Watermark
from forwarder.sources.logs.batches import cut
from forwarder.sources.logs.followed import Block, FollowedFile
from forwarder.sources.logs.formats import line_format
from forwarder.sources.logs.policy import LogPolicy
from forwarder.sources.logs.splitting import Splitter

LINES: Final = 200_000
DIFFERENT: Final = 20_000
"""Lines are repeated after so many."""
BLOCK: Final = 1 << 18
MAX_LINE: Final = 1_000_000
BEGIN: Final = datetime(2026, 1, 31, tzinfo=UTC)


class LogKind(StrEnum):
    """The lines of a log."""

    JSON = "json"
    """An application's, of about 300 bytes."""
    ACCESS = "access"
    """A web server's, of the combined format."""


class LogFloor(StrEnum):
    """What a case is compared with."""

    MSGSPEC = "msgspec loop"
    JSON = "json loop"
    REGEX = "regex loop"
    """Whose times are parsed once for each second."""
    STRPTIME = "strptime loop"
    """A regular expression, and strptime for each line."""


@dataclass(frozen=True, slots=True)
class LogStages:
    """One measurement."""

    kind: LogKind
    floor: LogFloor
    share: float | None
    """Of the floor that is to be reached; None: only told."""

    @property
    def name(self) -> str:
        """For people, and for `--case`."""
        return f"log-{self.kind}-stages-{self.floor.partition(' ')[0]}"


CASES: Final = (
    LogStages(LogKind.JSON, LogFloor.MSGSPEC, share=0.4),
    LogStages(LogKind.JSON, LogFloor.JSON, share=None),
    LogStages(LogKind.ACCESS, LogFloor.REGEX, share=0.5),
    LogStages(LogKind.ACCESS, LogFloor.STRPTIME, share=None),
)


def select(patterns: list[str]) -> list[LogStages]:
    """The cases whose names match any of `patterns`; all if none are given."""
    return matching(CASES, patterns)


@dataclass(frozen=True, slots=True)
class LogReading:
    """How to measure: on which core, and the files, one of each kind."""

    core: int
    files: dict[LogKind, Path]

    def floor(self, kind: LogKind, floor: LogFloor, figure: Figure) -> None:
        """Measure a floor once more, into `figure`."""
        measure_here(self.core, partial(_FLOORS[floor], self.files[kind]), figure)

    def case(self, case: LogStages, figure: Figure) -> None:
        """Measure a case once more, into `figure`."""
        measure_here(self.core, partial(read_once, case.kind, self.files[case.kind]), figure)


@contextmanager
def log_files(kinds: Iterable[LogKind], count: int = LINES) -> Iterator[dict[LogKind, Path]]:
    """A file of each kind; they are gone after the block."""
    with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder:
        files: dict[LogKind, Path] = {}
        for kind in dict.fromkeys(kinds):
            files[kind] = Path(folder) / f"{kind}.log"
            lines = [*_MAKERS[kind](min(count, DIFFERENT))]
            with files[kind].open("wb") as file:
                file.writelines(lines[number % len(lines)] for number in range(count))
        yield files


def log_row(case: LogStages, figure: Figure, floor: Figure) -> dict[str, Any]:
    """One case's line."""
    return measured(case.name, figure, str(case.floor), floor, case.share)


_RULES: Final = {
    LogKind.JSON: MappingRules(
        event=".event", distinct_id=".user", timestamp=TimestampRule(".time")
    ),
    LogKind.ACCESS: MappingRules(event='"$pageview"', distinct_id=".remote_addr"),
}


def read_once(kind: LogKind, path: Path) -> int:
    """Read a file as a source does, and hand nothing over; how many events there were."""
    return sum(len(events) for events in events_of(kind, path))


def events_of(kind: LogKind, path: Path) -> Iterator[Sequence[bytes]]:
    """The events of a file, a batch at a time."""
    form = line_format(
        "combined" if kind is LogKind.ACCESS else "json", None, None, None, "sources.logs[0]"
    )
    mapping = Mapping.compile(_RULES[kind], "benchmark")
    policy = LogPolicy(
        name="benchmark",
        split=lambda offset: Splitter(offset, MAX_LINE),
        line_format=form,
        mapping=mapping,
        host="host",
    )
    splitter = policy.split(0)
    followed = FollowedFile((0, 0), str(path), identity="0" * 32)
    mark = Watermark(0)
    now = BEGIN.timestamp()
    with path.open("rb", buffering=0) as file:
        while data := file.read(BLOCK):
            records = splitter.feed(data, 0.0)
            first = mark.read
            size = records.end - mark.read
            span = mark.open(first, records.end, records.lines)
            for batch in cut(
                policy,
                Block(followed, followed.identity, 0, first, records, now, now, span, mark, size),
            ):
                yield batch.values


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_LINE: Final = re.compile(
    r'(?P<remote_addr>\S+) \S+ (?:-|(?P<remote_user>\S+)) \[(?P<time>[^\]]+)\] "(?P<method>\S+) '
    r"(?P<path>[^ ?]+)(?:\?(?P<query>\S*))? "
    r'(?P<protocol>\S+)" (?P<status>\d+) (?P<bytes>\d+) "(?:-|(?P<referrer>[^"]*))" '
    r'"(?:-|(?P<user_agent>[^"]*))"'
)
_TIME: Final = "%d/%b/%Y:%H:%M:%S %z"


def json_events(path: Path, decode: Callable[[bytes], Any]) -> Iterator[dict[str, Any]]:
    """The events of JSON lines."""
    with path.open("rb") as file:
        for line in file:
            record = decode(line)
            yield {
                "event": record["event"],
                "distinct_id": record["user"],
                "timestamp": record["time"],
                "properties": record,
            }


def access_events(path: Path, parse_time: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    """The events of a combined log."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            match = _LINE.match(line)
            if match is None:
                continue
            record: dict[str, Any] = {
                name: value for name, value in match.groupdict().items() if value is not None
            }
            record["status"] = int(record["status"])
            record["bytes"] = int(record["bytes"])
            record["time"] = when = parse_time(record["time"])
            yield {
                "event": "$pageview",
                "distinct_id": record["remote_addr"],
                "timestamp": when,
                "properties": record,
            }


def _by_strptime(text: str) -> str:
    return (
        datetime.strptime(text, _TIME)
        .astimezone(UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


class _RememberedTimes(dict[str, str]):
    """Times by their texts."""

    def __missing__(self, text: str) -> str:
        self[text] = parsed = _by_strptime(text)
        return parsed


def _encoded(events: Iterator[dict[str, Any]], encode: Callable[[Any], Any]) -> int:
    count = 0
    for event in events:
        encode(event)
        count += 1
    return count


def _stdlib_json(event: Any) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


_FLOORS: Final[dict[LogFloor, Callable[[Path], int]]] = {
    LogFloor.MSGSPEC: lambda path: _encoded(json_events(path, _decode), _encode),
    LogFloor.JSON: lambda path: _encoded(json_events(path, json.loads), _stdlib_json),
    LogFloor.REGEX: lambda path: _encoded(
        access_events(path, _RememberedTimes().__getitem__), _encode
    ),
    LogFloor.STRPTIME: lambda path: _encoded(access_events(path, _by_strptime), _encode),
}

_AGENTS: Final = (
    (
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 "
        "Safari/537.36"
    ),
    (
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_2 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
        "Gecko) Mobile/15E148 Safari/604.1"
    ),
    "curl/8.4.0",
)


def _json_lines(count: int) -> Iterator[bytes]:
    choice = random.Random(18)
    for number in range(count):
        when = BEGIN + timedelta(milliseconds=37 * number)
        record = {
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": choice.choice(("info", "info", "info", "warning")),
            "event": choice.choice(("order placed", "cart opened", "search")),
            "user": f"user-{choice.randrange(5000)}",
            "message": "the request was answered",
            "duration": choice.randrange(10_000) / 10,
            "status": choice.choice((200, 200, 404)),
            "labels": {
                "service": "shop",
                "version": "7.2.0",
                "city": choice.choice(("Köln", "Berlin", "Paris")),
            },
            "trace": f"{choice.getrandbits(128):032x}",
        }
        yield json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _access_lines(count: int) -> Iterator[bytes]:
    choice = random.Random(18)
    for number in range(count):
        when = BEGIN + timedelta(milliseconds=20 * number)
        address = (
            f"203.0.{choice.randrange(100)}.{choice.randrange(256)}"
            if choice.random() < 0.7
            else f"2001:db8::{choice.getrandbits(16):x}"
        )
        target = choice.choice(
            ("/", "/tea/green", "/checkout?step=2&basket=81", "/search?q=green+tea&page=3")
        )
        referrer = choice.choice(
            ("-", "https://www.example.com/start.html", "https://search.example.org/?q=tea")
        )
        line = (
            f"{address} - - [{when:%d/%b/%Y:%H:%M:%S %z}] "
            f'"{choice.choice(("GET", "GET", "POST"))} {target} HTTP/1.1" '
            f'{choice.choice((200, 200, 304, 404))} {choice.randrange(90_000)} "{referrer}" '
            f'"{choice.choice(_AGENTS)}"\n'
        )
        yield line.encode()


_MAKERS: Final[dict[LogKind, Callable[[int], Iterator[bytes]]]] = {
    LogKind.JSON: _json_lines,
    LogKind.ACCESS: _access_lines,
}
