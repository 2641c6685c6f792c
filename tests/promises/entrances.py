"""The columns: every entrance, in the order in which the table shows them."""

from __future__ import annotations

from typing import Final

from tests.promises.entrance import Entrance
from tests.promises.readers import FollowedLog, Import, Stdin, Topics, Via
from tests.promises.senders import (
    V1,
    Archive,
    Classic,
    Drain,
    KilledAfterAccept,
    Large,
    Otlp,
    Replay,
    SecondDestination,
    SendCommand,
    TwoWorkers,
)

ENTRANCES: Final[tuple[type[Entrance], ...]] = (
    Classic,
    V1,
    Otlp,
    Large,
    FollowedLog,
    Stdin,
    Topics,
    Import,
    Via,
    SendCommand,
    Replay,
    Drain,
    TwoWorkers,
    SecondDestination,
    Archive,
    KilledAfterAccept,
)
