"""The first mistakes of an operator at the command line: each answer says what happened, where,
and what to do.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from forwarder.cli.app import load
from forwarder.config.load import load_settings
from forwarder.core.error_text import cannot_listen
from forwarder.core.errors import ConfigurationError, ForwarderError
from forwarder.core.users import user_name
from forwarder.daemon.surroundings import unusable_surroundings
from forwarder.storage.directory import LockedDirectory

ADMIN = (
    "Name the address of forwarder's admin server: its setting is `admin.listen`, "
    "127.0.0.1:8321 by default."
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of the one who runs the tests."""
    for name in [name for name in os.environ if name.startswith("FORWARDER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def website() -> Iterator[str]:
    """The address of a server that answers every question with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>It works!</html>")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(command: str, *arguments: str, **environ: str) -> Result:
    """What a command answers."""
    return CliRunner().invoke(load(command), list(arguments), env=environ)


def said(result: Result) -> str:
    """Its messages; of an error that the entry point reports, the message and the hint."""
    error = result.exception
    return f"{error.message}\n{error.hint}" if isinstance(error, ForwarderError) else result.stderr


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (
            "status",
            ["--admin", "unix:/nowhere/admin.sock"],
            "no daemon answers at unix:/nowhere/admin.sock: No such file or directory",
        ),
        (
            "status",
            ["--admin", "127.0.0.1:1"],
            (
                "no daemon answers at 127.0.0.1:1: Connection refused\n  Start one with "
                "`forwarder run`"
            ),
        ),
        ("status", ["--admin", "8321"], "'8321' is not an admin address\nWrite 127.0.0.1:8321."),
        (
            "status",
            ["--config", "/nowhere.yaml"],
            "/nowhere.yaml: can't be read: No such file or directory\n    name a readable file",
        ),
        (
            "audit",
            ["--config", "/etc"],
            (
                "/etc: can't be read: Is a directory\n    name the file in it: --config "
                "/etc/forwarder.yaml"
            ),
        ),
        (
            "status",
            ["forwarder.yaml"],
            "unexpected extra argument(s) (forwarder.yaml). Did you mean --config forwarder.yaml?",
        ),
        ("run", ["my.yml"], "Did you mean --config my.yml?"),
        (
            "run",
            ["--config", os.devnull],
            "upstream.url: is missing: the address of the service",
        ),
        ("config", ["check", "--config", "x.yaml", "--onlin"], "No such option: --onlin"),
    ],
)
def test_a_slip_of_the_keyboard(command: str, arguments: list[str], message: str) -> None:
    """A wrong address, a wrong file, a file without its option."""
    assert message in said(run(command, *arguments))


def test_something_else_answers(website: str) -> None:
    """Another server at the admin address is neither a status nor healthy."""
    assert f"what answers at {website} is not forwarder's admin server\n  {ADMIN}" in said(
        run_status(website)
    )
    healthy = run("health", "--admin", website)
    assert (healthy.exit_code, healthy.stderr) == (
        1,
        f"what answers at {website} is not forwarder's admin server\n",
    )


def run_status(address: str) -> Result:
    """The status at an address."""
    return run("status", "--admin", address)


def test_a_server_that_speaks_another_protocol() -> None:
    """What answers without HTTP is named as such."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(1000)
            connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"what answers at {address} is not forwarder's admin server\n  {ADMIN}" in said(
            run_status(address)
        )
        thread.join()


def test_no_file_and_no_address() -> None:
    """The message names both ways, and a variable that people try."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, {"FORWARDER_CONFIG": "/x.yaml"}, default_file=Path("/nowhere"))
    assert (
        "FORWARDER_CONFIG: unknown setting\n    name the file on the command line: --config FILE"
        in caught.value.message
    )
    assert (
        "name a file with --config FILE, or set it: FORWARDER_UPSTREAM__URL=https"
        in caught.value.message
    )


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("https://h.example.com/i/v0/e/", "leave out the path of the endpoint, such as /batch/"),
        ("https://h.example.com/capture", "leave out the path of the endpoint, such as /batch/"),
        ("https://h.example.com?x=1", "end it before the ? or #"),
        ("https://user:hunter2@h.example.com", "remove everything up to the @"),
        ("h.example.com", "write it as https://h.example.com"),
    ],
)
def test_an_upstream_that_is_no_base_address(url: str, hint: str) -> None:
    """An endpoint, a query, credentials, no scheme; a slash at the end is no mistake."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(None, {"FORWARDER_UPSTREAM__URL": url}, default_file=Path("/nowhere"))
    assert hint in caught.value.message
    assert "hunter2" not in caught.value.message
    slash = load_settings(
        None, {"FORWARDER_UPSTREAM__URL": "https://h.example.com/"}, default_file=Path("/nowhere")
    )
    assert slash.settings.upstream.url == "https://h.example.com"


def test_an_address_in_use_is_named() -> None:
    """Who has it, and what to set; a port that this user may not have; an
    address of another machine.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        error = cannot_listen("admin.listen", listen, OSError(errno.EADDRINUSE, "in use"))
    assert error.message.startswith(
        f"admin.listen: can't listen on {listen}: process {os.getpid()} ("
    )
    assert error.hint == "Stop it, or set `admin.listen` to another address."
    error = cannot_listen("admin.listen", "127.0.0.1:80", OSError(errno.EACCES, "denied"))
    assert f"user {user_name()} may not listen on a port below 1024" in error.message


def test_a_second_daemon_on_one_directory(tmp_path: Path) -> None:
    """The process that has it is named, and the setting."""
    held = LockedDirectory.acquire(tmp_path / "worker-0", "buffer.path")
    with pytest.raises(ConfigurationError) as caught:
        LockedDirectory.acquire(tmp_path / "worker-0", "buffer.path")
    held.release()
    assert caught.value.message == (
        f"buffer.path: {tmp_path}/worker-0 is in use by another forwarder (process {os.getpid()})"
    )
    assert (
        caught.value.hint
        == "Stop that one, or give this one a directory of its own with `buffer.path`."
    )


@pytest.mark.parametrize(
    ("number", "message", "hint"),
    [
        (
            errno.EACCES,
            "Permission denied",
            (
                f"Set `buffer.path` to a directory that user {user_name()} may write in, or run "
                "forwarder as"
            ),
        ),
        (
            errno.ENOSPC,
            "No space left on device",
            "Free space there, or set `buffer.path` to a directory on another file system.",
        ),
        (
            errno.EROFS,
            "Read-only file system",
            "Set `buffer.path` to a directory that this user may write in.",
        ),
    ],
)
def test_a_directory_that_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str, hint: str
) -> None:
    """Permissions, a full disk, a read-only one: each says what to do."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("forwarder.storage.directory.make_directories", fail)
    with pytest.raises(ConfigurationError) as caught:
        LockedDirectory.acquire(tmp_path / "state/worker-0", "buffer.path")
    assert (
        caught.value.message == f"buffer.path: {tmp_path}/state/worker-0 can't be used: {message}"
    )
    assert caught.value.hint.startswith(hint)


def test_the_default_directories_of_this_machine() -> None:
    """What the defaults need is looked at without a file, too, and nothing is said
    of what isn't configured.
    """
    settings = load_settings(
        None, {"FORWARDER_UPSTREAM__URL": "https://h"}, default_file=Path("/nowhere")
    ).settings
    assert [problem.key for problem in unusable_surroundings(settings)] == []
