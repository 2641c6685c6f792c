"""What SIGINT and SIGTERM do to an import: while it sends, the first lets what is on its way settle, the second ends everything at once.

Before that, either ends it: there is nothing to be settled.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopped_by_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None], tidy: Callable[[], None], exit_now: Callable[[int], None] = os._exit
) -> Iterator[None]:
    """Call `stop` on the first signal; on the second `tidy` up, and end."""
    heard = 0

    def hear(number: signal.Signals) -> None:
        nonlocal heard
        heard += 1
        if heard == 1:
            sys.stderr.write(f"{number.name}: nothing more is read; what is on its way is settled and saved. Again ends it at once.\n")
            stop()
            return
        tidy()
        sys.stderr.write("Ended at once: what was on its way is sent again, the same, when the same command goes on.\n")
        sys.stderr.flush()
        exit_now(INTERRUPTED)

    for number in _SIGNALS:
        loop.add_signal_handler(number, hear, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
