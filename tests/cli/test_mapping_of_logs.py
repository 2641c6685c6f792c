"""`forwarder mapping try` for logs: lines, records of several lines, compressed samples, and files
that grow.
"""

from __future__ import annotations

import bz2
import gzip
import json
import signal
from pathlib import Path

import pytest
import zstandard
from typer.testing import CliRunner, Result

from forwarder.cli.mapping import app
from forwarder.core.errors import ConfigurationError
from tests.support.commands import running

CONFIG = r"""
sources:
  logs:
    - name: app
      path: /var/log/app.log
      api_key: phc_0123456789hunter2good
      max_line: 1kB
      mapping: {where: .user != null, event: .event, distinct_id: .user, drop: [.password]}
    - name: web
      path: /var/log/access.log
      format: common
      api_key: phc_0123456789hunter2good
      mapping: {event: '"hit"', distinct_id: .remote_addr, properties: {path: .path}}
    - name: trace
      path: /var/log/trace.log
      format: regex
      pattern: '^(?P<level>[A-Z]+) (?P<user>\S+) (?P<text>.*)'
      multiline: {start: '^[A-Z]+ ', max_wait: 100ms}
      api_key: phc_0123456789hunter2good
      mapping: {event: .level, distinct_id: .user}
    - name: pods
      path: /var/log/pods/*/*/*.log
      format: cri
      api_key: phc_0123456789hunter2good
      mapping: {event: .message, distinct_id: .kubernetes.pod}
"""
GOOD = '{"event":"login","user":"ann","password":"hunter2","key":"phc_0123456789hunter2good"}'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of several logs, without an upstream."""
    file = tmp_path / "logs.yaml"
    file.write_text(CONFIG)
    return file


def run(config: Path, sample: str | bytes | Path, *more: str, source: str = "app") -> Result:
    """What the command says to a sample, from standard input unless it is a path."""
    arguments = [
        "try",
        "--config",
        str(config),
        "--source",
        source,
        *more,
        str(sample) if isinstance(sample, Path) else "-",
    ]
    return CliRunner().invoke(app, arguments, input=None if isinstance(sample, Path) else sample)


def test_lines_of_a_log(config: Path) -> None:
    """Sent, skipped, not of the format (which is no mistake), each with its line; what looks like
    a key isn't shown.
    """
    result = run(config, f'{GOOD}\n\n{{"event":"tick"}}\nstarting \x1b[31mup\x9b\n')
    assert result.exit_code == 0, result.output
    first, _, rest = result.stdout.partition("line 3: skipped by where")
    assert first.startswith('line 1: sent\n{\n  "event": "login",\n  "distinct_id": "ann"')
    assert "phc_…good" in first
    assert "hunter2" not in result.stdout
    assert "timestamp: the time at which the line is read first" in first
    assert "uuid: derived from the line's position" in first
    assert '  {"event":"tick"}\n' in rest
    assert "line 4: not of the format\n  starting \N{REPLACEMENT CHARACTER}[31mup" in rest
    assert not {"\x1b", "\x9b"} & set(result.stdout)
    assert result.stdout.endswith(
        "3 records: 1 sent, 1 skipped by where, 1 not of the format, 0 not sent\n"
    )


def test_lines_that_would_be_dead_letters(config: Path) -> None:
    """A value that a rule can't use, no distinct_id, a line that is too long: the answer is no."""
    long = GOOD.replace("login", "x" * 1000)
    result = run(config, '{"event":5,"user":"ann"}\n{"event":"a","user":""}\n' + long + "\n" + GOOD)
    assert result.exit_code == 1
    assert "line 1: not sent, unmappable: event: the expression gives the number 5" in result.stdout
    assert "line 2: not sent, missing_distinct_id" in result.stdout
    assert (
        "line 3: not sent, too_large: the record is longer than 1,000 bytes (max_line)"
        in result.stdout
    )
    assert "line 4: sent" in result.stdout
    assert result.stdout.endswith("4 records: 1 sent, 0 skipped by where, 3 not sent\n")


def test_a_line_with_its_own_time(config: Path) -> None:
    """The time is shown."""
    result = run(
        config,
        '203.0.113.7 - - [31/Jan/2026:12:00:00 +0100] "GET /a HTTP/1.1" 200 5\n',
        source="web",
    )
    assert result.exit_code == 0, result.output
    assert "timestamp: the line's own time, 2026-01-31T11:00:00" in result.stdout
    assert (
        '\n  read as {"remote_addr":"203.0.113.7","time":"2026-01-31T11:00:00.000Z","method":"GET"'
        in result.stdout
    ), "the members that rules can name"


def test_records_of_several_lines(config: Path) -> None:
    """They are one record, which has the number of its first line; the last
    one ends with the sample.
    """
    result = run(
        config, "INFO ann one\n  more\nWARN bob two\n\tat x\n", "--output", "json", source="trace"
    )
    assert result.exit_code == 0, result.output
    results = json.loads(result.stdout)["results"]
    assert [(record["line"], record["outcome"]) for record in results] == [(1, "sent"), (3, "sent")]
    assert results[1]["events"][0]["event"]["properties"]["user"] == "bob"


