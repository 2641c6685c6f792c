"""An Apache Kafka of one node, without installing anything: for `forwarder demo --kafka` and for tests. Never for anything in earnest."""

from forwarder.runtime.broker.broker import Broker
from forwarder.runtime.broker.jars import BrokerUnavailable
from forwarder.runtime.broker.properties import BrokerOptions, Listener

__all__ = ["Broker", "BrokerOptions", "BrokerUnavailable", "Listener"]
