"""Completion in shells: commands that are imported when they are called, resources, verbs, options
and values.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forwarder.cli.app import COMMANDS
from forwarder.contract.endpoints import ENDPOINTS
from tests.support.cases import cases
from tests.support.commands import environment, invoke

RESOURCES = list(dict.fromkeys(endpoint.resource for endpoint in ENDPOINTS))
HEAVY = ["aiohttp", "structlog", "prometheus_client", "sqlite3"]


def ask(**variables: str) -> str:
    """What `forwarder` answers a shell that asks."""
    done = invoke(env=variables)
    assert done.err == ""
    return done.out.rstrip("\n")


def bash(line: str) -> list[str]:
    """What bash is offered for the last word of a line; a blank at its end: for the next one."""
    words = shlex.split(line)
    position = len(words) - (not line.endswith(" "))
    return ask(
        _FORWARDER_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(position)
    ).split("\n")


@cases(
    ("line", "offered"),
    [
        ("forwarder man", ["manage"]),
        ("forwarder manage ", RESOURCES),
        ("forwarder manage organization-batch-exports ", ["pause", "unpause"]),
        ("forwarder manage domains ver", ["verify"]),
        ("forwarder manage members update x --le", ["--level"]),
        ("forwarder manage members update x --level ", ["member", "admin", "owner"]),
        ("forwarder manage invites bulk --level o", ["owner"]),
        ("forwarder manage batch-exports update x --model ", ["events", "persons"]),
        (
            "forwarder manage batch-exports update x --interval e",
            [r"every\ 5\ minutes", r"every\ 15\ minutes"],
        ),
        ("forwarder manage batch-export-runs retry a b --status FailedR", ["FailedRetryable"]),
        ("forwarder manage domains list --output ", ["table", "json"]),
        ("forwarder dead-letters re", ["replay"]),
        ("forwarder import mix", ["mixpanel", "mixpanel-profiles"]),
        ("forwarder import csv x --number", ["--number-column"]),
        ("forwarder import segment x --framing ", ["auto", "lines", "json", "parquet"]),
        ("forwarder import native x --accept no", ["no-zone"]),
        ("forwarder import native x --person-properties ", ["history", "newest", "oldest", "none"]),
        ("forwarder config show --output ", ["yaml", "json"]),
        (
            "forwarder config show sources.http.tl",
            ["sources.http.tls", "sources.http.tls.cert_file", "sources.http.tls.key_file"],
        ),
        ("forwarder config init m", ["migration"]),
        ("forwarder help bu", ["buffer"]),
    ],
)
def test_bash_is_offered_what_can_follow(line: str, offered: list[str]) -> None:
    """Groups, resources, verbs, options, and values of which there are few."""
    assert bash(line) == offered


def test_every_command_is_offered() -> None:
    """Those that are imported when they are called, and the others."""
    assert set(COMMANDS) <= set(bash("forwarder "))


def test_options_are_offered() -> None:
    """Of a command whose module had to be imported for it."""
    offered = bash("forwarder manage domains create --")
    assert {
        "--domain",
        "--jit-provisioning-enabled",
        "--no-jit-provisioning-enabled",
        "--data",
        "--organization",
        "--output",
    } <= set(offered)


def test_zsh_and_fish_are_offered_the_same() -> None:
    """Each in its own form, with the lines of help; they quote by themselves."""
    zsh = ask(
        _FORWARDER_COMPLETE="complete_zsh",
        _TYPER_COMPLETE_ARGS="forwarder manage batch-exports update x --interval ",
    )
    assert '"every 5 minutes"' in zsh
    zsh = ask(_FORWARDER_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="forwarder manage dom")
    assert zsh.startswith('_arguments \'*: :(("domains":')
    fish = {"_FORWARDER_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert ask(**fish, _TYPER_COMPLETE_ARGS="forwarder manage inv").startswith("invites\t")


def test_completion_is_quick() -> None:
    """Nothing heavy is imported for it: someone waits with a finger on the key."""
    script = (
        "import sys\nfrom forwarder.cli.main import main\n"
        "try: main()\n"
        f"except SystemExit: print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    variables = {
        "_FORWARDER_COMPLETE": "complete_bash",
        "COMP_WORDS": "forwarder manage ",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, "forwarder"],
        env=environment(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.stdout.endswith("heavy: []\n"), done


@cases(
    ("shell", "sign"),
    [
        ("zsh", "#compdef forwarder"),
        ("fish", "complete --command forwarder"),
        ("bash", "complete -o default"),
    ],
)
def test_the_script_of_any_shell_can_be_had(shell: str, sign: str) -> None:
    """Also where that shell doesn't run."""
    script = ask(_FORWARDER_COMPLETE=f"source_{shell}")
    assert sign in script
    assert "_FORWARDER_COMPLETE=complete_" in script


def shell_output(home: Path, shell: str, *scripts: str) -> str:
    """What a shell that has `forwarder` on its path prints, one script after the other, each in a
    process of its own.
    """
    command = home / "forwarder"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m forwarder "$@"\n')
    command.chmod(0o755)
    places = {"HOME": str(home), "ZDOTDIR": str(home), "XDG_CONFIG_HOME": f"{home}/.config"}
    variables = environment({**places, "PATH": f"{home}:{os.environ['PATH']}"})
    for script in scripts:
        done = subprocess.run(
            [shell, "-c", script],
            cwd=home,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
    return done.stdout


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_with_what_is_installed(tmp_path: Path) -> None:
    """Keys of the configuration, too."""
    shown = shell_output(
        tmp_path,
        "fish",
        "forwarder --install-completion fish",
        'complete -C "forwarder config show admin.h"',
    )
    assert shown.split() == ["admin.hosts"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_with_what_is_installed(tmp_path: Path) -> None:
    """A new shell knows the function that completes the command."""
    asks = 'autoload -Uz compinit; compinit -u; print "$_comps[forwarder]"'
    shown = shell_output(
        tmp_path, "zsh", "forwarder --install-completion; true", f"source $ZDOTDIR/.zshrc; {asks}"
    )
    assert shown.split() == ["_forwarder"]


@pytest.mark.slow
def test_bash_completes_with_what_is_installed(tmp_path: Path) -> None:
    """`--install-completion` writes what a new shell reads; then a word is completed there."""
    lines = [
        "forwarder --install-completion >&2",
        "forwarder --show-completion > shown",
        "source ~/.bashrc",
        "COMP_WORDS=(forwarder manage batch-exports update x --interval every); COMP_CWORD=6",
        "_forwarder_completion forwarder",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    assert shell_output(tmp_path, "bash", "\n".join(lines)).splitlines() == [
        r"every\ 5\ minutes",
        r"every\ 15\ minutes",
    ]
    installed = (tmp_path / ".bash_completions" / "forwarder.sh").read_text()
    assert (tmp_path / "shown").read_text() in f"{installed}\n"
