"""Line formats: what the lines of real programs become, and what isn't of a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.errors import ConfigurationError
from forwarder.sources.logs.formats import FORMATS, LineFormat, line_format, replace_undecodable
from forwarder.sources.logs.formats.text import unescape
from tests.support.cases import cases

MAY = datetime(2026, 5, 1, tzinfo=UTC).timestamp()
KEY = "sources.logs[0]"


def made(
    name: str,
    pattern: str | None = None,
    message_format: str | None = None,
    zone: str | None = None,
) -> LineFormat:
    """The format."""
    return line_format(name, pattern, message_format, zone, KEY)


def parsed(form: LineFormat, line: str | bytes, reference: float = MAY) -> dict[str, Any] | None:
    """The members of a record."""
    result = form.parse(line.encode() if isinstance(line, str) else line, reference)
    if result is None:
        return None
    members: dict[str, Any] = msgspec.json.decode(result[0])
    assert result[1] == (
        b'"%b"' % members["time"].encode() if form.has_time and "time" in members else b""
    )
    assert result[2] == (
        datetime.fromisoformat(members["time"]).timestamp() // 1 if result[1] else reference
    )
    return members


START = '203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "'
MEMBERS = {"remote_addr": "203.0.113.7", "time": "2000-10-10T20:55:36.000Z"}


@cases(
    ("line", "expected"),
    [
        (
            'GET / HTTP/1.1" 200 5 "-" "-"',
            {"method": "GET", "path": "/", "protocol": "HTTP/1.1", "status": 200, "bytes": 5},
        ),
        (
            'GET /a?b=c&d HTTP/2.0" 304 0 "https://x.example/?q" "curl/8 (x)"',
            {
                "method": "GET",
                "path": "/a",
                "query": "b=c&d",
                "protocol": "HTTP/2.0",
                "status": 304,
                "bytes": 0,
                "referrer": "https://x.example/?q",
                "user_agent": "curl/8 (x)",
            },
        ),
        (
            'GET /a? HTTP/1.1" 200 - "" ""',
            {"method": "GET", "path": "/a", "protocol": "HTTP/1.1", "status": 200},
        ),
        ('-" 408 - "-" "-"', {"status": 408}),
        ('" 400 0 "-" "-"', {"status": 400, "bytes": 0}),
        (
            r'\x16\x03\x01\x00" 400 157 "-" "-"',
            {"request": r"\x16\x03\x01\x00", "status": 400, "bytes": 157},
        ),
        (
            r'GET /\x22?a=\xC3\xA9\\ HTTP/1.1" 200 1 "a\"b" "\"c\" \x22d\x22"',
            {
                "method": "GET",
                "path": '/"',
                "query": "a=é\\",
                "protocol": "HTTP/1.1",
                "status": 200,
                "bytes": 1,
                "referrer": 'a"b',
                "user_agent": '"c" "d"',
            },
        ),
        (
            'GET /a b HTTP/1.1" 200 1 "-" "-"',
            {"method": "GET", "path": "/a b", "protocol": "HTTP/1.1", "status": 200, "bytes": 1},
        ),
        (
            'GET /a"b HTTP/1.1" 200 1 "r"s" "-"',
            {
                "method": "GET",
                "path": '/a"b',
                "protocol": "HTTP/1.1",
                "status": 200,
                "bytes": 1,
                "referrer": 'r"s',
            },
        ),
        ('GET /old" 200 1 "-" "-"', {"method": "GET", "path": "/old", "status": 200, "bytes": 1}),
        ('HELP me" 400 1 "-" "-"', {"request": "HELP me", "status": 400, "bytes": 1}),
        (
            'GET / HTTP/1.1" 200 5 "-" "x" 0.5 "gzip"',
            {
                "method": "GET",
                "path": "/",
                "protocol": "HTTP/1.1",
                "status": 200,
                "bytes": 5,
                "user_agent": "x",
                "extra": '0.5 "gzip"',
            },
        ),
        (
            'GET / HTTP/1.1" 200 5',
            {"method": "GET", "path": "/", "protocol": "HTTP/1.1", "status": 200, "bytes": 5},
        ),
        (
            'GET /\x00\x1b HTTP/1.1" 200 5 "-" "-"',
            {
                "method": "GET",
                "path": "/\x00\x1b",
                "protocol": "HTTP/1.1",
                "status": 200,
                "bytes": 5,
            },
        ),
    ],
)
def test_combined(line: str, expected: dict[str, Any]) -> None:
    """What nginx and Apache write, the odd requests too."""
    assert parsed(made("combined"), START + line) == MEMBERS | expected


@cases(
    ("line", "expected"),
    [
        ("::1 - - [", {"remote_addr": "::1"}),
        (
            "2001:db8::1 ident ann [",
            {"remote_addr": "2001:db8::1", "ident": "ident", "remote_user": "ann"},
        ),
        (
            "client.example - Ann Example [",
            {"remote_addr": "client.example", "remote_user": "Ann Example"},
        ),
        (
            "shop.example.com:443 203.0.113.7 - ann [",
            {"host": "shop.example.com:443", "remote_addr": "203.0.113.7", "remote_user": "ann"},
        ),
        ("203.0.113.7:51234 - - [", {"remote_addr": "203.0.113.7:51234"}),
    ],
)
def test_clients_and_users(line: str, expected: dict[str, Any]) -> None:
    """Also where Apache writes the virtual host first."""
    rest = {
        "time": "2000-10-10T20:55:36.000Z",
        "method": "GET",
        "path": "/",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 5,
    }
    assert (
        parsed(
            made("combined"), f'{line}10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 5 "-" "-"'
        )
        == expected | rest
    )


def test_common() -> None:
    """The same without referrer and agent; what follows is extra."""
    line = START + 'GET / HTTP/1.1" 200 5'
    expected = MEMBERS | {
        "method": "GET",
        "path": "/",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 5,
    }
    assert parsed(made("common"), line) == expected
    assert parsed(made("common"), f'{line} "a" "b"') == expected | {"extra": '"a" "b"'}
    assert parsed(made("common"), START + '-" 408 -') == MEMBERS | {"status": 408}


@cases(
    "line",
    [
        *(
            "",
            "x",
            "{}",
            START,
            START + 'GET / HTTP/1.1" 200',
            START + 'GET / HTTP/1.1" abc 5 "-" "-"',
            "[" * 100_000,
            '"' * 100_000,
        ),
        *(
            '203.0.113.7 - - [32/Oct/2000:13:55:36 -0700] "-" 200 5 "-" "-"',
            '203.0.113.7 - - [10/Xxx/2000:13:55:36 -0700] "-" 200 5 "-" "-"',
        ),
        *(
            '203.0.113.7 - - [01/Jan/0001:00:00:00 +1000] "-" 200 5 "-" "-"',
            '203.0.113.7 - - [2026-01-01] "-" 200 5 "-" "-"',
        ),
        *(
            "203.0.113.7 - " + "[ " * 100_000,
            START + "\\" * 100_001,
            START + 'a" ' * 50_000,
            START + "GET" + " " * 100_000,
            START + "[" * 99_999,
        ),
    ],
)
def test_lines_of_no_access_log(line: str) -> None:
    """They are unmatched, in a time that grows with their length alone."""
    assert made("combined").parse(line.encode(), MAY) is None
    assert made("common").parse(line.encode(), MAY) is None


def test_times_of_access_logs() -> None:
    """Also ISO 8601, which servers can be set to; a leap second is the one before."""
    form = made("common")
    line = '203.0.113.7 - - [{}] "-" 200 5'
    with_zone = parsed(form, line.format("2026-01-31T12:00:00.123+01:00"))
    assert with_zone is not None
    assert with_zone["time"] == "2026-01-31T11:00:00.123Z"
    leap = parsed(form, line.format("31/Dec/2016:23:59:60 +0000"))
    assert leap is not None
    assert leap["time"] == "2016-12-31T23:59:59.000Z"


WORDS = st.text(
    st.characters(blacklist_categories=["Cs", "Zs", "Cc"], blacklist_characters='"\\[]?:-'),
    min_size=1,
    max_size=20,
)
TEXTS = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r"), max_size=30
).filter(lambda text: text not in ("", "-"))


def nginx(text: str) -> str:
    """A text as nginx writes it."""
    return "".join(
        char
        if " " <= char < "\x7f" and char not in '"\\'
        else "".join(f"\\x{byte:02X}" for byte in char.encode())
        for char in text
    )


def apache(text: str) -> str:
    """A text as Apache writes it."""
    named = {'"': '\\"', "\\": "\\\\", "\t": "\\t", "\v": "\\v", "\b": "\\b", "\f": "\\f"}
    return "".join(
        named.get(char) or (char if " " <= char < "\x7f" else nginx(char)) for char in text
    )


@dataclass
class Logged:
    """What a server logs of one request."""

    address: object
    user: str | None
    time: datetime
    offset: int
    method: str
    path: str
    query: str | None
    status: int
    size: int | None
    referrer: str | None
    agent: str | None

    def line(self, escape: Callable[[str], str]) -> str:
        """In the combined format."""
        local = self.time.replace(microsecond=0, tzinfo=UTC).astimezone(
            timezone(timedelta(minutes=self.offset))
        )
        target = escape(f"/{self.path}") + ("" if self.query is None else f"?{escape(self.query)}")
        head = (
            f"{self.address} - {self.user or '-'} "
            f"[{local:%d/%b}/{local.year:04}:{local:%H:%M:%S %z}]"
        )
        size = "-" if self.size is None else self.size
        quoted = f'"{escape(self.referrer or "-")}" "{escape(self.agent or "-")}"'
        return f'{head} "{self.method} {target} HTTP/1.1" {self.status} {size} {quoted}'

    def members(self) -> dict[str, Any]:
        """What the line becomes."""
        fields = {
            "remote_addr": str(self.address),
            "remote_user": self.user,
            "time": f"{self.time:%Y-%m-%dT%H:%M:%S}.000Z",
            "method": self.method,
            "path": f"/{self.path}",
            "query": self.query,
            "protocol": "HTTP/1.1",
            "status": self.status,
            "bytes": self.size,
            "referrer": self.referrer,
            "user_agent": self.agent,
        }
        return {name: value for name, value in fields.items() if value is not None}


LOGGED = st.builds(
    Logged,
    st.ip_addresses(),
    st.none() | WORDS,
    st.datetimes(datetime(1970, 1, 2), datetime(9998, 1, 1)),
    st.integers(-14 * 60, 14 * 60),
    st.sampled_from(["GET", "POST", "PROPFIND", "M-SEARCH"]),
    TEXTS.map(lambda text: text.replace(" ", "").replace("?", "")),
    st.none() | TEXTS.map(lambda text: text.replace(" ", "") or "q"),
    st.integers(100, 599),
    st.none() | st.integers(0, 10**15),
    st.none() | TEXTS,
    st.none() | TEXTS,
)


@given(LOGGED, st.sampled_from([nginx, apache]))
def test_a_combined_log_comes_back(logged: Logged, escape: Callable[[str], str]) -> None:
    """What a server logs of a request is what the members are."""
    assert parsed(made("combined"), logged.line(escape)) == logged.members()


BERLIN = "Europe/Berlin"


@cases(
    ("line", "expected"),
    [
        (
            "<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
            {
                "facility": "auth",
                "severity": "crit",
                "time": "2025-10-11T20:14:15.000Z",
                "host": "mymachine",
                "app": "su",
                "message": "'su root' failed for lonvick on /dev/pts/8",
            },
        ),
        (
            "Feb 29 00:00:00 h sshd[7]: x",
            {
                "time": "2024-02-28T23:00:00.000Z",
                "host": "h",
                "app": "sshd",
                "pid": "7",
                "message": "x",
            },
        ),
        (
            "May  2 01:59:59 h a: x",
            {"time": "2026-05-01T23:59:59.000Z", "host": "h", "app": "a", "message": "x"},
        ),
        (
            "May  2 02:00:01 h a: x",
            {"time": "2025-05-02T00:00:01.000Z", "host": "h", "app": "a", "message": "x"},
        ),
        (
            "Apr  1 12:00:00 h last message repeated 3 times",
            {
                "time": "2026-04-01T10:00:00.000Z",
                "host": "h",
                "message": "last message repeated 3 times",
            },
        ),
        (
            "Apr 01 12:00:00 kernel: [1.5] up",
            {"time": "2026-04-01T10:00:00.000Z", "app": "kernel", "message": "[1.5] up"},
        ),
        (
            "Apr 1 12:00:00 kernel: [1.5] up",
            {"time": "2026-04-01T10:00:00.000Z", "app": "kernel", "message": "[1.5] up"},
        ),
        (
            "Apr 1 2020 12:00:00 h a:",
            {"time": "2020-04-01T10:00:00.000Z", "host": "h", "app": "a", "message": ""},
        ),
        ("Apr 123 12:00:00 h a: x", None),
        ("Apr 0 12:00:00 h a: x", None),
        (
            "Apr  1 2020 12:00:00.123: h a:",
            {"time": "2020-04-01T10:00:00.000Z", "host": "h", "app": "a", "message": ""},
        ),
        (
            "Apr  1 12:00:00 2001:db8::1 sshd(pam_unix)[8]: a: b",
            {
                "time": "2026-04-01T10:00:00.000Z",
                "host": "2001:db8::1",
                "app": "sshd(pam_unix)",
                "pid": "8",
                "message": "a: b",
            },
        ),
        (
            "2026-01-02T03:04:05.123456+01:00 h a[1]: x",
            {
                "time": "2026-01-02T02:04:05.123456Z",
                "host": "h",
                "app": "a",
                "pid": "1",
                "message": "x",
            },
        ),
        (
            "<13>2026-01-02T03:04:05Z h a: x\n  y",
            {
                "facility": "user",
                "severity": "notice",
                "time": "2026-01-02T03:04:05.000Z",
                "host": "h",
                "app": "a",
                "message": "x\n  y",
            },
        ),
        (
            "<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time.",
            {
                "facility": "local4",
                "severity": "notice",
                "time": "2003-08-24T12:14:15.000003Z",
                "host": "192.0.2.1",
                "app": "myproc",
                "pid": "8710",
                "message": "%% It's time.",
            },
        ),
        (
            (
                "<165>1 2003-10-11T22:14:15.003Z mymachine evntslog - ID47 [ex@1 "
                'iut="3\\]\\"\\\\" e="a b"][x] \ufeffAn event'
            ),
            {
                "facility": "local4",
                "severity": "notice",
                "time": "2003-10-11T22:14:15.003Z",
                "host": "mymachine",
                "app": "evntslog",
                "msgid": "ID47",
                "data": {"ex@1": {"iut": '3]"\\', "e": "a b"}, "x": {}},
                "message": "An event",
            },
        ),
        ("<0>1 - - - - - -", {"facility": "kern", "severity": "emerg"}),
        ("<192>1 - - - - - -", None),
        ("<34>Feb 30 22:14:15 h a: b", None),
        ("<34>Xxx 11 22:14:15 h a: b", None),
        ("<34>1 2003-13-11T22:14:15.003Z h a - - -", None),
        ('<34>1 2003-10-11T22:14:15.003Z h a - - [x y="1]', None),
        ("hello", None),
        ("", None),
        (
            "Apr  1 12:00:00 " + "a" * 100_000 + "[" * 100_000,
            {"time": "2026-04-01T10:00:00.000Z", "message": "a" * 100_000 + "[" * 100_000},
        ),
    ],
)
def test_syslog(line: str, expected: dict[str, Any] | None) -> None:
    """Both standards, and what programs make of the old one."""
    assert parsed(made("syslog", zone=BERLIN), line) == expected


@given(
    st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1)),
    st.timedeltas(timedelta(hours=-23), timedelta(days=360)),
)
def test_the_year_of_an_old_syslog_line(time: datetime, before: timedelta) -> None:
    """It follows from the reference, whatever was read before, and never from a clock."""
    time = time.replace(microsecond=0, tzinfo=UTC)
    form = made("syslog")
    line = f"{time:%b %d %H:%M:%S} h a: b"
    parsed(form, line, (time + timedelta(days=366 * 5) + before).timestamp())
    record = parsed(form, line, (time + before).timestamp())
    assert record is not None
    assert record["time"] == time.strftime("%Y-%m-%dT%H:%M:%S.000Z")


POD = {"namespace": "shop", "pod": "web-5d9c7b-x2x4z", "container": "app"}
CONTAINER_ID = "0a" * 32


@cases(
    ("path", "expected"),
    [
        (
            "/var/log/pods/shop_web-5d9c7b-x2x4z_6f1c/app/3.log",
            {**POD, "pod_uid": "6f1c", "restart": 3},
        ),
        (
            "/host/log/shop_web-5d9c7b-x2x4z_6f1c/app/0.log.20260131-120000.gz",
            {**POD, "pod_uid": "6f1c", "restart": 0},
        ),
        (
            f"/var/log/containers/web-5d9c7b-x2x4z_shop_app-{CONTAINER_ID}.log",
            {**POD, "container_id": CONTAINER_ID},
        ),
        ("/var/log/containers/other.log", None),
        ("", None),
    ],
)
def test_the_path_of_a_pods_log_names_the_pod(path: str, expected: dict[str, Any] | None) -> None:
    """By the two layouts of Kubernetes; of other files nothing is guessed."""
    members = parsed(made("cri").for_file(path), "2026-01-31T12:00:00.5Z stdout F a")
    assert members is not None
    assert members.get("kubernetes") == expected


@cases(
    ("line", "time", "stream", "message"),
    [
        (
            "2016-10-06T00:17:09.669794202Z stdout F The content",
            "2016-10-06T00:17:09.669794Z",
            "stdout",
            "The content",
        ),
        (
            "2016-10-06T00:17:09Z stderr P:x several\nlines",
            "2016-10-06T00:17:09.000Z",
            "stderr",
            "several\nlines",
        ),
        ("2016-10-06T02:17:09.1+02:00 stderr F", "2016-10-06T00:17:09.100Z", "stderr", ""),
    ],
)
def test_cri(line: str, time: str, stream: str, message: str) -> None:
    """Time, stream and message."""
    assert parsed(made("cri"), line) == {"time": time, "stream": stream, "message": message}


@cases(
    "line",
    [
        "",
        "x",
        "2016-10-06 stdout F x",
        "2016-13-06T00:17:09Z stdout F x",
        "2016-10-06T00:17:09Z stdin F x",
    ],
)
def test_lines_that_arent_of_cri(line: str) -> None:
    """They are unmatched."""
    assert parsed(made("cri"), line) is None


CRI = "2016-10-06T00:17:09Z stdout F "


@cases(
    ("message_format", "message", "expected"),
    [
        ("text", '{"a":1}', '{"a":1}'),
        ("json", ' {"a":1.0, "b":{"c":"ü"}} ', {"a": 1.0, "b": {"c": "ü"}}),
        ("json", "plain text", None),
        ("json", '{"a":1', None),
        ("json", '{"a":1},"kubernetes":{"pod":"forged"}', None),
        ("json", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}", None),
        ("logfmt", 'level=info msg="a b"', {"level": "info", "msg": "a b"}),
        ("logfmt", "plain", None),
        ("regex", "GET 200", {"method": "GET", "status": "200"}),
        (
            "combined",
            START + 'GET / HTTP/1.1" 200 5 "-" "-"',
            MEMBERS
            | {"method": "GET", "path": "/", "protocol": "HTTP/1.1", "status": 200, "bytes": 5},
        ),
    ],
)
def test_messages(message_format: str, message: str, expected: Any) -> None:
    """A message of a format is an object; it can't forge members of the record, and another
    message is unmatched.
    """
    form = made("cri", r"(?P<method>[A-Z]+) (?P<status>\d+)", message_format)
    record = parsed(form, CRI + message)
    assert (None if record is None else record["message"]) == expected
    record = parsed(
        made("syslog", r"(?P<method>[A-Z]+) (?P<status>\d+)", message_format),
        f"Apr  1 12:00:00 h app: {message}",
    )
    assert (None if record is None else record["message"]) == expected


@cases(
    ("line", "expected"),
    [
        (
            'level=info msg="a \\"quoted\\" \\\\ \\n \\u00e9" ok=true',
            {"level": "info", "msg": 'a "quoted" \\ \n é', "ok": "true"},
        ),
        (
            'bare a=1 b="" c= a=2 d="=" e=x=y',
            {"bare": True, "a": "2", "b": "", "c": "", "d": "=", "e": "x=y"},
        ),
        (
            "  ts=2026-01-31T12:00:00Z\tcaller=a.go:1 ",
            {"ts": "2026-01-31T12:00:00Z", "caller": "a.go:1"},
        ),
        ("größe=ü \x01=\x02", {"größe": "ü", "\x01": "\x02"}),
        ("just some words", None),
        ('a="unfinished', None),
        ('a="b"c', None),
        ("=a", None),
        ("", None),
        ('a="' * 50_000, None),
        ('a="\\"' * 50_000, None),
    ],
)
def test_logfmt(line: str, expected: dict[str, Any] | None) -> None:
    """Pairs, bare keys, escapes; a line without a pair isn't logfmt."""
    assert parsed(made("logfmt"), line) == expected


