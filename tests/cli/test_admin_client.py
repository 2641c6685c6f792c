"""Where the admin server is, and asking it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from forwarder.cli.admin_client import (
    DEFAULT_ADDRESS,
    NoDaemon,
    get,
    label_of,
    resolve,
    tap_path,
)
from forwarder.core.errors import ConfigurationError
from forwarder.core.taps import TapOutcome
from forwarder.telemetry.labels import key_label
from tests.support.cases import cases
from tests.support.whole import KEY


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The surroundings' own address doesn't matter here."""
    monkeypatch.delenv("FORWARDER_ADMIN__LISTEN", raising=False)


def test_default_address() -> None:
    """Nothing said: the default admin address."""
    assert resolve(None, None) == DEFAULT_ADDRESS


def test_option_beats_environment_beats_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--admin` wins over the variable, which wins over the file, as in the daemon."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("admin: {listen: '127.0.0.1:3'}")
    assert resolve(None, file) == "127.0.0.1:3"
    monkeypatch.setenv("FORWARDER_ADMIN__LISTEN", "127.0.0.1:2")
    assert resolve(None, file) == "127.0.0.1:2"
    assert resolve("127.0.0.1:1", file) == "127.0.0.1:1"


def test_references_in_the_file_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`${VAR}` in the file means what it means to the daemon."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("admin: {listen: '127.0.0.1:${PORT_OF_ADMIN:-9}'}")
    assert resolve(None, file) == "127.0.0.1:9"
    monkeypatch.setenv("PORT_OF_ADMIN", "10")
    assert resolve(None, file) == "127.0.0.1:10"


def test_file_without_the_key(tmp_path: Path) -> None:
    """A file that doesn't set `admin.listen` means the default."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: 'https://analytics.example.com'}")
    assert resolve(None, file) == DEFAULT_ADDRESS


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """A file that was named and can't be read is an error, not the default."""
    with pytest.raises(ConfigurationError, match="missing"):
        resolve(None, tmp_path / "missing.yaml")


@cases("address", ["127.0.0.1:1", "unix:/nowhere/admin.sock", "[::1]:1", "http://127.0.0.1:1"])
def test_connection_refused(address: str) -> None:
    """Whatever the address is like, no one there is `NoDaemon`, which names it."""
    with pytest.raises(NoDaemon) as raised:
        get(address, "/livez")
    assert address in raised.value.message


@cases("address", ["no-port", "127.0.0.1:x", "127.0.0.1:70000", "127.0.0.1:", ""])
def test_what_is_no_address_is_wrong_usage(address: str) -> None:
    """An address that can't be one is distinguished from a daemon that isn't there."""
    with pytest.raises(ConfigurationError, match="is not an admin address"):
        get(address, "/livez")


def test_all_interfaces_are_reached_by_loopback() -> None:
    """A daemon that listens on `0.0.0.0` is asked on 127.0.0.1."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        answerer = threading.Thread(target=_answer_once, args=(listening,))
        answerer.start()
        assert get(f"0.0.0.0:{listening.getsockname()[1]}", "/livez") == (200, b"live")
        answerer.join()


def test_something_that_speaks_no_http() -> None:
    """A server of another kind is no one."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        answerer = threading.Thread(target=_answer_once, args=(listening, b"SSH-2.0\r\n"))
        answerer.start()
        with pytest.raises(NoDaemon):
            get(f"127.0.0.1:{listening.getsockname()[1]}", "/livez")
        answerer.join()


def _answer_once(
    listening: socket.socket, answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlive"
) -> None:
    connection, _ = listening.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)


def test_an_address_that_is_none_is_an_error_before_it_is_asked() -> None:
    """So that no screen is opened for it: `forwarder top` asks in the background."""
    with pytest.raises(ConfigurationError, match="'nonsense' is not an admin address"):
        resolve("nonsense", None)


def test_path_of_a_tap_has_each_value() -> None:
    """Each has a query of its own, also one that a terminal made of bytes that aren't text."""
    wanted = {"event": ["a b", "\udcff"], "key": None, "outcome": [TapOutcome.DEAD_LETTERED]}
    assert tap_path(wanted, 0.5) == "/tap?event=a+b&event=%3F&outcome=dead-lettered&rate=0.5"


def test_tap_asks_for_a_key_by_its_label() -> None:
    """The daemon is asked for its label; what is a label, or its end, stays."""
    assert label_of(KEY) == key_label(KEY)
    assert label_of(f"{key_label(KEY)}/historical") == key_label(KEY)
    assert label_of("1234#abcdef") == "1234#abcdef"
