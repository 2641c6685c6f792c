"""The checks of `conftest.py` themselves: each kind of leak fails the test that has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def run_pytest(directory: Path, source: str) -> str:
    """Run a file of tests under the repository's own conftest and options; what pytest printed."""
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    (directory / "test_it.py").write_text(source)
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


NAMED = (
    "task 'forgotten' in Event.wait",
    "thread 'idle'",
    "left-open",
    "at ('127.0.0.1'",
    "HTTP session made in",
    "5 errors",
)


@pytest.mark.parametrize("words", NAMED)
def test_leaks_are_named(words: str, leaky_output: str) -> None:
    """A task, a thread, a file, a socket and a session left behind each fail their test, and the
    failure names them.
    """
    assert words in leaky_output


@pytest.fixture(scope="module")
def leaky_output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of tests that leak."""
    return run_pytest(tmp_path_factory.mktemp("leaky"), LEAKY)


def test_tidy_tests_pass(tmp_path: Path) -> None:
    """Tests that clean up pass: with sockets, threads, cancelled tasks, hypothesis in both its
    forms, and logging that was configured.
    """
    assert "= 6 passed in" in run_pytest(tmp_path, CLEAN)
