"""Imports at work: the parts of `sources.imports`, put together and delivered by the same delivery as the events of the daemon."""
