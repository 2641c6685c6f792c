"""docs/tutorials/: each page is followed from its first command to its last, on ports of the
test's own.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from benchmarks.processes import free_ports
from tests.support.cases import cases
from tests.support.documents import DOCS, text_of
from tests.support.markdown import Step, blocks, steps
from tests.support.shells import Shell, missing
from tests.support.walkthrough import Walkthrough

PAGES: Final = sorted((DOCS / "tutorials").glob("*.md"))
FIRST: Final = "first-event"
"""The page that `make first-hour` follows, too."""
SET_UP: Final = "make setup"
"""What a step has that makes the environment: the tests run in it."""
WORDS: Final = 1500
LIMIT: Final = 90.0
"""Seconds that a command of a page may take, on a machine that is busy."""


def followed(page: Path) -> list[Step]:
    """The steps of a page but those that make the environment."""
    return [step for step in steps(text_of(page)) if SET_UP not in step.text]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.long if page.stem == FIRST else ())
        for page in PAGES
    ],
)
def test_a_tutorial_works_as_it_is_written(page: Path, tmp_path: Path) -> None:
    """Each command succeeds, or ends with the code that the page says, and shows the lines that
    stand below it.
    """
    asyncio.run(_follow(page, tmp_path))  # it takes longer than an asynchronous test may


async def _follow(page: Path, folder: Path) -> None:
    ingestion, admin, sandbox = free_ports(3)
    variables = {
        "FORWARDER_SOURCES__HTTP__LISTEN": f"127.0.0.1:{ingestion}",
        "FORWARDER_ADMIN__LISTEN": f"127.0.0.1:{admin}",
        "FORWARDER_LOG__FORMAT": "console",
        "NO_COLOR": "1",
    }
    replaced = {
        "8320": str(ingestion),
        "8321": str(admin),
        "8322": str(sandbox),
        "forwarder sandbox ": f"forwarder sandbox --listen 127.0.0.1:{sandbox} ",
    }
    shell = Shell(folder, variables, LIMIT)
    shell.prepare()
    async with Walkthrough(shell, replaced) as walk:
        await walk.follow(followed(page))


@cases("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_short_and_all_of_it_is_followed(page: Path) -> None:
    """It has at most 1,500 words, no command is left out, and what it saves for others
    can be read.
    """
    text = text_of(page)
    assert len(re.findall(r"\S+", text)) <= WORDS
    page_steps = steps(text)
    typed = [step.text for step in page_steps if step.action in ("run", "start")]
    assert typed == [block.text for block in blocks(text, "sh")]
    assert all(yaml.safe_load(step.text) for step in page_steps if step.name.endswith(".yml"))
