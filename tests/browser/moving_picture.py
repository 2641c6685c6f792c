"""The README's moving picture: `forwarder demo` in a terminal, as SVG that moves by CSS alone.

Each line of the terminal stands in the picture once for each span of time in which it was shown,
and is visible in that span. Anyone who prefers reduced motion sees the end; so does a viewer that
knows no animations.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from tests.browser.terminals import THEME, record, screen

COLUMNS: Final = 100
TRAFFIC: Final = 12.0
"""Seconds of traffic before Ctrl-C."""
STILL: Final = 6.0
"""Seconds for which the end stands before the picture begins again."""
TYPING: Final = 0.08
"""Seconds for a letter of the command."""
COMMAND: Final = "forwarder demo"
ONE_UPDATE: Final = 0.05
"""Seconds between parts of one update of the screen, at most."""
CELL = 8.43
LINE = 21
MARGIN = 20
ADDRESSES: Final = (("send events to", 8320), ("status", 8321), ("sandbox", 8322))
STYLE: Final = """text { fill: FOREGROUND; white-space: pre; font: 14px ui-monospace, \
SFMono-Regular, Menlo, Consolas, monospace; }
.b { font-weight: bold; }
.d { opacity: .6; }
.s { visibility: hidden; animation: TOTALs step-end infinite; }
.e { visibility: visible; }
@media (prefers-reduced-motion: reduce) { .s { animation: none !important; } }
"""
_CONSOLE: Final = Console()


class ShownLine(NamedTuple):
    """A line, from when until when it was on the screen, in seconds; `end` is None for one that
    stands in the end.
    """

    row: int
    line: str
    start: float
    end: float | None


def recorded_demo() -> list[tuple[float, list[str]]]:
    """The screens of a demo that is interrupted, each with its time; ports are those of a machine
    on which nothing else runs.
    """
    interrupted: list[float] = []

    def watch(_: str, now: float) -> int | None:
        if now < TRAFFIC or interrupted:
            return None
        interrupted.append(now)
        return signal.SIGINT

    written = record(
        ["demo", "--port", "0"],
        {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "24"},
        watch,
    )
    typed = [f"$ {COMMAND[:length]}" for length in range(len(COMMAND) + 1)]
    frames = [(number * TYPING, [line]) for number, line in enumerate(typed)]
    began = len(typed) * TYPING + 0.4
    shown = ""
    for (seconds, part), (following, _) in pairwise([*written, (float("inf"), "")]):
        shown += part
        if following - seconds < ONE_UPDATE:
            continue
        frames.append((began + seconds, [typed[-1], *map(_named, screen(shown))]))
    return frames


def _named(line: str) -> str:
    for label, port in ADDRESSES:
        if label in line:
            return re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", line)
    return line


def lines_over_time(frames: Sequence[tuple[float, list[str]]]) -> Iterator[ShownLine]:
    """Each line of the frames once for each span in which it didn't change."""
    for row in range(max(len(lines) for _, lines in frames)):
        shown = ""
        since = 0.0
        for seconds, lines in frames:
            line = lines[row].rstrip() if row < len(lines) else ""
            if line != shown:
                if shown:
                    yield ShownLine(row, shown, since, seconds)
                shown = line
                since = seconds
        if shown:
            yield ShownLine(row, shown, since, None)


def moving_picture(frames: Sequence[tuple[float, list[str]]]) -> str:
    """The frames as SVG."""
    total = frames[-1][0] + STILL
    lines = list(lines_over_time(frames))
    width = round(COLUMNS * CELL + 2 * MARGIN)
    height = (max(line.row for line in lines) + 1) * LINE + 2 * MARGIN
    spans = sorted(
        {(line.start, line.end) for line in lines}, key=lambda span: (span[0], span[1] or total)
    )
    names = {span: f"k{number}" for number, span in enumerate(spans)}
    style = STYLE.replace("FOREGROUND", THEME.foreground_color.hex).replace("TOTAL", f"{total:.2f}")
    keyframes = "".join(
        _keyframes(names[span], span[0] / total, span[1] and span[1] / total) for span in spans
    )
    texts = "".join(_text(line, names[line.start, line.end]) for line in lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="forwarder demo in a terminal">\n'
        f"<style>\n{style}{keyframes}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{THEME.background_color.hex}"/>\n'
        f"{texts}</svg>\n"
    )


def _keyframes(name: str, start: float, end: float | None) -> str:
    hidden = "{visibility:hidden}"
    visible = "{visibility:visible}"
    first = f"0%{hidden}{start:.3%}{visible}" if start > 0 else f"0%{visible}"
    last = f"{end:.3%},100%{hidden}" if end is not None else f"100%{visible}"
    return f"@keyframes {name}{{{first}{last}}}\n"


def _text(shown: ShownLine, name: str) -> str:
    text = Text.from_ansi(shown.line)
    bounds = sorted(
        {0, len(text), *(edge for span in text.spans for edge in (span.start, span.end))}
    )
    pieces = "".join(_piece(text, start, end) for start, end in pairwise(bounds))
    kind = "s e" if shown.end is None else "s"
    return (
        f'<text class="{kind}" style="animation-name:{name}" '
        f'y="{MARGIN + 15 + shown.row * LINE}">{pieces}</text>\n'
    )


def _piece(text: Text, start: int, end: int) -> str:
    plain = text.plain[start:end]
    if not plain.strip():
        return ""
    style = text.get_style_at_offset(_CONSOLE, start)
    classes = " ".join(name for name, on in (("b", style.bold), ("d", style.dim)) if on)
    colour = (
        ""
        if style.color is None or style.color.is_default
        else f' fill="{style.color.get_truecolor(THEME).hex}"'
    )
    kind = f' class="{classes}"' if classes else ""
    place = (
        f'x="{MARGIN + start * CELL:.1f}" textLength="{len(plain) * CELL:.1f}" '
        'lengthAdjust="spacingAndGlyphs"'
    )
    return f"<tspan {place}{kind}{colour}>{escape(plain)}</tspan>"
