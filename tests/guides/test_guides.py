"""The guides name only what exists: tests, files, headings, metrics, settings, commands."""

from __future__ import annotations

import re
from pathlib import Path

from forwarder.cli.app import COMMANDS
from forwarder.config.keys import keys
from tests.support.cases import cases
from tests.support.documents import DOCS, GUIDES, proofs, sections, shown_in, spans, text_of
from tests.support.repository import ROOT

METRICS = set(re.findall(r"^\| `(forwarder_\w+)`", text_of("metrics"), re.MULTILINE))
PARTS = ("- **Sender:** ", "- **Events:** ", "- **You see:** ", "- **Do:** ", "Shown by `tests/")


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


@cases(
    ("title", "text"),
    sections(text_of("what-happens-when", "what-happens-here", "what-happens-sources")).items(),
)
def test_each_situation_is_described_completely(title: str, text: str) -> None:
    """What the sender sees, what becomes of the events, what a person sees, what to do, and at
    least one test that shows it.
    """
    assert [part for part in PARTS if text.count(part) != 1] == []
    assert proofs(text)


def test_security_is_shown_by_tests() -> None:
    """Each thing that a hostile sender can try names the test that holds it off,
    but what nothing prevents.
    """
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", text_of("hostile-senders"), re.MULTILINE)
    assert {attempt for attempt, answer in rows if not proofs(answer)} == {
        "attempt",
        "forged events",
    }
