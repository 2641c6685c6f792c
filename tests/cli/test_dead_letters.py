"""`forwarder dead-letters`: what it shows, and what it does to the files,
with the daemon up or down.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import forwarder.cli.app as module
from forwarder.cli import dead_letters
from forwarder.cli.dead_letters import app
from forwarder.core.errors import ConfigurationError
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.deadletter.replay import Replayer
from forwarder.inspect import dead_letters as inspect_letters
from forwarder.inspect.dead_letters import dead_letter_files
from forwarder.storage.directory import DEAD_LETTERS, LockedDirectory
from forwarder.telemetry.labels import lane_label
from tests.deadletter.rig import StoreRig, query, started
from tests.deadletter.test_replay import ReplayIntake
from tests.support.cases import cases

KEY = "phc_" + "secretsecretsecret" + "9876"
LANE = Lane(KEY)
OTHER = Lane("phc_other" + "other" * 4)
UUID = "0190a0a0-1111-7222-8333-444455556666"
EVENT = (
    b'{"event":"sign up", '
    b'"distinct_id":"ann","uuid":"%b","properties":{"token":"%b","n":12345678901234567890,"f":1.0}}'
) % (
    UUID.encode(),
    KEY.encode(),
)


def invoke(*args: str, answer: str | None = None) -> Result:
    """What a command does, in this process."""
    return CliRunner().invoke(
        app, list(args), input=answer, env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with one worker's dead letters, and no daemon."""
    asyncio.run(_fill(tmp_path / "worker-0"))
    return tmp_path


def _made(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)


async def _fill(directory: Path, events: int = 1) -> None:
    _made(directory)
    async with started(directory) as rig:
        now = rig.clock.now()
        why = "the event has no distinct_id"
        rig.store.add(
            [
                DeadLetter(Reason.REFUSED, LANE, EVENT, now - 7200, f"400: no {KEY}", place=(1, n))
                for n in range(events)
            ]
        )
        rig.store.add_at_receipt(
            [DeadLetter(Reason.MISSING_DISTINCT_ID, OTHER, b'{"event":"click"}', now, why)]
        )


@contextlib.asynccontextmanager
async def daemon(directory: Path, door: ReplayIntake) -> AsyncIterator[StoreRig]:
    """What a running daemon has to do with the file: the lock, the store, and the replayer, whose
    clock passes by itself.
    """
    locked = LockedDirectory.acquire(directory, "dead_letters.path")
    try:
        async with started(directory) as rig:
            replayer = Replayer(rig.store, door, rig.clock)
            replayer.start()
            turning = asyncio.create_task(_turn(rig))
            try:
                yield rig
            finally:
                turning.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await turning
                replayer.stop()
    finally:
        locked.release()


async def _turn(rig: StoreRig) -> None:
    while True:
        await rig.clock.advance(0.1)
        await rig.commit()


async def command(*args: str) -> Result:
    """A command beside a daemon of this process."""
    with ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, lambda: invoke(*args))


def test_ls(state: Path) -> None:
    """The newest first, with reason, lane and event; keys only as labels, also
    in the upstream's words.
    """
    result = invoke("ls", "--path", str(state))
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["2", "1"]
    assert "missing_distinct_id" in lines[1]
    assert lane_label(LANE) in lines[2]
    assert lines[3] == "2 dead letters"
    assert KEY not in result.output


def test_ls_as_json(state: Path) -> None:
    """For programs: a count and the letters."""
    document = json.loads(invoke("ls", "--path", str(state), "--output", "json").output)
    assert document["count"] == 2
    first = document["results"][1]
    assert (first["number"], first["reason"], first["lane"], first["uuid"]) == (
        "1",
        "refused",
        lane_label(LANE),
        UUID,
    )
    assert (first["at"], first["bytes"], first["mark"]) == (
        "2025-12-31T22:00:00.000Z",
        len(EVENT),
        None,
    )
    assert KEY not in json.dumps(document)


