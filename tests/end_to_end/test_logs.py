"""Logs through a real daemon: files that grow while it is killed, standard input to its end,
positions that stay and that move.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.telemetry.snapshot import LogSourceState, Snapshot
from tests.support.commands import LIMIT, command_line, environment, invoked
from tests.support.log_blocks import log_line
from tests.support.members import DEFAULTS, Members, RunningMember, merged
from tests.support.upstream import OK, Upstream, plain
from tests.support.whole import KEY, accepted

DOWN = plain(503)
SOURCE: Mapping[str, Any] = {
    "name": "app",
    "mapping": {"event": ".type", "distinct_id": ".user", "properties": "{n}"},
    "api_key": KEY,
    "poll_interval": "50ms",
    "commit_interval": "100ms",
    "rotate_wait": "1s",
}


def numbers(upstream: Upstream) -> list[int]:
    """The lines' numbers of which events arrived, each once; no two events of one line differ."""
    return sorted(json.loads(event)["properties"]["n"] for event in accepted(upstream))


def source_of(shown: Snapshot) -> LogSourceState:
    """Its only log source."""
    [source] = shown.logs
    return source


def write(file: Path, lines: Sequence[int]) -> None:
    """Append these lines."""
    with file.open("ab") as opened:
        opened.write(b"".join(log_line(number) + b"\n" for number in lines))


class Daemons:
    """Daemons that follow the files of one directory, one after the other, with one state."""

    def __init__(self, root: Path, upstream: Upstream, members: Members) -> None:
        self.logs = root / "logs"
        self.logs.mkdir(exist_ok=True)
        self.file = self.logs / "app.log"
        self._upstream = upstream
        self._members = members

    async def start(
        self, name: str = "one", source: Mapping[str, Any] | None = None, **sections: Any
    ) -> RunningMember:
        """Start one, and wait until it listens."""
        sources = {
            "kafka": [],
            "logs": [{**SOURCE, "path": f"{self.logs}/*.log*", **(source or {})}],
        }
        return await self._members.start(
            name, upstream={"url": self._upstream.url}, sources=sources, **sections
        )


async def test_a_stop_repeats_nothing_whatever_the_number_of_workers(tmp_path: Path) -> None:
    """Positions are stored in the end, and are those of all workers: with another number of them
    nothing is read again.
    """
    async with Upstream() as upstream, Members(tmp_path, {}) as members:
        daemons = Daemons(tmp_path, upstream, members)
        for start, workers in ((0, 2), (300, 1)):
            write(daemons.file, range(start, start + 300))
            daemon = await daemons.start(workers=workers)
            # B023: the wait ends before the next round.
            await upstream.until(lambda: len(accepted(upstream)) >= start + 300)  # noqa: B023
            assert await daemon.stop() == 0
        assert sorted(accepted(upstream).values()) == [1] * 600
        assert numbers(upstream) == list(range(600))


@pytest.mark.parametrize("kind", ["memory", "disk"])
async def test_positions_stay_while_nothing_is_delivered(tmp_path: Path, kind: str) -> None:
    """The files are the durable copy, with either buffer; when the upstream is
    back, all of it arrives.
    """
    async with (
        Upstream(lambda _: DOWN) as upstream,
        Members(tmp_path, {}, shutdown={"drain_timeout": "200ms"}) as members,
    ):
        daemons = Daemons(tmp_path, upstream, members)
        write(daemons.file, range(500))
        daemon = await daemons.start(buffer={"kind": kind})
        shown = await daemon.until(lambda shown: source_of(shown).lines.get("taken") == 500)
        [file] = source_of(shown).files
        assert (file.position, file.lag, source_of(shown).lag) == (0, file.size, file.size)
        await daemon.kill()
        daemon = await daemons.start(buffer={"kind": kind})
        await daemon.until(lambda shown: source_of(shown).lines.get("taken") == 500)
        assert await daemon.stop() == 0
        upstream.answer = lambda _: OK
        daemon = await daemons.start(buffer={"kind": kind})
        await daemon.until(
            lambda shown: source_of(shown).lag == 0 and len(accepted(upstream)) == 500
        )
        assert await daemon.stop() == 0
        assert numbers(upstream) == list(range(500))


async def test_positions_of_what_is_on_disk_move_at_once(tmp_path: Path) -> None:
    """With `commit: disk` the buffer has the events: after a kill nothing is read again, and
    nothing is missing.
    """
    disk: dict[str, Any] = {"source": {"commit": "disk"}, "buffer": {"kind": "disk"}}
    async with Upstream(lambda _: DOWN) as upstream, Members(tmp_path, {}) as members:
        daemons = Daemons(tmp_path, upstream, members)
        write(daemons.file, range(500))
        daemon = await daemons.start(**disk)
        await daemon.until(
            lambda shown: source_of(shown).lines.get("taken") == 500 and source_of(shown).lag == 0
        )
        await daemon.until(lambda shown: source_of(shown).commits.get("ok", 0) > 1)
        await daemon.kill()
        upstream.answer = lambda _: OK
        daemon = await daemons.start(**disk)
        await upstream.until(lambda: len(accepted(upstream)) == 500)
        shown = await daemon.until(lambda shown: source_of(shown).state == "reading")
        assert source_of(shown).lines.get("taken") == 0
        assert await daemon.stop() == 0
        assert numbers(upstream) == list(range(500))


