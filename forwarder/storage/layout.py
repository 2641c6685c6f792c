"""Where things are under a state directory (`buffer.path`, `dead_letters.path`): each worker has a directory of its own.

`<path>/worker-<n>/`: `lock`, the log's segments in `log/`, what could not be read in `aside/`, and `dead-letters.db`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

LOG: Final = "log"
ASIDE: Final = "aside"
DEAD_LETTERS: Final = "dead-letters.db"

_WORKER: Final = re.compile(r"worker-(\d{1,4})")


def worker_directory(path: Path, number: int) -> Path:
    """The directory of worker `number`."""
    return path / f"worker-{number}"


def worker_directories(path: Path) -> dict[int, Path]:
    """The workers' directories that are there, by number."""
    found = {int(match[1]): entry for entry in path.iterdir() if (match := _WORKER.fullmatch(entry.name)) and entry.is_dir()}
    return dict(sorted(found.items()))


def state_directories(environment: Mapping[str, str], *, is_root: bool) -> Iterator[Path]:
    """Where this user's daemons keep their state, if nobody says where: the best first."""
    if given := environment.get("STATE_DIRECTORY"):
        yield Path(given.split(":")[0])
    state_home = environment.get("XDG_STATE_HOME")
    if state_home:
        yield Path(state_home) / "forwarder"
    elif is_root:
        yield Path("/var/lib/forwarder")
    elif home := environment.get("HOME"):
        yield Path(home) / ".local/state/forwarder"


def worker_number(directory: Path) -> int | None:
    """The number of the worker whose directory that is, by its name; None if it isn't one's."""
    match = _WORKER.fullmatch(directory.resolve().name)
    return int(match[1]) if match else None
