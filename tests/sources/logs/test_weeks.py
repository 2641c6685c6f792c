"""A week of lines, the odd ones too: each is parsed and mapped, and none is left unexplained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from forwarder.mapping import HashRule, Mapping, MappingRules
from forwarder.sources.logs.formats import line_format, replace_undecodable
from forwarder.sources.logs.splitting import Splitter
from tests.support.log_lines import access_lines, syslog_lines

BLOCK = 1 << 18
MAX = 1_000_000
BIG = pytest.param(
    int(os.environ.get("LINES_OF_A_WEEK", "100000")),
    id="week",
    marks=[pytest.mark.long, pytest.mark.timeout(600)],
)


def records(text: bytes) -> Iterator[bytes]:
    """The records of a file, read in blocks."""
    splitter = Splitter(0, MAX)
    for at in range(0, len(text), BLOCK):
        yield from replace_undecodable(splitter.feed(text[at : at + BLOCK], 0.0).values)[0]
    assert splitter.finish().values == []


@pytest.mark.parametrize("count", [20_000, BIG])
def test_a_week_of_an_access_log(count: int, tmp_path: Path) -> None:
    """Every line is an event, with its visitor, its time and its status, and with the request's
    parts or the request.
    """
    salt = tmp_path / "salt"
    salt.write_text("secret")
    rules = MappingRules(
        event='"$pageview"',
        distinct_id=".visitor",
        hash=HashRule((), salt, True, {"visitor": (".remote_addr", ".user_agent")}),
    )
    mapping = Mapping.compile(rules, "web")
    parse = line_format("combined", None, None, None, "sources.logs[0]").parse
    lines = list(access_lines(count))
    events = 0
    last = ""
    for record in records(b"".join(line + b"\n" for line in lines)):
        parsed = parse(record, 0.0)
        assert parsed is not None, record
        made = mapping.map(parsed[0], parsed[2])
        assert made is not None
        event = msgspec.json.decode(made)
        properties = event["properties"]
        assert len(event["distinct_id"]) == 64
        assert f'"{properties["time"]}"'.encode() == parsed[1]
        assert last <= properties["time"]
        assert properties["remote_addr"]
        assert properties["status"] in range(200, 600)
        empty = b'"-" ' in record or b'"" ' in record
        assert (
            ("method" in properties and "path" in properties) or "request" in properties or empty
        ), record
        assert not {"method", "request"} <= properties.keys()
        last = properties["time"]
        events += 1
    assert events == count


@pytest.mark.parametrize("count", [20_000, BIG])
def test_syslog_over_a_change_of_year(count: int) -> None:
    """Every line has its own year, read in January or in December."""
    parse = line_format("syslog", None, None, "UTC", "sources.logs[0]").parse
    lines = list(syslog_lines(count))
    written = max(time for _, time in lines).timestamp()
    for line, time in lines:
        (record,), _ = replace_undecodable([line])
        for reference in (written, time.timestamp()):
            parsed = parse(record, reference)
            assert parsed is not None, record
            assert datetime.fromtimestamp(parsed[2], UTC) == time
    assert {time.year for _, time in lines} == {2025, 2026}
