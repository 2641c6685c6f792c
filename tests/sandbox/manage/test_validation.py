"""Bodies, and what is wrong with them. Each field of each endpoint is in `tests/contract`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    BULK_INVITE,
    CREATE_DOMAIN,
    CREATE_INVITE,
    CREATE_PROJECT,
    ENDPOINTS,
    LIST_DOMAINS,
    PAUSE_BATCH_EXPORT,
    RETRY_BATCH_EXPORT_RUN,
    UPDATE_BATCH_EXPORT,
    Endpoint,
)
from forwarder.contract.resources import ErrorType
from forwarder.sandbox.manage.validation import DEEPEST, SentBody, body_of
from forwarder.sandbox.protocol.http import ManagementError
from tests.support.cases import cases

SOMEBODY = {"target_email": "a@example.com"}


def accepted(endpoint: Endpoint[Any, Any], body: Any) -> Any:
    """The accepted fields of a body; bytes are sent as they are."""
    return body_of(
        endpoint,
        SentBody(
            body if isinstance(body, bytes) else json.dumps(body).encode(), "application/json"
        ),
    )


def refused(endpoint: Endpoint[Any, Any], body: Any) -> tuple[str, str | None]:
    """Code and field of the 400."""
    with pytest.raises(ManagementError) as raised:
        accepted(endpoint, body)
    assert raised.value.status == 400
    assert raised.value.kind == (
        ErrorType.INVALID_REQUEST if raised.value.code == "parse_error" else ErrorType.VALIDATION
    )
    assert raised.value.detail
    return raised.value.code, raised.value.attr


@cases(
    ("endpoint", "body", "code", "attr"),
    [
        (CREATE_INVITE, {}, "required", "target_email"),
        (CREATE_INVITE, {"target_email": None}, "null", "target_email"),
        (CREATE_INVITE, {"target_email": ""}, "blank", "target_email"),
        (CREATE_INVITE, {"target_email": " \t"}, "blank", "target_email"),
        (CREATE_INVITE, {"target_email": "nobody"}, "invalid", "target_email"),
        (CREATE_INVITE, {"target_email": "a@example.com\n"}, "invalid", "target_email"),
        (CREATE_INVITE, {"target_email": "a@b@example.com"}, "invalid", "target_email"),
        (CREATE_INVITE, {"target_email": "<a@example.com>"}, "invalid", "target_email"),
        (CREATE_INVITE, {"target_email": "a@b." + "c" * 251}, "max_length", "target_email"),
        (CREATE_INVITE, {**SOMEBODY, "first_name": "x" * 31}, "max_length", "first_name"),
        (CREATE_INVITE, {**SOMEBODY, "level": 2}, "invalid_choice", "level"),
        (CREATE_INVITE, {**SOMEBODY, "level": True}, "invalid_choice", "level"),
        (CREATE_INVITE, {**SOMEBODY, "level": "8"}, "invalid_choice", "level"),
        (CREATE_INVITE, {**SOMEBODY, "level": None}, "null", "level"),
        (CREATE_INVITE, {**SOMEBODY, "send_email": 1}, "invalid", "send_email"),
        (CREATE_INVITE, {**SOMEBODY, "send_email": "true"}, "invalid", "send_email"),
        (
            CREATE_INVITE,
            {**SOMEBODY, "private_project_access": {}},
            "not_a_list",
            "private_project_access",
        ),
        (
            CREATE_INVITE,
            {**SOMEBODY, "private_project_access": [{"id": 1}]},
            "required",
            "private_project_access",
        ),
        (
            CREATE_INVITE,
            {**SOMEBODY, "private_project_access": [None]},
            "null",
            "private_project_access",
        ),
        (
            CREATE_INVITE,
            {**SOMEBODY, "private_project_access": [{"id": "1", "level": "member"}]},
            "invalid",
            "private_project_access",
        ),
        (CREATE_DOMAIN, {"domain": ["x"]}, "invalid", "domain"),
        (CREATE_PROJECT, {"week_start_day": 7}, "max_value", "week_start_day"),
        (CREATE_PROJECT, {"week_start_day": -1}, "min_value", "week_start_day"),
        (CREATE_PROJECT, {"week_start_day": 1.0}, "invalid", "week_start_day"),
        (CREATE_PROJECT, {"week_start_day": False}, "invalid", "week_start_day"),
        (CREATE_PROJECT, {"app_urls": ["x", 5]}, "invalid", "app_urls"),
        (CREATE_PROJECT, {"app_urls": ["x"] * 1001}, "max_length", "app_urls"),
        (
            CREATE_PROJECT,
            {"session_recording_sample_rate": "2"},
            "invalid",
            "session_recording_sample_rate",
        ),
        (CREATE_PROJECT, {"primary_dashboard": 2**63}, "invalid", "primary_dashboard"),
        (UPDATE_BATCH_EXPORT, {"destination": {}}, "required", "destination"),
        (UPDATE_BATCH_EXPORT, {"destination": []}, "invalid", "destination"),
        (UPDATE_BATCH_EXPORT, {"interval": "month"}, "invalid_choice", "interval"),
        (BACKFILL_BATCH_EXPORT, {"start_at": "2026-01-01T00:00:00"}, "invalid", "start_at"),
        (BACKFILL_BATCH_EXPORT, {"start_at": "yesterday"}, "invalid", "start_at"),
        (BULK_INVITE, [SOMEBODY, {}], "required", "1__target_email"),
        (BULK_INVITE, [SOMEBODY, SOMEBODY, {**SOMEBODY, "level": 0}], "invalid_choice", "2__level"),
        (BULK_INVITE, {}, "required", "target_email"),
        (BULK_INVITE, [{}] * 21, "max_length", None),
        (BULK_INVITE, [[]], "invalid", None),
        (BULK_INVITE, "a@example.com", "invalid", None),
    ],
)
def test_fields(endpoint: Endpoint[Any, Any], body: Any, code: str, attr: str | None) -> None:
    """A field that isn't accepted as it is is named, with what is wrong about it."""
    assert refused(endpoint, body) == (code, attr)


