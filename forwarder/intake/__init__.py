"""From requests, and a source's records, to chunks in the buffer: validated event by event,
stamped, assigned to lanes, all or none.

A request: `intake.py` decodes it, `requests.py` reads it by lane, `stamping.py` and
`stamp_event.py` stamp its events. A batch of records: `records.py`, `record_reader.py`,
`plain_records.py`, and the same stamping. Both end in `admission.py`, which asks `lanes.py` and
`quotas.py`. Bodies that take too much work pass through `large.py`, and `decoder_jobs.py` in
another process.
"""
