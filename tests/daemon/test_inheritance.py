"""What a process inherits, by its environment."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from forwarder.config.settings import Settings
from forwarder.core.errors import ConfigurationError
from forwarder.daemon import inheritance
from forwarder.daemon.inheritance import NOTHING, InheritedDescriptors, announced, inherit
from forwarder.storage.directory import Locked, LockedDirectory
from tests.support.cases import cases


def systemd(count: int, names: str = "", process: int | None = None) -> dict[str, str]:
    """The variables that systemd sets."""
    return {
        "LISTEN_PID": str(process or os.getpid()),
        "LISTEN_FDS": str(count),
        "LISTEN_FDNAMES": names,
        "HOME": "/",
    }


def test_sockets_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are distinguished by their names, no child has them, and the variables are removed."""
    with socket.socket() as one, socket.socket() as other:
        first, second = sorted((one.fileno(), other.fileno()))
        monkeypatch.setattr(inheritance, "FIRST", first)
        os.set_inheritable(first, True)
        environment = systemd(
            second - first + 1, ":".join(["forwarder.socket"] * (second - first) + ["admin"])
        )
        inherited = inherit(environment)
        assert (first in inherited.sockets, inherited.admin) == (True, (second,))
        assert not os.get_inheritable(first)
        assert environment == {"HOME": "/"}


@cases(
    "environment",
    [{}, systemd(1, process=1), {"LISTEN_PID": "x", "LISTEN_FDS": "1"}, {"LISTEN_FDS": "1"}],
)
def test_variables_of_another_process_announce_no_sockets(environment: dict[str, str]) -> None:
    """Variables that name another process, or none, announce nothing."""
    assert inherit(environment) == NOTHING
    assert "LISTEN_FDS" not in environment


def test_descriptors_that_arent_open_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who announces more than there is gets an error that names it."""
    monkeypatch.setattr(inheritance, "FIRST", 900_000)
    with pytest.raises(ConfigurationError, match="descriptor 900000 was announced"):
        inherit(systemd(1))


def test_announced_sockets_pass_to_the_next_program_only() -> None:
    """The next program of a process has what was announced to it; a child that sees the variable
    has not.
    """
    with socket.socket() as one:
        descriptors = InheritedDescriptors((one.fileno(),), listen="127.0.0.1:0")
        environment = announced(descriptors)
        assert inherit(dict(environment)) == replace(descriptors, process=os.getpid())
        of_another = {
            name: text.replace(str(os.getpid()), "1") for name, text in environment.items()
        }
        assert inherit(of_another) == NOTHING


def test_another_address_in_the_configuration_wins() -> None:
    """Sockets of an address that isn't configured any more are closed; those
    that systemd chose stay.
    """
    configured = Settings.parse(
        {
            "upstream": {"url": "https://a.example.com"},
            "sources": {"http": {"listen": "127.0.0.1:1"}},
        }
    )
    with socket.socket() as one, socket.socket() as other:
        sockets = (os.dup(one.fileno()),), (os.dup(other.fileno()),)
        descriptors = InheritedDescriptors(
            *sockets, listen="127.0.0.1:2", admin_listen=configured.admin.listen
        )
        fitting = descriptors.fitting(configured)
        assert (fitting.sockets, fitting.admin) == ((), descriptors.admin)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptors.sockets[0])
        fitting.close()
        chosen = InheritedDescriptors((one.fileno(),))
        assert chosen.fitting(configured) == chosen


def test_a_lock_outlives_who_took_it(tmp_path: Path) -> None:
    """A lock's other descriptor keeps it, and is adopted; a descriptor of another file is closed,
    and the lock taken anew.
    """
    first = LockedDirectory.acquire(tmp_path / "one", "buffer.path")
    duplicate = first.duplicate()
    first.release()
    with pytest.raises(Locked):
        LockedDirectory.acquire(tmp_path / "one", "buffer.path")
    second = LockedDirectory.acquire(tmp_path / "one", "buffer.path", inherited=duplicate)
    other = LockedDirectory.acquire(tmp_path / "other", "buffer.path", inherited=second.duplicate())
    for lock in (second, other):
        lock.release()
    LockedDirectory.acquire(tmp_path / "one", "buffer.path").release()
