"""What every campaign has: a seed that makes it repeatable, a directory for its evidence, progress
lines, and a verdict.

A campaign kills, restarts or starves real processes, and then compares what was promised with what
arrived. What it finds wrong goes to `CampaignFolder.check`, which ends the campaign with a message
that says how to repeat it and where its files are.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

Say: TypeAlias = Callable[[str], object]
"""Reports progress, a line at a time."""
Outcome = TypeVar("Outcome")

SHOWN: Final = 12
"""Problems that a failure lists."""
SIGNS: Final = ("Traceback (most recent", '"level": "error"', "are not in the books")
"""What no process may log: errors, and books that had to be corrected."""


class CrashFailure(AssertionError):
    """Something was lost, doubled, changed, sent out of order or miscounted."""


def silent(_: str) -> None:
    """Report no progress: the short forms in the test suite."""


class CampaignFolder:
    """The directory of a campaign, the log of its processes, and how it fails.

    `state` says how far the campaign is (its seed first), for the message of a failure.
    """

    def __init__(self, root: Path, state: Callable[[], str]) -> None:
        self.root = root
        self.log = root / "output.log"
        """What all processes of the campaign log."""
        self._state = state
        self._offset = 0

    def check(self, problems: Iterable[str]) -> None:
        """Fail if there is a problem. Raises `CrashFailure`."""
        problem_list = list(problems)
        if problem_list:
            raise self.failure(problem_list)

    def failure(self, problems: list[str], *, log_lines: int = 0) -> CrashFailure:
        """The failure for these problems; with the last lines of the log where they say more."""
        more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
        if log_lines:
            last = self.log.read_text(errors="replace").splitlines()[-log_lines:]
            more.append("the log ends with:\n    " + "\n    ".join(last))
        return CrashFailure(
            "\n  ".join(
                [f"{self._state()}; all files are in {self.root}", *problems[:SHOWN], *more]
            )
        )

    def complaints(self) -> list[str]:
        """The lines of the log since the last call that no process may write."""
        with self.log.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        lines = data.decode("utf-8", "replace").splitlines()
        return [line[:2000] for line in lines if any(sign in line for sign in SIGNS)]


class CampaignRun(NamedTuple, Generic[Outcome]):
    """One campaign of a command: what it is, how it runs in a directory, and what it printed at
    its end.
    """

    title: str
    campaign: Callable[[Path, Say], Coroutine[Any, Any, Outcome]]
    report: Callable[[Outcome, float], str]
    """From the outcome and the seconds that it took. Raises `CrashFailure` if the outcome isn't
    good enough.
    """


def options(prog: str) -> argparse.ArgumentParser:
    """The options of every campaign's command."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}")
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(1 << 32),
        help="the same seed makes the same campaign",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the files of a campaign that passed"
    )
    return parser


def conduct(runs: Iterable[CampaignRun[Any]], *, keep: bool) -> int:
    """Run campaigns one after another, each in a directory of its own. Returns the exit code: 1 as
    soon as one fails.
    """
    for run in runs:
        root = Path(tempfile.mkdtemp(prefix="forwarder-crash-"))
        _print(f"{run.title}, in {root}")
        began = time.monotonic()
        try:
            _print(run.report(asyncio.run(run.campaign(root, _print)), time.monotonic() - began))
        except CrashFailure as failure:
            print(f"FAILED {failure}", file=sys.stderr)
            return 1
        if not keep:
            shutil.rmtree(root)
    return 0


def _print(text: str) -> None:
    print(text, flush=True)
