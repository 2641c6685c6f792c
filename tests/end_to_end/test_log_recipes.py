"""The recipes of config/recipes that forwarder runs itself, with generated logs, into a sandbox.
Only paths and addresses are replaced.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from forwarder.config.load import load_settings
from forwarder.demo.demo import Forwarder, running
from forwarder.demo.logs import AccessLine, lines
from forwarder.sandbox import Sandbox, SandboxOptions
from forwarder.sandbox.store.stored_records import StoredEvent
from tests.support.commands import command_line, environment
from tests.support.repository import ROOT
from tests.support.waiting import eventually

RECIPES: Final = ROOT / "config" / "recipes"
KEY: Final = "phc_recipesOfLogs0123456789"
BROWSER: Final = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
LOGS: Final = {
    "nginx": "/var/log/nginx",
    "application": "/var/log/shop",
    "kubernetes": "/var/log/pods",
    "journald": "",
    "otlp": "",
}


def configured(name: str, folder: Path, text: str | None = None) -> Path:
    """A recipe's file, with its paths in a folder: `log`, `state`, and the files of keys."""
    text = (RECIPES / f"{name}.yaml").read_text("utf-8") if text is None else text
    for secret, content in {"api-key": KEY, "salt": "salt of the recipes"}.items():
        (folder / secret).write_text(content)
        text = re.sub(rf"/etc/forwarder(?:-logs)?/{secret}\b", str(folder / secret), text)
    if LOGS[name]:
        (folder / "log").mkdir(exist_ok=True)
        assert LOGS[name] in text
        text = text.replace(LOGS[name], str(folder / "log"))
    file = folder / f"{name}.yaml"
    file.write_text(text.replace("/var/lib/forwarder", str(folder / "state")), "utf-8")
    return file


def variables(sandbox: Sandbox, folder: Path) -> dict[str, str]:
    """The addresses of a test's own, and its directory."""
    own = {
        "UPSTREAM__URL": sandbox.url,
        "SOURCES__HTTP__LISTEN": "127.0.0.1:0",
        "ADMIN__LISTEN": "127.0.0.1:0",
        "BUFFER__PATH": str(folder / "state"),
    }
    return {
        "UPSTREAM_URL": sandbox.url,
        "NODE_NAME": "node-1",
        **{f"FORWARDER_{name}": value for name, value in own.items()},
    }


@dataclass(frozen=True, slots=True)
class Followed:
    """A recipe that runs."""

    forwarder: Forwarder
    sandbox: Sandbox
    log: Path

    def read(self) -> Counter[str]:
        """The lines that are read, by result."""
        return sum(
            (Counter(log.lines) for log in self.forwarder.pipeline.snapshot().logs), Counter[str]()
        )

    async def counted(self, **results: int) -> None:
        """Wait until so many lines of each result are read, and those that
        are events are delivered.
        """
        await eventually(
            lambda: self.read().total() >= sum(results.values()),
            LIMIT,
            explain=lambda: self.forwarder.pipeline.snapshot().logs,
        )
        assert self.read() == Counter(results)
        await eventually(
            lambda: (
                sum(lane.delivered for lane in self.forwarder.pipeline.snapshot().lanes)
                >= results["taken"]
            )
        )

    async def events(self) -> list[StoredEvent]:
        """What arrived, once for each uuid, in the order of time."""
        assert await self.sandbox.conflicts() == []
        stored_events = {event.uuid: event for event in await self.sandbox.events()}
        return sorted(stored_events.values(), key=lambda event: event.timestamp)


@asynccontextmanager
async def followed(name: str, folder: Path, text: str | None = None) -> AsyncIterator[Followed]:
    """A forwarder with a recipe, and a sandbox behind it."""
    file = configured(name, folder, text)
    async with Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox:
        settings = load_settings(file, variables(sandbox, folder)).settings
        async with running(settings, "127.0.0.1:0") as forwarder:
            yield Followed(forwarder, sandbox, folder / "log")


def properties(event: StoredEvent) -> dict[str, Any]:
    """An event's properties."""
    decoded = json.loads(event.properties)
    assert isinstance(decoded, dict)
    return decoded


