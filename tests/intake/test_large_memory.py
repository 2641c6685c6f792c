"""Large requests: what they take in memory while they are worked on, and when they are not."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from typing import Final

import pytest

from forwarder.core.errors import BufferFull, RequestTooLarge
from forwarder.core.event import Lane
from forwarder.core.ports import V1Head
from forwarder.wire.v1 import MAX_EVENTS
from tests.support.cases import cases
from tests.support.intakes import KEY, IntakeRig

pytestmark = pytest.mark.slow

BARE = '{"event":"é😀","distinct_id":"u","properties":{"padding":"%s"}}' % ("x" * 300)
STAMPS = '"uuid":"0190e2b5-7e0d-7cc0-9a3c-000000000000","timestamp":"2026-01-01T00:00:00Z"'
WHOLE = BARE.replace('"u",', f'"u",{STAMPS},')


def body(event: str, count: int) -> bytes:
    """A batch of one event, many times."""
    return f'{{"api_key":"{KEY}","batch":[{",".join([event] * count)}]}}'.encode()


LARGE: Final = 6_000
"""Events of a large request: 2 MB, beside which what a request costs by itself is little."""


def peak(act: Callable[[], object]) -> int:
    """The most bytes that were allocated at a time meanwhile."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@cases(
    ("event", "client", "times"), [(WHOLE, None, 2.2), (WHOLE, "8.8.8.8", 1.6), (BARE, None, 1.9)]
)
def test_a_large_request_is_copied_once(event: str, client: str | None, times: float) -> None:
    """Beside its text there is what is buffered of it (a stamped event is larger) and little else,
    whatever characters are in it.
    """
    rig = IntakeRig()
    data = body(event, LARGE)
    used = peak(lambda: rig.take(data, client=client))
    assert rig.figures(Lane(KEY))[0] == LARGE
    assert used < times * len(data)


@pytest.mark.parametrize(("event", "times"), [(WHOLE, 3.0), (BARE, 3.9)])
def test_a_large_v1_request_is_copied_twice(event: str, times: float) -> None:
    """There is the classic shape of it and then what is buffered, each event with its SDK and its
    stamps, and a result for each.
    """
    rig = IntakeRig()
    events = [event.replace("0190e2b5", f"{number:08x}") for number in range(LARGE)]
    data = f'{{"created_at":"2026-01-01T00:00:00Z","batch":[{",".join(events)}]}}'.encode()
    used = peak(
        lambda: rig.take(data, head=V1Head(b"Bearer " + KEY.encode(), b"posthog-python/7.1"))
    )
    assert rig.figures(Lane(KEY))[0] == LARGE
    assert used < times * len(data)


FEWER: Final = MAX_EVENTS // 10


@pytest.mark.parametrize("count", [FEWER, 2 * MAX_EVENTS])
def test_very_many_small_v1_events(count: int) -> None:
    """Each becomes much larger than it was, and has a result: so many stay within bounds, and of
    more nothing is made. As many as may be take ten times what a tenth of them takes.
    """
    rig = IntakeRig(max_bytes=3_800_000 if count == FEWER else 38_000_000)
    bound = 10_000_000 if count == FEWER else 15_000_000
    data = b'{"batch":[%b]}' % b",".join([b'{"event":"e","distinct_id":"d"}'] * count)
    head = V1Head(b"Bearer " + KEY.encode(), b'"' * 95 + b"/" + b'"' * 95)

    def refused() -> None:
        with pytest.raises(RequestTooLarge):
            rig.take(data, head=head)

    assert peak(refused) < bound
    assert rig.untouched()


def test_a_large_request_beside_a_full_buffer() -> None:
    """It is refused before anything is made of it; small ones still get the buffer's own answer,
    and later there is room again.
    """
    rig = IntakeRig()
    data = body(BARE, 12_000)
    rig.buffer.used = 66_000_000
    compressed = gzip.compress(data, 1)

    def refused() -> None:
        with pytest.raises(BufferFull):
            rig.take(data)

    assert peak(refused) < 100_000
    with pytest.raises(BufferFull):
        rig.take(compressed)
    with pytest.raises(BufferFull):
        rig.take(compressed, head=V1Head(b"Bearer " + KEY.encode()))
    rig.take(body(BARE, 10))
    assert rig.figures(Lane(KEY))[0] == 10
    rig.buffer.used = 0
    rig.take(compressed)
    assert rig.figures(Lane(KEY))[0] == 12_010


def test_what_could_never_fit_a_small_buffer() -> None:
    """The sender gets 413 and doesn't come back, also while the buffer isn't empty."""
    rig = IntakeRig(max_bytes=2_000_000)
    rig.take(body(BARE, 10))
    with pytest.raises(RequestTooLarge):
        rig.take(body(BARE, 12_000))


@pytest.mark.parametrize("key", [b'"api_key":"phc_good",', b""])
def test_a_batch_has_as_many_events_as_fit(key: bytes) -> None:
    """The contract sets no limit (interface document, Limits 1): 60,000 small events that all need
    stamps are accepted.
    """
    rig = IntakeRig(max_bytes=1_000_000_000)
    event = (
        b'{"event":"e","distinct_id":"d"}'
        if key
        else b'{"token":"phc_good","event":"e","distinct_id":"d"}'
    )
    rig.take(b'{%b"batch":[%b]}' % (key, b",".join([event] * 60_000)))
    assert rig.figures(Lane("phc_good"))[0] == 60_000
