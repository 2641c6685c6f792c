"""docs/how-to/operations.md, and the reasons of docs/how-to/dead-letters.md,
compared with the program.
"""

from __future__ import annotations

import re

from forwarder.cli.app import COMMANDS
from forwarder.cli.exit_codes import ExitCode
from forwarder.core.outcome import HaltReason
from forwarder.core.ports import DropReason, Reason
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.repository import files

TEXT = text_of("operations", "restart")


def table(title: str, text: str = TEXT) -> set[str]:
    """The first column of the section's table."""
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return {cell.strip("` ") for cell in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)} - {
        "reason",
        "Code",
    }


@cases(
    ("title", "values"),
    [("Halted lanes", HaltReason), ("Dead letters", Reason), ("Dropped events", DropReason)],
    ids=str,
)
def test_closed_sets_are_documented(
    title: str, values: type[HaltReason | Reason | DropReason]
) -> None:
    """Each reason that exists is documented, and no other."""
    assert table(title, text_of("reasons")) == {value.value for value in values}


def test_exit_codes_are_documented() -> None:
    """The codes that commands use are in the table."""
    assert {str(code.value) for code in ExitCode} == table("Exit codes", text_of("commands"))


def test_commands_are_real() -> None:
    """Every command that the page names exists."""
    assert set(re.findall(r"`(?:\S+ )?forwarder ([a-z]+(?:-[a-z]+)*)", TEXT)) <= set(COMMANDS)


def test_admin_paths_are_real() -> None:
    """The admin server's paths are those of the table."""
    source = "".join(path.read_text() for path in files(".py", "forwarder/admin"))
    assert set(re.findall(r'(?:web\.|add_)get\("(/\w+)"', source)) == {
        path for path in table("Monitoring") if path.startswith("/")
    }
