"""Rules in an import: what is dropped is left out, what can't be protected is refused, and other
rules don't resume it.
"""

import json
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.core.clock import SystemClock
from forwarder.core.ports import Reason
from forwarder.daemon.imports import ImportRun
from forwarder.deadletter.schema import open_readable
from forwarder.deadletter.selection import DeadLetterFilter, summaries
from forwarder.sources.imports.format import ChosenFormat
from forwarder.sources.imports.formats.native import NativeConverter
from forwarder.sources.imports.job import ImportRequest, OtherJob
from forwarder.sources.imports.report import ImportManifest
from forwarder.storage.directory import DEAD_LETTERS
from tests.daemon.imports import line, uuid_of, write
from tests.support.upstream import Upstream

KEY = "phc_imports12345678"
NATIVE = ChosenFormat("native", {}, lambda _: NativeConverter("oldest"), ("timestamp",))
RULES = (
    {
        "name": "noise",
        "match": {"event": "noise*", "source": "import", "api_key": KEY},
        "drop": True,
    },
    {"name": "secrets", "remove": ".properties.password"},
    {"name": "names", "rename_event": {"seen": "was seen"}},
)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A service that accepts everything."""
    async with Upstream() as server:
        yield server


def request(upstream: Upstream, folder: Path, *rules: Any, **more: Any) -> ImportRequest:
    """The import of a file with thirty events, of which each third is noise."""
    lines = [
        line(number, name="noise" if number % 3 == 0 else "seen", password="x", n=number)
        for number in range(30)
    ]
    path = write(folder / "events.jsonl", lines)
    settings = Settings.parse(
        {"upstream": {"url": upstream.url}, "batch": {"max_events": 5}, "rules": list(rules)}
    )
    return ImportRequest(
        NATIVE,
        (str(path),),
        settings,
        KEY,
        folder / "state",
        rate=None,
        state_root=folder / "imports",
        **more,
    )


async def run(wanted: ImportRequest, *, stop: bool = False) -> ImportManifest:
    """A run, to its end or until it is stopped at once."""
    it = ImportRun(wanted, SystemClock())
    try:
        return await it.run(lambda _: it.stop() if stop else None)
    finally:
        it.close()


async def test_dropped_records_are_left_out_and_others_changed(
    tmp_path: Path, upstream: Upstream
) -> None:
    """The report names the rule; uuids are the records' own."""
    manifest = await run(request(upstream, tmp_path, *RULES))
    assert manifest.complete
    assert (manifest.books.read, manifest.books.delivered, manifest.books.left_out) == (
        30,
        20,
        {"rule:noise": 10},
    )
    events = [event for received in upstream.requests for event in received.events]
    assert sorted(event["uuid"] for event in events) == sorted(
        uuid_of(number) for number in range(30) if number % 3
    )
    assert {event["event"] for event in events} == {"was seen"}
    assert all(
        "password" not in event["properties"] and "n" in event["properties"] for event in events
    )
    assert manifest.books.difference == 0


async def test_an_event_that_can_not_be_protected_is_refused(
    tmp_path: Path, upstream: Upstream
) -> None:
    """It is a dead letter, as it is in the source."""
    strict = {
        "name": "strict",
        "match": {"where": '.properties.n | if . == 7 then error("no") else . end'},
        "remove": ".properties.n",
    }
    manifest = await run(request(upstream, tmp_path, strict))
    assert manifest.books.refused == {"rule_failed": 1}
    assert manifest.books.delivered == 29
    events = [event for received in upstream.requests for event in received.events]
    assert uuid_of(7) not in {event["uuid"] for event in events}
    with closing(open_readable(tmp_path / "state" / DEAD_LETTERS)) as connection:
        (letter,) = summaries(connection, DeadLetterFilter())
    assert (letter.reason, letter.coordinates.rpartition(":")[2]) == (Reason.RULE_FAILED, "8")


async def test_other_rules_do_not_resume_it(tmp_path: Path, upstream: Upstream) -> None:
    """Part of it was sent by the others; with the same ones, it resumes."""
    wanted = request(upstream, tmp_path, *RULES)
    await run(wanted, stop=True)
    others = replace(wanted, settings=replace(wanted.settings, rules=wanted.settings.rules[1:]))
    with pytest.raises(OtherJob, match="its `rules:`, or a salt of theirs, were others"):
        ImportRun(others, SystemClock())
    with pytest.raises(OtherJob, match="rules"):
        ImportRun(replace(wanted, settings=replace(wanted.settings, rules=())), SystemClock())
    assert (await run(wanted)).complete
    uuids = [event["uuid"] for received in upstream.requests for event in received.events]
    assert set(uuids) == {uuid_of(number) for number in range(30) if number % 3}


async def test_a_sorted_import_has_the_same_rules(tmp_path: Path, upstream: Upstream) -> None:
    """They are applied before sorting."""
    manifest = await run(request(upstream, tmp_path, *RULES, sort=True))
    assert (manifest.books.delivered, manifest.books.left_out) == (20, {"rule:noise": 10})


async def test_through_a_daemon_only_its_rules_hold(tmp_path: Path, upstream: Upstream) -> None:
    """Otherwise a hash would be hashed."""
    wanted = request(upstream, tmp_path, *RULES)
    manifest = await run(replace(wanted, via=upstream.url))
    assert manifest.books.delivered == 30
    assert json.loads(json.dumps(manifest.job.options)).keys().isdisjoint({"rules"})
