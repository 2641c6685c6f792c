"""Which process listens on a port, as far as Linux shows it to this user."""

from __future__ import annotations

from pathlib import Path

_LISTENING = "0A"


def owner_of_port(port: int) -> str:
    """`process 1234 (nginx)`; empty if it can't be known: another user's
    process, or another system.
    """
    try:
        inodes = set(_inodes(port))
        if inodes:
            for process in Path("/proc").glob("[0-9]*"):
                if inodes & set(_sockets(process)):
                    return _named(process)
    except OSError:
        return ""
    return ""


def _inodes(port: int) -> list[str]:
    """The inodes of sockets that listen on the port."""
    inodes = []
    for name in ("tcp", "tcp6"):
        table = Path("/proc/net", name)
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.append(fields[9])
    return inodes


def _sockets(process: Path) -> list[str]:
    """The inodes of a process's sockets; none if it has ended, or is another user's."""
    sockets = []
    try:
        for descriptor in (process / "fd").iterdir():
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                sockets.append(target[8:-1])
    except OSError:
        return sockets
    return sockets


def _named(process: Path) -> str:
    return f"process {process.name} ({(process / 'comm').read_text().strip()})"
