"""The address that workers listen on together, held by their supervisor."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.runtime.shared_address import hold


def listening(address: str) -> socket.socket:
    """A worker's socket on the held address."""
    host, _, port = address.rpartition(":")
    sharing = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sharing.bind((host.strip("[]"), int(port)))
    sharing.listen()
    return sharing


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_a_port_is_chosen_once_and_shared(listen: str) -> None:
    """Port 0 becomes a real one, on which several sockets can listen while it is held; the holder itself takes no connection."""
    held = hold(listen)
    assert held.listen.rpartition(":")[0] == listen.rpartition(":")[0]
    assert held.descriptor is None
    with listening(held.listen), listening(held.listen) as one:
        name = one.getsockname()
    with socket.socket(socket.AF_INET6 if ":" in listen.rpartition(":")[0] else socket.AF_INET) as sender:
        assert sender.connect_ex(name[:2]) == errno.ECONNREFUSED
    held.close()


def test_all_interfaces_are_held_under_one_port() -> None:
    """Without a host the address is every interface's, of each kind that the machine has."""
    held = hold(":0")
    assert held.listen.startswith(":")
    with listening(f"127.0.0.1{held.listen}"):
        held.let_go()
    held.close()


@pytest.mark.parametrize("sharing", [False, True])
def test_an_address_that_somebody_has_is_an_error(sharing: bool) -> None:
    """Another listener on the address is found at once, even one that would share it."""
    with socket.socket() as taken:
        if sharing:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=rf"sources\.http\.listen: can't listen on {listen}: something else"):
            hold(listen)


def test_a_name_that_is_nobodys_is_an_error() -> None:
    """A host that isn't known, or isn't this machine's, is named."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.invalid"):
        hold("nowhere.invalid:0")


def test_a_unix_socket_is_bound_once_and_removed(tmp_path: Path) -> None:
    """A Unix socket is bound with a descriptor to inherit; its file goes at the end, unless it is somebody else's by then."""
    path = tmp_path / "in.sock"
    held = hold(f"unix:{path}")
    assert held.listen == f"unix:{path}"
    assert held.descriptor is not None
    assert stat.S_ISSOCK(os.fstat(held.descriptor).st_mode)
    held.let_go()
    assert held.descriptor is None
    assert path.exists()
    held.close()
    assert not path.exists()
