"""Web servers that pass a path of a website to forwarder, configured by the snippets of
docs/how-to/first-party.md.

A snippet stays as it is in the document, but for its three addresses: where the site is, where its
files are, where forwarder is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Final

from benchmarks.processes import free_ports
from tests.sdks.toolchains import refuse
from tests.support.documents import page, snippet
from tests.support.waiting import tick

DOCUMENT: Final = page("first-party")
PREFIX: Final = "/ingest"
SITE: Final = "shop.example.com"
ROOT: Final = "/srv/shop"
FORWARDER: Final = "127.0.0.1:8320"
"""The addresses in the document."""
LIMIT: Final = 60.0
"""Seconds in which a server listens: far more than it takes on a machine that is busy."""

_NGINX: Final = """daemon off;
{user}pid {place}/pid;
events {{}}
http {{
    access_log off;
    types {{ text/html html; text/javascript js; }}
    client_body_temp_path {place}/bodies;
    proxy_temp_path {place}/proxied;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
{site}
}}
"""
_CADDY: Final = """{{
	admin off
	auto_https off
}}
{site}
"""


def _replaced(text: str, **addresses: str) -> str:
    """The text with its addresses replaced; each has to be in it."""
    for name, address in addresses.items():
        known = {"site": SITE, "root": ROOT, "forwarder": FORWARDER, "listen": "listen 80;"}[name]
        assert known in text, f"{DOCUMENT.name}: no {known} in {text}"
        text = text.replace(known, address)
    return text


def _nginx(place: Path, site: str, root: Path, forwarder: str) -> list[str]:
    place.mkdir()
    text = _replaced(
        snippet(DOCUMENT, "nginx"), listen=f"listen {site};", root=str(root), forwarder=forwarder
    )
    # else its workers couldn't read the test's files
    user = "user root;\n" if os.geteuid() == 0 else ""
    (place / "nginx.conf").write_text(_NGINX.format(user=user, place=place, site=text))
    return ["nginx", "-p", str(place), "-c", str(place / "nginx.conf"), "-e", "stderr"]


def _caddy(place: Path, site: str, root: Path, forwarder: str) -> list[str]:
    place.mkdir()
    text = _replaced(
        snippet(DOCUMENT, "caddyfile"), site=f"http://{site}", root=str(root), forwarder=forwarder
    )
    (place / "Caddyfile").write_text(_CADDY.format(site=text))
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(place / "Caddyfile")]


PROXIES: Final[Mapping[str, Callable[[Path, str, Path, str], list[str]]]] = {
    "nginx": _nginx,
    "caddy": _caddy,
}
"""What is run for each: its command line, after its configuration was written."""


def require(name: str) -> None:
    """Skip the test where the server isn't on this machine; on CI fail it."""
    if shutil.which(name, path=_path()) is None:
        refuse(f"{name}: not on the path")


@asynccontextmanager
async def proxy(name: str, place: Path, root: Path, forwarder: str) -> AsyncIterator[str]:
    """A server that serves the files in `root`, and passes the prefix to `forwarder` (host and
    port); its address. Gone at the end.
    """
    [port] = free_ports(1)
    site = f"127.0.0.1:{port}"
    command = PROXIES[name](place, site, root, forwarder)
    env = {
        **os.environ,
        "PATH": _path(),
        "XDG_DATA_HOME": str(place),
        "XDG_CONFIG_HOME": str(place),
        "HOME": str(place),
    }
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *command, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            await _listening(process, site, log)
            yield f"http://{site}"
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _listening(process: asyncio.subprocess.Process, site: str, log: IO[bytes]) -> None:
    host, _, port = site.partition(":")
    async with asyncio.timeout(LIMIT):
        while True:
            assert process.returncode is None, os.pread(log.fileno(), 10_000, 0).decode()
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except ConnectionRefusedError:
                await tick()
            else:
                writer.close()
                await writer.wait_closed()
                return


def _path() -> str:
    """Where programs are looked for: Debian's nginx isn't where ordinary users' paths lead."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
