"""Ports for processes that are told where to listen."""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Final

_PORTS: Final = range(20000, 30000)
"""Below those that the kernel gives to outgoing connections, so that a port stays free while its
process is down.
"""


def free_ports(count: int) -> list[int]:
    """So many ports of 127.0.0.1 that nothing listens on."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.choice(_PORTS)
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
        return ports
