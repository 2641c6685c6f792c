"""`forwarder logs`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from forwarder.telemetry.snapshot import LogFile
from tests.cli.conftest import Answering
from tests.support.commands import invoked
from tests.support.followed_logs import FollowedLogs
from tests.support.snapshots import FULL, LOGS

NOBODY = "127.0.0.1:1"


async def test_logs_of_the_daemon(daemon: Answering) -> None:
    """Each source with what became of its lines, and each file with position,
    size, lag and last line.
    """
    done = await invoked("logs", "--admin", daemon.address)
    assert (done.code, done.err) == (0, "")
    assert (
        "logs web is reading; 12 files, 3 of them open, 1 unreadable, lag 4.0 KiB, 2.0 KiB "
        "not settled"
    ) in done.out
    assert (
        "5,000 lines accepted, 70 filtered, 30 not of the format, 2 not mappable, 1 too long; "
        "positions stored 2s ago"
    ) in done.out
    assert (
        "! 1 file can't be opened: permission denied: /var/log/<b>/secret.log (Let "
        "forwarder's user read it.)"
    ) in done.out
    assert "1000 B     9,000  10,000     5s ago  /var/log/nginx/access.log\n" in done.out
    assert 'GET /<script>"' in done.out
    assert "/var/log/nginx/access.log.1.gz\n" in done.out
    assert "and 10 more files" in done.out
    assert "logs stdin is ended" in done.out


async def test_one_source_alone(daemon: Answering) -> None:
    """`--source` shows that source; a name that isn't configured is wrong usage, with the names
    that are.
    """
    done = await invoked("logs", "--admin", daemon.address, "--source", "stdin")
    assert (done.code, "web" in done.out, "logs stdin is ended" in done.out) == (0, False, True)
    other = await invoked("logs", "--admin", daemon.address, "--source", "nginx")
    assert (other.code, other.out) == (2, "")
    assert "'nginx' is not a log source" in other.err
    assert "Log sources: web, stdin." in other.err


async def test_many_files_stay_readable(daemon: Answering) -> None:
    """The first 20, and how many more; `--all` shows each that the daemon lists."""
    files = tuple(LogFile(f"/var/log/{number}.log", lag=1000 - number) for number in range(200))
    daemon.snapshot = replace(FULL, logs=(replace(LOGS, why="", files=files, followed=5000),))
    done = await invoked("logs", "--admin", daemon.address)
    assert (done.out.count("/var/log/"), "and 4,980 more files" in done.out) == (20, True)
    every = await invoked("logs", "--admin", daemon.address, "--all")
    assert (every.out.count("/var/log/"), "and 4,800 more files" in every.out) == (200, True)


async def test_a_line_cant_control_the_terminal(daemon: Answering) -> None:
    """Escapes in paths and lines are shown as text, even if the daemon is of a version that passes
    them on.
    """
    file = LogFile("/var/log/\x1b]0;x\x07.log", last_line="\x1b[2J[bold]gone[/bold]\u202e")
    daemon.snapshot = replace(FULL, logs=(replace(LOGS, files=(file,)),))
    for options in ((), ("--output", "json")):
        done = await invoked("logs", "--admin", daemon.address, *options)
        assert done.code == 0
        assert not {"\x1b", "\x07", "\u202e"} & set(done.out)
        assert "[bold]gone[/bold]" in done.out


async def test_logs_as_json(daemon: Answering) -> None:
    """`--output json` prints the sources as in `/status`."""
    done = await invoked("logs", "--admin", daemon.address, "--source", "web", "--output", "json")
    [source] = json.loads(done.out)["sources"]
    assert (source["name"], source["lag"], source["lines"]) == ("web", 4096, LOGS.lines)
    assert source["files"][0]["position"] == 9000


async def test_a_daemon_without_log_sources(daemon: Answering) -> None:
    """It says so, and which daemon was asked: a configuration may be that of another."""
    daemon.snapshot = replace(FULL, logs=())
    done = await invoked("logs", "--admin", daemon.address)
    assert (done.code, done.out) == (
        0,
        (
            f"The daemon at {daemon.address} has no log sources. "
            "Name another with --admin ADDRESS.\n"
        ),
    )


def write_config(state: Path, admin: str) -> list[str]:
    """The options that name a configuration with one log source and this state directory."""
    file = state / "forwarder.yaml"
    mapping = "api_key: phc_x, mapping: {event: .a, distinct_id: .b}"
    file.write_text(
        f"buffer: {{kind: disk, path: {state}, max_bytes: 1GiB}}\nadmin: {{listen: '{admin}'}}\n"
        f"sources: {{logs: [{{name: logs, path: /x, {mapping}}}]}}\n"
    )
    return ["--config", str(file)]


async def test_without_a_daemon_and_positions_exits_with_3(tmp_path: Path) -> None:
    """Where no one answers and nothing is stored, the error says how to start one or where to
    look; with `--admin` nothing is read.
    """
    for options in (["--admin", NOBODY], write_config(tmp_path, NOBODY)):
        done = await invoked("logs", *options)
        assert (done.code, done.out) == (3, "")
        assert f"no daemon answers at {NOBODY}" in done.err


async def test_stored_positions(tmp_path: Path, daemon: Answering) -> None:
    """Without a daemon they are shown as they are stored; with one, those that it doesn't list
    with `--all`.
    """
    (tmp_path / "logs").mkdir()
    followed = FollowedLogs(tmp_path / "logs")
    path = followed.write("a.log", "first\nlast\n")
    followed.read()
    followed.settle()
    followed.write("a.log", "unread\n")
    done = await invoked("logs", *write_config(tmp_path, NOBODY))
    assert (done.code, done.err) == (0, "")
    assert "logs logs is stopped; 1 file, lag 7 B\n" in done.out
    assert f"7 B        11    18             {path}\n" in done.out
    assert " last\n" in done.out
    daemon.snapshot = replace(FULL, logs=(replace(LOGS, name="logs", followed=3),))
    options = write_config(tmp_path, daemon.address)
    for more, shown in ((), False), (("--all",), True):
        done = await invoked("logs", *options, *more)
        assert (done.code, str(path) in done.out, "access.log.1.gz" in done.out) == (0, shown, True)
    followed.close()
