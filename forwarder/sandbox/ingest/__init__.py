"""Requests of events: from bytes to records, by the service's rules. It shares no
decoder with the forwarder.
"""