@pytest.mark.parametrize(
    ("args", "numbers"),
    [
        (["--reason", "refused"], ["1"]),
        (["--event", "click"], ["2"]),
        (["--lane", lane_label(LANE)], ["1"]),
        (["--lane", "phc_none"], []),
        (["--since", "2025-12-31T23:00:00Z"], ["2"]),
        (["--since", "2025-12-31 20:00"], ["2", "1"]),
        (["--since", "10d"], []),
        (["--limit", "1"], ["2"]),
        (["1"], ["1"]),
        (["2", UUID.upper()], ["2", "1"]),
        ([UUID.replace("-", "")], ["1"]),
        (["7"], []),
    ],
)
def test_ls_chooses(
    state: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], numbers: list[str]
) -> None:
    """By reason, event, lane, time, number and uuid, however that is spelled."""
    document = json.loads(invoke("ls", "--path", str(state), "--output", "json", *args).output)
    assert [letter["number"] for letter in document["results"]] == numbers


@pytest.mark.parametrize(
    "args", [["--reason", "bad"], ["--since", "soon"], ["seven"], ["1", "--limit", "0"]]
)
def test_wrong_usage(state: Path, args: list[str]) -> None:
    """What can't be meant is said, with exit code 2."""
    result = CliRunner().invoke(module.app, ["dead-letters", "ls", "--path", str(state), *args])
    assert isinstance(result.exception, ConfigurationError) or result.exit_code == 2


def test_nothing_there(tmp_path: Path) -> None:
    """No files, no letters: that is no error; to show one that isn't there is."""
    assert "No dead letters." in invoke("ls", "--path", str(tmp_path)).output
    assert json.loads(invoke("ls", "--path", str(tmp_path), "--output", "json").output) == {
        "count": 0,
        "results": [],
    }
    assert invoke("show", "1", "--path", str(tmp_path)).exit_code == 1
    assert invoke("replay", "1", "--yes", "--path", str(tmp_path)).exit_code == 1
    assert invoke("drop", "--reason", "refused", "--yes", "--path", str(tmp_path)).exit_code == 0


def test_the_configuration_says_where(state: Path, tmp_path: Path) -> None:
    """Without a directory, the configuration's is meant."""
    file = tmp_path / "forwarder.yaml"
    file.write_text(f"dead_letters: {{path: {state}}}\n")
    assert "2 dead letters" in invoke("ls", "--config", str(file)).output


