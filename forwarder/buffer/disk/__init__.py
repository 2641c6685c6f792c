"""The buffer on disk: a log of preallocated, recycled segment files. `format.py` has the format, `log.py` the writing, `recovery.py`
the reading at the start, `compaction.py` what keeps an old event from pinning a segment, `buffer.py` the buffer itself."""
