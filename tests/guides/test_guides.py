"""The guides name only what exists: tests, files, headings, metrics, settings, commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from forwarder.cli.app import COMMANDS
from forwarder.config.keys import keys
from tests.support.cases import cases
from tests.support.documents import DOCS, GUIDES, proofs, sections, shown_in, spans, text_of
from tests.support.repository import ROOT

METRICS = set(re.findall(r"^\| `(forwarder_\w+)`", text_of("metrics"), re.MULTILINE))
PARTS = ("- **Sender:** ", "- **Events:** ", "- **You see:** ", "- **Do:** ")
SITUATIONS = "what-happens-when"
SHOWN_BY = tomllib.loads((Path(__file__).parent / "situations.toml").read_text("utf-8"))
"""The tests of each situation by its heading, and of rows of the imports' troubleshooting."""
PROTECTED_BY = tomllib.loads((Path(__file__).parent / "hostile_senders.toml").read_text("utf-8"))
"""The tests of each thing that a hostile sender can try."""


@cases("file", sorted(DOCS.rglob("*.md")), ids=lambda file: file.stem)
def test_the_tests_that_a_document_names_exist(file: Path) -> None:
    """A claim that names its proof has one."""
    assert [proof for proof in proofs(text_of(file)) if proof[1] not in shown_in(proof[0])] == []


@cases("file", [file for file in GUIDES if file.stem != "testing"], ids=lambda file: file.stem)
def test_metrics_are_real(file: Path) -> None:
    """Each metric is one of docs/reference/metrics.md, which is compared with the code. In
    docs/how-to/testing.md these are fixtures.
    """
    assert set(re.findall(r"`(forwarder_[a-z_]+)", text_of(file))) <= METRICS


@cases("file", GUIDES, ids=lambda file: file.stem)
def test_settings_are_real(file: Path) -> None:
    """Each key is one, or the beginning of one."""
    known = {key.name for key in keys().values()}
    known |= {name.rpartition(".")[0] for name in known}
    named = {
        match[0]
        for span in spans(text_of(file))
        if (match := re.match(r"[a-z_]+(?:\.[a-z_]+)+(?=$|: )", span))
    }
    tops = {name.partition(".")[0] for name in known}
    assert {name for name in named if name.partition(".")[0] in tops} <= known


@cases("file", GUIDES, ids=lambda file: file.stem)
def test_commands_are_real(file: Path) -> None:
    """Each `forwarder …` and `make …` can be typed."""
    assert set(re.findall(r"`forwarder ([a-z][a-z-]+)", text_of(file))) <= set(COMMANDS)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z-]+)", text_of(file))) <= set(targets)


def situations() -> dict[str, str]:
    """What the page says below each heading but that of its index."""
    return {
        title: text for title, text in sections(text_of(SITUATIONS)).items() if title != "Symptoms"
    }


@cases(("title", "text"), situations().items())
def test_each_situation_is_complete(title: str, text: str) -> None:
    """What the sender sees, what becomes of the events, what a person sees, what to do; and at
    least one test shows it.
    """
    assert [part for part in PARTS if text.count(part) != 1] == []
    assert SHOWN_BY["situations"][title]


def test_the_tests_of_situations_exist() -> None:
    """Each is one, and of a situation or a row that its page has."""
    assert set(SHOWN_BY["situations"]) == set(situations())
    rows = sections(text_of("imports"))["Troubleshooting"]
    assert [row for row in SHOWN_BY["troubleshooting"] if f"\n| {row} |" not in rows] == []
    named = [
        shown.split("::")
        for shown_by in SHOWN_BY.values()
        for tests in shown_by.values()
        for shown in tests
    ]
    assert [[file, test] for file, test in named if test not in shown_in(file)] == []


def test_every_situation_is_in_the_index_of_symptoms() -> None:
    """Who sees a symptom finds the situation."""
    page = DOCS / "explanation" / f"{SITUATIONS}.md"
    index = sections(text_of(page))["Symptoms"]
    linked = set(re.findall(r"\(#([\w-]+)\)", index))
    headings = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in situations()}
    assert headings - linked == set()


def test_security_is_shown_by_tests() -> None:
    """Each thing that a hostile sender can try has tests that show the protection, but what nothing
    prevents.
    """
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", text_of("hostile-senders"), re.MULTILINE)
    assert set(rows) - set(PROTECTED_BY) == {"attempt", "forged events"}
    named = [shown.split("::") for tests in PROTECTED_BY.values() for shown in tests]
    assert [[file, test] for file, test in named if test not in shown_in(file)] == []
