"""The pass-through: calls of SDKs that are no events go to the upstream as they come (docs/passthrough.md).

`allowed.py` says what goes through, and `passage.py` is one such request under way: in from a connection (`sources/http/passing.py`), out
by `upstream.py`, which `circuit.py` keeps from asking an address that fails again and again. `definitions.py` answers the polls for flag
definitions from `cache.py`. `service.py` puts it together.
"""

from forwarder.sources.http.passthrough.policy import PassThroughPolicy
from forwarder.sources.http.passthrough.service import PassThrough, PassThroughStatistics

__all__ = ["PassThrough", "PassThroughPolicy", "PassThroughStatistics"]