def test_an_unnamed_place_is_shown(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --config or --path, the directory is said: the reader may think of another daemon."""
    others = "Those of another configuration: --config FILE"
    monkeypatch.setenv("FORWARDER_DEAD_LETTERS__PATH", str(state))
    assert f"2 dead letters in {state}. {others}\n" in invoke("ls").output
    monkeypatch.setenv("FORWARDER_DEAD_LETTERS__PATH", str(tmp_path / "none"))
    assert invoke("ls").output == f"No dead letters in {tmp_path}/none. {others}.\n"


def test_show(state: Path) -> None:
    """Everything about a letter and its event, found by number or uuid; what looks like a key is
    masked, but not in the raw bytes.
    """
    for name in ("1", UUID):
        result = invoke("show", name, "--path", str(state))
        assert result.exit_code == 0
        assert "12345678901234567890" in result.output
        assert "sign up" in result.output
        assert KEY not in result.output
    document = json.loads(invoke("show", "1", "--path", str(state), "--output", "json").output)
    assert document["intact"] is True
    assert document["data"].replace("phc_…9876", KEY).encode() == EVENT
    assert invoke("show", "1", "--path", str(state), "--raw").stdout_bytes == EVENT


def test_show_says_that_the_disk_changed_it(state: Path) -> None:
    """Bytes that aren't those that were written are shown as that."""
    query(
        state / "worker-0",
        "UPDATE letters SET data = CAST(replace(data, 'sign', 'sigh') AS BLOB) WHERE number = 1",
    )
    assert "damaged: they differ" in invoke("show", "1", "--path", str(state)).output


def test_several_workers(tmp_path: Path) -> None:
    """Their letters are shown together, each with its worker; a number alone isn't enough then."""
    for worker in (0, 3):
        asyncio.run(_fill(tmp_path / f"worker-{worker}"))
    document = json.loads(invoke("ls", "--path", str(tmp_path), "--output", "json").output)
    assert sorted(letter["number"] for letter in document["results"]) == [
        "0/1",
        "0/2",
        "3/1",
        "3/2",
    ]
    assert "3/2" in invoke("show", "3/2", "--path", str(tmp_path)).output
    assert isinstance(invoke("show", "2", "--path", str(tmp_path)).exception, ConfigurationError)
    assert invoke("drop", "3/2", "--yes", "--path", str(tmp_path)).exit_code == 0
    assert [
        query(tmp_path / f"worker-{worker}", "SELECT count(*) FROM letters") for worker in (0, 3)
    ] == [[(2,)], [(1,)]]


def test_another_workers_letter_is_not_meant(state: Path) -> None:
    """The number of a worker that isn't there names no letter, also where there is one file alone:
    nothing is dropped by mistake.
    """
    dropped = invoke("drop", "7/1", "--yes", "--path", str(state))
    assert "1 dropped" not in dropped.output
    assert len(json.loads(invoke("ls", "--output", "json", "--path", str(state)).stdout)) == 2
    assert invoke("show", "0/1", "--path", str(state)).exit_code == 0


def test_a_limit_beyond_all_sense(state: Path) -> None:
    """It is wrong usage, not a fault."""
    assert invoke("ls", "--limit", "99999999999999999999", "--path", str(state)).exit_code == 2


def test_a_path_without_any_state(tmp_path: Path) -> None:
    """A mistyped path is reported; it isn't taken for a place where all is well."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    for path in (tmp_path / "foreign", tmp_path / "foreign" / "file", tmp_path / "nowhere"):
        with pytest.raises(ConfigurationError, match="is not a state directory of forwarder"):
            raise invoke("ls", "--path", str(path)).exception or AssertionError(
                "nothing was raised"
            )


def test_drop_asks(state: Path) -> None:
    """Nothing is dropped without a yes; then it is gone at once, and counted for the books."""
    for answer in ("n\n", ""):
        result = invoke("drop", "--reason", "refused", "--path", str(state), answer=answer)
        assert result.exit_code == 1
        assert "Drop 1 dead letter permanently?" in result.output
    result = invoke("drop", "--reason", "refused", "--path", str(state), answer="y\n")
    assert (result.exit_code, "1 dropped" in result.output) == (0, True)
    assert query(state / "worker-0", "SELECT number FROM letters") == [(2,)]
    assert query(state / "worker-0", "SELECT name, count FROM counters WHERE kind = 'dropped'") == [
        ("operator/http", 1)
    ]


@pytest.mark.parametrize("verb", ["replay", "drop"])
def test_nothing_selected_is_not_all(state: Path, verb: str) -> None:
    """A forgotten option is wrong usage, which names `--all`; with it, all are meant."""
    error = invoke(verb, "--yes", "--path", str(state)).exception
    assert isinstance(error, ConfigurationError)
    assert f"`forwarder dead-letters {verb} --all`" in error.hint
    both = invoke(verb, "1", "--all", "--yes", "--path", str(state)).exception
    assert isinstance(both, ConfigurationError)
    assert "--all excludes" in both.message
    untouched = "SELECT count(*) FROM letters WHERE mark IS NULL"
    assert query(state / "worker-0", untouched) == [(2,)]
    assert invoke(verb, "--all", "--yes", "--path", str(state)).exit_code == 0
    assert query(state / "worker-0", untouched) == [(0,)]


def test_a_dry_run_of_all(state: Path) -> None:
    """It changes nothing, so nothing needs to be selected."""
    for args in ([], ["--all"]):
        result = invoke("replay", "--dry-run", *args, "--path", str(state))
        assert "2 dead letters would be sent again" in result.output


def test_replay_without_a_daemon(state: Path) -> None:
    """The letters are marked, and it is said when they will go."""
    result = invoke("replay", "--reason", "refused", "--rate", "5/s", "--yes", "--path", str(state))
    assert result.exit_code == 0
    assert "no daemon runs" in result.output
    assert query(state / "worker-0", "SELECT number, mark, rate FROM letters") == [
        (1, "replay", 5.0),
        (2, None, None),
    ]
    assert "[replay]" in invoke("ls", "--path", str(state)).output


def test_a_dry_run_changes_nothing(state: Path) -> None:
    """It shows what would be sent, before and after the edit, without keys; every digit stays."""
    result = invoke(
        "replay", "1", "--edit", '.distinct_id = "bob"', "--dry-run", "--path", str(state)
    )
    assert result.exit_code == 0
    before, after = (
        line for line in result.output.splitlines() if line.startswith(("  - ", "  + "))
    )
    assert '"ann"' in before
    assert '"distinct_id":"bob"' in after
    assert '"n":12345678901234567890,"f":1.0' in after
    assert KEY not in result.output
    assert query(state / "worker-0", "SELECT count(mark) FROM letters") == [(0,)]


def test_a_replay_as_json(state: Path) -> None:
    """What would be sent, then what was marked; nothing that matches is a document, too."""
    args = ("replay", "--output", "json", "--path", str(state))
    done = invoke(*args, "--dry-run", "--edit", '.distinct_id = "bob"', "1")
    shown = json.loads(done.stdout)
    assert (shown["count"], shown["dry_run"], shown["marked"]) == (1, True, 0)
    assert '"distinct_id":"bob"' in shown["results"][0]["edited"]
    assert KEY not in done.output
    done = invoke(*args, "--reason", "refused", "--yes")
    assert json.loads(done.stdout) == {
        "count": 1,
        "dry_run": False,
        "sent": 0,
        "marked": 1,
        "failed": [],
    }
    assert json.loads(invoke(*args, "--event", "none").stdout)["count"] == 0


def test_an_edit_is_kept_beside_the_event(state: Path) -> None:
    """What is to be sent goes beside the original bytes; uuid and timestamp stay as they are."""
    assert (
        invoke(
            "replay", "1", "--edit", ".properties.n += 0", "--yes", "--path", str(state)
        ).exit_code
        == 0
    )
    ((data, replacement),) = query(
        state / "worker-0", "SELECT data, replacement FROM letters WHERE number = 1"
    )
    assert data == EVENT
    assert json.loads(replacement)["uuid"] == UUID
    assert "to be sent in its place" in invoke("show", "1", "--path", str(state)).output


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (".event", "no object"),
        ("empty", "0 results"),
        (".,.", "2 results"),
        ('error("x")', "jq: x"),
    ],
)
def test_an_edit_that_makes_no_event(state: Path, edit: str, why: str) -> None:
    """Before anything is changed, it is tried on every letter."""
    result = invoke("replay", "--all", "--edit", edit, "--yes", "--path", str(state))
    assert result.exit_code == 1
    assert why in result.output
    assert query(state / "worker-0", "SELECT count(mark) FROM letters") == [(0,)]


def test_an_edit_that_is_no_expression(state: Path) -> None:
    """jq's words about it, and an example."""
    error = invoke("replay", "--all", "--edit", ".a |", "--yes", "--path", str(state)).exception
    assert isinstance(error, ConfigurationError)
    assert "syntax error" in error.message
    assert "--edit" in error.hint


@pytest.mark.parametrize("edit", ["", '.distinct_id = "bob"'])
async def test_replay_beside_a_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str
) -> None:
    """The daemon sends what was marked, and the command waits for it."""
    monkeypatch.setattr(dead_letters, "_POLL_SECONDS", 0.01)
    directory = tmp_path / "worker-0"
    door = ReplayIntake()
    await _fill(directory, events=30)
    async with daemon(directory, door):
        result = await command(
            "replay", "--reason", "refused", "--yes", "--edit", edit, "--path", str(tmp_path)
        )
    assert (result.exit_code, "30 dead letters sent again" in result.output) == (0, True)
    assert len(door.accepted) == 30
    assert (b'"bob"' in door.bodies[0]) is bool(edit)
    assert query(directory, "SELECT reason FROM letters") == [("missing_distinct_id",)]


