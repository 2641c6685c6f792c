"""Imports: exports of years are read, mapped, checked, and brought to the service in the order of
time, once.

The way of a record: `sources.files` reads blocks of records, a format of `formats` makes events of
each, `repeats` leaves out what came before, `conversion` adds what every imported event has; then
batches of one UTC day each are delivered, and the checkpoint advances.
"""
