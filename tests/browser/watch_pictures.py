"""The pictures of `forwarder top` and `forwarder tap`, for `make pictures`: both in a terminal
(tmux), watching a real daemon under load.

Four apps send to it, one of them with a project key that the service doesn't know; now and then an
event has no name.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from benchmarks.processes import free_port
from forwarder.cli.admin_client import NoDaemon, get
from forwarder.cli.top_screen import HISTORY
from forwarder.core.errors import ConfigurationError
from tests.browser.import_pictures import FRAME
from tests.browser.terminals import THEME
from tests.end_to_end.importing import sandbox
from tests.support.commands import running
from tests.support.waiting import LIMIT, eventually, in_thread

APPS: Final = {
    "phc_shopweb_project_key_Qm4T": 12,
    "phc_shopios_project_key_9xKe": 6,
    "phc_shopdroid_project_key_7Rza": 3,
}
KEYS: Final = dict(zip(("web", "ios", "android"), APPS, strict=True))
UNKNOWN: Final = "phc_a_key_that_nobody_knows_Zz81"
NAMES: Final = (
    "$pageview",
    "$pageview",
    "$autocapture",
    "product viewed",
    "product viewed",
    "product added",
    "order placed",
)
PAUSE: Final = 0.004
"""Seconds between two requests."""
READY: Final = 60.0
"""Seconds within which a command shows what its picture is to have."""
TOP: Final = (80, 24)
TAP: Final = (110, 22)


def event(chance: random.Random) -> dict[str, Any]:
    """What a visitor of the shop does."""
    who = chance.choice(("anna", "ben", "chloe", "daniel", "eve", "farid", "grace"))
    page = chance.choice(
        ("/", "/shoes", "/bags/weekender", "/cart", "/checkout?session_token=8c1f")
    )
    properties: dict[str, Any] = {"$current_url": f"https://shop.example.com{page}", "$lib": "web"}
    name = chance.choice(NAMES)
    if name == "order placed":
        properties = {
            "total": chance.randrange(20, 400) + 0.5,
            "currency": "EUR",
            "auth_token": "eyJhbGciOi",
            **properties,
        }
    return {"event": name, "distinct_id": f"{who}@example.com", "properties": properties}


def send(port: int, ended: threading.Event) -> None:
    """Send until it is ended."""
    chance = random.Random(20)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    number = 0
    while not ended.wait(PAUSE):
        number += 1
        [key] = chance.choices(list(APPS), list(APPS.values())) if number % 40 else [UNKNOWN]
        batch = [event(chance) for _ in range(chance.randrange(1, 20))]
        if number % 150 == 0:
            batch.append({"distinct_id": "grace@example.com", "properties": {"$lib": "ios"}})
        connection.request("POST", "/batch/", json.dumps({"api_key": key, "batch": batch}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    connection.close()


@asynccontextmanager
async def busy_daemon(url: str, folder: Path) -> AsyncIterator[str]:
    """The admin address of a daemon under load."""
    port = free_port()
    admin = f"127.0.0.1:{free_port()}"
    settings = {
        "FORWARDER_UPSTREAM__URL": url,
        "FORWARDER_SOURCES__HTTP__LISTEN": f"127.0.0.1:{port}",
        "FORWARDER_SOURCES__HTTP__API_KEYS": json.dumps({**KEYS, "old-app": UNKNOWN}),
        "FORWARDER_ADMIN__LISTEN": admin,
        "FORWARDER_BUFFER__KIND": "disk",
        "FORWARDER_BUFFER__PATH": str(folder),
        "FORWARDER_LOG__LEVEL": "error",
    }
    ended = threading.Event()
    async with running("run", env=settings):
        await eventually(lambda: is_healthy(admin), READY)
        sending = asyncio.create_task(in_thread(lambda: send(port, ended)))
        try:
            yield admin
        finally:
            ended.set()
            await sending


def is_healthy(admin: str) -> bool:
    """Whether a daemon answers there."""
    try:
        return get(admin, "/readyz")[0] == 200
    except NoDaemon:
        return False


class PictureTerminal:
    """A terminal of so many columns and lines, in which commands run as a person runs them."""

    def __init__(self, folder: Path, size: tuple[int, int], env: Mapping[str, str]) -> None:
        if shutil.which("tmux") is None:
            raise ConfigurationError("the pictures of top and tap need tmux")
        self._socket = str(folder / f"tmux-{size[0]}")
        columns, lines = map(str, size)
        variables = {**os.environ, **env, "PS1": "$ ", "LC_ALL": "C.UTF-8"}
        self._tmux("new-session", "-d", "-x", columns, "-y", lines, "sh", env=variables)
        self._tmux("set", "-g", "status", "off")

    def _tmux(self, *arguments: str, env: Mapping[str, str] | None = None) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    def type(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        for key in keys:
            self._tmux("send-keys", key)

    def shown(self) -> list[str]:
        """The lines on the screen, with their colours."""
        return self._tmux("capture-pane", "-e", "-p").splitlines()

    def text(self) -> str:
        """The same without colours."""
        return self._tmux("capture-pane", "-p")

    def close(self) -> None:
        """End everything in it."""
        self._tmux("kill-server")


def picture(lines: list[str], width: int, title: str) -> str:
    """The screen as SVG."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(
        Text.from_ansi("\n".join(lines)),
        no_wrap=True,
        overflow="ellipsis",
        crop=False,
        highlight=False,
    )
    return console.export_svg(
        title=title, theme=THEME, code_format=FRAME, unique_id=title.rpartition(" ")[2]
    )


def has_history(shown: str) -> bool:
    """Whether the view of rates has as many as it shows, and the lane that is halted."""
    return (
        len(re.findall("[▁▂▃▄▅▆▇█]", shown.splitlines()[1])) >= HISTORY and "unknown_key" in shown
    )


def is_full(shown: str) -> bool:
    """Whether events fill the screen, of each outcome that is in the picture."""
    return (
        all(outcome in shown for outcome in ("received", "delivered", "dead-lettered"))
        and "forwarder tap" not in shown
    )


async def shown_in(
    terminal: PictureTerminal,
    typed: str,
    ready: Callable[[str], bool],
    keys: Sequence[str],
    said: str,
) -> list[str]:
    """What a command shows once it is `ready`, keys were pressed, and it
    says what they make it say.
    """
    try:
        terminal.type(typed, "Enter")
        await eventually(lambda: ready(terminal.text()), READY)
        terminal.type(*keys)
        await eventually(lambda: said in terminal.text(), READY)
        return terminal.shown()
    finally:
        terminal.close()


async def shoot_watching(folder: Path) -> None:
    """Make both pictures."""
    options = [word for key in APPS for word in ("--api-key", key)]
    with tempfile.TemporaryDirectory(prefix="pictures-") as directory, sandbox(*options) as service:
        async with busy_daemon(service.url, Path(directory) / "state") as admin:
            env = {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "FORWARDER_ADMIN__LISTEN": admin,
            }
            top = await shown_in(
                PictureTerminal(Path(directory), TOP, env),
                "forwarder top --interval 1",
                has_history,
                ["Down"] * 3,
                "what to do",
            )
            tap = await shown_in(
                PictureTerminal(Path(directory), TAP, env),
                "forwarder tap --rate 1",
                is_full,
                [],
                "delivered",
            )
        for name, lines, (width, _) in (("top", top, TOP), ("tap", tap, TAP)):
            named = [line.replace(admin, "127.0.0.1:8321") for line in lines]
            (folder / f"{name}.svg").write_text(picture(named, width, f"forwarder {name}"), "utf-8")
