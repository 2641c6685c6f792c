"""From requests, and a source's records, to chunks in the buffer: read, stamped, assigned to lanes,
all or none.

A request: `intake.py` decodes it, `requests.py` reads it by lane. A batch of records:
`source_intake.py` and `record_reader.py`, which completes plain records itself. `stamping/` stamps
the events of requests, and reads all other records. Both end in `admission.py`, which takes them
through rules and routes (`content.py`) and asks `lane_registry.py`. Bodies that take too much work
pass through `large.py`, and `decoder_jobs.py` in another process.
"""
