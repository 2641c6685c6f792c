"""An upstream whose JSON parser is stricter than ours: it answers 400 for a whole request in which
it finds anything that it rejects.
"""

from __future__ import annotations

import gzip
import json
import math
from typing import Any, Final, NoReturn

from tests.support.upstream import OK, Answer, Request, plain

POISON: Final = {
    "overflow": b"1e999",
    "digits": b"7" * 400,
    "deep": b"[" * 200 + b"]" * 200,
    "nul": rb'"\u0000"',
}
"""Values that `strict` rejects, by what they are."""

_MAX_DEPTH: Final = 128


def strict(request: Request) -> Answer:
    """The answer to a request, by Python's parser and its own rules for numbers, depth and NUL."""
    text = (
        gzip.decompress(request.wire)
        if request.headers.get("content-encoding") == "gzip"
        else request.wire
    )
    try:
        _check(
            json.loads(text, parse_float=_double, parse_int=_integer, parse_constant=_no_constant),
            0,
        )
    except ValueError as error:
        return plain(400, f"invalid json: {error}")
    return OK


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("number out of range")
    return value


def _integer(text: str) -> int:
    _double(text)
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _check(value: Any, depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise ValueError("recursion limit exceeded")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("NUL in a string")
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            _check(inner, depth + 1)
