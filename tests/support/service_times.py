"""What the service reads in a text that says when an event happened: data for every reader here.

The results are those of the service's own parsers, run one after the other as
`rust/common/types/src/timestamp.rs` of PostHog/posthog does (commit 1acee2e): `chrono` 0.4.45
(RFC 3339), `dateparser` 0.2.1, `jiff` 0.2.46.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

_LINES: Final = [
    line.rsplit("|", 1)
    for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()
]
NOW: Final = datetime.fromisoformat(_LINES[0][1])
"""When the table was made, in a second: what a text leaves out is of that moment."""
TABLE: Final = dict(_LINES[1:])
"""By the text; `-`: the service reads no time in it."""


def expected(text: str) -> datetime | None:
    """What the table says of a text."""
    said = TABLE[text]
    if said == "-":
        return None
    leap = timedelta(seconds=said[17:19] == "60")
    time = datetime.fromisoformat(f"{said[:17]}{min(int(said[17:19]), 59):02}{said[19:26]}+00:00")
    return time + leap


def is_near(time: datetime, wanted: datetime) -> bool:
    """Whether both are the same time, but for the second in which the table was made."""
    return abs(time - wanted) < timedelta(seconds=2)
