"""From what the user names to blocks of records: files, folders, patterns, object stores, standard input, and whatever is packed in them.

Everything is streamed: memory is bounded by the options, not by the data. Damage ends one file, never the source, and never before what
could be read of it was given.
"""

from __future__ import annotations

from forwarder.sources.files.origins import Fingerprint
from forwarder.sources.files.records import BrokenSource, Framing, ReadOptions, SourceChanged
from forwarder.sources.files.source import BlockReader, FileSource, SourceMember, open_source

__all__ = [
    "BlockReader",
    "BrokenSource",
    "FileSource",
    "Fingerprint",
    "Framing",
    "ReadOptions",
    "SourceChanged",
    "SourceMember",
    "open_source",
]
