"""The ingestion listener: HTTP/1.1 in, `Incoming` to the intake, an answer out (docs/http.md).

`listener.py` starts and stops it; `protocol.py` turns bytes into requests on top of `connection.py`, which knows how a
connection waits and ends; the rest are the rules they follow, one a file.
"""

from forwarder.sources.http.limits import HttpPolicy
from forwarder.sources.http.listener import HttpListener, HttpStatistics
from forwarder.sources.http.tls import load_tls, reload_tls

__all__ = ["HttpListener", "HttpPolicy", "HttpStatistics", "load_tls", "reload_tls"]
