"""The table runs, is whole, and quotes what the documents say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final, get_args

import pytest

from forwarder.cli.app import COMMANDS
from forwarder.config.rule_settings import MatchSettings, RuleSettings, SourceKind
from forwarder.config.settings import DestinationSettings, Settings
from forwarder.config.source_settings import HttpSettings, LogSourceSettings, SourcesSettings
from forwarder.sources.http.protocol.routes import Routes
from forwarder.testing.sandbox import AnalyticsSandbox
from tests.promises.entrances import ENTRANCES
from tests.promises.guards import verdicts
from tests.promises.promises import PROMISES, PromiseRow, Topic, rules_of
from tests.promises.removals import GUARDS, Guard
from tests.promises.seen import WorldEvidence
from tests.promises.table import (
    Cell,
    CellState,
    as_text,
    cells_of,
    judge,
    running_services,
    worlds,
)
from tests.support.cases import cases
from tests.support.repository import ROOT

QUICK: Final = ("daemon", "stdin", "import")
"""Worlds that run with all other tests; `make promises` has the others as well."""
PROMISED: Final = (
    *("README.md", "docs/how-to/security.md", "docs/how-to/rules.md"),
    *("docs/how-to/destinations.md", "docs/how-to/dead-letters.md", "docs/how-to/operations.md"),
    "docs/explanation/what-happens-when.md",
)
"""The documents whose promises are rows."""
BRINGS_NO_EVENTS: Final = frozenset(
    {"status", "health", "audit", "explain", "top", "tap", "plan", "logs", "config", "mapping"}
    | {"rules", "manage", "help"}
)
"""Commands that only show, check or administrate."""
RUNS_OTHERS: Final = frozenset({"run", "generate", "demo", "drill", "sandbox"})
"""Commands whose events, if any, come in as those of a column do."""


@pytest.fixture(scope="session")
def services() -> Iterator[Mapping[str, AnalyticsSandbox]]:
    """Both services, for all worlds that this process runs."""
    with running_services() as sandboxes:
        yield sandboxes


def held(cells: list[Cell]) -> None:
    """Raise `AssertionError` with all cells that are broken."""
    broken = [cell for cell in cells if cell.state is CellState.BROKEN]
    assert not broken, f"{len(broken)} of {len(cells)} cells are broken\n{as_text(cells)}"


@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.parametrize("world", QUICK)
async def test_every_promise_holds_at_every_entrance(
    world: str, services: Mapping[str, AnalyticsSandbox], tmp_path: Path
) -> None:
    """Each promise at each entrance of a world: a cell that is broken hides no other."""
    held(await cells_of(worlds()[world], tmp_path, services))


def words(text: str) -> str:
    """A text without its line breaks and indents."""
    return " ".join(text.split())


@cases("promise", PROMISES, ids=lambda promise: promise.name)
def test_documents_say_what_is_promised(promise: PromiseRow) -> None:
    """Each row quotes its documents word by word: who changes a sentence looks at its row."""
    for document, quote in promise.quotes.items():
        assert document in PROMISED
        assert words(quote) in words((ROOT / document).read_text("utf-8")), (document, quote)


def test_every_document_has_rows() -> None:
    """None of the documents that promise something is left out."""
    assert {document for promise in PROMISES for document in promise.quotes} == set(PROMISED)


def test_every_topic_is_decided_at_every_entrance() -> None:
    """Of each of the twelve topics a promise is tested at every entrance, or none of them can
    apply there; nothing else may be left untested.
    """
    missing = []
    for entrance in ENTRANCES:
        for topic in set(Topic) - {Topic.MORE}:
            rows = [promise for promise in PROMISES if promise.topic is topic]
            assert rows, topic
            tested = [row for row in rows if not entrance().why_not(row)]
            applicable = [row for row in rows if row.name not in entrance.inapplicable]
            if applicable and not tested:
                missing.append((entrance.name, topic.value))
    assert missing == []


def test_reasons_are_of_rows_and_columns_that_exist() -> None:
    """No exception outlives its promise."""
    names = {promise.name for promise in PROMISES}
    columns = {entrance.name for entrance in ENTRANCES}
    for entrance in ENTRANCES:
        assert {*entrance.inapplicable, *entrance.untested} <= names, entrance.name
        assert all((*entrance.inapplicable.values(), *entrance.untested.values()))
    assert len(names) == len(PROMISES)
    assert len(columns) == len(ENTRANCES)


def test_every_rule_action_and_condition_has_a_row() -> None:
    """Whatever a rule can do, and match, some row does."""
    rules = list(rules_of(PROMISES))
    keys = {field.name for field in fields(RuleSettings)}
    assert {key for rule in rules for key in rule} == keys
    conditions = {field.name for field in fields(MatchSettings)}
    assert {key for rule in rules for key in rule.get("match", {})} == conditions
    sources = {rule["match"]["source"] for rule in rules if "source" in rule.get("match", {})}
    assert sources == set(get_args(SourceKind))


def test_every_source_of_rules_has_a_column() -> None:
    """Whatever a rule can match as a source is an entrance."""
    assert {entrance.source for entrance in ENTRANCES} == set(get_args(SourceKind))


def test_every_way_in_has_a_column() -> None:
    """Sources, paths of the listener, destinations and commands of the program are what the
    columns cover, no more and no less.
    """
    covered = {way for entrance in ENTRANCES for way in entrance.covers}
    ways = {f"sources.{field.name}" for field in fields(SourcesSettings)}
    ways |= {
        f"sources.logs.{field.name}" for field in fields(LogSourceSettings) if field.name == "stdin"
    }
    ways |= {f"sources.http.{field.name}" for field in fields(HttpSettings) if field.name == "otlp"}
    ways |= {
        f"upstreams.{field.name}"
        for field in fields(DestinationSettings)
        if field.name == "archive"
    }
    ways |= {field.name for field in fields(Settings) if field.name in {"workers", "upstreams"}}
    ways |= {f"path {path.decode()}" for path in Routes(otlp=True).by_path}
    ways |= {f"command {name}" for name in set(COMMANDS) - BRINGS_NO_EVENTS - RUNS_OTHERS}
    assert covered == ways | {"import --via", "restart"}


def test_make_promises_prints_the_table() -> None:
    """The table has a line for each promise and its counts, and says why a cell isn't `ok`."""
    cells = [
        Cell(promise.name, entrance.name, CellState.OK)
        for promise in PROMISES
        for entrance in ENTRANCES
    ]
    cells[0] = Cell(cells[0].promise, cells[0].entrance, CellState.INAPPLICABLE, "as it is so")
    text = as_text(cells)
    assert re.search(rf"^{len(cells)} cells: {len(cells) - 1} ok, 1 don't apply", text, re.M)
    assert "as it is so" in text
    assert all(f"\n{promise.name} " in text for promise in PROMISES)
    assert "promises:" in (ROOT / "Makefile").read_text()


