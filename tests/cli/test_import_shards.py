"""`forwarder import --shard`, and `import status` and `import verify` over all
shards, as they are typed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forwarder.cli.imports import status, verify
from forwarder.sources.imports.checkpoint import FILE
from forwarder.sources.imports.job import SHARDS
from forwarder.sources.imports.report import MANIFEST
from forwarder.storage.directory import LockedDirectory
from tests.cli.import_commands import run
from tests.end_to_end.importing import RunningSandbox, imported, sandbox
from tests.sources.imports.samples.native import as_json, complete_events
from tests.support.commands import Finished

EVENTS = 140
FILES = 7
OF = 3
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service() -> Iterator[RunningSandbox]:
    """A sandbox; each test imports into a project of its own."""
    with sandbox() as running_sandbox:
        yield running_sandbox


@dataclass(frozen=True, slots=True)
class ShardedImport:
    """A folder of files, and where they are imported to: a project of the
    sandbox that no one else has.
    """

    service: RunningSandbox
    source: Path
    state: Path
    key: str

    def shards(self, *numbers: int, of: int = OF, state: Path | None = None) -> list[Finished]:
        """Run these."""
        return [
            self.imported("native", self.source, "--shard", f"{number}/{of}", state=state)
            for number in numbers
        ]

    def imported(self, *arguments: str | Path, state: Path | None = None) -> Finished:
        """Run an import."""
        return imported(self.service, state or self.state, *arguments, key=self.key)

    def status(self, *more: str) -> Finished:
        """How far it is."""
        return run(status, "--state", self.state, *more)

    def verified(self, *more: str) -> Finished:
        """Compare with the sandbox."""
        return run(
            verify,
            "--state",
            self.state,
            "--sandbox",
            self.service.url,
            "--api-key",
            self.key,
            *more,
        )


@pytest.fixture
def case(service: RunningSandbox, tmp_path: Path, request: pytest.FixtureRequest) -> ShardedImport:
    """One for each test."""
    source = tmp_path / "export"
    source.mkdir()
    lines = [as_json(event) + b"\n" for event in complete_events(EVENTS, 1)]
    for file in range(FILES):
        (source / f"{file}.jsonl").write_bytes(b"".join(lines[file::FILES]))
    name = re.sub("[^a-z_]", "", request.node.name)[:60]
    return ShardedImport(service, source, tmp_path / "state", f"phc_{name}_0000000001")


def test_an_import_in_shards(case: ShardedImport) -> None:
    """Each says which it is, and how to see all of them; together they have every event. A shard
    that is complete says so again.
    """
    for number, done in enumerate(case.shards(*range(OF))):
        assert done.code == 0
        assert f"Sending shard {number}/{OF} to {case.service.url}" in done.err
        assert f"All shards: forwarder import status --state {case.state}" in done.err
        assert "import verify" not in done.err
        assert f"shard {number}/{OF}): " in done.out
    seen = case.status()
    assert seen.code == 0
    assert f"native {case.source} in {OF} shards: complete" in seen.out
    assert f"{EVENTS} events delivered" in seen.out
    verified = case.verified()
    assert verified.code == 0
    assert f"in {OF} shards: complete" in verified.out
    assert f"All {EVENTS} events of " in verified.out.splitlines()[-1]
    [again] = case.shards(0)
    assert (again.code, "This import is complete" in again.err) == (0, True)


def test_a_missing_shard_is_no_whole_import(case: ShardedImport) -> None:
    """Everything that was sent is there, and the answer is no all the same: which is missing is
    named. So it is to machines.
    """
    case.shards(0, 2)
    seen = case.status()
    verified = case.verified()
    for result in (seen, verified):
        assert result.code == 1
        assert f"not started: 1/{OF}" in result.out
    assert "events of " in verified.out
    listed = json.loads(case.status("--output", "json").out)["imports"][0]
    compared = json.loads(case.verified("--output", "json").out)
    assert (listed["complete"], listed["shards"]["not_started"], len(listed["shards"]["each"])) == (
        False,
        [1],
        2,
    )
    assert (compared["same"], compared["complete"]) == (True, False)
    assert compared["shards"] == {"of": OF, "not_started": [1], "unfinished": [], "same_list": True}


def test_one_shard_is_not_verified_alone(case: ShardedImport) -> None:
    """The service knows which import an event is of, not which shard sent it. Exit code 2, with
    what to name instead.
    """
    case.shards(*range(OF))
    alone = case.state / f"shard-1-of-{OF}"
    for named in (("--state", alone), ("--manifest", alone / MANIFEST)):
        done = run(verify, *named, "--sandbox", case.service.url)
        assert (done.code, done.out) == (2, "")
        assert f"is of shard 1/{OF} alone" in done.err
    assert f"native {case.source}, shard 1/{OF}: complete" in run(status, "--state", alone).out


def test_all_imports_are_listed_with_those_in_shards(
    case: ShardedImport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the folder that is configured: a table of each that is divided. The only import there is
    needs no name, to verify it.
    """
    root = tmp_path / "imports"
    monkeypatch.setenv("FORWARDER_IMPORT__STATE", str(root))
    case.shards(*range(OF), state=root / "divided")
    assert run(status).code == 0
    assert run(verify, "--sandbox", case.service.url, "--api-key", case.key).code == 0
    case.imported("native", case.source / "0.jsonl", state=root / "whole")
    seen = run(status)
    assert seen.code == 0
    assert f"native {case.source} in {OF} shards: complete" in seen.out
    assert f"native {case.source}/0.jsonl: complete" in seen.out
    several = run(verify, "--sandbox", case.service.url)
    assert (several.code, "there are several imports" in several.err) == (2, True)


