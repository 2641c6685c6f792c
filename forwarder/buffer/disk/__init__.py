"""The disk buffer: a log of preallocated, recycled segment files.

Format and files: `format`, `segment`, `reading`, `books`. Writing: `log`, `pending`, `commits`. At
the start: `recovery`, `quarantine`, `opening`. Beside: `backlog` (what is on disk alone),
`compaction` (so that an old event doesn't pin a segment). `buffer` is the whole.
"""
