"""`forwarder status`, `health`, `audit` and `explain`."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from forwarder.admin.event_lookup import Sighting
from forwarder.admin.server import AdminServer
from forwarder.admin.status import parse
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.storage.directory import worker_directory
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.snapshot import State
from tests.cli.conftest import Answering
from tests.support.cases import cases
from tests.support.commands import invoked, running
from tests.support.disk_logs import LogWriter, write_letters
from tests.support.snapshots import FULL, GOOD, HALTED
from tests.support.whole import event

NOBODY = "127.0.0.1:1"


async def _not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A web server of another kind."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def test_status_shows_the_daemon_to_a_person(daemon: Answering) -> None:
    """Flow, lanes, halts with what to do, and warnings are on one screen."""
    done = await invoked("status", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    for fact in (
        "in 1,230 → buffer 70",
        "out 1,150",
        "running, ready",
        GOOD.label,
        "7 refused",
        "upstream is down",
        "connection refused",
    ):
        assert fact in done.out
    assert "worker-0 is running, process 4711; 1,000 received" in done.out
    assert "logs web is reading; 12 files, 3 of them open, 1 unreadable, lag 4.0 KiB" in done.out
    assert f"lane {HALTED.label} is halted: unknown_key" in done.out
    assert "what to do: Check the project key." in done.out


async def test_status_as_json(daemon: Answering) -> None:
    """`--output json` prints the whole document."""
    done = await invoked("status", "--admin", daemon.address, "--output", "json")
    assert parse(done.out.encode()) == FULL


async def test_status_says_why_nothing_is_accepted(daemon: Answering) -> None:
    """A daemon that isn't ready says why."""
    daemon.snapshot = replace(
        FULL, state=State.DRAINING, ready=False, not_ready=("draining",), lanes=()
    )
    done = await invoked("status", "--admin", daemon.address)
    assert "accepts no events: draining" in done.out
    assert "No events yet." in done.out


async def test_status_without_a_daemon_exits_with_3() -> None:
    """Where no one answers, the error says how to start one or where to look."""
    done = await invoked("status", "--admin", NOBODY)
    assert (done.code, done.out) == (3, "")
    assert f"no daemon answers at {NOBODY}: Connection refused" in done.err
    assert "--admin" in done.err


