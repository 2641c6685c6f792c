"""The frame of the campaigns: their verdicts name the evidence, and their commands end with it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.crash.frame import SHOWN, CampaignFolder, CampaignRun, CrashFailure, Say, conduct


def test_a_failure_names_how_to_repeat_it_and_where_its_files_are(tmp_path: Path) -> None:
    """The first problems are listed, the others counted, the last lines of
    the log added where asked.
    """
    evidence = CampaignFolder(tmp_path, lambda: "seed 7, after 3 kills")
    evidence.check([])
    with pytest.raises(CrashFailure, match=r"^seed 7, after 3 kills; all files are in .*\n  one$"):
        evidence.check(["one"])
    evidence.log.write_text("first\nlast\n")
    failure = str(
        evidence.failure([f"problem {number}" for number in range(SHOWN + 2)], log_lines=1)
    )
    assert "and 2 more" in failure
    assert f"problem {SHOWN - 1}" in failure
    assert f"problem {SHOWN}" not in failure
    assert failure.endswith("the log ends with:\n    last")


def test_complaints_are_reported_once(tmp_path: Path) -> None:
    """A line that no process may log is found, and not found again by the next call."""
    evidence = CampaignFolder(tmp_path, lambda: "")
    evidence.log.write_text('{"level": "info"}\n{"level": "error", "event": "x"}\n')
    assert evidence.complaints() == ['{"level": "error", "event": "x"}']
    assert evidence.complaints() == []


async def _campaign(problem: str, root: Path, say: Say) -> str:
    say("running")
    (root / "file").touch()
    CampaignFolder(root, lambda: "seed 1").check([problem] if problem else [])
    return "well"


@pytest.mark.parametrize(
    ("problem", "keep", "code", "remains"),
    [("", False, 0, False), ("", True, 0, True), ("lost", False, 1, True)],
)
def test_a_command_ends_with_the_verdict_and_keeps_what_failed(
    *,
    problem: str,
    keep: bool,
    code: int,
    remains: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The files of a campaign that passed are removed unless they are required;
    those of a failure stay.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = CampaignRun(
        "seed 1",
        partial(_campaign, problem),
        lambda outcome, seconds: f"{outcome} after {seconds:.0f} s",
    )
    assert conduct([run], keep=keep) == code
    printed = capsys.readouterr()
    assert ("well after 0 s" in printed.out) is not bool(problem)
    assert ("FAILED seed 1" in printed.err) is bool(problem)
    assert bool(list(tmp_path.glob("*/file"))) is remains
