r"""Access logs of nginx and Apache: the combined and the common format.

| member | what it is |
|---|---|
| `remote_addr` | the client's address (IPv4, IPv6) or name |
| `ident` | the second field |
| `remote_user` | the third field |
| `time` | ISO 8601 in UTC: the line's own time |
| `method`, `path`, `protocol` | the parts of the request, without escapes (`\x22`, `\"`) |
| `query` | the query of the request, without its `?` and escapes |
| `request` | instead of these four: a request that isn't one of HTTP, as it was logged |
| `status`, `bytes` | numbers |
| `referrer`, `user_agent` | combined only |
| `host` | the first field of Apache's `vhost_combined`: `example.com:443` |
| `extra` | what follows these fields, as it was logged |

A field that is `-` or empty is left out. Quotes inside of quoted fields may be escaped (`\"`,
`\x22`) or not.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from forwarder.sources.logs.formats.text import LineParser, ParsedLine, unescape
from forwarder.sources.logs.formats.times import AccessTimes

_START: Final = r"(?:- |([^ ]++) )(?:- |([^ ]++) )(?:- |([^ ]++) )\[([^\]]++)\] "
_REQUEST: Final = (
    r'"([A-Z]++) ([^ "?\\]++)(?:\?([^ "\\]++)?+)?+ (HTTP/[0-9.]++)" ([0-9]{3}) (?:-|([0-9]{1,18}+))'
)
_REST: Final = r"(?: (.++))?+"
_USUAL: Final = {
    "common": re.compile(_START + _REQUEST + r"((?!))?((?!))?" + _REST),
    "combined": re.compile(
        _START + _REQUEST + r' "(?:-?"|([^"\\]++)") "(?:-?"|([^"\\]++)")' + _REST
    ),
}
"""Lines without escapes, which are nearly all."""

_ANY_START: Final = (
    r"(?:([^ :]++:[0-9]++) (?=[0-9a-fA-F.:]++ [^ ]++ [^\[ ]))?+([^ ]++) ([^ ]++) "
    r"([^\[]++)\[([^\]]++)\] "
)
_ANY_REQUEST: Final = (
    r'"((?:[^"\\]++|\\.|"(?! (?:[0-9]{3}|-) (?:[0-9]++|-)(?: |\Z)))*+)" ([0-9]{3}|-) '
    r"([0-9]{1,18}+|-)"
)
_ANY_QUOTED: Final = r' "((?:[^"\\]++|\\.|"(?! "))*+)" "((?:[^"\\]++|\\.|"(?! |\Z))*+)"'
_ANY: Final = {
    "common": re.compile(_ANY_START + _ANY_REQUEST + r"((?!))?((?!))?" + _REST, re.DOTALL),
    "combined": re.compile(_ANY_START + _ANY_REQUEST + f"(?:{_ANY_QUOTED})?+" + _REST, re.DOTALL),
}
_HTTP: Final = re.compile(r"([A-Za-z][A-Za-z_-]*+) ([^ ](?:.*[^ ])?) ++(HTTP/[0-9.]++)", re.DOTALL)
_OLDEST_HTTP: Final = re.compile(r"(GET) (/[^ ]*+)")


class _AccessLine(Struct, omit_defaults=True, gc=False):
    """The members, in the order in which they are written."""

    remote_addr: str | None = None
    ident: str | None = None
    remote_user: str | None = None
    time: str | None = None
    method: str | None = None
    path: str | None = None
    query: str | None = None
    protocol: str | None = None
    status: int | None = None
    bytes: int | None = None
    referrer: str | None = None
    user_agent: str | None = None
    extra: str | None = None
    request: str | None = None
    host: str | None = None


def access_parser(name: str) -> LineParser:
    """The parser of `combined` or `common`."""
    usual = _USUAL[name].fullmatch
    unusual = _ANY[name].fullmatch
    read = AccessTimes().read
    encode = msgspec.json.Encoder().encode

    def parse(line: bytes, _: float) -> ParsedLine | None:
        text = line.decode("utf-8", "replace")
        match = usual(text)
        if match is not None:
            address, ident, user, at, method, path, query, protocol, status, size, *rest = (
                match.groups()
            )
            time = read(at)
            if time is None:
                return None
            count = None if size is None else int(size)
            record = _AccessLine(
                address,
                ident,
                user,
                time[0],
                method,
                path,
                query,
                protocol,
                int(status),
                count,
                *rest,
            )
            return encode(record), time[1], time[2]
        match = unusual(text)
        time = None if match is None else read(match[5])
        return (
            None
            if match is None or time is None
            else (encode(_unusual(match, time.text)), time.json, time.seconds)
        )

    return parse


def _unusual(match: re.Match[str], time: str) -> _AccessLine:
    """A line with escapes, without a request of HTTP, or with fields that are elsewhere spelled
    otherwise.
    """
    host, address, ident, user, _, request, status, size, referrer, agent, extra = match.groups()
    record = _AccessLine(
        _said(address), _said(ident), _said(user.rstrip(" ")), time, host=host, extra=extra
    )
    parts = _HTTP.fullmatch(request) or _OLDEST_HTTP.fullmatch(request)
    if parts is None:
        record.request = _said(request)
    else:
        path, _, query = parts[2].partition("?")
        record.method, record.path, record.query = parts[1], unescape(path), unescape(query) or None
        record.protocol = parts[3] if parts.re is _HTTP else None
    record.status = None if status == "-" else int(status)
    record.bytes = None if size == "-" else int(size)
    record.referrer = None if referrer is None else _said(unescape(referrer))
    record.user_agent = None if agent is None else _said(unescape(agent))
    return record


def _said(text: str) -> str | None:
    """A field; None for `-` and nothing."""
    return None if text in ("", "-") else text
