"""The pictures of an import, for `make pictures`: what a terminal shows when it is killed and
resumed, and the page of its report.

All of it happens, in a terminal of its own and into a real sandbox; only the names of temporary
places are replaced by such as a user has.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from playwright.async_api import Browser
from rich.console import Console
from rich.text import Text

from tests.browser.chromium import visit
from tests.browser.terminals import THEME, record, screen
from tests.end_to_end.importing import sandbox
from tests.support.waiting import in_thread

COUNT: Final = 32_000
WIDTH: Final = 126
KEY: Final = "phc_shopweb_project_key_Qm4T"
KILLED_AT: Final = 14_000
"""Events, at least, that have arrived before it is killed."""
NAMES: Final = (
    ("$mp_web_page_view",) * 6
    + ("product viewed",) * 4
    + ("product added",) * 2
    + ("order placed",)
)
LEFT_OUT: Final = (
    "\x1b[2m… three records before and after, events by name and by day, what would be "
    "refused …\x1b[0m"
)
FRAME: Final = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" \
xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
font-size: {char_height}px;
line-height: {line_height}px;
font-variant-east-asian: full-width;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" \
height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own, without fonts that would be loaded from elsewhere."""


def export(folder: Path) -> None:
    """A quarter of the year of a shop that grows, a file a month; three records are bad."""
    chance = random.Random(8)
    start, end = (datetime(2024, month, 1, tzinfo=UTC).timestamp() for month in (1, 4))
    lines: dict[int, list[bytes]] = {1: [], 2: [], 3: []}
    for number, time in enumerate(sorted(chance.triangular(start, end, end) for _ in range(COUNT))):
        properties = {
            "time": round(time * 1000),
            "distinct_id": f"customer-{chance.randrange(3000)}",
            "$insert_id": f"{number:016x}",
        }
        record = {
            "event": chance.choice(NAMES),
            "properties": {**properties, "$city": "Berlin", "plan": chance.choice(("free", "pro"))},
        }
        lines[datetime.fromtimestamp(time, UTC).month].append(json.dumps(record).encode())
    lines[2][700] = lines[2][700][:61]
    merging = {"event": "$create_alias"}
    alias = {**json.loads(lines[2][5000])["properties"], "alias": "nil"}
    lines[2][5000] = json.dumps({**merging, "properties": alias}).encode()
    lines[3][17] = re.sub(rb'"time": \d+, ', b"", lines[3][17])
    folder.mkdir()
    for month, content in lines.items():
        (folder / f"2024-{month:02}.json.gz").write_bytes(gzip.compress(b"\n".join(content)))


def in_terminal(
    arguments: list[str], env: Mapping[str, str], watch: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """What `forwarder` shows in the end; killed once `watch` says so of what has come."""
    written = record(arguments, env, lambda part, _: signal.SIGKILL if watch(part) else None)
    return screen("".join(part for _, part in written))


def half_done(shown: str) -> bool:
    """Whether so many events have arrived that it may be killed."""
    counts = re.findall(r"([\d,]+) of [\d,]+ events", shown)
    return bool(counts) and int(counts[-1].replace(",", "")) >= KILLED_AT


def scenes(folder: Path, url: str) -> Iterator[tuple[str, list[str]]]:
    """What is typed, and what is shown."""
    state = str(folder / "imports")
    env = {
        "FORWARDER_UPSTREAM__URL": url,
        "FORWARDER_IMPORT__API_KEY": KEY,
        "FORWARDER_IMPORT__STATE": state,
        "COLUMNS": str(WIDTH),
    }
    env |= {"TERM": "xterm-256color"}
    words = ["import", "mixpanel", str(folder / "export"), "--accept", "illegal-merges", "--yes"]
    typed = f"forwarder {' '.join(words)}".replace(str(folder / "export"), "export")
    first = in_terminal(words, env, half_done)
    look = next(index for index, line in enumerate(first) if "records  " in line)
    yield typed, [LEFT_OUT, *first[look:], "Killed"]
    yield typed, in_terminal(words, env)
    yield "forwarder import verify", in_terminal(["import", "verify"], env)


def made() -> tuple[list[tuple[str, list[str]]], str]:
    """What the terminal showed, and the report's page."""
    with tempfile.TemporaryDirectory(prefix="pictures-") as directory, sandbox() as service:
        folder = Path(directory)
        export(folder / "export")

        def named(text: str) -> str:
            return text.replace(directory, "/srv/shop").replace(
                service.url, "http://127.0.0.1:8322"
            )

        shown = [
            (typed, [named(line) for line in lines]) for typed, lines in scenes(folder, service.url)
        ]
        [report] = (folder / "imports").glob("*/report.html")
        return shown, named(report.read_text("utf-8"))


def picture(shown: list[tuple[str, list[str]]]) -> str:
    """The terminal as SVG."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for typed, lines in shown:
        console.print(Text.assemble(("$ ", "dim"), (typed, "bold")))
        for line in (line for line in lines if line.strip()):
            console.print(
                Text.from_ansi(line), no_wrap=True, overflow="ellipsis", crop=False, highlight=False
            )
        console.print()
    return console.export_svg(
        title="forwarder import", theme=THEME, code_format=FRAME, unique_id="import"
    )


async def shoot_import(browser: Browser, folder: Path, *, dark: bool = False) -> None:
    """Make both pictures."""
    shown, page = await in_thread(made)
    suffix = "-dark" if dark else ""
    async with visit(browser, dark=dark, width=1280, height=800) as visitor:
        await visitor.page.set_content(page)
        await visitor.page.screenshot(path=folder / f"import-report{suffix}.png")
    await in_thread(lambda: (folder / "import.svg").write_text(picture(shown), "utf-8"))
