"""The `/status` document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forwarder.admin.status import NotAStatus, document, encode, parse
from forwarder.telemetry.snapshot import DestinationSnapshot, Snapshot, State
from tests.support.cases import cases
from tests.support.snapshots import FULL


@pytest.mark.parametrize(
    "snapshot", [FULL, Snapshot("1", State.STARTING, 0.0, 0.0)], ids=["full", "empty"]
)
def test_document_can_be_read_back(snapshot: Snapshot) -> None:
    """What a command reads is the snapshot that the daemon took."""
    assert parse(encode(snapshot)) == snapshot


def test_document_says_what_follows() -> None:
    """Whether the books balance stands in it, so that a script needs no arithmetic."""
    plain = document(FULL)
    assert plain["balanced"] is True
    assert [lane["difference"] for lane in plain["lanes"]] == [0, 0]
    assert {"path": "/batch", "code": 200, "count": 24} in plain["http_requests"]
    assert {"path": "/flags", "code": 200, "count": 7} in plain["passthrough_requests"]
    assert {"path": "/e", "reason": "undecodable", "count": 1} in plain["rejected_requests"]


def test_fields_have_the_order_in_which_people_read_them() -> None:
    """What it is comes first, then its lanes; lists of parts are at the end."""
    plain = document(replace(FULL, destinations=(DestinationSnapshot("eu"),)))
    names = list(plain)
    assert names[:7] == [
        *("version", "state", "started_at", "now", "lanes", "buffer_kind", "buffer_bytes")
    ]
    assert names[-9:] == [
        *("not_ready", "buffer_found", "dead_letters_path", "dead_letters_wanted"),
        *("kafka", "logs", "workers", "destinations", "balanced"),
    ]
    [destination] = plain["destinations"]
    assert list(destination)[:5] == ["name", "required", "key_labels", "lanes", "buffer_bytes"]


def test_another_versions_document_is_understood() -> None:
    """Fields that this version doesn't know are ignored, those that are missing have defaults."""
    plain = json.loads(encode(FULL))
    plain["of_the_future"] = {"x": 1}
    del plain["in_flight"], plain["http_requests"]
    snapshot = parse(json.dumps(plain).encode())
    assert (snapshot.in_flight, snapshot.http_requests, snapshot.lanes) == (0, {}, FULL.lanes)


@cases("body", [b"", b"<html>", b"[]", b"{}", b'{"version": 1}', b"\xff"])
def test_anything_else_is_refused(body: bytes) -> None:
    """The answer of some other program is no status; the hint says to look at the address."""
    with pytest.raises(NotAStatus) as raised:
        parse(body)
    assert "admin" in raised.value.hint