def written(*texts: str) -> bytes:
    """Lines."""
    return "".join(f"{text}\n" for text in texts).encode()


def access(
    request: str,
    moment: datetime,
    *,
    address: str = "203.0.113.9",
    status: int = 200,
    referrer: str = "-",
    agent: str = BROWSER,
) -> str:
    """A line of nginx."""
    return (
        AccessLine(f"{address} - - ", f' "{request} HTTP/1.1" {status} 512 "{referrer}" "{agent}"')
        .text(moment)
        .decode()
    )


MORNING: Final = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)


async def test_nginx(tmp_path: Path) -> None:
    """Page views are events with a cleaned address, whose visitor has another id each day; nothing
    else is an event.
    """
    utm = "?utm_source=mail&token=s3cret&utm_campaign=tea"
    visits = [
        access(f"GET /teapots{utm}", MORNING, referrer="https://search.example/?q=private"),
        access("GET /%C3%A7ay?page=2", MORNING + timedelta(minutes=1)),
        access("GET /", MORNING + timedelta(days=1)),
        access("GET /", MORNING + timedelta(days=1, minutes=1), address="2001:db8::7", status=304),
    ]
    others = [
        access("GET /static/shop.css", MORNING),
        access("POST /cart", MORNING, status=303),
        access("GET /missing", MORNING, status=404),
        access(
            "GET /",
            MORNING,
            agent="Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
        ),
        access("GET /", MORNING, agent="curl/8.14.1"),
        access("GET /", MORNING, agent="-"),
        access("\\x16\\x03\\x01", MORNING, status=400).replace(" HTTP/1.1", ""),
    ]
    async with followed("nginx", tmp_path) as recipe:
        (recipe.log / "access.log").write_bytes(
            written(*visits[:2], *others, "not a line of nginx", *visits[2:])
        )
        await recipe.counted(taken=len(visits), filtered=len(others), unmatched=1)
        events = await recipe.events()
    assert {(event.event, event.api_key) for event in events} == {("$pageview", KEY)}
    assert [event.timestamp[:19] for event in events] == [
        *(
            "2026-11-22T09:30:00",
            "2026-11-22T09:31:00",
            "2026-11-23T09:30:00",
            "2026-11-23T09:31:00",
        )
    ]
    assert [properties(event)["$pathname"] for event in events] == [
        "/teapots",
        "/%C3%A7ay",
        "/",
        "/",
    ]
    assert properties(events[0]) == {
        "$current_url": "https://shop.example.com/teapots?utm_source=mail&utm_campaign=tea",
        "$pathname": "/teapots",
        "$host": "shop.example.com",
        "$referrer": "https://search.example/",
        "status": 200,
        "$process_person_profile": False,
        "$geoip_disable": True,
    }
    assert properties(events[1])["$current_url"] == "https://shop.example.com/%C3%A7ay"
    first, second, next_day, other = [event.distinct_id for event in events]
    assert first == second
    assert len({first, next_day, other}) == 3
    assert not any(
        secret in event.raw
        for event in events
        for secret in (b"203.0.113", b"2001:db8", b"Firefox", b"s3cret", b"private")
    )


async def test_nginx_with_the_demos_log(tmp_path: Path) -> None:
    """The generated log of `forwarder demo --logs` gives exactly its page views, also where a part
    of it is rotated and compressed.
    """
    story = list(lines(80))
    texts = [line.text(MORNING + timedelta(seconds=number)) for number, line in enumerate(story)]
    middle = len(texts) // 2
    async with followed("nginx", tmp_path) as recipe:
        (recipe.log / "access.log.2.gz").write_bytes(
            gzip.compress(b"\n".join(texts[:middle]) + b"\n")
        )
        (recipe.log / "access.log").write_bytes(b"\n".join(texts[middle:]) + b"\n")
        views = [line.page for line in story if line.page is not None]
        await recipe.counted(taken=len(views), filtered=len(texts) - len(views) - 1, unmatched=1)
        assert [properties(event)["$pathname"] for event in await recipe.events()] == views


