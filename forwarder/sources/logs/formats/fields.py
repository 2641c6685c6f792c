"""Formats whose members the line names itself: JSON, logfmt, and a regular expression with named
groups.

None of them knows which member is the line's time: the mapping says it.

- JSON: a line that is an object stays as it is.
- logfmt: `level=info msg="a \\"quoted\\" text" cached`; values are strings, a bare key is true, of
  equal keys the last one counts. A line without any `key=value` isn't of this format.
- A regular expression is searched in the line; values are strings, and groups that don't match are
  left out.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from forwarder.core.patterns import LinearPattern
from forwarder.sources.logs.formats.text import LineParser, ParsedLine, unescape

_PAIR: Final = re.compile(
    r'([^\s="]++)(?:(=)(?:"((?:[^"\\]++|\\.)*+)"|([^\s"]\S*+)?+))?+(?!\S)|(\S.*+)', re.DOTALL
)
"""A key, its `=`, and its value, quoted or not; or what is neither."""
_SPACE: Final = b" \t\r\n"


def parse_json(line: bytes, reference: float) -> ParsedLine | None:
    """A line that begins as an object; the mapping decodes it, and finds out whether it is one."""
    if line[:1] == b"{" or line.lstrip(_SPACE)[:1] == b"{":
        return line, b"", reference
    return None


def logfmt_parser() -> LineParser:
    """The parser of logfmt."""
    encode = msgspec.json.Encoder().encode
    pairs = _PAIR.findall

    def parse(line: bytes, reference: float) -> ParsedLine | None:
        members: dict[str, str | bool] = {}
        named = False
        for key, equals, quoted, plain, neither in pairs(line.decode("utf-8", "replace")):
            if neither:
                return None
            if equals:
                named = True
                members[key] = plain or (unescape(quoted) if "\\" in quoted else quoted)
            else:
                members[key] = True
        return (encode(members), b"", reference) if named else None

    return parse


def regex_parser(pattern: LinearPattern) -> LineParser:
    """The parser of a regular expression with named groups."""
    encode = msgspec.json.Encoder().encode
    search = pattern.fields

    def parse(line: bytes, reference: float) -> ParsedLine | None:
        if not line.isascii():
            line = line.decode("utf-8", "replace").encode()
        fields = search(line)
        return None if fields is None else (encode(fields), b"", reference)

    return parse
