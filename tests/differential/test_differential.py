"""The harness finds no difference between a version and itself, and finds each that is planted."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.differential.campaign import ROOT, DifferentialOptions, DifferentialReport, run
from tests.differential.inputs import KINDS, LINES, RECORDS, REQUESTS
from tests.differential.mutants import mutants

MUTANTS: Final = 300


class Planted(NamedTuple):
    """A change of the product, and where it is seen."""

    file: str
    old: str
    new: str
    kinds: tuple[str, ...]
    section: str


PLANTED: Final = {
    "a rule skipped": Planted(
        "daemon/configured_rules.py",
        "compile_rules(settings,",
        "compile_rules(settings[1:],",
        (REQUESTS, RECORDS),
        "chunks",
    ),
    "another reason": Planted(
        "sources/kafka/batches.py",
        "Reason.UNMAPPABLE if isinstance(error, Unmappable) else Reason.UNDECODABLE",
        "Reason.INVALID_EVENT",
        (RECORDS,),
        "letters",
    ),
    "one too many": Planted(
        "telemetry/books.py",
        "self.accounts[lane].received[source] += count",
        "self.accounts[lane].received[source] += count + (count > 1)",
        (REQUESTS, LINES),
        "books",
    ),
    "another hint": Planted(
        "wire/identity.py",
        'raise NoKey("',
        'raise NoKey("now: ',
        (REQUESTS,),
        "answers",
    ),
}

USUAL: Final = ("another reason", "one too many")
"""Those of `make test`: between them all kinds of inputs, and two parts of the outcome."""


def compare(before: Path, kinds: tuple[str, ...] = KINDS) -> tuple[DifferentialReport, list[str]]:
    """Compare a version with this one; the differences that are described."""
    described: list[str] = []
    report = run(DifferentialOptions(before, ROOT, MUTANTS, 5, kinds), described.append)
    assert report.total == MUTANTS
    return report, described


def test_mutants_follow_from_their_seed() -> None:
    """The same seed gives the same mutants, another one others."""
    once, again, others = [list(islice(mutants(seed, 50), 50)) for seed in (1, 1, 2)]
    assert once == again
    assert once != others


@pytest.mark.slow
def test_a_version_does_not_differ_from_itself() -> None:
    """Nothing differs, requests and records are accepted and rejected, and nothing crashes."""
    report, described = compare(ROOT)
    assert described == []
    assert report.differences.total() == 0
    assert set(report.mutants) == set(KINDS)
    requests = report.outcomes[REQUESTS]
    assert {"200", "400 invalid_request", "401 no_key", "by the decoder process"} <= set(requests)
    assert {"accepted", "settled", "503 together_too_large"} <= set(report.outcomes[RECORDS])
    odd = ("crash", "never", "200200")
    labels = [label for outcomes in report.outcomes.values() for label in outcomes]
    assert [label for label in labels if label.startswith(odd)] == []
    assert "0 differences" in report.as_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in PLANTED],
)
def test_a_planted_change_is_found(name: str, tmp_path: Path) -> None:
    """It shows in the kinds of mutants and in the part of the outcome that it changes, and the
    mutant is shown.
    """
    planted = PLANTED[name]
    copy = tmp_path / "forwarder"
    shutil.copytree(ROOT / "forwarder", copy)  # with its compiled modules, which saves seconds
    changed = copy / planted.file
    text = changed.read_text()
    assert text.count(planted.old) == 1
    changed.write_text(text.replace(planted.old, planted.new))
    report, described = compare(tmp_path, planted.kinds)
    assert set(report.differences) - {"figures"} == set(planted.kinds)
    assert any(
        f"--- {planted.section}" in description and "in base64" in description
        for description in described
    )
