"""The Kafka source: records in, offsets committed as far as everything before them is settled (docs/kafka.md).

`source.py` keeps one member of the group alive; `membership.py` is one life of it, on top of `client.py`; `flow.py`, `partitions.py`,
`watermark.py` and `units.py` decide, without a loop, what is taken, what may be committed and who has to pause. Imported only where a
cluster is configured: the client is large.
"""
