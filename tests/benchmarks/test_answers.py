"""Answers are distinguished whichever way a server writes them."""

from __future__ import annotations

import pytest

from benchmarks.answers import Answer, AnswerReader
from tests.support.cases import cases

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"Ok"}'
BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 3\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@cases(
    ("received", "answer"),
    [(OK, Answer(200)), (BUSY, Answer(503, close=True, retry_after=3.0)), (CHUNKED, Answer(201))],
    ids=["ok", "busy", "chunked"],
)
def test_an_answer_is_read_once_it_is_complete(received: bytes, answer: Answer) -> None:
    """Every beginning of an answer is incomplete; the whole is the answer, at
    first and when it is known.
    """
    reader = AnswerReader()
    assert [reader.read(received[:size]) for size in range(len(received))] == [None] * len(received)
    assert [reader.read(received), reader.read(received)] == [answer, answer]


def test_what_is_not_http_is_refused() -> None:
    """Anything else than HTTP is a mistake of the set-up, and is said."""
    with pytest.raises(ValueError, match="not an HTTP answer"):
        AnswerReader().read(b"SSH-2.0-OpenSSH\r\n\r\n")
