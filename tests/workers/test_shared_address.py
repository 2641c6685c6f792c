"""The address that workers listen on together, held by their supervisor."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.daemon.inheritance import NOTHING, InheritedDescriptors
from forwarder.workers.shared_address import hold_address


def name(descriptor: int) -> Any:
    """The address of a bound socket."""
    with socket.socket(fileno=os.dup(descriptor)) as bound:
        return bound.getsockname()


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
def test_a_port_is_chosen_once(listen: str) -> None:
    """Port 0 becomes a real one; the holder itself takes no connection."""
    held = hold_address(listen, NOTHING)
    host, _, port = held.listen.rpartition(":")
    assert host == listen.rpartition(":")[0]
    with socket.socket(socket.AF_INET6 if "[" in listen else socket.AF_INET) as sender:
        assert sender.connect_ex((host.strip("[]"), int(port))) == errno.ECONNREFUSED
    held.close()


def test_all_interfaces_are_held_under_one_port() -> None:
    """Without a host the address is every interface's, of each kind that the machine has."""
    held = hold_address(":0", NOTHING)
    ports = {name(descriptor)[1] for descriptor in held.descriptors}
    assert held.listen == f":{ports.pop()}"
    assert not ports
    held.close()


@pytest.mark.parametrize("sharing", [False, True])
def test_an_address_in_use_is_an_error(sharing: bool) -> None:
    """Another listener on the address is found at once, even one that would share it."""
    with socket.socket() as listener:
        if sharing:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(
            ConfigurationError,
            match=rf"sources\.http\.listen: can't listen on {listen}: (process|something)",
        ):
            hold_address(listen, NOTHING)


def test_an_unknown_host_is_an_error() -> None:
    """A host that isn't known, or isn't this machine's, is named."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.invalid"):
        hold_address("nowhere.invalid:0", NOTHING)


def test_a_unix_socket_is_bound_once_and_removed(tmp_path: Path) -> None:
    """A Unix socket is bound with a descriptor to inherit; its file goes at the end, unless it is
    someone else's by then.
    """
    path = tmp_path / "in.sock"
    held = hold_address(f"unix:{path}", NOTHING)
    assert held.listen == f"unix:{path}"
    (descriptor,) = held.descriptors
    assert stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    held.release()
    assert path.exists()
    held.close()
    assert not path.exists()


def test_what_was_kept_is_held_again() -> None:
    """After a restart in place the workers have the sockets that they had before."""
    held = hold_address("127.0.0.1:0", NOTHING)
    descriptors = held.keep()
    before = name(held.descriptors[0])
    held.close()
    again = hold_address(held.listen, InheritedDescriptors(descriptors, listen=held.listen))
    assert (again.listen, again.descriptors) == (held.listen, descriptors)
    assert name(descriptors[0]) == before
    again.close()


def test_a_unix_socket_that_was_kept_is_removed_in_the_end(tmp_path: Path) -> None:
    """Its file outlives the first holder; one that systemd has made stays for good."""
    path = tmp_path / "in.sock"
    held = hold_address(f"unix:{path}", NOTHING)
    descriptors = held.keep()
    held.close()
    again = hold_address(f"unix:{path}", InheritedDescriptors(descriptors, listen=f"unix:{path}"))
    of_systemd = InheritedDescriptors((os.dup(again.descriptors[0]),))
    hold_address(f"unix:{path}", of_systemd).close()
    assert path.exists()
    again.close()
    assert not path.exists()