LIMIT: Final = 35.0
"""Seconds in which all lines are read: far more than it takes on a machine that is busy."""
NGINX: Final = """daemon off;
{user}pid {place}/pid;
events {{}}
http {{
    access_log {log}/access.log combined;
    client_body_temp_path {place}/bodies;
    proxy_temp_path {place}/proxied;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    server {{
        listen unix:{place}/site;
        location = /gone {{ return 404; }}
        location / {{ default_type text/html; return 200 "tea"; }}
    }}
}}
"""


async def test_nginx_with_a_real_one(tmp_path: Path) -> None:
    """What nginx itself writes into its log is understood: quotes and bytes beyond ASCII in
    headers, and a request that isn't HTTP.
    """
    program("nginx")
    async with followed("nginx", tmp_path) as recipe, nginx(tmp_path / "nginx", recipe.log) as site:
        odd = 'Mozilla/5.0 "quoted" \\ Zoë'.encode()
        requests: list[tuple[bytes, Mapping[bytes, bytes]]] = [
            (b"/?a=1&utm_source=x", {b"User-Agent": BROWSER.encode()}),
            (b"/%22quoted%22", {b"User-Agent": odd, b"Referer": b'https://a.example/"b"'}),
            (b"/gone", {b"User-Agent": BROWSER.encode()}),
            (
                b"/bot",
                {
                    b"User-Agent": (
                        b"Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)"
                    )
                },
            ),
        ]
        for target, headers in requests:
            await asked(
                site,
                b"GET %b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%b\r\n"
                % (target, head(headers)),
            )
        await asked(site, b"\x16\x03\x01\x00\r\n\r\n")
        await recipe.counted(taken=2, filtered=3)
        paths = {
            properties(event)["$pathname"]: properties(event) for event in await recipe.events()
        }
    assert paths.keys() == {"/", "/%22quoted%22"}
    assert paths["/"]["$current_url"] == "https://shop.example.com/?utm_source=x"
    assert paths["/%22quoted%22"]["$referrer"] == 'https://a.example/"b"'


def head(headers: Mapping[bytes, bytes]) -> bytes:
    """Header lines."""
    return b"".join(b"%b: %b\r\n" % header for header in headers.items())


async def asked(site: Path, request: bytes) -> None:
    """Send a request, and read the answer to its end."""
    reader, writer = await asyncio.open_unix_connection(site)
    writer.write(request)
    await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()


def program(name: str) -> str:
    """Where a program is. Skips the test where it isn't installed."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or pytest.skip(
        f"{name} isn't installed"
    )


def nginx_files(place: Path, log: Path) -> None:
    """Its folder and configuration."""
    place.mkdir()
    user = "user root;\n" if os.geteuid() == 0 else ""
    (place / "nginx.conf").write_text(NGINX.format(user=user, place=place, log=log))


def listens(address: Path) -> bool:
    """Whether a server accepts connections there."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(address)) == 0


@asynccontextmanager
async def nginx(place: Path, log: Path) -> AsyncIterator[Path]:
    """A web server that logs into a folder; its socket."""
    nginx_files(place, log)
    process = await asyncio.create_subprocess_exec(
        *(program("nginx"), "-p", str(place), "-c", str(place / "nginx.conf"), "-e", "stderr"),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: listens(place / "site") or process.returncode is not None)
        yield place / "site"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_an_applications_log(tmp_path: Path) -> None:
    """Its events arrive with their own times, without passwords, with a hash instead of the
    e-mail address.
    """
    user = {"id": "u-17", "email": "ann@example.com", "plan": "pro"}
    records: list[dict[str, Any]] = [
        {
            "time": "2026-11-23T09:30:00.125Z",
            "level": "info",
            "event": "order placed",
            "user": user,
            "total": 49.0,
            "password": "hunter2",
        },
        {"time": "2026-11-23T09:30:01Z", "level": "debug", "message": "cache miss"},
        {
            "time": "2026-11-23T10:30:02.5+01:00",
            "event": "signed out",
            "user": {"id": 18},
            "headers": {"authorization": "Bearer x", "a": 1},
        },
        {"time": "yesterday", "event": "order placed", "user": user},
    ]
    async with followed("application", tmp_path) as recipe:
        (recipe.log / "app.log").write_bytes(
            written(*map(json.dumps, records), "Traceback (most recent call last):")
        )
        await recipe.counted(taken=2, filtered=1, refused=1, unmatched=1)
        placed, left = await recipe.events()
    assert (placed.event, placed.distinct_id, placed.timestamp) == (
        "order placed",
        "u-17",
        "2026-11-23T09:30:00.125000Z",
    )
    assert (left.event, left.distinct_id, left.timestamp) == (
        "signed out",
        "18",
        "2026-11-23T09:30:02.500000Z",
    )
    assert properties(placed)["$set"] == {"plan": "pro"}
    assert re.fullmatch("[0-9a-f]{64}", properties(placed)["user"]["email"])
    assert properties(left)["headers"] == {"a": 1}
    assert b"hunter2" not in placed.raw


