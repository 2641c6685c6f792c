"""The archive: a destination that keeps every event in the user's own folder or bucket, as files
of JSON lines with zstd.

`archiver` takes a lane's events from the disk buffer once they are old or many enough, `spool`
makes one file of them, and `folders` puts it where it belongs, whole or not at all. Only then are
the events settled. `forwarder import native` reads the files.
"""
