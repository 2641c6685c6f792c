"""The limit on open files, raised at the start to what connections and everything else need.

Every connection is an open file. Service managers start processes with a low limit (1024) that the
process itself may raise, up to one that it may not. Where that isn't enough, fewer connections are
accepted, so that the buffer and requests to the upstream always have enough, and the log says what
to do.
"""

from __future__ import annotations

import resource
from typing import Final

import structlog

from forwarder.config.settings import Settings
from forwarder.core.segments import segment_size
from forwarder.delivery.limiter import MAXIMUM
from forwarder.sources.http.acceptor import HANDSHAKES
from forwarder.sources.http.passthrough.service import FLAG_PERMITS, OTHER_PERMITS
from forwarder.sources.http.protocol.limits import REJECTED_CONNECTIONS

_ALWAYS: Final = 192
"""Standard streams, the loop, the listeners, the admin address, dead letters, names looked up, and
some to spare.
"""

_CLUSTER: Final = 64
"""Connections to the brokers of a cluster."""

_LOG_SOURCE: Final = 16
"""Files of a log source beside those that it follows: its positions, what reports changes, one
that is looked at.
"""

_log = structlog.get_logger(__name__)


def files_beside_connections(settings: Settings) -> int:
    """How many files may be open at once, beside the connections of senders."""
    concurrency = settings.delivery.concurrency
    needed = (
        _ALWAYS
        + REJECTED_CONNECTIONS
        + (concurrency if isinstance(concurrency, int) else MAXIMUM) * len(settings.destinations)
    )
    if settings.passthrough.enabled:
        needed += FLAG_PERMITS + OTHER_PERMITS
    if settings.sources.http.tls.cert_file is not None:
        needed += HANDSHAKES
    if settings.buffer.kind == "disk":
        needed += (settings.buffer_share // segment_size(settings.buffer_share) + 2) * len(
            settings.destinations
        )
    needed += sum(source.max_open_files + _LOG_SOURCE for source in settings.sources.logs)
    return needed + _CLUSTER * len(settings.sources.kafka)


def reserve_descriptors(connections: int, others: int) -> int:
    """Raise the limit on open files as far as needed and allowed; how many connections may be open
    at once, `connections` at most.

    A quarter of the limit is left to connections in any case.
    """
    needed = connections + others
    limit = _raise_limit(needed)
    if limit >= needed:
        return connections
    possible = min(connections, max(limit - others, limit // 4, 1))
    _log.warning(
        "fewer connections are accepted than configured: the process may not open as many files",
        max_connections=possible,
        key="sources.http.max_connections",
        configured=connections,
        open_files=limit,
        hint=f"Raise the limit on open files to {needed} (LimitNOFILE= of systemd, --ulimit "
        "nofile= of Docker, `ulimit -n`), or set "
        f"sources.http.max_connections to {possible}.",
    )
    return possible


def _raise_limit(needed: int) -> int:
    """The limit on open files, raised to `needed` if that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return needed
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    except (OSError, ValueError):
        return soft  # the system has another bound (macOS: kern.maxfilesperproc)
    return max(soft, wanted)