async def test_replay_of_what_is_still_unfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The letters stay, and the command says why."""
    monkeypatch.setattr(dead_letters, "_POLL_SECONDS", 0.01)
    directory = tmp_path / "worker-0"
    await _fill(directory)
    async with daemon(directory, ReplayIntake(ConfigurationError("the event has no distinct_id"))):
        result = await command("replay", "2", "--yes", "--path", str(tmp_path))
        again = await command(
            "replay", "--all", "--yes", "--output", "json", "--path", str(tmp_path)
        )
    assert result.exit_code == 1
    assert "2: the event has no distinct_id" in result.output
    document = json.loads(again.stdout[again.stdout.index("{\n") :])  # after the daemon's log
    assert (again.exit_code, document["count"]) == (1, 2)
    assert {"number": "2", "why": "the event has no distinct_id"} in document["failed"]


async def test_drop_beside_a_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon does it, with its books."""
    monkeypatch.setattr(inspect_letters, "_POLL_SECONDS", 0.01)
    directory = tmp_path / "worker-0"
    await _fill(directory)
    async with daemon(directory, ReplayIntake()) as rig:
        result = await command("drop", "--all", "--yes", "--path", str(tmp_path))
        assert rig.store.statistics().dead_letters == 0
    assert (result.exit_code, "2 dropped" in result.output) == (0, True)


