"""The ingestion listener: HTTP/1.1 in, `Incoming` to the intake, an answer out (docs/http.md).

`listener.py` starts and stops it. `connection.py` turns bytes into requests; it has an answer queue (`answer_queue.py`), a lifecycle
(`lifecycle.py`: how it waits, is slowed down and ends), and the pass-through (`passthrough/`). `request.py`, `routes.py`, `addresses.py`,
`answers.py` and `limits.py` are the rules that it follows.
"""

from forwarder.sources.http.limits import HttpPolicy
from forwarder.sources.http.listener import HttpListener, HttpStatistics
from forwarder.sources.http.tls import load_tls, reload_tls

__all__ = ["HttpListener", "HttpPolicy", "HttpStatistics", "load_tls", "reload_tls"]
