"""Fetch the broker's jars, if they aren't there yet; `make test` does so before the tests' time
limits apply.
"""

import sys

from forwarder.demo.broker.jars import BrokerUnavailable, class_path

try:
    class_path()
except BrokerUnavailable as unavailable:
    sys.exit(f"{unavailable.message}\n{unavailable.hint}")