async def test_status_of_something_else_is_refused() -> None:
    """An address that answers, but not as forwarder does, is distinguished from a daemon."""
    server = await asyncio.start_server(_not_found, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        done = await invoked("status", "--admin", f"{host}:{port}")
    assert done.code == 3
    assert "answered 404 to /status" in done.err


async def test_status_by_an_unknown_name_says_what_to_set() -> None:
    """A daemon that doesn't know the host name that it is asked by says so, and the command
    repeats it.
    """

    async def misdirected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 421 Misdirected Request\r\nContent-Length: 25\r\n\r\nadd it to "
            b"`admin.hosts`. \n"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(misdirected, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        done = await invoked("status", "--admin", f"{host}:{port}")
    assert done.code == 3
    assert "answered 421 to /status\n  add it to `admin.hosts`." in done.err


async def test_an_address_that_is_none_is_wrong_usage() -> None:
    """A slip in `--admin` is exit code 2, not the 3 of a daemon that is down."""
    done = await invoked("status", "--admin", "localhost")
    assert (done.code, done.out) == (2, "")
    assert "'localhost' is not an admin address" in done.err


async def test_health_follows_livez(daemon: Answering) -> None:
    """A live daemon that isn't ready is healthy; with `--ready` it isn't."""
    daemon.snapshot = replace(FULL, ready=False, not_ready=("the buffer is full",))
    assert (await invoked("health", "--admin", daemon.address)).code == 0
    done = await invoked("health", "--ready", "--admin", daemon.address)
    assert done.code == 1
    assert "the buffer is full" in done.out


async def test_health_ready(daemon: Answering) -> None:
    """A daemon that can take events is ready."""
    assert (await invoked("health", "--ready", "--admin", daemon.address)).code == 0


async def test_health_without_a_daemon_exits_with_1() -> None:
    """For a container's health check no one there is simply unhealthy."""
    done = await invoked("health", "--admin", NOBODY)
    assert done.code == 1
    assert "no daemon answers" in done.err


async def test_health_as_json(daemon: Answering) -> None:
    """For programs, also if no daemon answers."""
    done = await invoked("health", "--output", "json", "--admin", daemon.address)
    assert (done.code, json.loads(done.out)) == (0, {"healthy": True, "message": "live"})
    daemon.snapshot = replace(FULL, ready=False, not_ready=("the buffer is full",))
    done = await invoked("health", "--ready", "--output", "json", "--admin", daemon.address)
    why = "not ready: the buffer is full"
    assert (done.code, json.loads(done.out)) == (1, {"healthy": False, "message": why})
    done = await invoked("health", "--output", "json", "--admin", NOBODY)
    assert (done.code, json.loads(done.out)["healthy"], done.err) == (1, False, "")


async def test_quiet_checks_answer_by_their_exit_code(daemon: Answering) -> None:
    """Only what is wrong is printed."""
    for check in ("health", "audit"):
        done = await invoked(check, "--quiet", "--admin", daemon.address)
        assert (done.code, done.out, done.err) == (0, "", "")
    daemon.snapshot = replace(FULL, ready=False, lanes=(replace(GOOD, delivered=1148),))
    assert (await invoked("health", "--ready", "--quiet", "--admin", daemon.address)).code == 1
    done = await invoked("audit", "--quiet", "--admin", daemon.address)
    assert (done.code, done.out) == (1, "")
    assert "don't balance" in done.err


async def test_address_from_environment(daemon: Answering) -> None:
    """Without `--admin` the daemon's own variable says where it is."""
    assert (await invoked("health", env={"FORWARDER_ADMIN__LISTEN": daemon.address})).code == 0


async def test_address_from_configuration_over_a_unix_socket(tmp_path: Path) -> None:
    """Without `--admin` the configuration says where the daemon is; a Unix
    socket is as good as a port.
    """
    socket = tmp_path / "admin.sock"
    file = tmp_path / "forwarder.yaml"
    file.write_text(f"admin:\n  listen: unix:{socket}\n")
    server = AdminServer(lambda: FULL)
    await server.start(f"unix:{socket}")
    done = await invoked("health", "--config", str(file))
    await server.close()
    assert (done.code, done.out) == (0, "live\n")


AUDITED = Lane("phc_auditauditaudit1234")


async def test_books_that_balance(daemon: Answering) -> None:
    """The books are printed per lane; exit code 0."""
    done = await invoked("audit", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    assert GOOD.label in done.out
    assert "The books balance" in done.out


async def test_books_that_are_off(daemon: Answering) -> None:
    """Books that don't balance name the lane and by how much; exit code 1."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1148), HALTED))
    done = await invoked("audit", "--admin", daemon.address)
    assert done.code == 1
    assert "2 missing" in done.out
    assert f"don't balance for {GOOD.label}\n" in done.err


async def test_an_event_too_many(daemon: Answering) -> None:
    """Events that were never received are as wrong as missing ones."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1151),))
    done = await invoked("audit", "--admin", daemon.address)
    assert done.code == 1
    assert "1 too many" in done.out


async def test_books_as_json(daemon: Answering) -> None:
    """The figures of each lane, by reason, and whether they balance."""
    daemon.snapshot = replace(FULL, lanes=(replace(GOOD, delivered=1148), HALTED))
    done = await invoked("audit", "--output", "json", "--admin", daemon.address)
    books = json.loads(done.out)
    assert (done.code, books["balanced"], books["directories"]) == (1, False, [])
    good, halted = books["lanes"]
    assert (good["lane"], good["delivered"], good["difference"]) == (GOOD.label, 1148, 2)
    assert good["dead_lettered"] == dict(GOOD.dead_lettered)
    assert halted["difference"] == 0


async def test_no_daemon() -> None:
    """No one there to ask is exit code 3, not a verdict on the books."""
    assert (await invoked("audit", "--admin", "127.0.0.1:1")).code == 3


def write_state(root: Path) -> LogWriter:
    """The files of a daemon that is down: six events received, two delivered, one dropped, two
    dead letters, one buffered.
    """
    log = LogWriter(root)
    log.events(AUDITED, [b'{"event":"a"}', b'{"event":"b"}'])
    log.events(AUDITED, [b'{"event":"c"}'])
    log.settle(AUDITED, 2, 1, "drop_oldest")
    log.events(AUDITED, [b'{"event":"d"}', b'{"event":"e"}'])
    log.settle(AUDITED, 3, 2)
    letters = [
        DeadLetter(Reason.MISSING_EVENT, AUDITED, b"{}", 1000.0),
        DeadLetter(Reason.REFUSED, AUDITED, b'{"event":"b"}', 1000.0, "no", place=(1, 1)),
    ]
    write_letters(log.directory, letters)
    return log


async def test_books_of_files_when_no_daemon_answers(tmp_path: Path) -> None:
    """Log and dead letters together balance; an event that stands in both counts once."""
    log = write_state(tmp_path)
    environment = {
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(tmp_path),
        "FORWARDER_ADMIN__LISTEN": "127.0.0.1:1",
    }
    done = await invoked("audit", env=environment)
    assert (done.code, done.err) == (0, "")
    assert f"From the files in {log.directory}" in done.out
    assert "The books balance" in done.out
    (row,) = [line.split() for line in done.out.splitlines() if lane_label(AUDITED) in line]
    assert row[1:4] == ["6", "2", "1"]
    assert (await invoked("audit", "--path", str(tmp_path))).out == done.out
    done = await invoked("audit", "--path", str(tmp_path), "--output", "json")
    books = json.loads(done.out)
    assert (books["balanced"], books["directories"]) == (True, [str(log.directory)])


async def test_files_that_are_off(tmp_path: Path) -> None:
    """A record that can't be read any more is missing from the books: exit code 1."""
    log = write_state(tmp_path)
    log.flip(log.events(AUDITED, [b'{"event":"lost"}']) + 30)
    log.settle(AUDITED, 4, 1)
    done = await invoked("audit", "--path", str(tmp_path))
    assert done.code == 1
    assert "too many" in done.out
    assert lane_label(AUDITED) in done.err


async def test_the_books_of_dead_letters_alone(tmp_path: Path) -> None:
    """Beside a memory buffer there is nothing but them: received starts at what they hold."""
    directory = worker_directory(tmp_path, 0)
    directory.mkdir()
    left = DeadLetter(Reason.UNDELIVERED_AT_EXIT, AUDITED, b"{}", 1000.0)
    invalid = DeadLetter(Reason.INVALID_EVENT, None, b"[", 1000.0)
    write_letters(directory, [left, invalid])
    done = await invoked(
        "audit",
        env={
            "FORWARDER_DEAD_LETTERS__PATH": str(tmp_path),
            "FORWARDER_ADMIN__LISTEN": "127.0.0.1:1",
        },
    )
    assert done.code == 0
    assert "1 undelivered_at_exit" in done.out
    assert "1 invalid_event" in done.out


async def test_a_path_without_state(tmp_path: Path) -> None:
    """Wrong usage, not balanced books of nothing."""
    done = await invoked("audit", "--path", str(tmp_path))
    assert done.code == 2
    assert "contains no buffer" in done.err


EXPLAINED_KEY = "phc_explainexplain1234"
EXPLAINED = Lane(EXPLAINED_KEY)
EXPLAINED_LABEL = lane_label(EXPLAINED)
BUFFERED = event("buffered")
DEAD = event("dead")
GONE = event("gone")
ODD = event("odd")
NO_DAEMON = {"FORWARDER_ADMIN__LISTEN": "127.0.0.1:1"}


def uuid_of(raw: bytes) -> str:
    """The event's uuid, as text."""
    return raw.partition(b'"uuid":"')[2][:36].decode()


@pytest.fixture
def explained_state(tmp_path: Path) -> Path:
    """A daemon's files: one event buffered, one a dead letter, one that can't be decoded another,
    one settled.
    """
    log = LogWriter(tmp_path / "explained_state")
    log.events(EXPLAINED, [event("another"), BUFFERED], received_at=1_767_225_600.0)
    log.events(EXPLAINED, [GONE])
    log.settle(EXPLAINED, 2, 1)
    refused = DeadLetter(
        Reason.REFUSED, EXPLAINED, DEAD, 1_767_225_600.0, "400: invalid <b>name</b>"
    )
    write_letters(
        log.directory,
        [refused, DeadLetter(Reason.INVALID_EVENT, None, ODD + b"}", 1_767_225_600.0)],
    )
    return tmp_path / "explained_state"


@pytest.mark.slow
async def test_a_buffered_event(explained_state: Path) -> None:
    """Its lane, since when, and where; exit code 0. Any spelling of the uuid will do."""
    done = await invoked(
        "explain", uuid_of(BUFFERED).upper(), "--path", str(explained_state), env=NO_DAEMON
    )
    assert (done.code, done.err) == (0, "")
    assert f"buffered, lane {EXPLAINED_LABEL}, since 2026-01-01T00:00:00+00:00" in done.out
    assert f"in {explained_state}/worker-0" in done.out
    assert EXPLAINED_KEY not in done.out


@pytest.mark.slow
async def test_a_dead_letter(explained_state: Path) -> None:
    """Its number, the reason and the upstream's words."""
    done = await invoked("explain", uuid_of(DEAD), "--path", str(explained_state), env=NO_DAEMON)
    assert done.code == 0
    assert f"dead letter 1, lane {EXPLAINED_LABEL}, since 2026-01-01T00:00:00+00:00" in done.out
    assert "refused: 400: invalid <b>name</b>" in done.out
    assert "forwarder dead-letters show 1" in done.out


@pytest.mark.slow
async def test_a_dead_letter_that_cannot_be_decoded(explained_state: Path) -> None:
    """It is found by its bytes."""
    done = await invoked("explain", uuid_of(ODD), "--path", str(explained_state), env=NO_DAEMON)
    assert done.code == 0
    assert "dead letter 2, lane none" in done.out


@pytest.mark.slow
async def test_an_event_that_is_gone_or_never_was(explained_state: Path) -> None:
    """The two can't be distinguished; exit code 1, and it says that no daemon was asked."""
    done = await invoked("explain", uuid_of(GONE), "--path", str(explained_state), env=NO_DAEMON)
    assert (done.code, done.out) == (1, "not found: delivered, or never received\n")
    assert "No daemon answered" in done.err


@pytest.mark.slow
async def test_events_as_json(explained_state: Path, daemon: Answering) -> None:
    """Each copy with its lane, time and reason; of what isn't found, what was asked."""
    options = ("--path", str(explained_state), "--output", "json")
    done = await invoked("explain", uuid_of(DEAD), *options, env=NO_DAEMON)
    answer = json.loads(done.out)
    assert (answer["uuid"], answer["count"], answer["daemon_asked"]) == (uuid_of(DEAD), 1, False)
    copy = answer["results"][0]
    assert (copy["where"], copy["lane"], copy["reason"]) == (
        "dead letter 1",
        EXPLAINED_LABEL,
        "refused",
    )
    assert copy["since"] == "2026-01-01T00:00:00.000Z"
    done = await invoked("explain", uuid_of(GONE), *options, "--admin", daemon.address)
    assert done.code == 1
    assert json.loads(done.out) == {
        "uuid": uuid_of(GONE),
        "count": 0,
        "results": [],
        "daemon_asked": True,
        "dropped_by_rules": {"no-autocapture": 12},
    }


@pytest.mark.slow
async def test_the_configuration_says_where_to_look(explained_state: Path) -> None:
    """Its buffer, and its dead letters."""
    environment = {
        **NO_DAEMON,
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(explained_state),
    }
    for raw in (BUFFERED, DEAD):
        assert (await invoked("explain", uuid_of(raw), env=environment)).code == 0
    in_memory = {**NO_DAEMON, "FORWARDER_DEAD_LETTERS__PATH": str(explained_state)}
    assert (await invoked("explain", uuid_of(DEAD), env=in_memory)).code == 0


@pytest.mark.slow
async def test_the_daemon_knows_more_than_its_files(
    explained_state: Path, daemon: Answering
) -> None:
    """What it says of an event that is also in the files is shown alone; without anything in the
    files it is found all the same.
    """
    daemon.sightings = [Sighting(EXPLAINED_LABEL, "sending", 1_767_225_600.0)]
    done = await invoked(
        "explain", uuid_of(BUFFERED), "--admin", daemon.address, "--path", str(explained_state)
    )
    (line,) = done.out.splitlines()
    assert line.startswith(
        f"buffered, in a request that is in flight or will be retried, lane {EXPLAINED_LABEL}, "
        "since 2026-01-01T00:00:00+00:00"
    )
    assert (await invoked("explain", uuid_of(GONE), "--admin", daemon.address)).code == 0
    daemon.sightings = []
    done = await invoked("explain", uuid_of(GONE), "--admin", daemon.address)
    assert (done.code, done.out, done.err) == (
        1,
        (
            "not found: delivered, or never received\nor dropped by a rule: no-autocapture "
            "dropped 12 since the start\n"
        ),
        "",
    )


@pytest.mark.slow
async def test_an_invalid_uuid_is_rejected() -> None:
    """Wrong usage."""
    done = await invoked("explain", "signup")
    assert done.code == 2
    assert "'signup' is not a UUID" in done.err


async def test_watch_shows_the_status_again_and_again(daemon: Answering) -> None:
    """Without a terminal page follows page, with rates from the second on; a daemon that is away
    is asked again.
    """
    async with running("status", "--watch", "0.1", "--admin", daemon.address) as watching:
        await watching.line("in 1,230 → buffer 70")
        daemon.snapshot = replace(
            FULL, now=FULL.now + 1, lanes=(replace(GOOD, received={"http": 1300}),)
        )
        await watching.line("in 1,300 (100/s)")
        watching.send(signal.SIGINT)
        assert await watching.ended() == 130
    async with running("status", "--admin", NOBODY, "--watch=0.1") as watching:
        await watching.line("no daemon answers at")
        await watching.line("no daemon answers at")


async def test_watch_as_json_is_a_document_a_line(daemon: Answering) -> None:
    """Programs read a line for each look; without a number of seconds `--watch` has
    one of its own.
    """
    async with running(
        "status", "--admin", daemon.address, "--output", "json", "--watch"
    ) as watching:
        assert parse((await watching.line("phc_")).encode()) == FULL


@cases("given", ["--watch=fast", "--watch=0", "--watch=-1", "--watch=1e12"])
async def test_watch_needs_a_time(given: str) -> None:
    """What is not a number of seconds, too small, or too large to wait for, is wrong usage."""
    done = await invoked("status", given)
    assert (done.code, "--watch" in done.err) == (2, True)