ROTATIONS: Final = {
    "renamed": "nocompress\ncreate 0644",
    "compressed": "compress\ncreate 0644",
    "compressed later": "compress\ndelaycompress\ncreate 0644",
    "copied": "nocompress\ncopytruncate",
    "copied and compressed": "compress\ncopytruncate",
}
ROUNDS: Final = 4
LINES: Final = 200


@pytest.mark.parametrize("way", ROTATIONS)
async def test_logrotate_itself(tmp_path: Path, way: str) -> None:
    """Whichever way logrotate does it, and whether the lines before a rotation have been read or
    not, each line is one event.
    """
    program("logrotate")
    async with followed("application", tmp_path) as recipe:
        path = recipe.log / "app.log"
        configuration = tmp_path / "logrotate.conf"
        configuration.write_text(f"{path} {{\nrotate 50\n{ROTATIONS[way]}\n}}\n")
        configuration.chmod(0o644)
        for number in range(ROUNDS):
            users = range(number * LINES, (number + 1) * LINES)
            append(
                path,
                (
                    json.dumps({"time": "2026-11-23T09:30:00Z", "event": "e", "user": {"id": user}})
                    for user in users
                ),
            )
            if number % 2:
                await eventually(
                    # B023: this round alone calls it.
                    lambda: recipe.read().total() >= users.stop,  # noqa: B023
                    explain=recipe.read,
                )
            await rotate(configuration)
        await recipe.counted(taken=ROUNDS * LINES)
        assert len(list(recipe.log.iterdir())) == ROUNDS + 1
        assert sorted(int(event.distinct_id) for event in await recipe.events()) == list(
            range(ROUNDS * LINES)
        )


def append(path: Path, texts: Iterable[str]) -> None:
    """Write lines, as a program does that opens its log anew."""
    with path.open("ab") as file:
        file.write(written(*texts))


async def rotate(configuration: Path) -> None:
    """Let logrotate do it now."""
    program = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin:/sbin") or "logrotate"
    process = await asyncio.create_subprocess_exec(
        program, "--force", "--state", str(configuration.with_suffix(".state")), str(configuration)
    )
    assert await process.wait() == 0


def container(stream: str, tag: str, text: str, second: int) -> str:
    """A line of a container runtime."""
    return f"2026-11-23T09:30:{second:02}.123456789Z {stream} {tag} {text}"


def kubernetes_recipe() -> str:
    """The configuration of the DaemonSet."""
    import yaml  # noqa: PLC0415 - of this recipe alone

    [config_map] = yaml.safe_load_all(
        (ROOT / "deploy" / "kubernetes" / "logs" / "configmap.yaml").read_text("utf-8")
    )
    return str(config_map["data"]["forwarder.yaml"])


