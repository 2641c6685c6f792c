"""The Kafka source: records in, offsets committed as far as everything before them is settled
(docs/how-to/kafka.md).

`source.py` keeps one member of the group alive; `membership.py` is one life of it, on top of
`client.py`; `flow.py` and `batches.py` decide, without a loop, what is handed over, what may be
committed (both `sources.hand_over`) and which partitions pause. Imported only where a cluster is
configured: the client is large.
"""