LOGFMT_KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, blacklist_characters='="'), min_size=1
)


@given(
    st.dictionaries(LOGFMT_KEYS, st.text(st.characters(blacklist_categories=["Cs"])), min_size=1)
)
def test_logfmt_comes_back(members: dict[str, str]) -> None:
    """What a logger quotes as JSON does is read as it was."""
    line = " ".join(
        f"{key}={msgspec.json.encode(value).decode()}" for key, value in members.items()
    )
    assert parsed(made("logfmt"), line) == members


def test_json() -> None:
    """An object stays as it is, to the byte; anything else is unmatched."""
    form = made("json")
    for line in (b'{"a": 1.0}', b' \t{"a":"\\u00e9"} ', b"{not quite"):
        assert form.parse(line, MAY) == (line, b"", MAY)
    for line in (b"", b"[1]", b'"a"', b"INFO {}"):
        assert form.parse(line, MAY) is None


def test_regular_expressions() -> None:
    """Searched in the line; groups that don't match are left out, and
    control characters are escaped.
    """
    form = made("regex", r"(?P<level>[A-Z]+) (?:user=(?P<user>\w+) )?(?P<message>.*)")
    assert parsed(form, "12:00 INFO user=änn hello") == {
        "level": "INFO",
        "user": "änn",
        "message": "hello",
    }
    assert parsed(form, 'WARN "\x00\x1b') == {"level": "WARN", "message": '"\x00\x1b'}
    assert parsed(form, "nothing") is None
    odd = form.parse(b"INFO user=\xff \xe4\xf6 x", MAY)
    assert odd is not None
    assert msgspec.json.decode(odd[0]) == {"level": "INFO", "message": "user=\ufffd \ufffd\ufffd x"}


