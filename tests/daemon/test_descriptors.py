"""The limit on open files: raised to what is needed, and where that isn't allowed, connections
give way.
"""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from forwarder.daemon.descriptors import files_beside_connections, reserve_descriptors
from tests.support.whole import settings


class Limits:
    """The system's limits, as far as they matter here."""

    def __init__(self, soft: int, hard: int, *, most: int | None = None) -> None:
        self.soft = soft
        self.hard = hard
        self._most = most

    def get(self, _kind: int) -> tuple[int, int]:
        return self.soft, self.hard

    def set(self, _kind: int, limits: tuple[int, int]) -> None:
        if self._most is not None and limits[0] > self._most:
            raise ValueError("current limit exceeds maximum limit")
        assert limits[1] == self.hard
        self.soft = limits[0]


def with_limits(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, *, most: int | None = None
) -> Limits:
    """The process has these limits."""
    limits = Limits(soft, hard, most=most)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    return limits


@pytest.mark.parametrize("hard", [524_288, resource.RLIM_INFINITY, 10_500])
def test_the_limit_is_raised_to_what_is_needed(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    """Not further, and nothing is said of it."""
    limits = with_limits(monkeypatch, 1024, hard)
    with capture_logs() as logs:
        assert reserve_descriptors(10_000, 500) == 10_000
    assert (limits.soft, logs) == (10_500, [])


@pytest.mark.parametrize("soft", [20_000, resource.RLIM_INFINITY])
def test_a_limit_that_is_enough_stays(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    """It is never lowered."""
    limits = with_limits(monkeypatch, soft, resource.RLIM_INFINITY)
    assert reserve_descriptors(10_000, 500) == 10_000
    assert limits.soft == soft


def test_fewer_connections_where_it_cannot_be_raised_as_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line says how many, and what to do."""
    limits = with_limits(monkeypatch, 1024, 4096)
    with capture_logs() as logs:
        assert reserve_descriptors(10_000, 500) == 3596
    assert limits.soft == 4096
    (line,) = logs
    assert (line["max_connections"], line["configured"], line["open_files"], line["log_level"]) == (
        3596,
        10_000,
        4096,
        "warning",
    )
    assert "10500" in line["hint"]


def test_a_lower_limit_of_the_system_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it doesn't allow is done without."""
    with_limits(monkeypatch, 1024, resource.RLIM_INFINITY, most=1024)
    assert reserve_descriptors(10_000, 500) == 524


def test_a_quarter_is_left_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the limit is lower than everything else together needs."""
    with_limits(monkeypatch, 256, 256)
    assert reserve_descriptors(1024, 500) == 64


def test_the_needed_descriptors() -> None:
    """The pass-through's connections, a disk buffer's files, requests in flight."""
    plain = files_beside_connections(settings("http://a", passthrough={"enabled": False}))
    assert files_beside_connections(settings("http://a")) == plain + 256
    many = settings("http://a", passthrough={"enabled": False}, delivery={"concurrency": 132})
    assert files_beside_connections(many) == plain + 100
    disk = settings(
        "http://a",
        passthrough={"enabled": False},
        buffer={"kind": "disk", "max_bytes": "10GiB", "path": "/x"},
    )
    assert files_beside_connections(disk) > plain + 30
