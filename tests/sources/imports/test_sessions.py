"""Ids of sessions: UUIDs of version 7 that follow from a device and a start."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.imports.sessions import SessionIds, session_uuid

START = 1_709_288_430_123


@given(device=st.text(), start=st.integers(1, (1 << 48) - 1))
def test_a_session_has_a_uuid_of_version_7_at_its_start(device: str, start: int) -> None:
    """As RFC 9562 has it, in its usual notation."""
    session_id = session_uuid(device, start)
    read = uuid.UUID(session_id)
    assert str(read) == session_id
    assert (read.version, read.variant, read.int >> 80) == (7, uuid.RFC_4122, start)


def test_device_and_start_tell_sessions_apart() -> None:
    """A thousand devices that begin at once have a thousand sessions; `1` at 23 isn't `3` at 12."""
    assert len({session_uuid(f"device-{number}", START) for number in range(1000)}) == 1000
    assert session_uuid("1 2", 3)[13:] != session_uuid("2", 3)[13:]


def test_what_was_forgotten_has_the_same_id_again() -> None:
    """However many sessions came between."""
    ids = SessionIds()
    first = ids.of("d", START)
    others = {ids.of("d", START + number) for number in range(1, 9000)}
    assert first == ids.of("d", START) == session_uuid("d", START)
    assert len(others | {first}) == 9000


@pytest.mark.parametrize("start", [0, -1, 1 << 48])
def test_what_is_no_start_is_no_session(start: int) -> None:
    """Amplitude writes -1 outside of sessions."""
    assert SessionIds().of("d", start) is None
