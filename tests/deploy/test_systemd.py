"""The systemd units, read as text, and by systemd's own tools where they are; and what systemd
does for them, done by a test.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from forwarder.cli.app import app
from forwarder.config.environment import read_environment
from forwarder.sources.http.listener import BACKLOG
from tests.support.commands import LIMIT, Running
from tests.support.deployment import CONFIGURATION, STATE, holds, settings
from tests.support.documents import text_of
from tests.support.repository import ROOT

UNIT = ROOT / "deploy" / "forwarder.service"
TEXT = UNIT.read_text()
VALUES = dict(re.findall(r"^(\w+)=(.*)$", TEXT, re.MULTILINE))
SOCKET = ROOT / "deploy" / "forwarder.socket"
SOCKET_VALUES = dict(re.findall(r"^(\w+)=(.*)$", SOCKET.read_text(), re.MULTILINE))
ENVIRONMENT = {"FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9"}
LISTENING = {
    "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
    "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
}

DENIES_EXECUTABLE_MEMORY = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN; kept over exec
    sys.exit("not here")
os.execv(sys.executable, [sys.executable, "-m", "forwarder", "run"])
"""


PASSES_SOCKETS = """
import os, sys
from tests.support.documents import text_of
descriptors = [os.dup(int(argument)) for argument in sys.argv[1:]]
for number, descriptor in enumerate(descriptors):
    os.dup2(os.dup(descriptor), 10 + number)
for number in range(len(descriptors)):
    os.dup2(10 + number, 3 + number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(descriptors)), \
LISTEN_FDNAMES="forwarder.socket:admin")
os.execv(sys.executable, [sys.executable, "-m", "forwarder", "run"])
"""
EVENT = {"event": "sent", "distinct_id": "someone"}


def test_the_sidecars_socket_is_in_the_units_folder() -> None:
    """The unit makes the folder of the socket that it and the example name; the socket that
    systemd holds is outside: the folder ends.
    """
    folder = f"/run/{VALUES['RuntimeDirectory']}"
    for text in (
        TEXT,
        (ROOT / "config" / "sidecar.yaml").read_text(),
        (ROOT / "config" / "all.yaml").read_text(),
    ):
        named = re.findall(r"unix:(/run\S+\w)", text)
        assert {str(Path(path).parent) for path in named} <= {folder}
    assert re.findall(r"unix:(/run\S+\.sock)", (ROOT / "config" / "sidecar.yaml").read_text()) == [
        f"{folder}/forwarder.sock"
    ]
    [held] = re.findall(r"ListenStream=(/\S+)", SOCKET.read_text())
    assert not held.startswith(f"{folder}/")


def test_it_runs_the_daemon() -> None:
    """It starts `forwarder run`, reloads by SIGHUP, and does not start again
    what can't be configured.
    """
    assert VALUES["ExecStart"].endswith("/forwarder run")
    assert VALUES["ExecReload"].endswith("kill -HUP $MAINPID")
    assert VALUES["RestartPreventExitStatus"] == "2"


def test_it_waits_for_the_drain() -> None:
    """systemd gives it longer than the default delay and drain take together."""
    assert holds(int(VALUES["TimeoutStopSec"]), settings(None, ENVIRONMENT))


def test_its_files_are_where_the_daemon_looks() -> None:
    """systemd makes the default directory of `buffer.path`, for no one else to read; the
    configuration is where it is looked for.
    """
    assert (
        settings(None, ENVIRONMENT).buffer.path.as_posix()
        == f"/var/lib/{VALUES['StateDirectory']}"
        == STATE
    )
    assert VALUES["StateDirectoryMode"] == "0700"
    assert CONFIGURATION in TEXT


def test_the_recipe_writes_a_configuration(tmp_path: Path) -> None:
    """With the address that is typed; its section for a disk buffer replaces the file's."""
    recipe = text_of("deploy").partition("## systemd")[2]
    [words] = re.findall(r"/forwarder (config init .*)", recipe)
    file = tmp_path / "forwarder.yaml"
    typed = words.replace(CONFIGURATION, str(file)).replace("us.i.example.com", "e.example.net")
    assert CliRunner().invoke(app, typed.split()).exit_code == 0
    written = settings(file, {})
    assert (written.upstream.url, written.buffer.kind) == ("https://e.example.net", "memory")
    [section] = re.findall(r"```yaml\n(buffer:.*?)```", recipe, re.DOTALL)
    file.write_text(re.sub(r"^buffer:\n(?:  .*\n)+", section, file.read_text(), flags=re.MULTILINE))
    buffer = settings(file, {}).buffer
    assert (buffer.kind, buffer.path.as_posix()) == ("disk", STATE)


