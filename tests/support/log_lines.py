"""A week of a web server's access log, and syslog in its old format over a change of year: what
real logs have, the odd lines too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

WEEK: Final = timedelta(days=7)
_AGENTS: Final = (
    (
        b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0 "
        b"Safari/537.36"
    ),
    (
        b"Mozilla/5.0 (iPhone; CPU iPhone OS 17_2 like Mac OS X) AppleWebKit/605.1.15 (KHTML, "
        b"like Gecko) Mobile/15E148 Safari/604.1"
    ),
    b"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    b"curl/8.4.0",
    b"-",
    b"",
    rb"Mozilla/5.0 \"quoted\" (like; \x22this\x22)",
    b'An agent with "raw" quotes/1.0',
    rb"Backslash \\ and tab \t and \xC3\xA9",
    "Größe/1.0".encode(),
    "Größe/1.0".encode("latin-1"),
    b"\xff\xfe\x00\x01",
)
_REFERRERS: Final = (
    *(
        b"-",
        b"",
        b"https://search.example.org/?q=green+tea",
        b"https://shop.example.com/",
        b"android-app://com.example/",
    ),
    *(rb"https://evil.example/\x22onload=\x22", b"https://caf\xe9.example/", b"//"),
)
_PATHS: Final = (
    b"/",
    b"/tea",
    b"/tea/green?size=50&sort=price",
    b"/checkout?email=ann%40example.com",
    b"/a%20b",
    "/größe".encode(),
    b"/caf\xe9?x",
)
_REQUESTS: Final = (
    *(
        b"-",
        b"",
        rb"\x16\x03\x01\x02\x00\x01\x00\x01\xFC\x03\x03",
        b"\x16\x03\x01",
        b"MGLNDD_203.0.113.9_80",
        rb"GET /\x22?\x22=1 HTTP/1.1",
    ),
    *(
        b"GET /",
        b"GET /a b HTTP/1.1",
        b"OPTIONS * HTTP/1.0",
        b"CONNECT example.com:443 HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"get /lower HTTP/1.1",
    ),
    *(
        b"GET http://other.example/ HTTP/1.1",
        b"\x03",
        b"SSTP_DUPLEX_POST /sra_{BA195980}/ HTTP/1.1",
        b'GET /"raw" HTTP/1.1',
        b"GET ? HTTP/1.1",
    ),
    *(
        rb"t3 12.2.1\n",
        b"GET  HTTP/1.1",
        b"\xc3\x28 \xa0\xa1",
        b"HELP",
        b"GET /%%%00 HTTP/1.1",
        b"GET /?a=\\x5C HTTP/1.1",
    ),
)
_EXTRA: Final = (
    b"",
    b"",
    b"",
    b' "-"',
    b' 0.005 0.004 "gzip"',
    rb' "203.0.113.7, 10.0.0.1" rt=0.1 "a \"b\""',
)
_ZONES: Final = (UTC, timezone(timedelta(hours=1)), timezone(-timedelta(hours=8, minutes=30)))


def access_lines(
    count: int, seed: int = 18, begin: datetime = datetime(2026, 1, 26, tzinfo=UTC)
) -> Iterator[bytes]:
    """So many lines of a combined log, over a week, without their line ends. One in ten is odd in
    some way.
    """
    choice = random.Random(seed)
    for number in range(count):
        time = (begin + WEEK * number / count).astimezone(choice.choice(_ZONES))
        usual = choice.random() < 0.9
        request = b"%b %b HTTP/1.1" % (
            choice.choice((b"GET", b"GET", b"POST", b"HEAD")),
            choice.choice(_PATHS[:5]),
        )
        if not usual:
            request = choice.choice(_REQUESTS)
        yield b'%b %b %b [%b] "%b" %d %b "%b" "%b"%b' % (
            _address(choice),
            b"-" if usual else choice.choice((b"-", b"ident")),
            b"-"
            if usual
            else choice.choice(
                (b"-", b"ann", b"Ann Example", "änn".encode(), b"a@example.com", b'""')
            ),
            time.strftime("%d/%b/%Y:%H:%M:%S %z").encode(),
            request,
            choice.choice((200, 200, 200, 301, 404, 499, 500, 400)),
            b"-" if choice.random() < 0.05 else b"%d" % choice.randrange(100_000),
            choice.choice(_REFERRERS[:5] if usual else _REFERRERS),
            choice.choice(_AGENTS[:5] if usual else _AGENTS),
            b"" if usual else choice.choice(_EXTRA),
        )


def _address(choice: random.Random) -> bytes:
    kind = choice.random()
    if kind < 0.7:
        return b"203.0.%d.%d" % (choice.randrange(8), choice.randrange(256))
    if kind < 0.95:
        return b"2001:db8:%x::%x" % (choice.randrange(65_536), choice.randrange(65_536))
    return choice.choice(
        (
            b"::1",
            b"::ffff:192.0.2.1",
            b"fe80::1%eth0",
            b"unix:",
            b"client.example.net",
            b"203.0.113.7:51234",
        )
    )


_MESSAGES: Final = (
    *(
        b"sshd[%d]: Accepted publickey for ann from 203.0.113.7 port 51234 ssh2",
        b"CRON[%d]: (root) CMD (run-parts /etc/cron.hourly)",
    ),
    *(
        b"kernel: [%d.123456] eth0: link up",
        b"systemd[1]: Started Session %d of user ann.",
        b"last message repeated %d times",
    ),
    *(
        b"postfix/smtpd[%d]: connect from unknown[2001:db8::1]",
        b"sudo: ann : TTY=pts/%d ; COMMAND=/bin/sh -c 'a: b'",
        b"tag[%d]: caf\xe9 \xff",
    ),
    *(
        b'my-app: key="value" number=%d',
        b"-- MARK %d --",
        b"dhclient[%d]:",
        b"ntpd_intres[%d]: host name not found: pool.example.org",
    ),
)


def syslog_lines(
    count: int, seed: int = 18, begin: datetime = datetime(2025, 12, 29, tzinfo=UTC)
) -> Iterator[tuple[bytes, datetime]]:
    """So many lines of syslog's old format over a week, each with its time in UTC: half with a
    priority, few without a host.
    """
    choice = random.Random(seed)
    for number in range(count):
        time = (begin + WEEK * number / count).replace(microsecond=0)
        message = choice.choice(_MESSAGES) % choice.randrange(1, 30_000)
        tagged = message.split(b" ")[0].endswith(b":")
        host = (
            b""
            if tagged and choice.random() < 0.1
            else choice.choice((b"web-1 ", b"203.0.113.9 ", b"db.example.com ", b"2001:db8::5 "))
        )
        priority = b"<%d>" % choice.randrange(192) if choice.random() < 0.5 else b""
        yield (
            b"%b%b %2d %b %b%b"
            % (
                priority,
                time.strftime("%b").encode(),
                time.day,
                time.strftime("%H:%M:%S").encode(),
                host,
                message,
            ),
            time,
        )
