"""The pytest plugin, in runs of pytest as a project has them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.testing.projects import run_tests, write

SEND = """
import json, urllib.request

def send(url, event, api_key="phc_an_application_with_a_fixed_key", **properties):
    body = json.dumps({"api_key": api_key, "event": event, "distinct_id": "ann", "properties": \
properties}).encode()
    with urllib.request.urlopen(urllib.request.Request(url + "/capture/", body), timeout=20) as \
answer:
        return answer.status
"""
ISOLATED = """
import pytest, time
from send import send

SEEN = set()

@pytest.mark.parametrize("turn", range(2))
def test_every_test_begins_anew(analytics_sandbox, turn):
    assert analytics_sandbox.events() == [] and analytics_sandbox.persons() == [] and \
analytics_sandbox.faults() == []
    assert abs(analytics_sandbox.clock.timestamp() - time.time()) < 60
    assert analytics_sandbox.api_key not in SEEN
    SEEN.add(analytics_sandbox.api_key)
    send(analytics_sandbox.url, "seen", turn=turn)
    [event] = analytics_sandbox.wait_for(1, event="seen")
    assert event.properties["turn"] == turn
    analytics_sandbox.fail_next(503, times=100)
    if not turn:
        analytics_sandbox.move_clock("1d")

def test_the_address_stays(analytics_sandbox, analytics_sandbox_server):
    assert analytics_sandbox.url == analytics_sandbox_server.url
"""
NOTED = """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def noted_address(analytics_sandbox_server):
    with open(os.environ["ADDRESSES"], "a") as file:
        print(analytics_sandbox_server.url, file=file)
"""
FAILING = """
import pytest
from send import send

def test_no_event(analytics_sandbox, forwarder_daemon):
    send(forwarder_daemon.url, "seen")
    analytics_sandbox.wait_for(1, event="seen")
    analytics_sandbox.wait_for(2, event="signup", timeout=0.05)

@pytest.mark.forwarder(batch={"max_age": "1s"})
def test_a_wrong_marker(forwarder_daemon):
    pass

@pytest.mark.forwarder(settings={"batch": {"max_ages": "1s"}})
def test_wrong_settings(forwarder_daemon):
    pass

def test_a_dead_daemon(forwarder_daemon):
    forwarder_daemon._process._process.kill()
    forwarder_daemon._process._process.wait()
"""
DAEMON = """
import json, pytest, urllib.error
from send import send

@pytest.fixture
def forwarder_settings():
    return {"buffer": {"max_bytes": "32MiB"}, "log": {"format": "console", "level": "error"}, \
"batch": {"max_events": 10}}

@pytest.fixture
def analytics_sandbox_api_key():
    return "phc_an_application_with_a_fixed_key"

def test_it_delivers_and_retries(analytics_sandbox, forwarder_daemon):
    analytics_sandbox.fail_next(503, times=2)
    assert send(forwarder_daemon.url, "seen", n=1) == 200
    [event] = analytics_sandbox.wait_for(1, event="seen", api_key=analytics_sandbox.api_key)
    assert event["properties"]["n"] == 1
    assert [one["status"] for one in analytics_sandbox.requests(path="/batch")] == [503, 503, 200]
    assert forwarder_daemon.stop() == 0
    assert "upstream fails" in forwarder_daemon.log and not forwarder_daemon.running

def test_an_outage_of_each_kind(analytics_sandbox, forwarder_daemon):
    analytics_sandbox.fail_next(504, when="after")
    send(forwarder_daemon.url, "seen")
    assert len(analytics_sandbox.wait_for(2, event="seen", arrivals=True)) == 2
    assert len(analytics_sandbox.events("seen")) == 1
    analytics_sandbox.reset_next()
    send(forwarder_daemon.url, "after a reset")
    analytics_sandbox.wait_for(1, event="after a reset")
    # that the service stays down delays no run
    analytics_sandbox.fail_next(503, seconds=600)
    send(forwarder_daemon.url, "never")

