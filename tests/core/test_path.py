"""The header `Forwarder-Path`: what it says, what is made of it, and what senders
can't do with it.
"""

from __future__ import annotations

from forwarder.core.event import Lane
from forwarder.core.path import (
    MAX_HOPS,
    MAX_IDS,
    MAX_LANES,
    MAX_PATHS,
    REMEMBERED_SECONDS,
    ForwarderPath,
    RequestPath,
    new_instance,
    parse_path,
)
from tests.support.cases import cases
from tests.support.clock import FakeClock

LANE = Lane("phc_path")
OWN = "a" * 12
BEFORE = "b" * 12
EARLIER = "c" * 12


def parsed(text: str) -> RequestPath:
    """The path that a forwarder's header states."""
    path = parse_path(text.encode())
    assert path is not None
    return path


def test_a_path_is_read_as_it_is_written() -> None:
    """Hops first, then the ids, the nearest first."""
    path = ForwarderPath(FakeClock(), OWN)
    assert path.after(None) == path.header() == path.header(LANE) == f"1; {OWN}"
    assert path.after(parsed(f"2; {BEFORE}, {EARLIER}")) == f"3; {OWN}, {BEFORE}, {EARLIER}"
    assert parsed(path.after(None)).ids == (OWN,)


@cases(
    "text",
    [
        "",
        "1",
        "1;",
        f"x; {OWN}",
        f"1; {OWN.upper()}",
        f"1; {OWN}a",
        f"12345; {OWN}",
        f"1; {OWN}; {BEFORE}",
        "\xff",
    ],
)
def test_an_invalid_path_header_is_ignored(text: str) -> None:
    """It neither rejects a request nor continues."""
    assert parse_path(text.encode("latin-1")) is None


def test_a_loop_is_the_own_id_or_too_many_hops() -> None:
    """Ten forwarders may be passed."""
    path = ForwarderPath(FakeClock(), OWN)
    assert path.is_loop(parsed(f"2; {BEFORE}, {OWN}"))
    assert path.is_loop(parsed(f"{MAX_HOPS}; {BEFORE}"))
    assert not path.is_loop(parsed(f"{MAX_HOPS - 1}; {BEFORE}"))


def test_instances_differ() -> None:
    """An id is random, and of the form that is read."""
    assert len({new_instance() for _ in range(100)}) == 100
    assert parsed(f"1; {ForwarderPath(FakeClock()).instance}").hops == 1


def test_a_batch_names_what_its_lane_came_by() -> None:
    """The value stays the same while nothing new is seen, and other lanes have their own."""
    path = ForwarderPath(FakeClock(), OWN)
    path.note(LANE, parsed(f"1; {BEFORE}"))
    path.note(LANE, parsed(f"2; {EARLIER}, {BEFORE}"))
    value = path.header(LANE)
    assert value == f"2; {OWN}, {BEFORE}, {EARLIER}"
    path.note(LANE, parsed(f"2; {EARLIER}, {BEFORE}"))
    assert path.header(LANE) == value
    assert path.header(LANE._replace(historical=True)) == f"1; {OWN}"


def test_a_made_up_path_does_not_count_beside_honest_ones() -> None:
    """The least number of hops counts: a project key is public, and no one who has it may halt its
    lane behind this forwarder.
    """
    path = ForwarderPath(FakeClock(), OWN)
    path.note(LANE, parsed(f"{MAX_HOPS - 1}; {BEFORE}"))
    assert path.active
    path.note(LANE, None)
    assert path.header(LANE).startswith("1; ")


async def test_paths_are_forgotten() -> None:
    """A chain that was changed isn't named for longer than an hour."""
    clock = FakeClock()
    path = ForwarderPath(clock, OWN)
    path.note(LANE, parsed(f"4; {BEFORE}"))
    path.note(LANE, None)
    await clock.advance(REMEMBERED_SECONDS - 1)
    assert BEFORE in path.header(LANE)
    await clock.advance(2)
    assert path.header(LANE) == f"1; {OWN}"
    assert not path.active


async def test_remembered_paths_are_bounded() -> None:
    """In paths, ids and lanes; what was seen first stays, so that the value is stable."""
    clock = FakeClock()
    path = ForwarderPath(clock, OWN)
    for number in range(100):
        path.note(LANE, parsed(f"2; {number:012x}, {number + 500:012x}"))
    first = path.header(LANE)
    assert len(parsed(first).ids) == MAX_IDS
    assert len(path._lanes[LANE]) == MAX_PATHS
    await clock.advance(REMEMBERED_SECONDS + 1)
    path.note(LANE, parsed(f"2; {BEFORE}"))
    assert path.header(LANE) == f"3; {OWN}, {BEFORE}"
    for number in range(2 * MAX_LANES):
        path.note(Lane(str(number)), parsed(f"2; {BEFORE}"))
    assert len(path._lanes) == MAX_LANES
