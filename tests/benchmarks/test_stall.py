"""The bodies that stalls are measured with: they are what their names say, and all are of a size
that is accepted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.stall import (
    ALLOWED,
    Stall,
    StallResult,
    ruled_settings,
    stall_line,
    stall_summary,
)
from benchmarks.stall_bodies import bodies, lz64, records, ruled_bodies
from forwarder.config.load import load_settings
from forwarder.core.ports import Incoming
from forwarder.wire.encodings import decode_body


@pytest.mark.long
def test_the_bodies_are_different_and_may_be_sent() -> None:
    """None is over the limit of a body, and no record over a broker's."""
    named_bodies = {body.name: body for body in (*bodies(), *ruled_bodies())}
    assert all(len(body.data) <= 20_000_000 for body in named_bodies.values())
    assert all(len(record) <= 1_000_000 for _, record in records())
    text = decode_body(Incoming(named_bodies["nan-base64-gzip"].data), 20_000_000)
    assert text == named_bodies["nan"].data


def test_lz64_is_what_browsers_send() -> None:
    """The listener reads it."""
    text = '{"a": "' + "aaaa-bbbb-" * 50 + '"}'
    assert decode_body(Incoming(lz64(text), query=b"compression=lz64"), 10_000) == text.encode()


def test_a_gap_that_is_too_long_is_not_good() -> None:
    """Alone or together."""
    good = Stall("short", alone=0.01, together=0.02, cpu=1.0, size=10)
    bad = Stall("long", alone=0.01, together=ALLOWED * 2)
    assert StallResult("stall", 0.001, [good]).good
    result = StallResult("stall", 0.001, [good, bad])
    assert not result.good
    assert "longest gap 200 ms (long)" in stall_summary(result)
    assert "100,000,000 ns a byte" in stall_line(good)


def test_the_settings_with_rules_are_valid(tmp_path: Path) -> None:
    """All entrances that are measured are in them."""
    environ = {
        "FORWARDER_UPSTREAM__URL": "https://h.example.com",
        **ruled_settings(tmp_path, tmp_path / "app.log"),
    }
    settings = load_settings(None, environ).settings
    assert settings.rules
    assert settings.sources.http.otlp.mapping.event
    assert [source.path for source in settings.sources.logs]