def test_shards_of_several_machines(case: ShardedImport, tmp_path: Path) -> None:
    """Their folders are put together; one of them has seen a file more, so not all files are read
    once: that isn't complete.
    """
    for number in range(OF - 1):
        case.shards(number, state=tmp_path / f"machine{number}")
    (case.source / "7.jsonl").write_bytes(as_json([*complete_events(EVENTS + 1, 1)][-1]) + b"\n")
    case.shards(OF - 1, state=tmp_path / "machine2")
    both = case.state
    both.mkdir()
    for number in range(OF):
        shutil.copytree(
            tmp_path / f"machine{number}" / f"shard-{number}-of-{OF}",
            both / f"shard-{number}-of-{OF}",
        )
    for done in (case.status(), case.verified()):
        assert done.code == 1
        assert (
            f"different lists of files: 7 files for 0/{OF} to 1/{OF}; 8 files for 2/{OF}"
            in done.out
        )
    assert f"All {EVENTS} events of " in case.verified().out


def test_an_event_in_the_files_of_two_shards(case: ShardedImport) -> None:
    """Both send it, the same bytes: the service has it once, without a conflict, and the
    comparison says what that may be.
    """
    first = (case.source / "0.jsonl").read_bytes().splitlines(keepends=True)[0]
    (case.source / "1.jsonl").write_bytes((case.source / "1.jsonl").read_bytes() + first)
    done = case.shards(*range(OF))
    assert [result.code for result in done] == [0] * OF
    verified = case.verified()
    assert verified.code == 1
    assert "1 of " in verified.out
    assert (
        "An event in the files of two shards is delivered by both, and is there once"
        in verified.out
    )
    [counts] = case.service.ask(f"imports?api_key={case.key}")["results"]
    assert (counts["events"], counts["duplicates"], counts["conflicts"]) == (EVENTS, 1, 0)


def test_an_export_of_the_service(case: ShardedImport, tmp_path: Path) -> None:
    """As an import in one process is compared; with rows that don't name their import, too."""
    case.shards(*range(OF))
    rows = [
        json.loads(event["raw"])
        for event in case.service.ask(f"events?api_key={case.key}&limit=1000")["results"]
    ]
    path = tmp_path / "service.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(verify, "--state", case.state, "--export", path).code == 0
    path.write_text("".join(json.dumps({**row, "properties": {}}) + "\n" for row in rows))
    assert run(verify, "--state", case.state, "--export", path).code == 1
    assert run(verify, "--state", case.state, "--export", path, "--any-job").code == 0


