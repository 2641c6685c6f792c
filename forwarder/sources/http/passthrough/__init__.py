"""The pass-through: calls of SDKs that bring no events go to the upstream as they come
(docs/reference/passthrough.md).

`allowed.py` says what goes through. `service.py` starts an exchange (`exchange.py`) for each such
request of a connection, which asks the upstream (`upstream.py`) unless its circuit breaker is
open. `definitions.py` answers the polls for flag definitions from a cache.
"""

from forwarder.sources.http.passthrough.service import PassThrough, PassThroughStatistics
from forwarder.sources.http.passthrough.upstream import PassThroughPolicy

__all__ = ["PassThrough", "PassThroughPolicy", "PassThroughStatistics"]
