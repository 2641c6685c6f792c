"""The checks of `conftest.py` themselves: each kind of leak fails the test that has it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.cases import cases
from tests.support.repository import ROOT

pytestmark = pytest.mark.slow

LEAKY = """
import aiohttp, asyncio, socket, threading

kept = []

async def test_task():
    kept.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))

def test_thread():
    thread = threading.Thread(target=threading.Event().wait, name="idle", daemon=True)
    thread.start()

def test_file(tmp_path):
    kept.append((tmp_path / "left-open").open("w"))

async def test_socket():
    kept.append(socket.create_server(("127.0.0.1", 0)))

async def test_session():
    kept.append(aiohttp.ClientSession())
"""

CLEAN = """
import asyncio, logging
import pytest
import structlog
from forwarder.telemetry.logs import configure_logging
from hypothesis import given, settings, strategies as st

async def test_tidy(tmp_path):
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    await asyncio.to_thread((tmp_path / "file").write_text, "closed")
    server.close()
    await server.wait_closed()

def test_logging_is_configured():
    configure_logging("json", "error")

def test_logging_is_as_before():
    with structlog.testing.capture_logs() as logs:
        structlog.get_logger().info("heard")
    assert [line["event"] for line in logs] == ["heard"]
    assert logging.getLogger().level == logging.WARNING

async def test_a_cancelled_task_may_end():
    asyncio.create_task(asyncio.Event().wait()).cancel()

@settings(max_examples=5)
@given(st.integers())
async def test_property(number):
    await asyncio.create_task(asyncio.sleep(0))

@settings(max_examples=5)
@given(st.integers())
def test_synchronous_property(number):
    assert isinstance(number, int)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of both files under the repository's own conftest and options."""
    directory = tmp_path_factory.mktemp("leaks")
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    (directory / "test_clean.py").write_text(CLEAN)
    (directory / "test_leaky.py").write_text(LEAKY)
    options = [
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(directory),
    ]
    command = [sys.executable, "-m", "pytest", *options, str(directory)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    ).stdout


@cases(
    "words",
    [
        "task 'forgotten' in Event.wait",
        "thread 'idle'",
        "left-open",
        "at ('127.0.0.1'",
        "HTTP session made in",
        "5 errors",
    ],
)
def test_leaks_are_named(words: str, output: str) -> None:
    """A task, a thread, a file, a socket and a session left behind each fail their test, and the
    failure names them.
    """
    assert words in output


def test_tidy_tests_pass(output: str) -> None:
    """Tests that clean up pass: with sockets, threads, cancelled tasks, hypothesis in both its
    forms, and logging that was configured. A leak is an error of the test that has it, which has
    passed by then.
    """
    assert "= 11 passed, 5 errors in" in output
    assert set(re.findall(r"^ERROR \S*?(\w+\.py)::", output, re.MULTILINE)) == {"test_leaky.py"}
