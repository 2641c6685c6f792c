"""sandbox-flags.md and sandbox-exports.md: their commands run as they stand, one after the other,
and answer what they show.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import pytest

from tests.support.commands import LIMIT, running
from tests.support.documents import text_of
from tests.support.repository import ROOT
from tests.support.shells import Shell, missing, posted

PAGES: Final = ("sandbox-flags", "sandbox-exports")
ADDRESS: Final = "http://127.0.0.1:8322"
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MARK: Final = "--- end of a block ---"


def blocks(title: str) -> tuple[list[str], list[tuple[str, str | None]]]:
    """The command that starts the sandbox, as words, and each block of commands with the output
    that is shown right below it.
    """
    text = text_of(title)
    matches = list(BLOCK.finditer(text))
    start = next(match[2].split() for match in matches if match[2].startswith("forwarder sandbox "))
    examples: list[tuple[str, str | None]] = []
    for match, after in zip(matches, [*matches[1:], None], strict=True):
        if match[1] == "sh":
            shown = (
                after is not None
                and after[1] in ("", "json")
                and not text[match.end() : after.start()].strip()
            )
            examples.append((match[2], after[2] if after is not None and shown else None))
    return start[1:], examples


@pytest.mark.slow
@pytest.mark.skipif(missing() != [], reason="the pages' commands need curl")
@pytest.mark.timeout(3 * LIMIT)
@pytest.mark.parametrize("page", PAGES)
async def test_the_examples_of_a_page(page: str, tmp_path: Path) -> None:
    """Each block ends well, in the order of the page, and prints what stands below it."""
    start, examples = blocks(page)
    assert len(examples) >= 2
    shell = Shell(tmp_path)
    shell.prepare()
    words = [str(ROOT / word) if word.startswith("config/") else word for word in start]
    words = [
        str(tmp_path / word) if words[place - 1] in ("--export-root", "--database") else word
        for place, word in enumerate(words)
    ]
    async with running(*words, "--listen", "127.0.0.1:0") as sandbox:
        url = (await sandbox.line("listening on")).split()[-1]
        if 3600 - time.time() % 3600 < LIMIT:  # the examples are of one hour
            await posted(f"{url}/sandbox/clock", {"advance": "1m"})
        script = f"\necho; echo '{MARK}'\n".join(
            block.replace(ADDRESS, url) for block, _ in examples
        )
        printed = [output.strip() for output in (await shell.done(script)).split(MARK)]
    assert len(printed) == len(examples)
    for (block, shown), said in zip(examples, printed, strict=True):
        assert shown is None or said.replace(url, ADDRESS) == shown.strip(), block
