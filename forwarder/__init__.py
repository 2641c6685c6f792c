"""forwarder: brings product-analytics events, unchanged and on time, to an analytics service."""

__version__ = "1.0.0rc1"
