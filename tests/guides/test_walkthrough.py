"""Pages that are followed: which steps a page has, and what counts as shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import cases
from tests.support.markdown import blocks, steps, unseen
from tests.support.shells import Shell
from tests.support.walkthrough import Walkthrough

PAGE = """# A page
<!-- terminal clock -->
```sh
trap 'echo "the end"; exit' INT
while :; do echo "it is 12:00"; sleep 0.01; done
```
It says:
```text
it is …:00
```
<!-- file shop.py -->
```python
print("hello")
```
```sh
cat shop.py
```
```
print("…")
```
<!-- exit 3 -->
```sh
exit 3
```
<!-- skip -->
```sh
exit 1
```
<!-- interrupt clock -->
```text
the end
```
"""


def test_a_page_has_the_steps_of_its_blocks_and_comments() -> None:
    """Commands to run and to start, files to save, an interrupt, and the lines that each shows;
    what is skipped isn't one.
    """
    parsed_steps = [(step.action, step.name, step.shows, step.code) for step in steps(PAGE)]
    assert parsed_steps == [
        ("start", "clock", ("it is …:00",), 0),
        ("save", "shop.py", (), 0),
        ("run", "", ('print("…")',), 0),
        ("run", "", (), 3),
        ("interrupt", "clock", ("the end",), 0),
    ]
    assert [block.line for block in blocks(PAGE, "sh")] == [4, 16, 23, 27]


@pytest.mark.parametrize("page", ["<!-- file a -->\n", "<!-- terminal a -->\n```json\n{}\n```\n"])
def test_a_comment_without_its_block_is_an_error(page: str) -> None:
    """It would be a command that no one runs."""
    with pytest.raises(ValueError, match="comment" if page.endswith("-->\n") else "stands before"):
        steps(page)


@cases(
    ("shows", "missing"),
    [
        (("a 1", "c …"), ""),
        (("c 3", "a 1"), "a 1"),
        (("a",), "a"),
        (("b [2]",), ""),
    ],
)
def test_lines_are_shown_in_their_order(shows: tuple[str, ...], missing: str) -> None:
    """Whole lines, whatever their spaces and colors; others may stand between them."""
    assert unseen(shows, "a   1\n\x1b[1mb [2]\x1b[0m\nc 3\n") == missing


async def test_a_page_is_followed(tmp_path: Path) -> None:
    """Its terminals run until they are interrupted, its files are saved, and each step shows what
    it says.
    """
    async with Walkthrough(_shell(tmp_path), {"12:00": "13:00"}) as walk:
        await walk.follow(steps(PAGE))


@cases(
    ("page", "problem"),
    [
        ("```sh\necho 1\n```\n```\n2\n```\n", "line 2: echo 1\n\n'2' isn't shown"),
        ("```sh\nfalse\n```\n", "code=1"),
        ("<!-- terminal a -->\n```sh\ntrue\n```\n```\n2\n```\n", "'2' isn't shown"),
    ],
)
async def test_what_differs_from_the_page_is_named(page: str, problem: str, tmp_path: Path) -> None:
    """A missing line, another exit code, a terminal that ended."""
    async with Walkthrough(_shell(tmp_path), {}) as walk:
        with pytest.raises(AssertionError) as raised:
            await walk.follow(steps(page))
    assert problem in str(raised.value)


def _shell(folder: Path) -> Shell:
    shell = Shell(folder)
    shell.prepare()
    return shell
