"""`forwarder import` and `forwarder import status`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec import structs

from forwarder.cli.imports import status
from forwarder.sources.imports.checkpoint import FILE
from forwarder.sources.imports.preflight_report import PreflightResult
from forwarder.storage.directory import LockedDirectory
from tests.cli.import_commands import run, state
from tests.sources.imports.preflights import report
from tests.sources.imports.samples.manifests import JOB
from tests.support.commands import invoked


async def test_an_unknown_format_is_named_with_the_known_ones() -> None:
    """Exit code 2, with those that there are."""
    done = await invoked("import", "mixpanel_profiles", "x")
    assert done.code == 2
    assert (
        "Unknown format 'mixpanel_profiles'. Did you mean mixpanel-profiles? The formats are "
        "native, posthog,"
    ) in done.err


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the configuration says that imports keep their folders."""
    monkeypatch.setenv("FORWARDER_IMPORT__STATE", str(tmp_path / "imports"))
    return tmp_path / "imports"


def test_all_imports_are_listed(root: Path) -> None:
    """By the names of their folders, complete or not; other folders and files are none. Exit
    code 0.
    """
    state(root / "b", ended=False)
    state(root / "a")
    (root / "other").mkdir()
    (root / "pace").write_text("")
    done = run(status)
    assert (done.code, done.err) == (0, "")
    heads = [line for line in done.out.splitlines() if line.startswith("mixpanel")]
    assert heads == [
        "mixpanel export/*.json.gz: complete",
        "mixpanel export/*.json.gz: not complete: the same command resumes it",
    ]
    assert done.out.index(str(root / "a")) < done.out.index(str(root / "b"))


def test_one_import(tmp_path: Path) -> None:
    """By its folder, wherever that is."""
    done = run(status, "--state", state(tmp_path / "x"))
    assert done.code == 0
    assert f"import {JOB.id}, in {tmp_path / 'x'}" in done.out


def test_an_import_that_runs(root: Path) -> None:
    """Its folder is read without its lock, and it is said that a process has it; also before it
    has settled anything.
    """
    locks = [
        LockedDirectory.acquire(state(root / "a", ended=False), "--state"),
        LockedDirectory.acquire(root / "b", "--state"),
    ]
    done = run(status)
    for lock in locks:
        lock.release()
    assert done.code == 0
    assert "mixpanel export/*.json.gz: running\n" in done.out
    assert "b: running, nothing is settled yet" in done.out


def test_for_machines(root: Path) -> None:
    """`--output json` has all of them."""
    state(root / "a")
    done = run(status, "--output", "json")
    [listed] = json.loads(done.out)["imports"]
    assert (listed["folder"], listed["complete"], listed["running"], done.code) == (
        str(root / "a"),
        True,
        False,
        0,
    )


def test_a_checkpoint_that_is_damaged(root: Path) -> None:
    """It is said, and what to do; the others are shown all the same. Exit code 2."""
    (state(root / "a") / FILE).write_text('{"version": 1, "sha2')
    state(root / "b")
    done = run(status)
    assert done.code == 2
    assert f"Error: {root / 'a' / FILE} can't be read" in done.err
    assert str(root / "b") in done.out
    assert run(status, "--state", root / "a").code == 2


def test_how_much_was_counted_before(tmp_path: Path) -> None:
    """What the preflight left beside the checkpoint is compared with, from the file
    that it writes.
    """
    folder = state(tmp_path / "x", ended=False)
    PreflightResult.assess(structs.replace(report([]), records=400), ()).save(folder)
    assert "% of the 400 records that were counted" in run(status, "--state", folder).out


@pytest.mark.parametrize("made", [True, False])
def test_nothing_is_there(root: Path, *, made: bool) -> None:
    """No folder, or an empty one: that is said, with its place. Exit code 1."""
    if made:
        root.mkdir()
    for arguments in ((), ("--state", root / "x")):
        done = run(status, *arguments)
        assert (done.code, done.out) == (1, "")
        assert f"there is no import in {root}" in done.err


def test_a_place_that_cannot_be_looked_at(root: Path) -> None:
    """A file where the folder should be holds no import."""
    root.write_text("")
    assert run(status).code == 1
