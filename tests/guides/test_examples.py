"""examples/: each configuration is valid, and each page is followed from its first command to its
last, on ports of the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import py_compile
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest

from benchmarks.processes import free_ports
from tests.support.cases import cases
from tests.support.commands import invoked
from tests.support.markdown import blocks, steps
from tests.support.repository import ROOT, files, name
from tests.support.shells import Shell, missing
from tests.support.typed import commands, options
from tests.support.walkthrough import Walkthrough

EXAMPLES: Final = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))
NEEDS: Final = {"flask-sidecar": ("flask", "posthog")}
"""What an example installs that the product doesn't."""
LINES: Final = 15
"""What a reader sees of a page, without empty lines."""
LIMIT: Final = 90.0
"""Seconds that a command of a page may take, on a machine that is busy."""


def copied(example: Path, folder: Path) -> Path:
    """A copy of an example's files, without the state of one that was tried in the clone."""
    return Path(
        shutil.copytree(example, folder / example.name, ignore=shutil.ignore_patterns("state"))
    )


def typed(example: Path) -> list[list[str]]:
    """The commands of forwarder on an example's page, without what is set for them."""
    lines = [
        line
        for block in blocks((example / "README.md").read_text("utf-8"), "sh")
        for line in block.text.splitlines()
    ]
    split_lines = [shlex.split(line, comments=True) for line in lines]
    return [words[words.index("forwarder") + 1 :] for words in split_lines if "forwarder" in words]


@cases("example", EXAMPLES, ids=name)
def test_an_example_has_a_configuration_and_a_short_page(example: Path) -> None:
    """The page names the configuration, the index the page, and its commands exist."""
    text = (example / "README.md").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("```", "<!--"))]) <= LINES
    assert "(forwarder.yaml)" in text
    assert f"({example.name}/README.md)" in (ROOT / "examples" / "README.md").read_text("utf-8")
    for words in typed(example):
        assert words[0] in commands(), words
        assert {word for word in words if word.startswith("--")} <= options(words), words


@pytest.mark.slow
@cases("example", EXAMPLES, ids=name)
async def test_a_configuration_is_valid_as_it_stands(example: Path, tmp_path: Path) -> None:
    """`forwarder config check` finds nothing in the example's folder, once the salt is there."""
    folder = copied(example, tmp_path)
    (folder / "salt").write_text("salt of the examples")
    ingestion, admin = free_ports(2)
    env = {
        "FORWARDER_SOURCES__HTTP__LISTEN": f"127.0.0.1:{ingestion}",
        "FORWARDER_ADMIN__LISTEN": f"127.0.0.1:{admin}",
        "STATE_DIRECTORY": str(folder),
    }
    with contextlib.chdir(folder):
        done = await invoked("config", "check", "--config", "forwarder.yaml", env=env)
    assert done.code == 0, done


@cases("path", files(".py", "examples"), ids=name)
def test_a_program_compiles(path: Path, tmp_path: Path) -> None:
    """Also where what it imports isn't installed."""
    py_compile.compile(str(path), cfile=str(tmp_path / "compiled"), doraise=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_works_as_it_is_written(example: Path, tmp_path: Path) -> None:
    """Each command succeeds and shows the lines that stand below it."""
    lacking = [module for module in NEEDS.get(example.name, ()) if find_spec(module) is None]
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    asyncio.run(_follow(example, tmp_path))  # it takes longer than an asynchronous test may


async def _follow(example: Path, folder: Path) -> None:
    ingestion, admin, sandbox, application = free_ports(4)
    variables = {
        "FORWARDER_SOURCES__HTTP__LISTEN": f"127.0.0.1:{ingestion}",
        "FORWARDER_ADMIN__LISTEN": f"127.0.0.1:{admin}",
        "ANALYTICS_HOST": f"http://127.0.0.1:{ingestion}",
        "NO_COLOR": "1",
    }
    replaced = {
        "8322": str(sandbox),
        "8000": str(application),
        "forwarder sandbox ": f"forwarder sandbox --listen 127.0.0.1:{sandbox} ",
    }
    shell = Shell(copied(example, folder), variables, LIMIT)
    shell.prepare()
    async with Walkthrough(shell, replaced) as walk:
        await walk.follow(steps((example / "README.md").read_text("utf-8")))
