"""An Apache Kafka of one node, without installing anything: for `forwarder demo --kafka` and for tests. Never for anything in earnest."""

from forwarder.demo.broker.broker import Broker
from forwarder.demo.broker.jars import BrokerUnavailable
from forwarder.demo.broker.properties import BrokerOptions, Listener

__all__ = ["Broker", "BrokerOptions", "BrokerUnavailable", "Listener"]
