"""Conditions in jq with a deadline, for the decoder process.

jq can't be interrupted, so what may take long is evaluated in a child process, which the kernel
ends when its CPU time is used up. It reports each event as soon as that is done, so that it is
known on which event it was ended; the next one goes on behind it. What is sure to be short is
evaluated at once.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from forwarder.core.error_text import error_text
from forwarder.mapping.expressions import EVALUATION_ERRORS, Expressions
from forwarder.mapping.problems import Unmappable
from forwarder.rules.costs import LONG, ConditionCost

EVENT_SECONDS: Final = 1.0
"""CPU time that a condition may take for one event."""
TOTAL_SECONDS: Final = 5.0
"""CPU time that conditions may take for all events of a job which they take long for."""
_LEAST_SECONDS: Final = 0.02
"""What is left behind a child that was ended is nothing if it is less: timers are no finer."""
_TRUE: Final = b"1"
_FALSE: Final = b"0"

Failed = Callable[[int, Exception], object]


class DeadlinedConditions:
    """Evaluates conditions within time limits; for one job after the other."""

    def __init__(self, event_seconds: float = EVENT_SECONDS, total: float = TOTAL_SECONDS) -> None:
        self._event_seconds = event_seconds
        self._total = total
        self._left = total

    def start(self) -> None:
        """Another job begins."""
        self._left = self._total

    def __call__(
        self, condition: Expressions, cost: ConditionCost, events: Sequence[bytes], failed: Failed
    ) -> list[int]:
        """The indexes of the events for which the condition holds. One that it takes too long for
        is reported to `failed`.
        """
        if cost.of(events) < LONG:
            return condition.select(events, failed)
        found: list[int] = []
        at = 0
        while at < len(events) and self._left > 0:
            verdicts = self._evaluate(condition, events[at:])
            for index, verdict in enumerate(verdicts, at):
                if verdict == _TRUE:
                    found.append(index)
                elif verdict != _FALSE:
                    failed(index, Unmappable(verdict.decode()))
            at += len(verdicts)
            if at < len(events) and self._left < _LEAST_SECONDS:
                self._left = 0.0
            elif at < len(events):
                seconds = min(self._event_seconds, self._total)
                failed(at, Unmappable(f"where: jq takes over {seconds:g} s of CPU, or all memory"))
                at += 1
        for index in range(at, len(events)):
            why = f"where: jq has taken {self._total:g} s of CPU for other events of the request"
            failed(index, Unmappable(why))
        return found

    def _evaluate(self, condition: Expressions, events: Sequence[bytes]) -> list[bytes]:
        """The verdicts of a child on the events, up to the one on which it was ended."""
        receiving, sending = os.pipe()
        child = os.fork()
        if not child:
            os.close(receiving)
            self._work(condition, events, sending)
        os.close(sending)
        with os.fdopen(receiving, "rb") as answers:
            lines = answers.read().split(b"\n")
        _, _, usage = os.wait4(child, 0)
        self._left -= usage.ru_utime + usage.ru_stime
        return lines[:-1]

    def _work(self, condition: Expressions, events: Sequence[bytes], sending: int) -> None:
        """What the child does; doesn't return."""
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            ends = time.process_time() + self._left
            for event in events:
                left = max(ends - time.process_time(), 1e-6)  # 0 is no timer
                signal.setitimer(signal.ITIMER_PROF, min(self._event_seconds, left))
                os.write(sending, _verdict(condition, event) + b"\n")
        finally:
            os._exit(0)


def _verdict(condition: Expressions, event: bytes) -> bytes:
    try:
        return _FALSE if condition.evaluate(event) is None else _TRUE
    except EVALUATION_ERRORS as error:
        return error_text(error).encode().replace(b"\n", b" ")
