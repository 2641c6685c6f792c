"""Line formats: how a record of a log becomes a JSON object.

Nothing here knows files or asyncio. A format is a table or a regular expression with what it makes
of a match; the members of each are documented in its module.

The regular expressions here are ours, and run on `re` in time that grows with the line: they begin
at the line's start, and a repeat either is possessive or ends at a character that it can't contain.
One of a configuration is a `LinearPattern`.
"""

from __future__ import annotations

from forwarder.sources.logs.formats.line_format import (
    DATED,
    FORMATS,
    MESSAGE_FORMATS,
    LineFormat,
    line_format,
    replace_undecodable,
)
from forwarder.sources.logs.formats.text import ParsedLine

__all__ = [
    "DATED",
    "FORMATS",
    "MESSAGE_FORMATS",
    "LineFormat",
    "ParsedLine",
    "line_format",
    "replace_undecodable",
]
