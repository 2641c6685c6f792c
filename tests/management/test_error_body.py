"""What the bodies of errors tell."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.management.error_body import LONGEST, ErrorDetails, is_web_page, read_error_body
from forwarder.management.transport import HttpReply
from tests.support.cases import cases

KEY = "phx_0123456789abcdefABCDEF"
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def of(body: Any, status: int = 400) -> ErrorDetails:
    """What a JSON body tells."""
    return read_error_body(HttpReply(status, json.dumps(body).encode(), "application/json"), KEY)


def test_the_service_own_shape() -> None:
    """Type, code, detail and field are taken over."""
    body = {
        "type": "validation_error",
        "code": "required",
        "detail": "This field is required.",
        "attr": "domain",
    }
    assert of(body) == ErrorDetails(
        "validation_error", "required", "This field is required.", "domain"
    )
    assert of({**body, "attr": None}).field is None


@cases(
    ("body", "detail", "field"),
    [
        ({"detail": "Not found."}, "Not found.", None),
        ({"error": "no such thing"}, "no such thing", None),
        ({"error": {"message": "no such thing", "code": 7}}, "no such thing", None),
        ({"errors": [{"detail": "first"}, {"detail": "second"}]}, "first", None),
        ({"message": "no such thing"}, "no such thing", None),
        ({"type": "about:blank", "title": "Bad", "status": 400}, "Bad", None),
        (
            {"error": "invalid_token", "error_description": "The token expired."},
            "The token expired.",
            None,
        ),
        ({"domain": ["This field is required.", "And more."]}, "This field is required.", "domain"),
        ({"message": ["Too long."]}, "Too long.", "message"),
        ({"destination": {"type": ["Unknown."]}}, "Unknown.", "destination"),
        ({"non_field_errors": ["Doesn't fit."]}, "Doesn't fit.", None),
        (["one", "two"], "one", None),
        ("just words", "just words", None),
        ({}, "Bad Request", None),
        (None, "Bad Request", None),
        (7, "7", None),
        ({"detail": None, "attr": None}, "Bad Request", None),
    ],
)
def test_other_shapes(body: Any, detail: str, field: str | None) -> None:
    """What other servers' errors look like is understood, as far as it goes."""
    error = of(body)
    assert (error.detail, error.field) == (detail, field)


@cases(
    ("status", "kind", "code"),
    [
        (400, "validation_error", "bad_request"),
        (401, "authentication_error", "unauthorized"),
        (403, "authentication_error", "forbidden"),
        (404, "invalid_request", "not_found"),
        (429, "throttled_error", "too_many_requests"),
        (502, "server_error", "bad_gateway"),
        (599, "server_error", "status_599"),
    ],
)
def test_a_body_without_an_error_is_shown_by_its_status(status: int, kind: str, code: str) -> None:
    """Type and code are never empty: without a body they are those of the status."""
    error = read_error_body(HttpReply(status), KEY)
    assert (error.type, error.code) == (kind, code)


def test_plain_text_is_shown() -> None:
    """A text is shown as it is, on one line."""
    assert (
        read_error_body(HttpReply(502, b"upstream\r\n  failed\n", "text/plain"), KEY).detail
        == "upstream failed"
    )


@cases(
    ("body", "content_type", "detail"),
    [
        (
            b"<!DOCTYPE html><html><head><title>502 Bad &amp; Gateway</title>",
            "text/html; charset=utf-8",
            "a web page, '502 Bad & Gateway'",
        ),
        (b"  <!-- hello --> <HTML><body>no title", "", "a web page"),
        (b"<h1>Oops</h1>", "text/html", "a web page"),
    ],
)
def test_a_web_page_is_named_as_such(body: bytes, content_type: str, detail: str) -> None:
    """Of a web page its title is shown, whatever it says to be."""
    assert read_error_body(HttpReply(502, body, content_type), KEY).detail == detail


def test_nothing_is_no_page() -> None:
    """An empty answer isn't a web page, even if it says so."""
    assert not is_web_page(HttpReply(200, b" ", "text/html"))


def test_the_key_is_never_repeated() -> None:
    """A server that repeats the key doesn't get it into an error; nor any other key."""
    error = of(
        {
            "type": KEY,
            "code": f"x{KEY}",
            "detail": f"the key {KEY} and phx_otherotherother and phc_projectproject",
            "attr": KEY,
        }
    )
    assert "0123456789" not in repr(error)
    assert "otherother" not in repr(error)
    assert "projectproject" not in repr(error)


def test_a_key_at_the_edge_of_what_is_shown_is_masked() -> None:
    """The text is cut after keys are taken out of it, or the beginning of one would remain."""
    for length in range(LONGEST - len(KEY), LONGEST + 2):
        assert (
            "phx_01"
            not in read_error_body(
                HttpReply(502, b"x" * length + KEY.encode(), "text/plain"), KEY
            ).detail
        )


def test_what_a_terminal_would_act_on_is_gone() -> None:
    """Escapes, line breaks and marks that turn the direction of writing don't get through."""
    detail = of({"detail": "a\x1b[31mred\u202e\n\tb\u2028c\x9bd"}).detail
    assert detail.isprintable()
    assert detail == "a [31mred b c d"


def test_the_text_of_an_error_is_short() -> None:
    """A long text is cut."""
    assert len(of({"detail": "x" * 10_000}).detail) == LONGEST + 1


def test_deep_nesting_is_no_trouble() -> None:
    """A body that is nested deeply tells nothing, and breaks nothing."""
    assert read_error_body(HttpReply(400, b'{"error":' * 5_000, ""), KEY).code == "bad_request"
    assert (
        read_error_body(HttpReply(400, b'{"error":' * 200 + b'"x"' + b"}" * 200, ""), KEY).detail
        == "Bad Request"
    )


@settings(deadline=None)
@given(JSON)
def test_any_json_becomes_a_text(body: Any) -> None:
    """Whatever the body of an error is, there are a type, a code and words, printable and short."""
    error = of(body)
    assert error.type
    assert error.code
    assert error.detail
    assert all(
        text.isprintable() and len(text) <= LONGEST + 1
        for text in (error.type, error.code, error.detail, error.field or "")
    )


@settings(deadline=None)
@given(
    st.binary(max_size=300), st.sampled_from(["", "text/html", "application/json", "text/plain"])
)
def test_any_bytes_become_a_text(body: bytes, content_type: str) -> None:
    """Bytes that are no text, too."""
    assert read_error_body(HttpReply(500, body, content_type), KEY).detail.isprintable()
