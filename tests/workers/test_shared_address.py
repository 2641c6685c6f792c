"""The address that workers listen on together, held by their supervisor."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.daemon.inheritance import NOTHING, InheritedDescriptors
from forwarder.workers.shared_address import hold_address


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
    held = hold_address(listen, NOTHING, 2)
    assert held.listen.rpartition(":")[0] == listen.rpartition(":")[0]
    with listening(held.listen), listening(held.listen) as one:
        name = one.getsockname()
    with socket.socket(socket.AF_INET6 if ":" in listen.rpartition(":")[0] else socket.AF_INET) as sender:
        assert sender.connect_ex(name[:2]) == errno.ECONNREFUSED
    held.close()


def test_all_interfaces_are_held_under_one_port() -> None:
    """Without a host the address is every interface's, of each kind that the machine has."""
    held = hold_address(":0", NOTHING, 2)
    assert held.listen.startswith(":")
    with listening(f"127.0.0.1{held.listen}"):
        held.release()
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
        with pytest.raises(ConfigurationError, match=rf"sources\.http\.listen: can't listen on {listen}: (process|something)"):
            hold_address(listen, NOTHING, 2)


def test_a_name_that_is_nobodys_is_an_error() -> None:
    """A host that isn't known, or isn't this machine's, is named."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.invalid"):
        hold_address("nowhere.invalid:0", NOTHING, 2)


def test_a_unix_socket_is_bound_once_and_removed(tmp_path: Path) -> None:
    """A Unix socket is bound with a descriptor to inherit; its file goes at the end, unless it is somebody else's by then."""
    path = tmp_path / "in.sock"
    held = hold_address(f"unix:{path}", NOTHING, 2)
    assert held.listen == f"unix:{path}"
    assert held.descriptors(0) == held.descriptors(1)
    (descriptor,) = held.descriptors(0)
    assert stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    held.release()
    assert path.exists()
    held.close()
    assert not path.exists()


def test_each_worker_has_sockets_of_its_own() -> None:
    """They outlive the worker's process, and are closed when it has ended unasked: the others get its connections."""
    held = hold_address("127.0.0.1:0", NOTHING, 2)
    first, other = held.descriptors(0), held.descriptors(1)
    assert first != other
    assert held.descriptors(0) == first
    held.forget(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first[0])
    assert held.descriptors(0) != other
    held.close()


@pytest.mark.parametrize("workers", [2, 3])
def test_what_was_kept_is_held_again(workers: int) -> None:
    """After a restart in place each worker has what one had before; with another number of workers all share all sockets."""
    held = hold_address("127.0.0.1:0", NOTHING, 2)
    for number in range(2):
        held.descriptors(number)
    kept = held.keep()
    held.close()
    again = hold_address(held.listen, InheritedDescriptors(kept, listen=held.listen), workers)
    assert again.listen == held.listen
    given = [again.descriptors(number) for number in range(workers)]
    assert given == (list(kept) if workers == 2 else [(kept[0][0], kept[1][0])] * 3)
    again.close()