def test_guards_name_rows_and_columns_that_exist() -> None:
    """The campaign without guards is about rows and entrances of the table."""
    for guard in GUARDS.values():
        assert guard.rows <= {promise.name for promise in PROMISES}
        assert set(guard.spares) <= {entrance.name for entrance in ENTRANCES}


def test_a_guard_is_caught_by_its_own_rows() -> None:
    """A row about it is broken; that others are, or all because nothing works, is no proof."""
    guard = Guard(changes={}, rows=frozenset({"drop"}), spares={"v1": "it has none"})
    states = {"OTLP": ("ok", "ok"), "v1": ("BROKEN", "ok"), "send": ("BROKEN", "ok")}
    states |= {"Kafka": ("BROKEN", "BROKEN"), "stdin": ("-", "ok"), "drain": ("ok", "BROKEN")}
    cells = [
        Cell(promise, entrance, CellState(state))
        for entrance, pair in states.items()
        for promise, state in zip(("drop", "set"), pair, strict=True)
    ]
    expected = {"OTLP": "MISSED", "v1": "-", "send": "caught", "Kafka": "all", "stdin": "-"}
    assert verdicts(guard, cells) == {**expected, "drain": "MISSED"}


def test_what_fails_at_one_entrance_breaks_its_column_alone() -> None:
    """An error of one entrance is that of its cells, and of no other entrance's."""
    classic, v1, *_ = (make() for make in worlds()["daemon"])
    evidence = WorldEvidence(failures={"v1": AssertionError("it answers 503")})
    broken = judge(PROMISES[0], v1, evidence)
    assert (broken.state, "it answers 503" in broken.why) == (CellState.BROKEN, True)
    assert "503" not in judge(PROMISES[0], classic, evidence).why
