"""What `config check` finds on the machine: directories, sockets' folders, addresses, room."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from forwarder.config.conflicts import Conflict
from forwarder.config.settings import Settings
from forwarder.core.users import user_name
from forwarder.daemon.surroundings import surrounding_risks, unusable_surroundings
from forwarder.storage.directory import LockedDirectory


def settings(folder: Path, **sections: Any) -> Settings:
    """Settings that listen on sockets in the folder, but for these sections."""
    own = {
        "sources": {"http": {"listen": f"unix:{folder}/http"}},
        "admin": {"listen": f"unix:{folder}/admin"},
    }
    return Settings.parse({**own, **sections})


def said(conflicts: Iterable[Conflict]) -> list[str]:
    """Each finding as a line."""
    return [f"{conflict.key}: {conflict.message}: {conflict.hint}" for conflict in conflicts]


def disk(path: Path, **more: Any) -> dict[str, Any]:
    """A disk buffer at a path."""
    return {"buffer": {"kind": "disk", "path": str(path), **more}}


def test_usable_surroundings_are_not_mentioned(tmp_path: Path) -> None:
    """Folders that will be made, sockets in a folder that exists, a free port;
    and nothing is left there.
    """
    fine = settings(
        tmp_path,
        **disk(tmp_path / "a/b"),
        dead_letters={"path": str(tmp_path / "letters")},
        admin={"listen": "localhost:0"},
    )
    assert said(unusable_surroundings(fine)) == said(surrounding_risks(fine)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_file_instead_of_a_directory(tmp_path: Path) -> None:
    """A file instead of a directory, or above it."""
    (tmp_path / "file").touch()
    lines = said(
        unusable_surroundings(
            settings(
                tmp_path, **disk(tmp_path / "file"), dead_letters={"path": str(tmp_path / "file/x")}
            )
        )
    )
    assert lines == [
        f"buffer.path: {tmp_path}/file is a file, and no directory: set buffer.path to a directory",
        (
            f"dead_letters.path: {tmp_path}/file is a file, and no directory: set "
            "dead_letters.path to a directory"
        ),
    ]


@pytest.mark.parametrize(
    ("closed", "message"),
    [("", "{0}/state doesn't exist, and {0}"), ("state/worker-0/lock", "{0}/state/worker-0/lock")],
)
def test_unwritable_folders_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, message: str
) -> None:
    """The folder in which the directory would be made, or files that another user's daemon left:
    with the user that was asked for.
    """
    if closed:
        LockedDirectory.acquire(tmp_path / "state/worker-0", "buffer.path").release()
    monkeypatch.setattr(os, "access", lambda path, *_, **__: Path(path) != tmp_path / closed)
    (line,) = said(unusable_surroundings(settings(Path("/"), **disk(tmp_path / "state"))))
    hint = "give it to the user that forwarder runs as, or set buffer.path to another directory"
    assert (
        line
        == f"buffer.path: {message.format(tmp_path)} can't be written by user {user_name()}: {hint}"
    )


def test_impossible_socket_paths_are_reported(tmp_path: Path) -> None:
    """A folder that doesn't exist, and a file that is no socket."""
    (tmp_path / "admin").touch()
    lines = said(
        unusable_surroundings(
            settings(tmp_path, sources={"http": {"listen": f"unix:{tmp_path}/run/http"}})
        )
    )
    assert lines == [
        (
            f"sources.http.listen: the folder {tmp_path}/run doesn't exist: create it; a systemd "
            "unit does so with RuntimeDirectory="
        ),
        (
            f"admin.listen: {tmp_path}/admin is a file, and no socket: move it away, or set "
            "admin.listen to another path"
        ),
    ]


def test_a_socket_in_a_folder_that_this_user_may_not_search(tmp_path: Path) -> None:
    """It is reported, and so is what else is wrong: this is how the folder of a daemon's socket
    looks to other users.
    """
    folder = tmp_path / "closed"
    folder.mkdir(mode=0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        lines = said(unusable_surroundings(settings(folder)))
    finally:
        if is_root:
            os.seteuid(0)
    assert [line.partition(": ")[0] for line in lines] == ["sources.http.listen", "admin.listen"]
    assert all(
        f"{folder} can't be used by user" in line and "Permission denied" in line for line in lines
    )


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    """An address that this machine hasn't, and a name that is unknown."""
    for listen in ("192.0.2.1:8320", "host.invalid:8320"):
        (line,) = said(
            unusable_surroundings(settings(tmp_path, sources={"http": {"listen": listen}}))
        )
        assert line.startswith(f"sources.http.listen: can't listen on {listen}: ")
        assert line.endswith(
            "set `sources.http.listen` to an address of this machine that this user may listen on."
        )


def test_a_port_in_use_is_advice(tmp_path: Path) -> None:
    """It may be the daemon that runs now: the process is named, and the configuration is valid."""
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        listen = f"127.0.0.1:{busy_socket.getsockname()[1]}"
        busy = settings(tmp_path, admin={"listen": listen})
        assert said(unusable_surroundings(busy)) == []
        (line,) = said(surrounding_risks(busy))
    assert line.startswith(f"admin.listen: is {listen}: process {os.getpid()} (")
    assert line.endswith("listens there: stop it, or set `admin.listen` to another address.")


def test_a_port_of_a_forwarder_may_be_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who checks a configuration before a reload finds no advice to stop the daemon."""
    monkeypatch.setattr(
        "forwarder.core.port_owner.owner_of_port", lambda _: "process 7 (forwarder)"
    )
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        listen = f"127.0.0.1:{busy_socket.getsockname()[1]}"
        (line,) = said(surrounding_risks(settings(tmp_path, admin={"listen": listen})))
    assert line == (
        f"admin.listen: is {listen}: process 7 (forwarder) listens there: nothing to do if it is "
        "this configuration's daemon, to be reloaded; else stop it, or set "
        "`admin.listen` to another address."
    )


def test_a_port_below_1024(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that the user may not have: systemd's socket could pass it, so that it is advice,
    with three ways.
    """

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("forwarder.daemon.surroundings.bind_tcp", refuse)
    (line,) = said(surrounding_risks(settings(tmp_path, admin={"listen": "127.0.0.1:80"})))
    assert (
        f"is 127.0.0.1:80: user {user_name()} may not listen on a port below 1024: set "
        "`admin.listen` to a higher port"
    ) in line


def test_a_directory_that_is_in_use_or_too_small(tmp_path: Path) -> None:
    """A running daemon's directory, and a file system with less room than the buffer may take."""
    held = LockedDirectory.acquire(tmp_path / "state/worker-0", "buffer.path")
    lines = said(
        surrounding_risks(settings(tmp_path, **disk(tmp_path / "state", max_bytes="1TiB")))
    )
    held.release()
    assert lines[0] == (
        f"buffer.path: is {tmp_path}/state, in use by a forwarder: nothing to do if it is this "
        "configuration's daemon, to be reloaded; else stop it before another is started there"
    )
    assert (
        "are free, less than buffer.max_bytes (1024.0 GiB): lower buffer.max_bytes, or free space"
        in lines[1]
    )
