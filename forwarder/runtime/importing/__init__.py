"""Imports at work: the parts of `migration`, put together and brought to the service by the same delivery as the daemon's."""
