"""http.md and passthrough.md: every path and every status of the ingestion listener is there, and
no other.
"""

from __future__ import annotations

import re

from forwarder.sources.http.passthrough.allowed import PassedRoutes
from forwarder.sources.http.protocol import answers
from forwarder.sources.http.protocol.answers import HttpAnswer
from forwarder.sources.http.protocol.routes import Routes
from tests.support.documents import sections, spans, text_of

ACCEPTED = sections(text_of("http"))["What is accepted"]
REJECTED = sections(text_of("http"))["Rejected requests"]


def test_accepted_paths_are_documented() -> None:
    """Each path on which events are accepted."""
    named = {
        span.removeprefix("POST ")
        for span in spans(ACCEPTED.partition("| case |")[0])
        if re.match(r"(?:POST )?/\w", span)
    }
    known = {route.name for route in Routes(otlp=True).all()} - {"other"}
    assert known <= named
    assert {path for path in named - known if "ingest" not in path} == set()


def test_passed_paths_are_documented() -> None:
    """The allow-list is the first column of the table."""
    rows = re.findall(r"^\| (`[^|]+) \| `upstream", text_of("passthrough"), re.MULTILINE)
    named = {path.removesuffix("/…") for row in rows for path in re.findall(r"`(/[^`]+)`", row)}
    assert named == {route.name for route in PassedRoutes().all()}


def test_statuses_are_documented() -> None:
    """Each fixed answer of the listener is in the table of answers, and with its
    reason in that of rejections.
    """
    fixed = [answer for answer in vars(answers).values() if isinstance(answer, HttpAnswer)]
    assert {answer.status for answer in fixed} <= {
        int(status) for status in re.findall(r"\b([2-5]\d\d)\b", ACCEPTED)
    }
    stated = {
        name: {int(status) for status in statuses.split(", ")}
        for names, statuses in re.findall(r"^\| (`[^|]+) \| ([\d, ]+) \|", REJECTED, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert {
        (answer.reason, answer.status)
        for answer in fixed
        if answer.reason and answer.status not in stated[answer.reason]
    } == set()