def test_it_is_confined() -> None:
    """It runs as a user of its own, without privileges, on a file system that it can't write to
    but for its own state.
    """
    wanted = {
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "CapabilityBoundingSet": "",
        "PrivateUsers": "yes",
    }
    assert {directive: VALUES.get(directive) for directive in wanted} == wanted


def test_its_variables_are_settings() -> None:
    """Each FORWARDER_ variable that it sets or names is one."""
    named = dict.fromkeys(re.findall(r"FORWARDER_[A-Z][A-Z_]*", TEXT), "1")
    assert read_environment(named).problems == []


def test_the_socket_is_where_senders_look() -> None:
    """systemd listens on the default address, with a queue as long as the daemon's own, for one
    process; its name is the service's.
    """
    assert SOCKET_VALUES["ListenStream"] == settings(None, ENVIRONMENT).sources.http.listen
    assert int(SOCKET_VALUES["Backlog"]) == BACKLOG
    assert SOCKET_VALUES["Accept"] == "no"
    assert SOCKET_VALUES["WantedBy"] == "sockets.target"
    assert SOCKET.stem == UNIT.stem


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_sockets_that_systemd_passes_are_used(tmp_path: Path, workers: int) -> None:
    """In place of the configured addresses: events come in on one, the socket named admin shows
    the status; both outlive the daemon.
    """
    environment = {
        **ENVIRONMENT,
        "STATE_DIRECTORY": str(tmp_path),
        "FORWARDER_WORKERS": str(workers),
    }
    with (
        socket.create_server(("127.0.0.1", 0)) as ingestion,
        socket.create_server(("127.0.0.1", 0)) as admin,
    ):
        descriptors = [ingestion.fileno(), admin.fileno()]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PASSES_SOCKETS, *map(str, descriptors)),
            env=environment,
            cwd=ROOT,
            pass_fds=descriptors,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            command = Running(process)
            listening = json.loads(await command.line('"event": "listening"'))
            addresses = [
                f"127.0.0.1:{listener.getsockname()[1]}" for listener in (ingestion, admin)
            ]
            assert [*dict.fromkeys(listening["ingestion"]), listening["admin"]] == addresses
            async with aiohttp.ClientSession() as client:
                async with client.post(
                    f"http://{addresses[0]}/batch/",
                    json={"api_key": "phc_systemd", "batch": [EVENT]},
                ) as answer:
                    assert answer.status == 200
                async with client.get(f"http://{addresses[1]}/readyz") as answer:
                    assert answer.status == 200
            command.send(signal.SIGKILL)
            await command.ended()
            with socket.create_connection(ingestion.getsockname()):
                assert ingestion.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()


def _systemd_analyze(*args: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze isn't installed")
    return subprocess.run(
        [program, *args], capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_systemd_understands_it(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, with a command in it that is there."""
    unit = tmp_path / UNIT.name
    unit.write_text(
        re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", TEXT, flags=re.MULTILINE)
    )
    done = _systemd_analyze("verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_understands_the_documents_addition(tmp_path: Path) -> None:
    """What docs/how-to/deploy.md adds to the unit, for logs that a group may read, leaves nothing
    to be said either.
    """
    [addition] = re.findall(r"```ini\n(.*?)```", text_of("deploy"), re.DOTALL)
    unit = tmp_path / UNIT.name
    unit.write_text(
        re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", TEXT, flags=re.MULTILINE)
    )
    (tmp_path / f"{UNIT.name}.d").mkdir()
    (tmp_path / f"{UNIT.name}.d" / "override.conf").write_text(addition)
    done = _systemd_analyze("verify", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_is_exposed_to_little() -> None:
    """systemd's own judgement of its confinement is at most 1.5 of 10: what is left is the
    network, which it is for.
    """
    done = _systemd_analyze("security", "--offline=true", "--threshold=15", "--no-pager", str(UNIT))
    if "nrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
async def test_it_needs_no_memory_that_is_written_and_run(tmp_path: Path) -> None:
    """The daemon works where the kernel denies memory that is writable and executable, as
    MemoryDenyWriteExecute= does.
    """
    assert VALUES["MemoryDenyWriteExecute"] == "yes"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", DENIES_EXECUTABLE_MEMORY),
        env={**ENVIRONMENT, **LISTENING, "STATE_DIRECTORY": str(tmp_path)},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        command = Running(process)
        if "not here" in await command.line(""):
            pytest.skip("this kernel can't deny it")
        command.send(signal.SIGTERM)
        assert await command.ended() == 0
        assert [line for line in command.lines if '"event": "listening"' in line]
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
