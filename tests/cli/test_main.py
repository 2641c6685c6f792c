"""The command as a whole: its help, its version, its errors, its speed."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forwarder.cli.app as module
from forwarder import __version__
from forwarder.cli.app import COMMANDS, load
from forwarder.cli.main import is_plain_run, main
from forwarder.contract.endpoints import ENDPOINTS
from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.formats.catalog import FORMATS
from tests.support.cases import cases
from tests.support.commands import forwarder, invoked

PATHS = [
    *(
        "run",
        "demo",
        "drill",
        "status",
        "logs",
        "health",
        "audit",
        "explain",
        "send",
        "generate",
        "sandbox",
        "help",
        "tap",
        "top",
        "plan",
    ),
    *("buffer ls", "buffer verify", "buffer export", "buffer drain"),
    *("dead-letters ls", "dead-letters show", "dead-letters replay", "dead-letters drop"),
    *("config init", "config check", "config show", "config schema"),
    *("mapping try", "rules try", "rules hash"),
    *(f"import {import_format.name}" for import_format in FORMATS),
    *("import status", "import verify"),
    *(f"manage {endpoint.name}" for endpoint in ENDPOINTS),
]
HEAVY = ["aiohttp", "uvloop", "prometheus_client", "structlog", "posthog", "sqlite3"]


def invoke(*args: str) -> tuple[int, str]:
    """Exit code and output of a command, in this process."""
    result = CliRunner().invoke(
        module.app, list(args), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )
    return result.exit_code, result.output


@cases("command", ["", *PATHS])
def test_help_has_an_example(command: str) -> None:
    """`--help` and `-h` of every command end with an example of its own."""
    code, output = invoke(*command.split(), "--help")
    assert (code, output) == invoke(*command.split(), "-h")
    assert code == 0
    assert "Example: " in output
    assert f"forwarder {command}".strip() in output.rpartition("Example: ")[2]


def test_help_lists_every_command() -> None:
    """`forwarder --help` names each command."""
    output = invoke("--help")[1]
    assert (
        {command.partition(" ")[0] for command in PATHS}
        == set(COMMANDS)
        == {word for word in output.split() if word in COMMANDS}
    )


@cases("name", COMMANDS)
def test_commands_are_listed_with_their_own_words(name: str) -> None:
    """The line in the list is the one that the command's module has."""
    assert COMMANDS[name][1] in " ".join(load(name).help.split())


def test_version() -> None:
    """`--version` says which version this is."""
    assert invoke("--version") == (0, f"forwarder {__version__}\n")


@pytest.mark.slow
@cases(
    "args", [["--help"], ["health", "--admin", "127.0.0.1:1"], ["status", "--admin", "127.0.0.1:1"]]
)
def test_light_commands_import_nothing_heavy(args: list[str]) -> None:
    """Help, health and status import neither server, client nor settings: a health check runs
    every few seconds.
    """
    script = (
        f"import sys; sys.argv = ['forwarder', *{args!r}]\n"
        "from forwarder.cli.main import main\n"
        "try: main()\n"
        f"except SystemExit: print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=180
    )
    assert done.stdout.endswith("heavy: []\n"), done


async def test_run_without_upstream_says_what_to_set() -> None:
    """`forwarder run` without an upstream exits with 2, names `upstream.url` and shows a line that
    works; no traceback.
    """
    done = await forwarder("run")
    assert done.code == 2
    assert "upstream.url" in done.err
    assert "FORWARDER_UPSTREAM__URL=" in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


@cases("args", [["nonsense"], ["status", "--nonsense"], ["status", "--output", "xml"]])
async def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    """What the command line doesn't know is said on stderr, with exit code 2."""
    done = await invoked(*args)
    assert done.code == 2
    assert "Usage: " in done.err


@cases(
    ("args", "said"),
    [
        (["tap", "--outcome", "lost"], "'--outcome': 'lost' is not one of 'received', "),
        (["tap", "--limit", "x"], "'--limit': Input should be a valid integer\n"),
        (["tap", "--rate", "2k"], "write events a second from 0.01 to 1000, such as"),
        (["generate", "--users", "many"], "'many' can't be used: write a whole number"),
        (["restart"], "No such command 'restart'. The signal USR2 restarts the daemon"),
        (["status", "--json"], "No such option: --json. JSON is --output json.\n"),
        (["import", "mixpanel", "x", "--json"], "JSON is --output json.\n"),
        (["plan", "-o", "json"], "No such option: -o. JSON is --output json.\n"),
        (["buffer", "export", "--json"], "No such option: --json"),
        (["config", "check", "my file.yaml"], "Did you mean --config 'my file.yaml'?"),
    ],
)
def test_wrong_usage_is_said_without_the_parsers_words(args: list[str], said: str) -> None:
    """A value that is none; a file without its option, with what can be typed instead."""
    code, output = invoke(*args)
    assert (code, said in output) == (2, True)


def test_expected_errors_are_said_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that a command expects becomes what happened and what to do, and exit code 2."""

    def fail(**_: object) -> None:
        raise ConfigurationError(
            "the certificate can't be read", hint="Set `sources.http.tls.cert_file`."
        )

    monkeypatch.setattr(module, "app", fail)
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 2
    assert (
        capsys.readouterr().err
        == "Error: the certificate can't be read\n  Set `sources.http.tls.cert_file`.\n"
    )


def test_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a command that doesn't handle it is exit code 130."""

    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "app", interrupt)
    with pytest.raises(SystemExit) as raised:
        main()
    assert raised.value.code == 130


@cases(
    ("arguments", "plain"),
    [
        (["run"], True),
        (["run", "--config", "/etc/forwarder.yaml"], True),
        (["run", "--config"], False),
        (["run", "--config=/etc/forwarder.yaml"], False),
        (["run", "--help"], False),
        (["run", "--nonsense", "x"], False),
        (["config", "check"], False),
        ([], False),
    ],
)
def test_the_usual_form_of_run_needs_no_parser(arguments: list[str], plain: bool) -> None:
    """The daemon starts without the command line's library; whatever else is
    written is left to that.
    """
    assert is_plain_run(arguments) is plain


async def test_a_start_that_fails_leaves_the_garbage_collector_as_it_was() -> None:
    """It is off while a start loads what it needs, and the process may live on."""
    assert (await invoked("run")).code == 2
    assert gc.isenabled()


def test_an_interrupted_start_is_130(tmp_path: Path) -> None:
    """Also with `python -m`, which dies by the signal where a class was being made."""
    (tmp_path / "starts.py").write_text(
        "from forwarder.cli import main as module\n"
        "module.is_plain_run = lambda _: exec('raise KeyboardInterrupt')\n"
        "module.main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "starts"], cwd=tmp_path, check=False)
    assert done.returncode == 130