@pytest.mark.timeout(120)
def test_no_pattern_takes_long_for_a_line() -> None:
    """A pattern that can be tried in 2^n ways for n characters takes one pass over the line."""
    form = made("regex", r"(?P<words>(?:\w+\s?)+)$")
    assert parsed(form, "a" * 1_000_000 + "!") is None


def test_large_structured_data_stays_text() -> None:
    """Up to 16 KiB are taken apart; a line with tens of thousands of values costs no more."""
    form = made("syslog")
    head = "<34>1 2003-10-11T22:14:15Z h a - - "
    small = parsed(form, head + r'[a x="1" y="\"\\\]\n"][b] m')
    assert small is not None
    assert small["data"] == {"a": {"x": "1", "y": '"\\]\\n'}, "b": {}}
    for data in ("[a" + ' k="v"' * 40_000 + "]", "[a]" * 80_000, '[a k="' + r"\\" * 40_000 + '"]'):
        large = parsed(form, f"{head}{data} m")
        assert large is not None
        assert large["data"] == data
        assert large["message"] == "m"


@pytest.mark.parametrize("name", FORMATS)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_line_becomes_json_or_is_unmatched(name: str, line: bytes) -> None:
    """Each becomes a JSON object or is unmatched; nothing is raised."""
    form = FORMS[name]
    result = form.parse(line, MAY)
    assert result is None or name == "json" or isinstance(msgspec.json.decode(result[0]), dict)


