"""`forwarder` in a terminal of its own, for pictures: what it writes and when, and what then
stands on the screen.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Final

from rich.terminal_theme import TerminalTheme

from tests.support.commands import command_line, environment

THEME: Final = TerminalTheme(
    (41, 41, 41),
    (197, 200, 198),
    [
        (75, 78, 85),
        (204, 85, 90),
        (152, 168, 75),
        (208, 179, 68),
        (96, 138, 177),
        (152, 114, 159),
        (104, 160, 179),
        (197, 200, 198),
    ],
    [
        (154, 155, 153),
        (255, 38, 39),
        (0, 130, 61),
        (208, 132, 66),
        (25, 132, 233),
        (255, 44, 122),
        (57, 130, 128),
        (253, 253, 197),
    ],
)
_CONTROL: Final = re.compile(r"(\r?\n|\r|\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[lh])")


def record(
    arguments: list[str],
    env: Mapping[str, str],
    watch: Callable[[str, float], int | None] = lambda *_: None,
) -> list[tuple[float, str]]:
    """What `forwarder` writes to a terminal, with the seconds since its first output.

    `watch` sees each part with its time, and returns the number of a signal to send, or None.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command_line(arguments),
        env=environment(env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    written: list[tuple[float, str]] = []
    began = 0.0
    try:
        while part := _some(ours):
            began = began or time.monotonic()
            written.append((time.monotonic() - began, part))
            if number := watch(part, written[-1][0]):
                process.send_signal(number)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return written


def _some(terminal: int) -> str:
    try:
        return os.read(terminal, 1 << 16).decode(errors="replace")
    except OSError:  # the other end is closed
        return ""


def screen(shown: str) -> list[str]:
    """The lines that a terminal shows in the end, with their colours: what was erased or written
    over is gone.
    """
    lines = [""]
    at = 0
    for part in _CONTROL.split(shown):
        if part.endswith("\n"):
            at += 1
            lines += [""] * (at == len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            at -= int(part[2:-1] or 1)
        elif part == "\x1b[2K":
            lines[at] = ""
        elif not _CONTROL.fullmatch(part):
            lines[at] += part
    return lines