def cut(folder: Path) -> None:
    """A disk lost the end of a checkpoint."""
    path = folder / f"shard-1-of-{OF}" / FILE
    path.write_bytes(path.read_bytes()[:-9])


def doubled(folder: Path) -> None:
    """Someone put the shards of another division beside them."""
    shutil.copytree(folder / f"shard-1-of-{OF}", folder / "shard-1-of-2")


@pytest.mark.parametrize(
    ("change", "code", "reported"),
    [(cut, 2, "has a damaged checkpoint"), (doubled, 1, "has shards of 2 and of 3")],
    ids=["damaged", "of two divisions"],
)
def test_what_cannot_be_verified(
    case: ShardedImport, change: Callable[[Path], None], code: int, reported: str
) -> None:
    """The others are shown all the same."""
    case.shards(*range(OF))
    change(case.state)
    seen = case.status()
    assert seen.code == code
    assert f"0/{OF}" in seen.out
    verified = case.verified()
    assert (verified.code, reported in verified.err) == (2, True)


def test_shards_that_have_settled_nothing(tmp_path: Path) -> None:
    """One of them looks at its files: it runs, and there is nothing to verify yet."""
    lock = LockedDirectory.acquire(tmp_path / "state" / "shard-1-of-2", "--state")
    seen = run(status, "--state", tmp_path / "state")
    verified = run(verify, "--state", tmp_path / "state", "--sandbox", "http://127.0.0.1:1")
    lock.release()
    assert seen.code == 1
    assert "1/2    running" in seen.out
    assert "not started: 0/2" in seen.out
    assert (verified.code, "has no checkpoint yet" in verified.err) == (2, True)


def test_a_dry_run_of_a_shard(case: ShardedImport) -> None:
    """Its own files, at its part of the rate; nothing is begun. One without files has nothing to
    look at.
    """
    words = ("native", case.source, "--dry-run", "--output", "json")
    for number, counts in ((0, 3), (2, 2)):
        done = case.imported(*words, "--shard", f"{number}/{OF}")
        assert done.code == 0
        assert json.loads(done.out)["report"]["records"] == counts * EVENTS // FILES
    empty = case.imported(*words, "--shard", "8/9")
    assert (empty.code, empty.out, "Shard 8/9 has no files" in empty.err) == (0, "", True)
    assert not (case.state / SHARDS).exists()
    assert case.status().code == 1


def test_a_shard_without_files(case: ShardedImport) -> None:
    """It ends at once, complete, and counts as such."""
    done = case.shards(*range(9), of=9)
    assert [result.code for result in done] == [0] * 9
    assert ["has no files" in result.err for result in done] == [False] * 7 + [True] * 2
    assert "0 records read" in done[8].out
    assert (case.status().code, case.verified().code) == (0, 0)


def test_refused_records_are_counted_over_all(case: ShardedImport) -> None:
    """A shard with one ends with exit code 1, and is complete; status and verify
    are about what is there.
    """
    merging = {"event": "$create_alias", "properties": {"alias": "nil"}}
    bad: dict[str, Any] = {**next(complete_events(1, 1)), **merging}
    (case.source / "1.jsonl").write_bytes(
        (case.source / "1.jsonl").read_bytes() + as_json(bad) + b"\n"
    )
    accepted = ("--accept", "illegal-merges", "--accept", "many-refused")
    done = [
        case.imported("native", case.source, "--shard", f"{n}/{OF}", *accepted) for n in range(OF)
    ]
    assert [result.code for result in done] == [0, 1, 0]
    seen = case.status()
    assert (seen.code, f"{EVENTS} delivered + 1 refused" in seen.out) == (0, True)
    assert case.verified().code == 0
