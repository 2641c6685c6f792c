"""What errors say, and what they never do."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import traceback

import pytest

from forwarder.management import ApiError, Client, InvalidCall
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, raw, refusal, said, talking
from tests.support.cases import cases
from tests.support.upstream import Answer, Fault, failing


@cases(
    ("answer", "hint"),
    [
        (said({"detail": "Invalid key."}, 401), "Check the key: it must be a personal API key"),
        (
            said({"detail": "API key missing required scope 'organization:read'"}, 403),
            "Give the key the scope organization:read.",
        ),
        (
            said({"detail": "You do not have permission."}, 403),
            "It takes the scope organization:read, and membership of at least",
        ),
        (
            said({"detail": "Not found."}, 404),
            f"Check organization_id {ORGANIZATION}, id {DOMAIN}: ",
        ),
        (said({"code": "invalid", "detail": "No.", "attr": "limit"}, 400), "Correct `limit`."),
        (raw(b"", 407, ""), "The proxy wants a login"),
    ],
)
async def test_errors_say_what_to_do(answer: Answer, hint: str) -> None:
    """Each kind of refusal comes with what to look at."""
    async with talking(None, answer) as (client, _):
        error = await refusal(client.domains.get(ORGANIZATION, DOMAIN))
    assert error.hint.startswith(hint)
    assert error.status == answer.status


async def test_an_error_of_a_field_names_the_field() -> None:
    """An error about a field names it, in the message and for programs."""
    body = {
        "type": "validation_error",
        "code": "required",
        "detail": "This field is required.",
        "attr": "domain",
    }
    async with talking(None, said(body, 400)) as (client, _):
        error = await refusal(client.domains.create(ORGANIZATION, domain=""))
    assert str(error) == "domains create: HTTP 400 required: domain: This field is required."
    assert (error.type, error.code, error.detail, error.field) == (
        "validation_error",
        "required",
        "This field is required.",
        "domain",
    )
    assert not error.unsure


FAULTY = [
    raw(f"key {KEY}".encode(), 400, "text/plain"),
    said({"detail": f"bad key {KEY}", "attr": KEY}, 401),
    said([KEY]),
    raw(f"<title>{KEY}".encode(), 200, "text/html"),
    Answer(302, b"", {"Location": f"https://{KEY}@example.com/{KEY}"}),
    failing(Fault.CLOSE),
    failing(Fault.TRUNCATE),
    raw(b"x", 200, content_encoding="gzip"),
]


@pytest.mark.parametrize("answer", FAULTY, ids=[str(number) for number in range(len(FAULTY))])
async def test_the_key_is_in_no_error(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in an error, what hangs on it, its pickle or its traceback, nor in any log is there
    a key.
    """
    caplog.set_level(logging.DEBUG)
    async with talking(None, answer) as (client, _):
        error = await refusal(client.domains.create(ORGANIZATION, domain="example.com"))
    assert error.__context__ is None
    assert error.__cause__ is None
    shown = io.StringIO()
    traceback.print_exception(error, file=shown)
    everything = [
        str(error),
        repr(error),
        error.hint,
        repr(vars(error)),
        shown.getvalue(),
        str(pickle.dumps(error)),
        caplog.text,
    ]
    assert "0123456789" not in "".join(everything)


def test_an_error_survives_pickling() -> None:
    """Errors go from process to process whole."""
    error = ApiError(
        "m",
        hint="h",
        status=400,
        type="t",
        code="c",
        detail="d",
        field="f",
        retry_after=1.0,
        unsure=True,
    )
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(other), vars(other)) == ("m", vars(error))
    assert vars(pickle.loads(pickle.dumps(InvalidCall("m", hint="h", field="f")))) == vars(
        InvalidCall("m", hint="h", field="f")
    )


async def test_the_key_is_in_no_repr_and_no_pickle() -> None:
    """What belongs to a client shows its address alone, and can't be pickled or copied."""
    async with Client("https://example.com/base", KEY, proxy="http://u:s3cret@proxy:1") as client:
        parts = [
            client,
            client.domains,
            client.domains.list(ORGANIZATION),
            client._caller,
            client._caller._access,
        ]
        shown = " ".join([repr(part) for part in parts])
        assert shown.startswith(
            "<Client of https://example.com/base> <DomainOperations at https://example.com/base> "
            "<Pages of domains list>"
        )
        assert "0123456789" not in shown
        assert "s3cret" not in shown
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="a client holds a key"):
                copying(client)
        for part in (client.domains, client._caller):
            with pytest.raises(TypeError, match="it holds a key"):
                pickle.dumps(part)
        assert "0123456789" not in json.dumps(repr(vars(client)))
