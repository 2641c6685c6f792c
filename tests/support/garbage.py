"""What only the cyclic garbage collector would free: found while it is off."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

from tests.support.waiting import slowness

BODY: Final = 64 * 1024
"""Bytes that a body has at least, in tests that look for bodies."""

PADDING: Final = "".join(
    random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=BODY // 2)
)
"""Half a body, of what no codec makes much smaller."""

OURS: Final = "forwarder"

_KEPT: Final = 4 * BODY
"""Bytes by which memory may differ: what connections, codecs and the loop keep for the next
request.
"""


_ROUNDS: Final = 4
"""In one of which memory doesn't grow, if it doesn't grow without end."""


@contextmanager
def memory_traced() -> Iterator[None]:
    """Count what is allocated in the block: `no_garbage` needs it, also for what was there before
    and is freed in it.
    """
    slowness()  # measured in the block, each machine would be slow
    gc.collect()
    gc.freeze()  # or each search for garbage would walk through what other tests have left
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


class MemoryGrown(AssertionError):
    """Memory is in use that wasn't before."""


async def leaves_no_garbage(
    what: str, act: Callable[[], Awaitable[object]], largest: int = BODY
) -> None:
    """`no_garbage`, where what `act` does fills buffers, on a slow machine later than on another:
    memory may grow in a round, but not in each.
    """
    for left in reversed(range(_ROUNDS)):
        try:
            with no_garbage(what, largest):
                await act()
        except MemoryGrown:
            if not left:
                raise
        else:
            return


@contextmanager
def no_garbage(what: str, largest: int = BODY) -> Iterator[None]:
    """Fail if the block leaves cycles that hold a body, an error, a frame or an object of
    forwarder's, or memory that nothing frees. The collector is off meanwhile; inside of
    `memory_traced`. Raises `MemoryGrown` for the latter.

    `largest`: bytes of a body. Two of them may stay, as the last ones.
    """
    gc.collect()
    gc.disable()
    before = tracemalloc.get_traced_memory()[0]
    try:
        yield
        grown = tracemalloc.get_traced_memory()[0] - before
        garbage = described(unreachable())
    finally:
        gc.enable()
    assert not garbage, f"{what}: only the garbage collector frees {dict(garbage.most_common(12))}"
    if grown >= _KEPT + 2 * largest:
        raise MemoryGrown(f"{what}: {grown:,} bytes more are in use")


def unreachable() -> list[Any]:
    """The objects that only the collector would free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return list(gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


def described(objects: Iterable[Any]) -> Counter[str]:
    """Those among some objects that may not be garbage, in words."""
    counts: Counter[str] = Counter()
    for leftover in objects:
        if isinstance(leftover, FrameType):
            if _is_our_file(leftover):
                counts[f"frame of {leftover.f_code.co_qualname}, line {leftover.f_lineno}"] += 1
        elif isinstance(leftover, TracebackType):
            if _is_our_file(leftover.tb_frame):
                counts[f"traceback in {leftover.tb_frame.f_code.co_qualname}"] += 1
        elif type(leftover).__module__.partition(".")[0] == OURS:
            counts[type(leftover).__qualname__] += 1
        for held in gc.get_referents(leftover):
            if isinstance(held, bytes | bytearray | memoryview | str) and len(held) >= BODY // 2:
                counts[f"{type(held).__name__} of a body in a {type(leftover).__name__}"] += 1
    return counts


def _is_our_file(frame: FrameType) -> bool:
    return f"/{OURS}/" in frame.f_code.co_filename