def test_pods_are_named_by_the_path(config: Path, tmp_path: Path) -> None:
    """A sample that lies as the kubelet writes it says which pod it is of;
    parts of a line are joined.
    """
    sample = tmp_path / "shop_web-1_0a1b" / "web" / "0.log"
    sample.parent.mkdir(parents=True)
    sample.write_text("2026-01-31T12:00:00.5Z stdout P pay\n2026-01-31T12:00:00.6Z stdout F ment\n")
    result = run(config, sample, source="pods")
    assert result.exit_code == 0, result.output
    assert '"event": "payment"' in result.stdout
    assert '"distinct_id": "web-1"' in result.stdout


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstandard.ZstdCompressor().compress])
def test_a_rotated_sample(config: Path, tmp_path: Path, pack: object) -> None:
    """A compressed file is read as it is; a damaged one is reported, after what could be read."""
    assert callable(pack)
    packed = pack(f"{GOOD}\n".encode() * 3)
    sample = tmp_path / "app.log.1"
    sample.write_bytes(packed)
    assert "3 records: 3 sent" in run(config, sample).stdout
    assert "1 record: 1 sent" in run(config, sample, "--lines", "1").stdout
    assert "3 records: 3 sent" in run(config, packed).stdout
    sample.write_bytes(packed[:-3])
    damaged = run(config, sample)
    assert isinstance(damaged.exception, ConfigurationError)
    assert "app.log.1 can't be read: it is cut off" in damaged.exception.message


@pytest.mark.parametrize(
    ("count", "shown"), [(0, []), (1, ["c"]), (2, ["b", "c"]), (9, ["a", "b", "c"])]
)
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_last_lines(
    config: Path, tmp_path: Path, count: int, shown: list[str], end: str
) -> None:
    """`--lines` shows the end of a sample, which may have an unfinished last line, from a file as
    from standard input.
    """
    text = "\n".join(GOOD.replace("login", name) for name in "abc") + end
    sample = tmp_path / "app.log"
    sample.write_text(text)
    for given in (sample, text):
        result = run(config, given, "--lines", str(count), "--output", "json")
        assert [
            record["events"][0]["event"]["event"] for record in json.loads(result.stdout)["results"]
        ] == shown


def test_the_last_lines_of_a_large_file(config: Path, tmp_path: Path) -> None:
    """They are looked for from its end, further back than one part of it."""
    sample = tmp_path / "app.log"
    sample.write_text(
        "".join(f'{{"event":"{number}","user":"{"x" * 900}"}}\n' for number in range(300))
    )
    document = json.loads(run(config, sample, "--lines", "200", "--output", "json").stdout)
    results = document["results"]
    assert [record["events"][0]["event"]["event"] for record in results] == [
        str(number) for number in range(100, 300)
    ]


@pytest.mark.slow
async def test_a_file_that_grows(config: Path, tmp_path: Path) -> None:
    """Its last ten lines, then each new one, over truncation and rotation, until Ctrl-C, which
    shows the counts.
    """
    sample = tmp_path / "trace.log"
    sample.write_text("".join(f"OLD u{number} x\n" for number in range(12)))
    words = [
        "mapping",
        "try",
        "--config",
        str(config),
        "--source",
        "trace",
        "--follow",
        str(sample),
    ]
    async with running(*words) as command:
        await command.line('"user": "u2"')
        await command.line('"user": "u11"')
        with sample.open("a") as file:
            file.write("NEW ann one\n two\n")
        await command.line('"text": "one"')
        sample.write_text("CUT bob three\n")
        await command.line('"event": "CUT"')
        sample.rename(tmp_path / "trace.log.1")
        sample.write_text("BORN eve four\n")
        await command.line('"event": "BORN"')
        await command.line("uuid: ")
        command.send(signal.SIGINT)
        assert await command.ended() == 0
    assert command.lines[-1] == "13 records: 13 sent, 0 skipped by where, 0 not sent"


@pytest.mark.slow
async def test_a_file_that_grows_for_programs(config: Path, tmp_path: Path) -> None:
    """With `--output json` each line is an object."""
    sample = tmp_path / "app.log"
    sample.write_text(f"{GOOD}\n")
    words = [
        "mapping",
        "try",
        "--config",
        str(config),
        "--source",
        "app",
        "--follow",
        "--output",
        "json",
        str(sample),
    ]
    async with running(*words) as command:
        assert json.loads(await command.line('"line":1'))["outcome"] == "sent"
        with sample.open("a") as file:
            file.write("no json\n")
        assert json.loads(await command.line('"line":2'))["outcome"] == "unmatched"
        command.send(signal.SIGINT)
        assert await command.ended() == 0


def test_an_unknown_source(config: Path) -> None:
    """The names that there are."""
    result = run(config, GOOD, source="nobody")
    assert isinstance(result.exception, ConfigurationError)
    assert "app, web, trace, pods" in result.exception.hint
