"""`host:port` as it is written: one reading and one spelling for every place
that listens or connects.
"""

from __future__ import annotations

HIGHEST = 65535


def split_host_port(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port`; the host is without brackets, empty if
    there is none. Raises `ValueError`.
    """
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not (port.isascii() and port.isdecimal())
        or len(port) > 5
        or int(port) > HIGHEST
    ):
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_host_port(host: str, port: int) -> str:
    """How an address is written, with brackets around an IPv6 one."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
