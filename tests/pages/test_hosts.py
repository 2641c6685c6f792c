"""Which host names a server answers to."""

from __future__ import annotations

import socket

from forwarder.pages.hosts import KnownHosts
from tests.support.cases import cases

KNOWN = KnownHosts(["forwarder.internal", "Metrics.Example.com."], "`admin.hosts`")


@cases(
    "host",
    [
        *(
            "127.0.0.1",
            "127.0.0.1:8321",
            "10.1.2.3:8321",
            "192.168.0.7",
            "[::1]",
            "[::1]:8321",
            "[fe80::1]:80",
            "[::ffff:127.0.0.1]:1",
        ),
        *("localhost", "LOCALHOST:8321", "localhost.", "app.localhost:80"),
        *(
            "forwarder.internal",
            "forwarder.internal:8321",
            "FORWARDER.internal.",
            "metrics.example.com:9",
            "metrics.example.com.",
        ),
        socket.gethostname(),
    ],
)
def test_known(host: str) -> None:
    """Every address, the loopback's names, this machine's name and the configured ones are known,
    with any port and in any case.
    """
    assert KNOWN.knows(host)


@cases(
    "host",
    [
        *(
            "evil.example",
            "evil.example:8321",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "forwarder.internal.evil.example",
        ),
        *(
            "evilforwarder.internal",
            "internal",
            "forwarder",
            "notlocalhost",
            ".localhost.evil",
            "127.1",
            "0x7f000001",
            "2130706433",
        ),
        *(
            "",
            ":8321",
            "localhost:80:80",
            "localhost@evil.example",
            "[localhost]",
            "[127.0.0.1]",
            "::1",
            "[::1",
            "localhost:x",
            "a b",
            "é",
        ),
    ],
)
def test_unknown(host: str) -> None:
    """Any other name is not, nor what merely looks like an address or a known name."""
    assert not KNOWN.knows(host)