@pytest.mark.parametrize("sent", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-00:01"])
def test_times_that_utc_does_not_have_are_refused(sent: str) -> None:
    """There is no year before 1 or after 9999, for those that ignore the time either."""
    for endpoint in (UPDATE_BATCH_EXPORT, BACKFILL_BATCH_EXPORT, PAUSE_BATCH_EXPORT):
        for field in ("start_at", "end_at", "last_paused_at"):
            assert refused(endpoint, {field: sent}) == ("invalid", field)
    assert refused(RETRY_BATCH_EXPORT_RUN, {"finished_at": sent}) == ("invalid", "finished_at")


@cases(
    ("json_value", "code"),
    [
        (b'"\\ud800"', "invalid"),
        (b'"x\\udfffy"', "invalid"),
        (b'{"\\ud800": 1}', "invalid"),
        (b'"\\u0000"', "invalid"),
        (b'{"a": [{"b\\u0000": 1}]}', "invalid"),
        (b"9223372036854775808", "invalid"),
        (b"[-9223372036854775809]", "invalid"),
        (b"1e999", "invalid"),
        (b"-1e999", "invalid"),
        (b"9" * 5000, "parse_error"),
        (b"NaN", "parse_error"),
        (b"Infinity", "parse_error"),
        (b'{"a": -Infinity}', "parse_error"),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "invalid"),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), "invalid"),
        (b"[" * 400_000, "parse_error"),
        (b'{"a":' * 150_000, "parse_error"),
        (b'"\xff"', "parse_error"),
        (b"'x'", "parse_error"),
        (b'"\n"', "parse_error"),
        (b"01", "parse_error"),
        (b"", "parse_error"),
    ],
)
def test_what_cannot_be_kept(json_value: bytes, code: str) -> None:
    """What neither the database nor JSON can carry is refused in an accepted field, however deep;
    it doesn't matter in any other.
    """
    assert refused(CREATE_PROJECT, b'{"modifiers": ' + json_value + b"}") == (
        code,
        "modifiers" if code == "invalid" else None,
    )
    if code == "invalid":
        assert accepted(
            CREATE_PROJECT, b'{"name": "x", "somewhere_else": ' + json_value + b"}"
        ) == {"name": "x"}


@cases(
    "body",
    [
        b" ",
        b"\xef\xbb\xbf{}",
        b"{}{}",
        b'{"name": "x",}',
        b"\x00",
        '{"name": "x"}'.encode("utf-16"),
    ],
)
def test_what_is_no_json(body: bytes) -> None:
    """Another encoding, something after the end, and nothing but white space are no JSON."""
    assert refused(CREATE_PROJECT, body) == ("parse_error", None)


@cases("body", [None, [], [{}], "x", 5, True])
def test_what_is_no_object(body: Any) -> None:
    """A body is an object."""
    assert refused(CREATE_PROJECT, body) == ("invalid", None)


def test_what_is_ignored() -> None:
    """Fields that aren't accepted are left out, read-only ones among them, whatever is in them;
    the last of a repeated one counts.
    """
    assert accepted(CREATE_PROJECT, {"id": "x", "api_token": None, "name": "x", "other": [1]}) == {
        "name": "x"
    }
    assert accepted(CREATE_PROJECT, b'{"name": 5, "name": "x"}') == {"name": "x"}
    assert accepted(CREATE_INVITE, {**SOMEBODY, "created_by": 5}) == SOMEBODY
    assert accepted(LIST_DOMAINS, b"{nonsense") is None


def test_several() -> None:
    """Where several are taken one by itself is taken too, distinguished by its kind of sequence;
    none is none.
    """
    assert accepted(BULK_INVITE, SOMEBODY) == (SOMEBODY,)
    assert accepted(BULK_INVITE, [SOMEBODY]) == [SOMEBODY]
    assert accepted(BULK_INVITE, [SOMEBODY] * 20) == [SOMEBODY] * 20
    assert accepted(BULK_INVITE, []) == []


def test_values_stay_as_they_are() -> None:
    """A JSON value comes through as it was sent: nothing is taken for something else."""
    value = {"a": [1, 1.5, True, None, "1", {"b": {}}], "ü\U0001f600": -(2**63 - 1)}
    assert json.dumps(accepted(CREATE_PROJECT, {"modifiers": value})["modifiers"]) == json.dumps(
        value
    )


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(blacklist_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.data())
def test_whatever_comes(data: st.DataObject) -> None:
    """Any JSON in any field is either taken or refused with the name of a field that was sent or
    is needed; nothing breaks.
    """
    endpoint = data.draw(
        st.sampled_from([endpoint for endpoint in ENDPOINTS if endpoint.takes_body])
    )
    names = sorted(endpoint.request.__required_keys__ | endpoint.request.__optional_keys__)
    body = data.draw(st.dictionaries(st.sampled_from(names), JSON, max_size=3))
    said: set[str | None] = set()
    fields: Any = [body] if endpoint.several else body
    with suppress(ManagementError), noting(said):
        fields = accepted(endpoint, body)
    assert said <= {None, *names}
    assert said or json.loads(json.dumps(fields, allow_nan=False)) == (
        [body] if endpoint.several else body
    )


@contextmanager
def noting(said: set[str | None]) -> Iterator[None]:
    """Note the field of an error."""
    try:
        yield
    except ManagementError as error:
        said.add(error.attr)
        raise
