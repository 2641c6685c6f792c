"""The ingestion listener: HTTP/1.1 in, `Incoming` to the intake, an answer out
(docs/reference/http.md).

`listener.py` starts and stops it. `connection.py` turns bytes into requests; it has an answer
queue, a lifecycle (how it waits, is slowed down and ends) and the pass-through (`passthrough/`).
`protocol/` has the rules that both follow: heads, routes, answers, limits.
"""

from forwarder.sources.http.listener import HttpListener, HttpStatistics
from forwarder.sources.http.protocol.limits import HttpPolicy
from forwarder.sources.http.tls import load_tls, reload_tls

__all__ = ["HttpListener", "HttpPolicy", "HttpStatistics", "load_tls", "reload_tls"]
