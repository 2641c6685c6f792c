"""The decoder process: started when it is needed, alone with its socket, bounded in time and
memory, and gone with the daemon.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forwarder.core.clock import SystemClock
from forwarder.core.errors import Backpressure, BufferFull, RequestTooLarge
from forwarder.core.event import Lane
from forwarder.core.ports import Reason
from forwarder.daemon.decoder import IDLE_SECONDS, DecoderProcess
from forwarder.intake.decoder_jobs import (
    DecoderReply,
    RequestJob,
    decode_head,
    encode_job,
    no_files,
)
from forwarder.stamping.stamp_event import ReadingRules
from tests.support.clock import FakeClock
from tests.support.decoders import NO_EFFORT, Patient
from tests.support.intakes import KEY, IntakeRig, batch, stamped_event
from tests.support.waiting import eventually, tick

BODY = b'{"api_key":"phc_good","batch":[%b]}' % b",".join(
    [b'{"event":"e","distinct_id":"d"}'] * 5000
)
SLEEPER = (sys.executable, "-c", "import signal; signal.pause()")
BUSY = (
    sys.executable,
    "-c",
    "import signal; signal.setitimer(signal.ITIMER_PROF, 0.01)\nwhile True: pass",
)
MUTE = (sys.executable, "-c", "import socket; socket.socket(fileno=0).recv(1)")


def job() -> bytes:
    """A request's job."""
    rules = ReadingRules(20_000_000, 1_000_000, 1_000_000, 1.0, ordered=(False, False))
    return encode_job(RequestJob(rules, 100, [], 0.0, b"", b"", b"", None, b"", None))


def open_files_of(pid: int | None) -> list[str]:
    """What a process has open."""
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def anything(_size: int) -> None:
    """Accept whatever comes back."""


async def decoded(decoder: DecoderProcess, body: bytes = BODY) -> DecoderReply:
    """What comes of a body."""
    head, parts = await decoder.decode(job(), body, anything, no_files)
    return DecoderReply(decode_head(head), parts)


def decoder_of(clock: Any = None, command: tuple[str, ...] | None = None) -> DecoderProcess:
    """A decoder; with another program in place of the process, if there is a command."""
    clock = clock or SystemClock()
    return (
        DecoderProcess(20_000_000, clock, 30.0)
        if command is None
        else DecoderProcess(20_000_000, clock, 30.0, lambda _: command)
    )


@pytest_asyncio.fixture
async def decoder() -> AsyncIterator[DecoderProcess]:
    """The real one."""
    decoder = decoder_of()
    yield decoder
    await decoder.close()
    assert decoder.pid is None


async def test_the_decoder_process_starts_with_the_first_large_body(
    decoder: DecoderProcess,
) -> None:
    """One process for all bodies, none before the first; large ones in both directions."""
    assert decoder.pid is None
    assert sum(count for _, count, _ in (await decoded(decoder)).head.pieces) == 5000
    pid = decoder.pid
    spaces = (
        b'{"api_key":"phc_good","batch":['
        + b" " * 15_000_000
        + b'{"event":"e","distinct_id":"d","x":"'
        + b"y" * 900_000
        + b'"}]}'
    )
    (chunk,) = (await decoded(decoder, spaces)).chunks(0.0, "http")
    assert len(chunk.data) > 900_000
    assert (decoder.pid, decoder.starts) == (pid, 1)


