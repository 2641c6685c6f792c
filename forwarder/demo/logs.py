"""The demo with log files: a website's access log that grows and rotates, the sandbox, and a
forwarder that follows the log.

The log is one of nginx: visitors who look at pages, and what such a log contains beside them:
crawlers, images and scripts, forms, errors, and a line of another format. The mapping is that of
`config/recipes/nginx.yaml`. Every `ROTATE_EVERY` lines the log is rotated as logrotate does it:
renamed, and compressed the next time.

Invariants: it is the product's own pipeline; the verdict compares the page views that were written
with the sandbox's events, by time and path: there are as many of each.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import secrets
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from forwarder.config.settings import Settings
from forwarder.core.clock import Clock, SystemClock
from forwarder.demo.demo import SETTLE_SECONDS, DemoVerdict, Forwarder, Ports, running, settled
from forwarder.demo.traffic import PROJECT_KEY
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.telemetry.snapshot import Snapshot

LOG: Final = "access.log"
ROTATE_EVERY: Final = 150
"""Lines."""
KEPT: Final = 20
"""Rotated files that are kept: logrotate deletes older ones too."""

_FILE_ENDINGS: Final = (
    ".css .js .map .json .ico .png .jpg .jpeg .gif .svg .webp .avif .woff .woff2 .mp4 .txt "
    ".xml .webmanifest"
)
_CRAWLERS: Final = ("http", "bot", "Bot", "Headless")


def _any(function: str, texts: Iterable[str]) -> str:
    return " or ".join(f'{function}("{text}")' for text in texts)


MAPPING: Final[Mapping[str, Any]] = {
    "where": (
        '.method == "GET" and (.status == 200 or .status == 304)'
        f" and (.path | {_any('endswith', _FILE_ENDINGS.split())} | not)"
        ' and (.user_agent // "" | startswith("Mozilla/")'
        f" and ({_any('contains', _CRAWLERS)} | not))"
    ),
    "event": '"$pageview"',
    "distinct_id": ".visitor",
    "properties": {
        "$current_url": (
            '"https://shop.example.com" + .path'
            ' + (.query // "" | split("&") | map(select(startswith("utm_")))'
            ' | if . == [] then "" else "?" + join("&") end)'
        ),
        "$pathname": ".path",
        "$host": '"shop.example.com"',
        "$referrer": '.referrer // "$direct" | split("?")[0]',
        "status": ".status",
        "$process_person_profile": "false",
        "$geoip_disable": "true",
    },
    "hash": {"combine": {"visitor": [".remote_addr", ".user_agent"]}, "daily": True},
}
"""Turns page views into events; `hash.salt_file` is added."""


class LogDemo:
    """A running demo; `open_log_demo` makes one."""

    def __init__(self, sandbox: Sandbox, forwarder: Forwarder, log: RotatingLog) -> None:
        self.sandbox_url = sandbox.url
        self.admin_address = forwarder.admin.address
        self.entrance = f"write lines to    {log.path}  (nginx's combined format)"
        self._sandbox = sandbox
        self._forwarder = forwarder
        self._log = log
        self._clock: Clock = SystemClock()
        self._views: Counter[tuple[str, str]] = Counter()
        self._stop = asyncio.Event()

    @property
    def sent(self) -> int:
        """Page views among the lines that were written."""
        return self._views.total()

    def details(self) -> str:
        """More about what was written, for the progress line."""
        logs = self.snapshot().logs
        read = sum((Counter(log.lines) for log in logs), Counter[str]())
        unmatched = read["unmatched"]
        filtered = read["filtered"]
        rest = f"filtered out {filtered:,}, unmatched {unmatched:,}"
        files = sum(log.followed for log in logs)
        return (
            f" in {self._log.lines:,} lines, of which {read.total():,} are read ({rest}); "
            f"rotated {self._log.rotations:,}, files {files:,}"
        )

    @property
    def stopping(self) -> bool:
        """Whether the traffic has to stop."""
        return self._stop.is_set()

    def snapshot(self) -> Snapshot:
        """The forwarder's state now."""
        return self._forwarder.pipeline.snapshot()

    async def traffic(self, visitors: int | None, pause: float = 0.0) -> None:
        """Write the lines of `visitors` visitors, without end for None. Cancelled, or after
        `stop_traffic`, it ends at the next line.
        """
        for line in lines(visitors):
            if self.stopping:
                return
            moment = datetime.now(UTC)
            self._log.write(line.text(moment))
            if line.page is not None:
                self._views[moment.strftime("%Y-%m-%dT%H:%M:%S"), line.page] += 1
            if pause:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stop.wait()

    def stop_traffic(self) -> None:
        """Write nothing more."""
        self._stop.set()

    async def settle(self, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait until all lines are read and nothing is buffered, for at most `seconds`; whether
        that happened.
        """
        return await settled(self._clock, self._all_settled, seconds)

    async def verdict(self) -> DemoVerdict:
        """Compare the page views that were written with the sandbox's events."""
        views = {
            event.uuid: (event.timestamp[:19], _pathname(event.properties))
            for event in await self._sandbox.events()
        }
        own = (self._views & Counter(views.values())).total()
        changed = sum(
            views.get(conflict.first.uuid) in self._views
            for conflict in await self._sandbox.conflicts()
        )
        return DemoVerdict(
            self.sent, own, self.sent - own, changed, self.snapshot(), extra=len(views) - own
        )

    def _all_settled(self) -> bool:
        snapshot = self.snapshot()
        read = sum(sum(log.lines.values()) for log in snapshot.logs)
        return read >= self._log.lines and not any(lane.buffered for lane in snapshot.lanes)


def _pathname(text: str) -> str:
    """The path in an event's properties, which somebody else may have sent."""
    properties = json.loads(text)
    return str(properties.get("$pathname")) if isinstance(properties, dict) else ""


@contextlib.asynccontextmanager
async def open_log_demo(ports: Ports) -> AsyncIterator[LogDemo]:
    """Start sandbox, forwarder and admin server on an empty log; at the end drain, and
    close all.
    """
    # state and dead letters: never beside those of a real forwarder
    with tempfile.TemporaryDirectory(prefix="forwarder-demo-") as folder:
        async with Sandbox(SandboxOptions(listen=f"127.0.0.1:{ports.sandbox}")) as sandbox:
            with RotatingLog(Path(folder) / "log") as log:
                settings = _settings(sandbox.url, f"127.0.0.1:{ports.ingestion}", Path(folder), log)
                async with running(settings, f"127.0.0.1:{ports.admin}") as forwarder:
                    yield LogDemo(sandbox, forwarder, log)


def _settings(upstream: str, ingestion: str, folder: Path, log: RotatingLog) -> Settings:
    """The default settings, except for addresses, directories and the log."""
    salt = folder / "salt"
    salt.write_text(secrets.token_hex(32))
    mapping = {**MAPPING, "hash": {**MAPPING["hash"], "salt_file": str(salt)}}
    source = {
        "name": "nginx",
        "path": f"{log.path}*",
        "format": "combined",
        "mapping": mapping,
        "api_key": PROJECT_KEY,
    }
    return Settings.parse(
        {
            "upstream": {"url": upstream},
            "sources": {"http": {"listen": ingestion}, "logs": [source]},
            "dead_letters": {"path": str(folder / "state")},
        }
    )


class RotatingLog:
    """A log file in a folder of its own, rotated every `ROTATE_EVERY` lines: `access.log.1`, and
    `access.log.2.gz` and so on.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = folder / LOG
        self.lines = 0
        self.rotations = 0
        self._file = self.path.open("ab")

    def __enter__(self) -> RotatingLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, line: bytes) -> None:
        """Append a line, and rotate if it is time."""
        self._file.write(line + b"\n")
        self._file.flush()
        self.lines += 1
        if self.lines % ROTATE_EVERY == 0:
            self._rotate()

    def _rotate(self) -> None:
        self._named(KEPT).unlink(missing_ok=True)
        for number in range(KEPT - 1, 1, -1):
            if self._named(number).exists():
                self._named(number).rename(self._named(number + 1))
        last = self._named(1)
        if last.exists():
            hidden = last.with_name(".compressing")  # no half of a file is ever seen by its name
            hidden.write_bytes(gzip.compress(last.read_bytes()))
            hidden.rename(self._named(2))
            last.unlink()
        self.path.rename(last)
        self._file.close()
        self._file = self.path.open("ab")
        self.rotations += 1

    def _named(self, number: int) -> Path:
        return self.path.with_name(f"{LOG}.{number}" + (".gz" if number > 1 else ""))


_PAGES: Final = (
    "/",
    "/teapots",
    "/bowls",
    "/sale",
    "/about",
    "/%C3%A7ay-setleri",
    "/teapots/celadon",
    "/bowls/raku",
)
_QUERIES: Final = (
    "",
    "",
    "",
    "?utm_source=newsletter&token=s3cret",
    "?sort=price",
    "?q=green+tea&page=2",
)
_REFERRERS: Final = (
    "-",
    "-",
    "https://www.example.org/search?q=teapot",
    "https://news.example.net/",
)
_FILES: Final = ("/static/shop.css", "/static/shop.js", "/images/teapot.webp", "/favicon.ico")
_BROWSERS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    (
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) "
        "Chrome/142.0.0.0 Safari/537.36"
    ),
    (
        "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
        "Gecko) Version/19.0 Safari/604.1"
    ),
)
_BOTS: Final = (
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "curl/8.14.1",
    "Mozilla/5.0 (compatible; UptimeRobot/2.0; http://www.uptimerobot.com/)",
)
_OTHER_AT: Final = 40
"""Position in the story of a line of another format."""


@dataclass(frozen=True, slots=True)
class AccessLine:
    """One line of the log, without its time. `page` is the path of the page view that it is to
    become; None if none is.
    """

    before: str
    after: str
    page: str | None = None

    def text(self, moment: datetime) -> bytes:
        """The line as nginx writes it."""
        return f"{self.before}[{moment:%d/%b/%Y:%H:%M:%S %z}]{self.after}".encode()


def lines(visitors: int | None, seed: int = 2026) -> Iterator[AccessLine]:
    """The lines of `visitors` visitors, one after the other, with what comes between them; without
    end for None.
    """
    random = Random(seed)  # noqa: S311 - a story, not a secret
    number = 0
    while visitors is None or number < visitors:
        number += 1
        yield from _visit(random, number)
        if number == _OTHER_AT:
            yield AccessLine(
                "",
                (
                    ' [error] 17#17: *3 open() "/srv/shop/robots.txt" failed (2: No such file or '
                    "directory)"
                ),
            )


def _visit(random: Random, number: int) -> Iterator[AccessLine]:
    address = (
        f"2001:db8::{number % 0xFFFF:x}" if number % 5 == 0 else f"203.0.113.{number % 250 + 1}"
    )
    browser = random.choice(_BROWSERS)
    for _ in range(random.randint(2, 5)):
        path = random.choice(_PAGES)
        yield _line(
            address,
            f"GET {path}{random.choice(_QUERIES)}",
            200,
            random.choice(_REFERRERS),
            browser,
            page=path,
        )
        for file in random.sample(_FILES, k=random.randint(0, 2)):
            yield _line(
                address,
                f"GET {file}",
                random.choice((200, 304)),
                f"https://shop.example.com{path}",
                browser,
            )
    if random.random() < 0.3:
        yield _line(address, "POST /cart", 303, "https://shop.example.com/", browser)
    if random.random() < 0.2:
        yield _line(address, "GET /wp-login.php", 404, "-", browser)
    if random.random() < 0.4:
        yield _line("198.51.100.7", f"GET {random.choice(_PAGES)}", 200, "-", random.choice(_BOTS))


def _line(
    address: str, request: str, status: int, referrer: str, agent: str, *, page: str | None = None
) -> AccessLine:
    size = 0 if status == 304 else 512 + len(request) * 37
    return AccessLine(
        f"{address} - - ", f' "{request} HTTP/1.1" {status} {size} "{referrer}" "{agent}"', page
    )
