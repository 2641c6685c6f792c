"""Nothing that comes from a source other than an application leaves a cycle of references: lines of
logs, records of an import, dead letters that are replayed (`test_no_cycles.py`: requests).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pytest

from forwarder.core.event import Batch
from forwarder.core.outcome import Reply
from forwarder.delivery.batching import BatchPolicy
from forwarder.intake.intake import Intake
from forwarder.intake.source_intake import SourceIntake
from forwarder.sources.files.record_blocks import ReadOptions
from forwarder.sources.logs.stdin import StdinSource
from tests.daemon.imports import BUSY, Answer, ScriptedSink, Setting, line, write
from tests.daemon.imports import OK as TAKEN
from tests.deadletter.rig import query
from tests.support.cases import cases
from tests.support.garbage import PADDING, memory_traced, no_garbage
from tests.support.listening import post
from tests.support.upstream import OK, Request, Upstream, plain
from tests.support.upstream import Answer as Said
from tests.support.waiting import FastClock, eventually, in_thread
from tests.support.whole import KEY, Whole, batch, event

ROUNDS: Final = 3
"""How often lines come, after one that warms up: a block of them may stay, as the last one."""
FILLING: Final = 1_500_000
"""Bytes of lines that find no room."""
TRIES: Final = 12
"""How often what finds no room is tried again."""


@dataclass(frozen=True)
class Lines:
    """What becomes of lines, and how the daemon is brought to it."""

    members: Mapping[str, Any] = field(default_factory=dict)
    """Of each line; `p`, half a body, is one of them by itself."""
    source: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    answer: Said = OK
    """What the upstream says until lines have been refused by the buffer for some time."""
    result: str = "taken"
    letters: bool = False
    """Whether they become dead letters."""
    decoded: bool = False
    """Whether the decoder process reads them."""


SMALL: Final = {"max_bytes": "1MiB"}
HURRIED: Final = {"max_in_flight": "20MB"}
"""More than the buffer may hold."""
MAPPING: Final = {"event": ".e", "distinct_id": ".u", "properties": "{p}"}
LARGE: Final = {"p": PADDING * 2 + "," * 40_000}
"""Rules with a condition take long for it, by their estimate: the decoder process applies them."""


def dropping(condition: str) -> dict[str, Any]:
    """Rules that drop what a condition holds for."""
    return {"rules": [{"match": {"event": "*", "where": condition}, "drop": True}]}


LINES: Final = {
    "accepted": Lines(),
    "accepted on disk": Lines(source={"commit": "disk"}, sections={"buffer": {"kind": "disk"}}),
    "filtered": Lines(source={"mapping": {**MAPPING, "where": '.e == "other"'}}, result="filtered"),
    "unmatched": Lines(
        source={"format": "regex", "pattern": "^(?P<e>x)(?P<u>y)$"}, result="unmatched"
    ),
    "not mapped": Lines({"e": None}, result="refused", letters=True),
    "too large": Lines({"p": PADDING * 36}, letters=True, decoded=True),
    "overlong": Lines(source={"max_line": "20kB"}, result="overlong", letters=True),
    "dropped by rule": Lines(sections=dropping("true")),
    "rule that fails": Lines(sections=dropping(".properties.p | tonumber")),
    "decoded": Lines(LARGE, sections=dropping(".properties.p == 1"), decoded=True),
    "decoded and dropped": Lines(LARGE, sections=dropping(".properties.p != 1"), decoded=True),
    "buffer full": Lines(source=HURRIED, sections={"buffer": SMALL}, answer=plain(503)),
    "buffer full, decoded": Lines(
        LARGE,
        HURRIED,
        sections={"buffer": SMALL, **dropping(".properties.p == 1")},
        answer=plain(503),
        decoded=True,
    ),
}


@asynccontextmanager
async def following(
    outcome: Lines, upstream: Upstream, folder: Path, *, stdin: bool
) -> AsyncIterator[tuple[Whole, Callable[[bytes], None]]]:
    """A daemon that reads lines, and what writes them."""
    path = folder / "app.log"
    path.touch()
    source: dict[str, Any] = {
        "api_key": KEY,
        "mapping": MAPPING,
        "max_line": "4MB",
        **({"stdin": True} if stdin else {"path": [str(path)]}),
        **outcome.source,
    }
    sections = {
        "dead_letters": {"path": str(folder / "letters"), "max_bytes": "200MB"},
        **outcome.sections,
        "sources": {"logs": [source], "http": {"listen": "127.0.0.1:0"}},
    }
    with ExitStack() as stack:
        reader, writer = os.pipe()
        stack.callback(os.close, reader)
        stack.callback(os.close, writer)
        stack.enter_context(
            patch("forwarder.daemon.logs.StdinSource", partial(StdinSource, descriptor=reader))
        )

        def write_lines(data: bytes) -> None:
            if stdin:
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
            else:
                with path.open("ab") as file:
                    file.write(data)

        async with Whole(upstream.url, **sections) as whole:
            yield whole, write_lines


USUAL: Final = ("accepted", "not mapped", "rule that fails", "decoded and dropped", "buffer full")
"""Of the outcomes, for `make test`."""


@cases("stdin", [False, True], ids=["file", "stdin"])
@pytest.mark.parametrize(
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in LINES],
)
async def test_a_line_leaves_nothing_to_the_garbage_collector(
    name: str, stdin: bool, tmp_path: Path
) -> None:
    """Whatever becomes of it, also after it has found no room again and again."""
    outcome = LINES[name]
    if stdin and outcome.source.get("commit"):
        return
    members = {"e": "seen", "u": "ann", "p": PADDING * 2, **outcome.members}
    text = json.dumps(members).encode() + b"\n"
    full = outcome.answer is not OK and not outcome.letters
    count = FILLING // len(text) if full else 4
    total = 0
    with memory_traced():
        async with (
            Upstream(keeps=False) as upstream,
            following(outcome, upstream, tmp_path, stdin=stdin) as (whole, write_lines),
        ):
            logs = whole.pipeline._parts.logs
            assert logs is not None

            def is_settled() -> bool:
                [state] = logs.observe()[0]
                return state.lines[outcome.result] == total and not state.lag

            async def round_of_lines() -> None:
                nonlocal total
                total += count
                upstream.answer = lambda _: outcome.answer
                with counted(SourceIntake) as tries:
                    writing = asyncio.create_task(in_thread(partial(write_lines, text * count)))
                    await eventually(lambda: not full or tries() > TRIES + count, explain=tries)
                if full:
                    upstream.answer = lambda _: OK
                await writing
                await eventually(is_settled, explain=logs.observe)
                await whole.emptied()
                await committed(whole)

            await round_of_lines()
            with no_garbage(f"{name}, stdin {stdin}", len(text) * count):
                for _ in range(ROUNDS):
                    await round_of_lines()
            assert bool(await whole.letters()) == outcome.letters
            assert bool(whole.pipeline._parts.decoder.starts) == outcome.decoded


class counted(ExitStack):  # noqa: N801 - reads as a call
    """Counts what an intake is asked to accept, in a block."""

    def __init__(self, intake: type[SourceIntake | Intake]) -> None:
        super().__init__()
        self._intake = intake
        self._calls = 0

    def __enter__(self) -> Any:
        super().__enter__()
        accept = self._intake.accept

        def accept_and_count(*given: Any) -> Any:
            self._calls += 1
            return accept(*given)

        self.enter_context(patch.object(self._intake, "accept", accept_and_count))
        return lambda: self._calls


async def committed(whole: Whole) -> None:
    """Wait until what was settled is written."""
    for destination in whole.pipeline._parts.destinations:
        await destination.stores.committer.settle()


class Forgetful(ScriptedSink):
    """A service that keeps nothing of what it was sent."""

    async def send(self, batch: Batch) -> Reply:
        reply = await super().send(batch)
        self.sent.clear()
        self.taken.clear()
        self.requests += 1
        return reply

    requests = 0


@dataclass(frozen=True)
class Records:
    """What becomes of records of an import."""

    answer: Answer = lambda _: TAKEN
    properties: Mapping[str, Any] = field(default_factory=dict)
    name: Callable[[int], str] = lambda _: "seen"
    disk_is_full: bool = False
    """Whether no dead letter can be written for some time, again and again."""


def _busy_often() -> Answer:
    turn = 0

    def say(batch: Batch) -> Reply:
        nonlocal turn
        turn += 1
        return BUSY if turn % 3 else TAKEN

    return say


IMPORTED: Final = {
    "accepted": Records(),
    "buffer full": Records(_busy_often()),
    "refused": Records(name=lambda number: "" if number % 3 else "seen"),
    "letters can't be written": Records(
        name=lambda number: "" if number % 3 else "seen", disk_is_full=True
    ),
}
RECORDS: Final = 150


@pytest.mark.parametrize("name", IMPORTED)
async def test_a_record_of_an_import_leaves_nothing_to_the_garbage_collector(
    name: str, tmp_path: Path
) -> None:
    """From the first block on to the last one; what is made of them fills the buffer again and
    again.
    """
    outcome = IMPORTED[name]
    path = write(
        tmp_path / "a.jsonl",
        [line(number, name=outcome.name(number), p=PADDING * 2) for number in range(RECORDS)],
    )
    service = Forgetful(outcome.answer)
    setting = Setting(
        [path],
        tmp_path / "state",
        service=service,
        reading=ReadOptions(block_bytes=200_000),
        batches=BatchPolicy(200_000, 3, 1.0, by_day=True),
    )
    begun = ended = False
    with memory_traced(), ExitStack() as stack:

        async def during(run: Setting) -> None:
            nonlocal begun, ended
            done = run.pipeline.ledger.books.read
            if not begun and done >= RECORDS // 6:
                begun = True
                # blocks, batches and letters under way are more or less by now; what would stay is
                # 6 MB at least
                stack.enter_context(no_garbage(name, largest=1_500_000))
            if begun and not ended and done >= RECORDS * 2 // 3:
                ended = True
                stack.close()
            if outcome.disk_is_full:
                (run.make_room if len(run.reported) % 4 else run.fill_disk)()

        await setting.run(during)
        assert ended


REPLAYED: Final = ("refused again", "no room", "edited badly")


@pytest.mark.parametrize("name", REPLAYED)
async def test_a_replayed_letter_leaves_nothing_to_the_garbage_collector(
    name: str, tmp_path: Path
) -> None:
    """Whether it is delivered in the end or becomes a dead letter again, and however often it is
    tried.
    """
    sections: dict[str, Any] = {"dead_letters": {"path": str(tmp_path)}, "buffer": SMALL}
    clock = FastClock(100)  # a lane that is refused a few times in a row pauses for minutes
    with memory_traced():
        async with (
            Upstream(keeps=False) as upstream,
            Whole(upstream.url, clock, **sections) as whole,
        ):
            [replayer] = whole.pipeline._parts.replayers
            path = whole.pipeline._parts.destinations[0].stores.dead_letters.statistics().path
            assert path is not None
            where = path.parent

            def handled() -> int:
                statistics = replayer.statistics()
                return statistics.replayed + statistics.refused

            async def round_of_letters() -> None:
                before = handled()
                [(last,)] = query(where, "SELECT coalesce(max(number), 0) FROM letters")
                upstream.answer = refusing(range(LETTERS))
                for number in range(LETTERS):
                    await whole.take([letter_event(f"bad{number}"), letter_event(f"good{number}")])
                    await whole.emptied()
                await committed(whole)
                upstream.answer = refusing([1, 3, 5] if name == "refused again" else [])
                if name == "no room":
                    upstream.answer = lambda _: plain(503)
                    while (await whole.send(post("/batch/", filling()))).status == 200:
                        pass
                with counted(Intake) as tries:
                    edit = (
                        ""
                        if name != "edited badly"
                        else ", replacement = CAST('[' || data AS BLOB)"
                    )
                    query(where, f"UPDATE letters SET mark = 'replay'{edit} WHERE number > {last}")
                    await eventually(lambda: name != "no room" or tries() > TRIES)
                if name == "no room":
                    upstream.answer = lambda _: OK
                await eventually(
                    lambda: handled() == before + LETTERS,
                    explain=lambda: (
                        replayer.statistics(),
                        query(where, "SELECT number, mark, note, reason FROM letters"),
                    ),
                )
                await whole.emptied()
                await committed(whole)

            await round_of_letters()
            with no_garbage(name):
                for _ in range(2):
                    await round_of_letters()


LETTERS: Final = 10


def refusing(numbers: Iterable[int]) -> Callable[[Request], Said]:
    """An upstream that refuses what holds one of these."""
    names = [b'"bad%d"' % number for number in numbers]

    def answer(request: Request) -> Said:
        body = request.body
        return plain(400) if any(name in body for name in names) else OK

    return answer


def letter_event(name: str) -> bytes:
    """An event with a body's size."""
    return event(name, properties=b'{"p":"%b"}' % (PADDING * 2).encode())


def filling() -> bytes:
    """A body of some events."""
    return batch([event("filling", properties=b'{"p":"%b"}' % (PADDING * 2).encode())])