async def test_the_decoder_process_inherits_one_socket_only(
    decoder: DecoderProcess, tmp_path: Path
) -> None:
    """A listening socket that could be inherited isn't: the port is free when the
    daemon has ended.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening, (tmp_path / "lock").open("w") as file:
        os.set_inheritable(listening.fileno(), True)
        os.set_inheritable(file.fileno(), True)
        await decoded(decoder)
        held = open_files_of(decoder.pid)
    assert len([open_file for open_file in held if open_file.startswith("socket:")]) == 1
    assert not [target for target in held if "lock" in target]


@pytest.mark.slow
async def test_rules_are_applied_in_it(decoder: DecoderProcess, tmp_path: Path) -> None:
    """People are looked up in the daemon's file; a condition that takes too long fails for its
    event alone, and other bodies are read as before.
    """
    people = tmp_path / "people"
    people.write_text("gone\n")
    salt = tmp_path / "salt"
    salt.write_text("salt")
    long = "[range(99999) as $a | range(99999)] | length > 0"
    rules: list[dict[str, Any]] = [
        {"name": "gone", "match": {"distinct_id_file": str(people)}, "drop": True},
        {"hash": {"field": ".distinct_id", "salt_file": str(salt)}},
        {
            "name": "slow",
            "match": {"event": "slow", "where": long},
            "drop": True,
            "on_error": "dead_letter",
        },
    ]
    rig = IntakeRig(rules=rules, decoder=decoder, effort=NO_EFFORT)
    people.write_text("nobody\n")  # not looked at again: the daemon's file is what counts
    events = [
        {**stamped_event(), "event": event, "distinct_id": person}
        for event, person in (("e", "gone"), ("slow", "ann"), ("e", "ann"), ("slow", "gone"))
    ]
    for _ in range(2):
        waiter = Patient()
        rig.offer(batch(*events), waiter)
        await waiter.called.wait()
        assert not waiter.failures
    assert rig.figures(Lane(KEY)) == (8, 2, {Reason.RULE_FAILED: 2}, {"rule:gone": 4})
    assert "takes over 1 s of CPU" in rig.dead_letters.dead_letters[0].why
    assert b"ann" not in b"".join(rig.events())
    assert decoder.starts == 1
    await rig.conditions.close()


async def test_signals_for_the_whole_group_do_not_end_it(decoder: DecoderProcess) -> None:
    """It works on while the daemon drains."""
    await decoded(decoder)
    assert decoder.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(decoder.pid, number)
    await decoded(decoder)
    assert decoder.starts == 1


async def test_a_killed_decoder_process_is_replaced(decoder: DecoderProcess) -> None:
    """By whatever: the body that it worked on is tried once more."""
    await decoded(decoder)
    assert decoder.pid is not None
    os.kill(decoder.pid, signal.SIGKILL)
    assert len((await decoded(decoder)).parts) > 0
    assert decoder.starts == 2


async def test_a_body_that_takes_too_long_ends_the_process() -> None:
    """Its sender is asked to come back, for the machine may only be busy, and the next body finds
    another process.
    """
    clock = FakeClock()
    decoder = decoder_of(clock, SLEEPER)
    waiting = asyncio.ensure_future(decoder.decode(job(), BODY * 20, anything, no_files))
    await eventually(lambda: decoder.pid is not None)
    await clock.advance(30.0)
    with pytest.raises(Backpressure, match="in time"):
        await waiting
    assert decoder.pid is None
    await decoder.close()


async def test_a_body_that_takes_too_much_cpu_is_rejected() -> None:
    """413: the process ends itself, whatever else the machine does; it isn't tried again."""
    decoder = decoder_of(command=BUSY)
    with pytest.raises(RequestTooLarge, match="of CPU"):
        await decoder.decode(job(), BODY, anything, no_files)
    assert (decoder.pid, decoder.starts) == (None, 1)
    await decoder.close()


async def test_a_body_that_ends_each_process_is_rejected() -> None:
    """After two."""
    decoder = decoder_of(command=MUTE)
    with pytest.raises(RequestTooLarge, match="has ended each time"):
        await decoder.decode(job(), BODY, anything, no_files)
    assert decoder.starts == 2
    await decoder.close()


async def test_a_body_that_takes_too_much_memory_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process has a limit, and lives on."""
    monkeypatch.setattr("forwarder.daemon.decoder.memory_limit", lambda _size: 100 << 20)
    decoder = decoder_of()
    event = b'{"event":"e","distinct_id":"d","x":"%b"}' % (b"x" * 300)
    body = b'{"api_key":"phc_good","batch":[%b]}' % b",".join([event] * 50_000)
    rejected = await decoded(decoder, body)
    with pytest.raises(RequestTooLarge):
        rejected.check()
    (await decoded(decoder)).check()
    await decoder.close()


async def test_without_a_process_senders_are_asked_to_come_back() -> None:
    """As where no process can be started."""
    decoder = decoder_of(command=("/no/such/program",))
    with pytest.raises(Backpressure, match="can't be decoded now"):
        await decoder.decode(job(), BODY, anything, no_files)
    await decoder.close()


async def test_an_outcome_without_room_is_discarded(decoder: DecoderProcess) -> None:
    """The outcome's bytes are discarded as they come, and the process continues with the
    next body.
    """

    def refuse(size: int) -> None:
        assert size > 100_000
        raise BufferFull("no room")

    with pytest.raises(BufferFull):
        await decoder.decode(job(), BODY, refuse, no_files)
    assert len((await decoded(decoder)).parts) > 0
    assert decoder.starts == 1


async def test_an_idle_decoder_process_ends() -> None:
    """After a while."""
    clock = FakeClock()
    decoder = decoder_of(clock)
    await decoded(decoder)
    first = decoder.pid
    await clock.advance(IDLE_SECONDS)
    await decoded(decoder)
    assert decoder.pid != first
    await decoder.close()


async def test_a_cancelled_body_ends_its_process(decoder: DecoderProcess) -> None:
    """Nothing works on for no one."""
    await decoded(decoder)
    waiting = asyncio.ensure_future(decoded(decoder))
    await tick()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert decoder.pid is None


def test_an_orphaned_decoder_process_ends() -> None:
    """As when that one died meanwhile: it ends at once."""
    command = [sys.executable, "-m", "forwarder.daemon.decoder_process", "1", str(1 << 40)]
    mine, its = socket.socketpair()
    with mine, its:
        assert subprocess.run(command, stdin=its.fileno(), timeout=180, check=False).returncode == 0
