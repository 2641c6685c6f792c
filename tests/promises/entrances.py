"""The columns: every entrance, in the order in which the table shows them."""

from __future__ import annotations

from typing import Final

from tests.promises.entrance import Entrance
from tests.promises.readers import Import, LogFile, Stdin, Topics, Via
from tests.promises.senders import (
    V1,
    Archive,
    Classic,
    Drain,
    Large,
    Otlp,
    Replay,
    Restart,
    SecondDestination,
    Send,
    Workers,
)

ENTRANCES: Final[tuple[type[Entrance], ...]] = (
    Classic,
    V1,
    Otlp,
    Large,
    LogFile,
    Stdin,
    Topics,
    Import,
    Via,
    Send,
    Replay,
    Drain,
    Workers,
    SecondDestination,
    Archive,
    Restart,
)