async def test_pods(tmp_path: Path) -> None:
    """Lines of the namespace's pods are events, long ones whole, also in files that kubelet
    rotated; no other namespace is read.
    """
    long = json.dumps(
        {"event": "report made", "user": "u-1", "text": "x" * 40_000, "password": "hunter2"}
    )
    pod = "log/shop_web-5d4f_0b1c/app"
    texts = {
        f"{pod}/0.log": [
            container("stdout", "P", long[:16_384], 1),
            container("stderr", "F", "starting", 2),
            container("stdout", "P", long[16_384:32_768], 3),
            container("stdout", "F", long[32_768:], 4),
        ],
        f"{pod}/1.log": [container("stdout", "F", '{"level": "info", "message": "no event"}', 9)],
        "log/other_web-1_2/app/0.log": [
            container("stdout", "F", '{"event": "no", "user": "u-3"}', 9)
        ],
    }
    packed = written(container("stdout", "F", '{"event": "order placed", "user": "u-2"}', 0))
    for name, log_lines in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(written(*log_lines))
    (tmp_path / pod / "0.log.20261123-093000.gz").write_bytes(gzip.compress(packed))
    (tmp_path / pod / "0.log.20261123-092900.tmp").write_bytes(gzip.compress(packed)[:10])
    async with followed("kubernetes", tmp_path, kubernetes_recipe()) as recipe:
        await recipe.counted(taken=2, filtered=1, unmatched=1)
        placed, made = await recipe.events()
    assert (placed.event, placed.distinct_id, placed.timestamp[:19]) == (
        "order placed",
        "u-2",
        "2026-11-23T09:30:00",
    )
    assert (made.event, made.timestamp) == ("report made", "2026-11-23T09:30:01.123456Z")
    assert len(properties(made)["text"]) == 40_000
    assert [properties(made).get(name) for name in ("namespace", "container", "password")] == [
        "shop",
        "app",
        None,
    ]


def entry(number: int, message: Any) -> dict[str, Any]:
    """An entry of the journal, as `journalctl --output json` prints it."""
    return {
        "__CURSOR": f"s=5f0a;i={number:x};b=c0ffee;m=1;t=64;x={number}",
        "__REALTIME_TIMESTAMP": str(1_795_426_200_000_000 + number),
        "__MONOTONIC_TIMESTAMP": "1",
        "_BOOT_ID": "c0ffee",
        "_SYSTEMD_UNIT": "shop.service",
        "_HOSTNAME": "web-1",
        "PRIORITY": "6",
        "MESSAGE": message,
    }


async def test_the_journal(tmp_path: Path) -> None:
    """Through a pipe: at its end forwarder drains and exits with 0; the same entries again are the
    same events.
    """
    entries = [
        entry(1, '{"event": "order placed", "user": "u-17", "total": 49.0}'),
        entry(2, "Started shop.service"),
        entry(3, [27, 91, 255]),
        entry(4, None),
        entry(5, '{"level": "info"}'),
        entry(6, "17"),
        entry(7, '{"event": "signed out", "user": "u-17"}'),
    ]
    file = configured("journald", tmp_path)
    async with Sandbox(SandboxOptions(listen="127.0.0.1:0")) as sandbox:
        for start in (0, 3):
            assert (
                await piped(
                    file, written(*map(json.dumps, entries[start:])), variables(sandbox, tmp_path)
                )
                == 0
            )
        events = await sandbox.events()
        assert await sandbox.conflicts() == []
        assert len(await sandbox.requests()) >= 2
    assert [event.event for event in events] == ["order placed", "signed out"]
    placed = events[0]
    assert placed.timestamp == "2026-11-23T09:30:00.000001Z"
    assert properties(placed) == {
        "event": "order placed",
        "user": "u-17",
        "total": 49.0,
        "unit": "shop.service",
        "host": "web-1",
    }


async def piped(file: Path, data: bytes, env: Mapping[str, str]) -> int:
    """Run the daemon with this input to the end; its exit code."""
    process = await asyncio.create_subprocess_exec(
        *command_line(["run", "--config", str(file)]),
        env=environment(env),
        stdin=asyncio.subprocess.PIPE,
        stderr=sys.stderr,
    )
    try:
        async with asyncio.timeout(60):
            await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode


@pytest.mark.parametrize("name", LOGS)
def test_each_can_be_used(name: str, tmp_path: Path) -> None:
    """As it stands, but for the files that it names."""
    text = kubernetes_recipe() if name == "kubernetes" else None
    settings = load_settings(configured(name, tmp_path, text), {"NODE_NAME": "node-1"}).settings
    assert settings.upstream.url == "https://us.i.example.com"
    assert settings.buffer.kind == "disk"
    assert settings.sources.logs or settings.sources.http.otlp.mapping.given
