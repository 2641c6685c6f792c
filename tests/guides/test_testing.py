"""docs/how-to/testing.md: its commands run, its tables are complete, and its files for CI can be
read. Its Python runs in tests/testing.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from forwarder.cli.sandbox import sandbox as command
from forwarder.sandbox.web.faults import FaultSpec
from forwarder.testing import plugin
from forwarder.testing.sandbox import AnalyticsSandbox, running_sandbox
from tests.support.cases import cases
from tests.support.documents import sections, text_of

TEXT: Final = text_of("testing", "testing-http")
BLOCKS: Final = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
SHELL: Final = [block for language, block in BLOCKS if language == "sh" and "curl" in block]
FILES: Final = {
    language: [block for name, block in BLOCKS if name == language]
    for language in ("yaml", "js", "go")
}


@pytest.fixture(scope="module")
def server() -> Iterator[AnalyticsSandbox]:
    """One for all tests of this file."""
    with running_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(server: AnalyticsSandbox) -> AnalyticsSandbox:
    """The same, empty."""
    server.clear()
    return server


def cells(title: str) -> list[str]:
    """The first cells of a section's table."""
    return re.findall(r"^\| (`.*?) \|", sections(TEXT)[title], re.MULTILINE)


def run(arguments: list[str], sandbox: AnalyticsSandbox, folder: Path) -> str:
    """The output of a program of the page, which must succeed; skips where it is not installed."""
    if shutil.which(arguments[0]) is None:
        pytest.skip(f"{arguments[0]} is not installed")
    environment = {**os.environ, "SANDBOX": sandbox.url, "KEY": sandbox.api_key, "NODE_OPTIONS": ""}
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", SHELL, ids=[re.findall(r"sandbox/\w+", block)[-1] for block in SHELL]
)
def test_commands_succeed(block: str, sandbox: AnalyticsSandbox, tmp_path: Path) -> None:
    """Each, at a sandbox on another port: what isn't answered 2xx fails."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    lines = [line for line in block.splitlines() if not line.startswith(("SANDBOX=", "forwarder "))]
    out = run(["sh", "-eu", "-c", "\n".join(lines)], sandbox, tmp_path)
    if "/sandbox/wait" in block:
        assert [request["status"] for request in sandbox.requests(path="/batch/")] == [
            503,
            503,
            200,
        ]
        assert '"event": "signup"' in out


@pytest.mark.slow
def test_the_test_in_node_passes(sandbox: AnalyticsSandbox, tmp_path: Path) -> None:
    """As it stands there."""
    [text] = FILES["js"]
    (tmp_path / "shop.test.mjs").write_text(text)
    assert "pass 1" in run(
        ["node", "--test", "--test-reporter=tap", "shop.test.mjs"], sandbox, tmp_path
    )
    assert len(sandbox.events("signup")) == 1


@pytest.mark.slow
def test_the_test_in_go_passes(sandbox: AnalyticsSandbox, tmp_path: Path) -> None:
    """As it stands there."""
    [text] = FILES["go"]
    (tmp_path / "shop_test.go").write_text(text)
    (tmp_path / "go.mod").write_text("module shop\n\ngo 1.20\n")
    assert "ok" in run(["go", "test", "./..."], sandbox, tmp_path)
    assert len(sandbox.events("signup")) == 1


@cases("text", FILES["yaml"], ids=[text.splitlines()[0] for text in FILES["yaml"]])
def test_files_for_ci_can_be_read(text: str) -> None:
    """They are YAML, and what they start is a command with its options, on an
    address that others reach.
    """
    assert yaml.safe_load(text)
    [arguments] = re.findall(r"(?:forwarder |\[)(sandbox,? --.*?)\]?$", text, re.MULTILINE)
    known = {f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters}
    assert set(re.findall(r"--[a-z-]+", arguments)) <= known
    assert "0.0.0.0:8322" in arguments


def test_every_member_of_a_fault_is_there() -> None:
    """And no other."""
    cells_of_faults = re.findall(r"^\| (`.*?) \|", text_of("sandbox-faults"), re.MULTILINE)
    assert {name for cell in cells_of_faults for name in re.findall(r"`(\w+)`", cell)} == set(
        FaultSpec.model_fields
    )


def test_functions_and_fixtures_are_there() -> None:
    """Each that the page has exists with the arguments that are shown, and
    each that exists is shown.
    """
    shown = cells("With pytest")
    fixtures = {
        name
        for name, value in vars(plugin).items()
        if type(value).__name__ == "FixtureFunctionDefinition"
    }
    assert {
        name for cell in shown for name in re.findall(r"^`(\w+)`$", cell) if name != "clock"
    } == fixtures
    calls = dict(
        re.findall(
            r"`(\w+)\((.*?)\)`",
            sections(TEXT)["With pytest"].partition("`analytics_sandbox` has:")[2],
        )
    )
    calls = {
        name: arguments for name, arguments in calls.items() if name not in ("flush", "shutdown")
    }
    public = {
        name
        for name, value in vars(AnalyticsSandbox).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert calls.keys() | {"add_fault"} >= public
    for name, arguments in calls.items():
        parameters = inspect.signature(getattr(AnalyticsSandbox, name)).parameters
        assert set(re.findall(r"(\w+)=", arguments)) <= parameters.keys(), name