async def test_positions_have_one_owner(tmp_path: Path) -> None:
    """Another daemon on the same state ends at once, and names the one that runs."""
    async with Upstream() as upstream, Members(tmp_path, {}) as members:
        daemons = Daemons(tmp_path, upstream, members)
        first = await daemons.start()
        code, said = await piped(
            b"",
            upstream,
            tmp_path / "second",
            dead_letters={"path": str(tmp_path / "one" / "state")},
            path=daemons.file,
        )
        assert code == 2
        assert f"is in use by another forwarder (process {first.process.pid})" in said


def configuration(home: Path, sections: Mapping[str, Any]) -> Path:
    """The file of these settings, in a new directory."""
    home.mkdir()
    file = home / "forwarder.yaml"
    file.write_text(yaml.safe_dump(sections))
    return file


async def piped(
    data: bytes, upstream: Upstream, home: Path, path: Path | None = None, **sections: Any
) -> tuple[int, str]:
    """Run a daemon that reads standard input, or a file, to its end; its exit code, and its log."""
    read = {"stdin": True} if path is None else {"path": str(path)}
    log = {key: SOURCE[key] for key in ("name", "mapping", "api_key")}
    sources = {"http": {"listen": "127.0.0.1:0"}, "logs": [{**log, **read}]}
    own = {
        "upstream": {"url": upstream.url},
        "dead_letters": {"path": str(home)},
        "buffer": {"path": str(home)},
        "sources": sources,
    }
    process = await asyncio.create_subprocess_exec(
        *command_line(("run",)),
        "--config",
        str(configuration(home, merged(merged(DEFAULTS, own), sections))),
        env=environment({}),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT):
            said, _ = await process.communicate(data)
        assert process.returncode is not None
        return process.returncode, said.decode()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


LINES = b"".join(log_line(number) + b"\n" for number in range(3000))


@pytest.mark.parametrize(
    "sections", [{}, {"workers": 2}, {"buffer": {"kind": "disk"}}], ids=["one", "workers", "disk"]
)
async def test_the_end_of_standard_input_ends_the_daemon(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    """With 0, when every line is delivered, once; the last one needs no end."""
    async with Upstream() as upstream:
        code, said = await piped(LINES[:-1], upstream, tmp_path / "home", **sections)
        assert code == 0, said
        assert "stopping: standard input has ended" in said
        assert numbers(upstream) == list(range(3000))
        assert set(accepted(upstream).values()) == {1}


async def test_an_upstream_that_is_away_for_a_moment_loses_nothing_of_standard_input(
    tmp_path: Path,
) -> None:
    """The daemon ends when all is delivered, however long that takes, and not when a
    drain would.
    """
    async with Upstream(lambda _: OK if len(upstream.requests) > 8 else DOWN) as upstream:
        code, said = await piped(
            LINES, upstream, tmp_path / "home", shutdown={"drain_timeout": "10ms"}
        )
        assert code == 0, said
        assert numbers(upstream) == list(range(3000))


async def test_no_input_is_the_end_of_input(tmp_path: Path) -> None:
    """An empty pipe is no error."""
    async with Upstream() as upstream:
        assert (await piped(b"", upstream, tmp_path / "home"))[0] == 0


async def test_a_closed_standard_input_is_an_error_at_the_start(tmp_path: Path) -> None:
    """Its descriptor would be whatever is opened first."""
    sources = {
        "http": {"listen": "127.0.0.1:0"},
        "logs": [{key: SOURCE[key] for key in ("name", "mapping", "api_key")} | {"stdin": True}],
    }
    file = configuration(
        tmp_path / "home", {"upstream": {"url": "http://127.0.0.1:2"}, "sources": sources}
    )
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *command_line(("run", "--config", str(file)))]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment({}), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(LIMIT):
        _, said = await process.communicate()
    assert process.returncode == 2
    assert b"standard input is to be read, and is closed" in said


async def test_undelivered_lines_of_stdin_become_dead_letters_at_a_signal(tmp_path: Path) -> None:
    """A pipe can't be read again: with the upstream down, a stop keeps what was accepted, and the
    exit code says so.
    """
    async with Upstream(lambda _: DOWN) as upstream:
        home = tmp_path / "home"
        log = {key: SOURCE[key] for key in ("name", "mapping", "api_key")}
        sources = {"http": {"listen": "127.0.0.1:0"}, "logs": [{**log, "stdin": True}]}
        own = {
            "upstream": {"url": upstream.url},
            "dead_letters": {"path": str(home)},
            "sources": sources,
            "shutdown": {"drain_timeout": "100ms"},
        }
        command = [
            *command_line(("run",)),
            "--config",
            str(configuration(home, merged(DEFAULTS, own))),
        ]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, env=environment({}), stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        assert process.stdin is not None
        process.stdin.write(LINES)
        await upstream.until(lambda: len(upstream.requests) > 0)
        process.terminate()
        said = (await process.communicate())[0].decode()
        assert process.returncode == 1, said
    left = json.loads(said.splitlines()[-1])["undelivered"]
    listed = await invoked(
        "dead-letters", "ls", "--path", str(home), "--limit", "3000", "--output", "json"
    )
    assert listed.out.count("undelivered_at_exit") == left > 0
