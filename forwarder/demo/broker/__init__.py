"""A single-node Apache Kafka without an installation, for `forwarder demo --kafka` and for tests.
Not for production.
"""

from forwarder.demo.broker.broker import Broker, BrokerListener, BrokerOptions
from forwarder.demo.broker.jars import BrokerUnavailable

__all__ = ["Broker", "BrokerListener", "BrokerOptions", "BrokerUnavailable"]
