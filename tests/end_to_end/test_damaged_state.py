"""`forwarder run` on state files that something has damaged: it starts and delivers, and says what
it lost; or it ends with one plain message.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.end_to_end.test_logs import SOURCE, Daemons, numbers
from tests.support.commands import forwarder
from tests.support.log_blocks import log_line
from tests.support.members import Members
from tests.support.upstream import Upstream
from tests.support.whole import KEY

pytestmark = pytest.mark.slow

RUBBISH: Final = b"\x93rubbish" * 1000


def append(file: Path, numbers: Iterable[int]) -> None:
    """Append these lines, each with a time of its own."""
    with file.open("ab") as opened:
        for number in numbers:
            opened.write(log_line(number, at="2026-01-01T00:00:00Z") + b"\n")


@pytest.mark.parametrize("content", [RUBBISH, b""], ids=["rubbish", "empty"])
async def test_damaged_positions_of_logs_cost_no_line(tmp_path: Path, content: bytes) -> None:
    """The daemon starts, warns, and reads the files again, wherever a source would begin that is
    new: each line's event has arrived, and those that arrived before are the same ones. What was
    damaged is kept.
    """
    timed = {"mapping": {**SOURCE["mapping"], "timestamp": {"from": ".at"}}}
    async with Upstream() as upstream, Members(tmp_path, {}) as members:
        daemons = Daemons(tmp_path, upstream, members)
        daemon = await daemons.start(source=timed)
        append(daemons.file, range(100))
        await upstream.until(lambda: len(numbers(upstream)) == 100)
        assert await daemon.stop() == 0
        append(daemons.file, range(100, 200))
        positions = tmp_path / "one" / "state" / "logs" / "logs.db"
        positions.write_bytes(content)
        daemon = await daemons.start(source={**timed, "read_from": "end"})
        await upstream.until(lambda: numbers(upstream) == list(range(200)))
        assert any("positions" in warning for warning in (await daemon.status()).warnings)
        assert await daemon.stop() == 0
    aside_files = list((positions.parent / "aside").glob("*.db"))
    assert [file.read_bytes() for file in aside_files] == ([content] if content else [])


STATE: Final = (
    "worker-0-us/dead-letters.db",
    "worker-0-us/lock",
    "worker-0-us/log/00000001.segment",
    "worker-0-own/archive-identity",
    "worker-0-own/dead-letters.db",
    "logs/logs.db",
    "logs/lock",
    "known-keys-us.json",
)


@pytest.mark.parametrize("file", STATE)
async def test_a_directory_in_place_of_a_file(tmp_path: Path, file: str) -> None:
    """The daemon ends with a message that names it, or does without the file; there is no
    traceback.
    """
    state = tmp_path / "state"
    (state / file).mkdir(parents=True)
    (tmp_path / "app.log").touch()
    configuration: dict[str, Any] = {
        "upstreams": {
            "us": {"url": "http://127.0.0.1:9", "verify_keys": False},
            "own": {"archive": {"url": (tmp_path / "archive").as_uri()}},
        },
        "routes": [{"match": {"event": ["*"]}, "to": ["us", "own"]}],
        "sources": {
            "http": {"listen": "127.0.0.1:0"},
            "logs": [
                {
                    "name": "app",
                    "path": str(tmp_path / "app.log"),
                    "mapping": {"event": ".e", "distinct_id": ".d"},
                    "api_key": KEY,
                },
                {
                    "name": "input",
                    "stdin": True,
                    "mapping": {"event": ".e", "distinct_id": ".d"},
                    "api_key": KEY,
                },
            ],
        },
        "buffer": {"kind": "disk", "path": str(state)},
        "admin": {"listen": "127.0.0.1:0"},
    }
    path = tmp_path / "forwarder.yaml"
    path.write_text(yaml.safe_dump(configuration))
    # standard input has ended: so has the daemon, if it starts
    done = await forwarder("run", "--config", str(path))
    assert "Traceback" not in done.err
    assert done.code == 0 or (done.code, str(state / file) in done.err) == (2, True), done.err