@pytest.mark.forwarder(settings={"buffer": {"kind": "disk"}})
class TestWithADisk:
    @pytest.mark.forwarder({"batch": {"max_events": 20}})
    def test_it_survives_a_kill(self, analytics_sandbox, forwarder_daemon):
        url, settings = forwarder_daemon.url, forwarder_daemon.settings
        assert (settings["buffer"]["kind"], settings["buffer"]["max_bytes"], \
settings["batch"]["max_events"]) == ("disk", "32MiB", 20)
        analytics_sandbox.fail_next(503, seconds=600)
        send(url, "seen")
        forwarder_daemon.kill()
        analytics_sandbox.clear_faults()
        forwarder_daemon.start()
        assert forwarder_daemon.url == url
        assert len(analytics_sandbox.wait_for(1)) == 1
"""


def test_loading_it_costs_nothing() -> None:
    """In an environment with forwarder every run of pytest loads it: it imports no other module of
    forwarder, and no library but pytest.
    """
    script = (
        "import pytest, sys; before = set(sys.modules); import forwarder.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout.split() == ["forwarder", "forwarder.testing", "forwarder.testing.plugin"]


class Project:
    """A run of all files above by two processes, each of which has some of the files."""

    def __init__(self, folder: Path) -> None:
        write(
            folder,
            {
                "send.py": SEND,
                "conftest.py": NOTED,
                "test_one.py": ISOLATED,
                "test_two.py": ISOLATED,
                "test_failing.py": FAILING,
                "test_daemon.py": DAEMON,
                "pytest.ini": "[pytest]\npythonpath = .\n",
            },
        )
        options = ("--strict-markers", "-rA", "-n", "2", "--dist", "loadfile")
        self.run = run_tests(folder, *options, plugins=("xdist",))
        self.addresses = (folder / "addresses").read_text().split()

    def outcomes(self, *files: str) -> Counter[str]:
        """How many tests of these files passed, failed or had an error."""
        results = re.findall(r"^(PASSED|FAILED|ERROR) (\w+\.py)::", self.run.text, re.MULTILINE)
        return Counter(outcome for outcome, file in results if file in files)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """It is run once."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADDRESSES", str(folder / "addresses"))
        return Project(folder)


@pytest.mark.slow
def test_tests_are_isolated(project: Project) -> None:
    """Each has an empty sandbox at the present time with a key of its own; a run has one address,
    and each of two processes another.
    """
    assert project.outcomes("test_one.py", "test_two.py") == {"PASSED": 6}, project.run.text
    assert len(project.addresses) == 2
    assert len(set(project.addresses)) == 2


@pytest.mark.slow
def test_what_fails_says_why(project: Project) -> None:
    """An expectation, with what did arrive and the forwarder's log; a wrong marker; settings that
    don't exist; a daemon that has ended.
    """
    run = project.run
    assert run.code == 1
    expected = {"FAILED": 1, "PASSED": 1, "ERROR": 3}
    assert project.outcomes("test_failing.py") == expected, run.text
    assert (
        "AssertionError: 0 of 2 events with event 'signup' arrived within 0.05 s. The sandbox "
        "has 1 event: seen 1."
    ) in run.text
    assert "log of forwarder_daemon" in run.text
    assert '"event": "listening"' in run.text
    assert "write the marker as @pytest.mark.forwarder(settings={…})" in run.text
    assert "batch.max_ages" in run.text
    assert "the forwarder ended with exit code -9 during the test." in run.text
    assert "in wait_for" not in run.text


@pytest.mark.slow
def test_a_forwarder_before_the_sandbox(project: Project) -> None:
    """It delivers, retries, survives a kill with a disk buffer, and has the settings of fixture
    and markers; no test waits for its end.
    """
    assert project.outcomes("test_daemon.py") == {"PASSED": 3}, project.run.text
