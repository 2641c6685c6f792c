"""The outcome table, row by row, without a network."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.outcome import (
    Bisect,
    Delivered,
    Halt,
    HaltReason,
    Outcome,
    Reply,
    Retry,
    Scope,
    Split,
)
from forwarder.delivery.classify import MAX_WORDS, DeliveryWarning, classify, summarize
from tests.support.cases import cases

JSON = "application/json"
HTML = "text/html; charset=utf-8"

ROWS: list[tuple[Reply, Outcome]] = [
    (Reply(200, JSON, body=b'{"status":"Ok"}'), Delivered()),
    (Reply(200, "", body=b""), Delivered()),
    (Reply(200, "text/plain", body=b" \r\n"), Delivered()),
    (Reply(200, "text/plain", body=b"1"), Delivered()),
    (
        Reply(200, JSON, body=b'{"quota_limited":["events"]}'),
        Delivered(DeliveryWarning.QUOTA_LIMITED),
    ),
    (Reply(200, JSON, body=b'{"quota_limited":[]}'), Delivered()),
    (Reply(200, JSON, body=b'{"cut'), Delivered(DeliveryWarning.ODD_BODY)),
    (Reply(200, JSON, body=b"[" * 60_000), Delivered(DeliveryWarning.ODD_BODY)),
    (Reply(200, "text/plain", body=b"\xff\xfe"), Delivered(DeliveryWarning.ODD_BODY)),
    (Reply(201), Delivered(DeliveryWarning.OTHER_2XX)),
    (Reply(204), Delivered(DeliveryWarning.OTHER_2XX)),
    (Reply(301), Halt(HaltReason.WRONG_ADDRESS, "HTTP 301")),
    (Reply(308), Halt(HaltReason.WRONG_ADDRESS, "HTTP 308")),
    (Reply(400, body=b"no"), Bisect("HTTP 400: no")),
    (Reply(401), Halt(HaltReason.UNKNOWN_KEY, "HTTP 401")),
    (Reply(403), Halt(HaltReason.FORBIDDEN, "HTTP 403")),
    (Reply(404), Halt(HaltReason.WRONG_ADDRESS, "HTTP 404")),
    (Reply(405), Halt(HaltReason.WRONG_ADDRESS, "HTTP 405")),
    (Reply(408), Retry("HTTP 408", Scope.LANE)),
    (Reply(413), Split("HTTP 413")),
    (Reply(415), Halt(HaltReason.REJECTED, "HTTP 415")),
    (Reply(418), Halt(HaltReason.REJECTED, "HTTP 418")),
    (Reply(425), Retry("HTTP 425", Scope.LANE)),
    (Reply(429, retry_after=3.0), Retry("HTTP 429", Scope.LANE, 3.0)),
    (Reply(500), Retry("HTTP 500", Scope.LANE)),
    (Reply(502), Retry("HTTP 502", Scope.LANE)),
    (Reply(503, retry_after=9.0), Retry("HTTP 503", Scope.UPSTREAM, 9.0)),
    (Reply(508), Retry("HTTP 508", Scope.LANE)),
    (Reply(508, body=b"seen", loop=True), Halt(HaltReason.LOOP, "HTTP 508: seen")),
    (Reply(599), Retry("HTTP 599", Scope.LANE)),
    (
        Reply(None, error="the connection was reset"),
        Retry("the connection was reset", Scope.UPSTREAM),
    ),
    (Reply(None, retry_after=5.0, error="cut off"), Retry("cut off", Scope.UPSTREAM, 5.0)),
]


@cases(("reply", "outcome"), ROWS, ids=[f"{reply.status}-{reply.body[:12]!r}" for reply, _ in ROWS])
def test_each_kind_of_reply_has_its_outcome(reply: Reply, outcome: Outcome) -> None:
    """Each kind of reply has its outcome."""
    assert classify(reply) == outcome


def test_a_web_page_is_retried_once_and_then_halts() -> None:
    """200 with HTML: an accident the first time, a captive proxy the second; whatever case and
    parameters the type has.
    """
    page = Reply(200, "Text/HTML;charset=utf-8", body=b"<html>")
    assert classify(page) == Retry("HTTP 200: <html>", Scope.LANE, overload=False)
    assert classify(page, html_before=True) == Halt(HaltReason.CAPTIVE_PROXY, "HTTP 200: <html>")
    assert classify(Reply(400, HTML, body=b"<html>"), html_before=True) == Bisect(
        "HTTP 400: <html>"
    )


def test_the_upstreams_words_are_short_printable_and_without_the_key() -> None:
    """What the upstream said fits a log line, and the project key isn't in it, not even in part."""
    said = summarize(
        Reply(400, body=b"bad\r\n\x1b[31m key phc_secret123 " + b"x" * 1000 + b"phc_secret123"),
        "phc_secret123",
    )
    assert said.startswith("HTTP 400: bad [31m key … xxx")
    assert len(said) <= MAX_WORDS + 10
    straddling = summarize(
        Reply(400, body=b"x" * (MAX_WORDS - 4) + b"phc_secret123"), "phc_secret123"
    )
    assert "phc_" not in straddling
    body = b"neither phc_anothersecret9876 nor phx_personalsecret5432 via http://me:pass@proxy"
    others = summarize(Reply(400, body=body), "phc_secret123")
    assert others == "HTTP 400: neither phc_…9876 nor phx_…5432 via http://…@proxy"


def test_a_redirect_is_said_with_its_place() -> None:
    """Without the key, which a proxy may have put into it; its body says nothing more."""
    said = summarize(
        Reply(301, body=b"moved", location="/login?key=phc_secret123"), "phc_secret123"
    )
    assert said == "HTTP 301, a redirect to /login?key=…"


@given(
    st.one_of(st.none(), st.integers(100, 999)),
    st.binary(max_size=300),
    st.text(max_size=30),
    st.booleans(),
)
def test_every_reply_has_an_outcome(
    status: int | None, body: bytes, content_type: str, html_before: bool
) -> None:
    """No reply, however odd, makes an exception; only a 2xx is ever delivered."""
    outcome = classify(Reply(status, content_type, body=body, error="x"), html_before=html_before)
    assert not isinstance(outcome, Delivered) or (status is not None and 200 <= status < 300)
