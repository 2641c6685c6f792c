"""`forwarder explain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.admin.event_lookup import Sighting
from forwarder.core.event import Lane
from forwarder.core.ports import DeadLetter, Reason
from forwarder.telemetry.labels import lane_label
from tests.cli.conftest import Answering
from tests.support.commands import forwarder
from tests.support.disk_logs import LogWriter, write_letters
from tests.support.whole import event

pytestmark = pytest.mark.slow

KEY = "phc_explainexplain1234"
LANE = Lane(KEY)
LABEL = lane_label(LANE)
BUFFERED, DEAD, GONE, ODD = event("buffered"), event("dead"), event("gone"), event("odd")
NOBODY = {"FORWARDER_ADMIN__LISTEN": "127.0.0.1:1"}


def uuid_of(raw: bytes) -> str:
    """The event's uuid, as text."""
    return raw.partition(b'"uuid":"')[2][:36].decode()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A daemon's files: one event buffered, one a dead letter, one that can't be decoded another, one settled."""
    log = LogWriter(tmp_path / "state")
    log.events(LANE, [event("another"), BUFFERED], received_at=1_767_225_600.0)
    log.events(LANE, [GONE])
    log.settle(LANE, 2, 1)
    refused = DeadLetter(Reason.REFUSED, LANE, DEAD, 1_767_225_600.0, "400: invalid <b>name</b>")
    write_letters(log.directory, [refused, DeadLetter(Reason.INVALID_EVENT, None, ODD + b"}", 1_767_225_600.0)])
    return tmp_path / "state"


async def test_a_buffered_event(state: Path) -> None:
    """Its lane, since when, and where; exit code 0. Any spelling of the uuid will do."""
    done = await forwarder("explain", uuid_of(BUFFERED).upper(), "--path", str(state), env=NOBODY)
    assert (done.code, done.err) == (0, "")
    assert f"buffered, lane {LABEL}, since 2026-01-01T00:00:00+00:00" in done.out
    assert f"in {state}/worker-0" in done.out
    assert KEY not in done.out


async def test_a_dead_letter(state: Path) -> None:
    """Its number, the reason and the upstream's words."""
    done = await forwarder("explain", uuid_of(DEAD), "--path", str(state), env=NOBODY)
    assert done.code == 0
    assert f"dead letter 1, lane {LABEL}, since 2026-01-01T00:00:00+00:00" in done.out
    assert "refused: 400: invalid <b>name</b>" in done.out
    assert "forwarder dead-letters show 1" in done.out


async def test_a_dead_letter_that_cannot_be_decoded(state: Path) -> None:
    """It is found by its bytes."""
    done = await forwarder("explain", uuid_of(ODD), "--path", str(state), env=NOBODY)
    assert done.code == 0
    assert "dead letter 2, lane none" in done.out


async def test_an_event_that_is_gone_or_never_was(state: Path) -> None:
    """The two can't be told apart; exit code 1, and it says that no daemon was asked."""
    done = await forwarder("explain", uuid_of(GONE), "--path", str(state), env=NOBODY)
    assert (done.code, done.out) == (1, "not found: delivered, or never received\n")
    assert "No daemon answered" in done.err


async def test_the_configuration_says_where_to_look(state: Path) -> None:
    """Its buffer, and its dead letters."""
    environment = {**NOBODY, "FORWARDER_BUFFER__KIND": "disk", "FORWARDER_BUFFER__PATH": str(state)}
    for raw in (BUFFERED, DEAD):
        assert (await forwarder("explain", uuid_of(raw), env=environment)).code == 0
    in_memory = {**NOBODY, "FORWARDER_DEAD_LETTERS__PATH": str(state)}
    assert (await forwarder("explain", uuid_of(DEAD), env=in_memory)).code == 0


async def test_the_daemon_knows_more_than_its_files(state: Path, daemon: Answering) -> None:
    """What it says of an event that is also in the files is shown alone; without anything in the files it is found all the same."""
    daemon.sightings = [Sighting(LABEL, "sending", 1_767_225_600.0)]
    done = await forwarder("explain", uuid_of(BUFFERED), "--admin", daemon.address, "--path", str(state))
    (line,) = done.out.splitlines()
    assert line.startswith(f"buffered, in a request that is in flight or will be sent again, lane {LABEL}, since 2026-01-01T00:00:00+00:00")
    assert (await forwarder("explain", uuid_of(GONE), "--admin", daemon.address)).code == 0
    daemon.sightings = []
    done = await forwarder("explain", uuid_of(GONE), "--admin", daemon.address)
    assert (done.code, done.out, done.err) == (1, "not found: delivered, or never received\n", "")


async def test_what_is_no_uuid() -> None:
    """Wrong usage."""
    done = await forwarder("explain", "signup")
    assert done.code == 2
    assert "'signup' is not a UUID" in done.err