async def test_a_daemon_that_does_not_get_round_to_it(tmp_path: Path) -> None:
    """The letters stay marked, and the command says so."""
    directory = tmp_path / "worker-0"
    await _fill(directory)
    locked = LockedDirectory.acquire(directory, "dead_letters.path")
    try:
        (file,) = dead_letter_files([directory / DEAD_LETTERS])
        assert inspect_letters.drop(
            [inspect_letters.SelectedDeadLetters(file, [1, 2])], lambda _: None
        ) == (0, 2)
    finally:
        locked.release()


@cases("command_line", [["ls"], ["show", "1"], ["replay", "--dry-run"], ["drop", "--all", "--yes"]])
def test_a_file_that_can_not_be_read(tmp_path: Path, command_line: list[str]) -> None:
    """It is named, with what to do; no traceback."""
    (tmp_path / "worker-0").mkdir()
    (tmp_path / "worker-0" / "dead-letters.db").write_bytes(os.urandom(9000))
    error = invoke(*command_line, "--path", str(tmp_path)).exception
    assert isinstance(error, ConfigurationError)
    assert "dead-letters.db can't be used" in error.message


ATTRIBUTES = {
    "topic": "events",
    "partition": 3,
    "offset": 1700,
    "key": {"base64": "AAECAwQFBgc="},
    "headers": [
        ["api-key", KEY],
        ["trace", {"base64": "/w=="}],
        ["note", "two\nlines \u001b[31m"],
        ["nothing", None],
    ],
}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A state directory with the dead letter of a record."""

    async def fill(directory: Path) -> None:
        _made(directory)
        async with started(directory) as rig:
            attributes = json.dumps(ATTRIBUTES)
            place = "kafka/events/3/1700"
            rig.store.add(
                [
                    DeadLetter(
                        Reason.UNDECODABLE,
                        None,
                        b"\xff\x00",
                        0.0,
                        "no JSON",
                        "kafka",
                        place,
                        attributes=attributes,
                    )
                ]
            )

    asyncio.run(fill(tmp_path / "worker-0"))
    return tmp_path


def test_a_records_place_key_and_headers_are_shown(record: Path) -> None:
    """Legibly: bytes that are no text by their digits, nothing that moves a terminal's cursor, and
    no project key.
    """
    result = invoke("show", "1", "--path", str(record))
    lines = [line.strip() for line in result.output.splitlines()]
    assert [
        line for line in lines if line.startswith(("topic", "partition", "offset", "key", "header"))
    ] == [
        "topic  events",
        "partition  3",
        "offset  1700",
        "key  (8 bytes) 00 01 02 03 04 05 06 07",
        f"header  api-key: phc_…{KEY[-4:]}",
        "header  trace: (1 bytes) ff",
        r'header  note: "two\nlines \u001b[31m"',
        "header  nothing: (none)",
    ]
    assert "\x1b" not in result.output
    assert KEY not in result.output


def test_a_records_place_is_an_object_for_programs(record: Path) -> None:
    """As its source said it, without keys; null where nothing is known."""
    document = json.loads(invoke("show", "1", "--path", str(record), "--output", "json").output)
    others = ATTRIBUTES["headers"][1:]  # type: ignore[index]
    assert document["attributes"] == {
        **ATTRIBUTES,
        "headers": [["api-key", f"phc_…{KEY[-4:]}"], *others],
    }
    assert (document["reason"], document["coordinates"], document["data_base64"]) == (
        "undecodable",
        "kafka/events/3/1700",
        "/wA=",
    )


def test_letters_of_requests_have_no_such_place(state: Path) -> None:
    """It is null for programs, and no line for a person."""
    document = json.loads(invoke("show", "1", "--path", str(state), "--output", "json").output)
    assert document["attributes"] is None
    assert "attributes" not in invoke("show", "1", "--path", str(state)).output
