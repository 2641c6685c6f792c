"""The README's bars: what docs/maintainers/figures.md says of bodies of 50, as SVG for light and
dark pages.
"""

from __future__ import annotations

import re
from typing import Final

from tests.support.documents import text_of

BODIES: Final = "50 events"
PROGRAMS: Final = ("forwarder", "Fluent Bit 5.1", "Vector 0.58")
WIDTH = 760
LABEL = 120
BAR = 22
STEP = 36
TOP = 48
STYLE: Final = """text { font: 14px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; }
.value { font-variant-numeric: tabular-nums; }
.page { fill: #ffffff; } .ours { fill: #0969da; } .theirs { fill: #8c959f; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.page { fill: #0d1117; } .ours { fill: #58a6ff; } .theirs { fill: #6e7681; }
}
"""


def figures() -> dict[str, int]:
    """Events per CPU-second by program, from the page's table."""
    head, *rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in text_of("figures")
        .split("## Beside other collectors")[1]
        .split("\n## ")[0]
        .splitlines()
        if line.startswith("|") and not re.match(r"\|-", line)
    ]
    [row] = [row for row in rows if row[0] == BODIES]
    rates = {
        name: int(value.replace(",", "")) for name, value in zip(head[1:], row[1:], strict=True)
    }
    return {name: rates[name] for name in PROGRAMS}


def bars() -> str:
    """The picture."""
    values = figures()
    scale = (WIDTH - LABEL - 100) / max(values.values())
    height = TOP + STEP * len(values) + 8
    rows = []
    for number, (name, value) in enumerate(values.items()):
        top = TOP + number * STEP
        length = value * scale
        rows.append(
            f'<text x="16" y="{top + 16}">{name}</text>'
            f'<rect class="{"theirs" if number else "ours"}" x="{LABEL}" y="{top}" '
            f'width="{length:.1f}" height="{BAR}" rx="3"/>'
            f'<text class="value" x="{LABEL + length + 8:.1f}" y="{top + 16}">{value:,}</text>\n'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Events per CPU-second">\n'
        f'<style>\n{STYLE}</style>\n<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n'
        '<text class="title" x="16" y="28">Events per CPU-second, bodies of 50 events</text>\n'
        f"{''.join(rows)}</svg>\n"
    )
