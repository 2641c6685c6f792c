"""The manual page is made of the commands as they are, and `man` can show it."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from typer.main import get_command

from forwarder.cli.app import COMMANDS, app
from forwarder.cli.exit_codes import ExitCode
from tests.cli.test_documents import commands, options
from tests.support.manual import PAGE, manual


def test_the_page_is_current() -> None:
    """`make man` makes it again."""
    assert PAGE.read_text("utf-8") == manual(), "run `make man`"


def test_every_command_and_option_is_on_the_page() -> None:
    """Those of single endpoints of the management API are in the help of their commands."""
    page = PAGE.read_text("utf-8").replace("\\-", "-")
    for words, command in commands(get_command(app), "forwarder"):
        assert words.removeprefix("forwarder ") in page
        named = () if words.startswith("forwarder manage ") else options(words, command)
        assert [
            name
            for name in named
            if f"\\fB{name}" not in page and f" {name} " not in page and f" {name}\\fR" not in page
        ] == []
    assert all(f"\n.SS forwarder {name}" in page for name in COMMANDS)
    assert all(f"{code.value} " in page.partition(".SH EXIT STATUS")[2] for code in ExitCode)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_man_can_show_it() -> None:
    """Without a warning; nothing of the source is left in what is shown."""
    shown = subprocess.run(
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-P-cbou", str(PAGE)],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert shown.stderr == ""
    assert "forwarder send EVENT" in shown.stdout
    assert "--property NAME=VALUE" in shown.stdout.replace("\N{HYPHEN}", "-").replace(
        "\N{MINUS SIGN}", "-"
    )
    assert not [line for line in shown.stdout.splitlines() if line.lstrip().startswith((".", "\\"))]
