"""forwarder: brings product-analytics events, unchanged and on time, to an analytics service."""

__version__ = "0.1.0"
