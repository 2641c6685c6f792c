"""CRI, the container runtimes' format of Kubernetes: `<time> <stdout|stderr> <tags> <message>`;
parts have been joined by the splitter.

| member | what it is |
|---|---|
| `time` | ISO 8601 in UTC: the line's own time |
| `stream` | `stdout` or `stderr` |
| `message` | the line of the container; an object if it is of a message format |
| `kubernetes` | what the file's path says: `namespace`, `pod`, `container` |

Below `/var/log/pods`, `kubernetes` also has `pod_uid` and `restart` (a number); below
`/var/log/containers`, `container_id`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw, Struct

from forwarder.sources.logs.formats.text import LineParser, MessageParser, ParsedLine
from forwarder.sources.logs.formats.times import ISO_TIME, LogTime, Rfc3339Times

_LINE: Final = re.compile(rf"{ISO_TIME} (stdout|stderr) [FP](?::[^ ]*+)?+(?: (.*+)|\Z)", re.DOTALL)
_PATHS: Final = (
    re.compile(
        (
            r"(?:.*/)?(?P<namespace>[^/_]+)_(?P<pod>[^/_]+)_(?P<pod_uid>[^/_]+)/(?P<container>[^/]"
            r"+)/(?P<restart>\d{1,9})\.log[^/]*"
        ),
        re.ASCII,
    ),
    re.compile(
        r"(?:.*/)?(?P<pod>[^/_]+)_(?P<namespace>[^/_]+)_(?P<container>[^/]+)-(?P<container_id>[0-9"
        r"a-f]{64})\.log[^/]*"
    ),
)
_FIRST: Final = ("namespace", "pod", "container")


class _ContainerLine(Struct, omit_defaults=True, gc=False):
    """The members, in the order in which they are written."""

    time: str
    stream: str
    kubernetes: Raw | None = None
    message: str | Raw | None = None


def cri_parsers(message: MessageParser) -> Callable[[str], LineParser]:
    """What makes the parser for a file of its path."""
    return partial(_cri_parser, message, Rfc3339Times().read)


def _cri_parser(
    message: MessageParser, read: Callable[[str, str | None, str], LogTime | None], path: str
) -> LineParser:
    encode = msgspec.json.Encoder().encode
    kubernetes = _kubernetes(path)

    def parse(line: bytes, _: float) -> ParsedLine | None:
        match = _LINE.fullmatch(line.decode("utf-8", "replace"))
        if match is None:
            return None
        second, fraction, zone, stream, text = match.groups()
        time = read(second, fraction, zone)
        value = message(text or "")
        if time is None or value is None:
            return None
        return encode(_ContainerLine(time.text, stream, kubernetes, value)), time.json, time.seconds

    return parse


def _kubernetes(path: str) -> Raw | None:
    for pattern in _PATHS:
        if match := pattern.fullmatch(path):
            members: dict[str, str | int] = {
                name: match[name] for name in _FIRST
            } | match.groupdict()
            if "restart" in members:
                members["restart"] = int(members["restart"])
            return Raw(msgspec.json.encode(members))
    return None