FORMS = {name: made(name, r"(?P<a>.)(?P<b>\S+)?", None) for name in FORMATS}


@cases(
    ("arguments", "why"),
    [
        (("xml", None, None, None), r"^sources\.logs\[0\]\.format: 'xml' is not a format"),
        (("cri", None, "xml", None), r"^sources\.logs\[0\]\.message_format: 'xml' is not a format"),
        (("regex", None, None, None), r"^sources\.logs\[0\]\.pattern: is missing"),
        (("syslog", None, "regex", None), r"^sources\.logs\[0\]\.pattern: is missing"),
        (
            ("regex", "(", None, None),
            r"^sources\.logs\[0\]\.pattern: '\(' is no regular expression",
        ),
        (("regex", "(a)", None, None), r"^sources\.logs\[0\]\.pattern: '\(a\)' has no named group"),
        (
            ("syslog", None, None, "Nowhere/City"),
            r"^sources\.logs\[0\]\.zone: 'Nowhere/City' is no zone",
        ),
    ],
)
def test_invalid_formats_name_their_setting(
    arguments: tuple[str, str | None, str | None, str | None], why: str
) -> None:
    """The setting is named, with a hint."""
    with pytest.raises(ConfigurationError, match=why) as caught:
        line_format(*arguments, KEY)
    assert caught.value.hint


def test_undecodable_bytes_are_replaced() -> None:
    """Each becomes U+FFFD, and lines that had any are counted; without any the
    lines are what they were.
    """
    lines = [b"a", "ü".encode()]
    assert replace_undecodable(lines) == (lines, 0)
    assert replace_undecodable([*lines, b"b\xff", b"\xc3"]) == (
        [*lines, "b\ufffd".encode(), "\ufffd".encode()],
        2,
    )
    assert replace_undecodable([b"\xc3", b"\xa9"])[1] == 2


@cases(
    ("text", "expected"),
    [
        (r"plain", "plain"),
        (r"\"\\\n\t\/\q\x", '"\\\n\t/\\q\\x'),
        (r"\xC3\xA9\xff\x22", 'é\ufffd"'),
        (r"\u00e9\ud83d\ude00\ud83d\U0001F600\UFFFFFFFF\u12", "é😀\ufffd😀\ufffd\\u12"),
        ("\\", "\\"),
    ],
)
def test_escapes(text: str, expected: str) -> None:
    """Those of nginx, Apache and loggers; what isn't one stays."""
    assert unescape(text) == expected
