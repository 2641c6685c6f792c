"""How much work a call is, without a clock: the instructions that the interpreter runs, in all
Python code that is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(call: Callable[[], object]) -> int:
    """The instructions that a call takes. What a C function does isn't
    counted, however long it takes.
    """
    steps = 0

    def trace(frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal steps
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        else:
            steps += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps
