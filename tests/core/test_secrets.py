"""Making secrets fit to be shown."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.secrets import mask_credentials, mask_emails, mask_key, mask_secrets, redact
from tests.support.cases import cases

bodies = st.text(string.ascii_letters + string.digits + "_", min_size=8, max_size=60)


@cases(
    ("key", "shown"),
    [
        ("phc_0123456789abcd", "phc_…abcd"),
        ("phx_0123456789abcd", "phx_…abcd"),
        ("0123456789abcd", "…abcd"),
        ("phc_short", "phc_…"),
        ("", "…"),
    ],
)
def test_a_key_keeps_its_kind_and_its_last_four_characters(key: str, shown: str) -> None:
    """Enough for its owner to tell it from others; of a short key nothing."""
    assert mask_key(key) == shown


@given(st.text(), st.sampled_from(["phc_", "phx_", "phs_"]), bodies, st.text())
def test_no_key_in_a_text_is_shown_whole(before: str, prefix: str, body: str, after: str) -> None:
    """Whatever stands around it."""
    assert prefix + body not in mask_secrets(before + prefix + body + after)


@given(st.text().filter(lambda text: "@" not in text and "ph" not in text))
def test_other_text_is_left_alone(text: str) -> None:
    """Nothing else is touched."""
    assert mask_secrets(text) == text


@cases(
    ("text", "shown"),
    [
        ("http://user:hunter2@proxy:3128/x", "http://…@proxy:3128/x"),
        ("see https://hunter2@h and http://a:b@c", "see https://…@h and http://…@c"),
        ("http://u:p@ss@h", "http://…@h"),
        ("https://h/path@2x", "https://h/path@2x"),
        ("me@example.com", "me@example.com"),
    ],
)
def test_an_address_loses_its_credentials(text: str, shown: str) -> None:
    """User and password go, the host stays; an @ elsewhere means nothing."""
    assert mask_credentials(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            {
                "password": "x",
                "userPasswd": 1,
                "API-Key": ["x"],
                "api_key": "x",
                "Private Key": {},
                "sessionCookie": None,
            },
            "…",
        ),
        (
            {
                "access_token": "x",
                "$token": "x",
                "client_secret": "x",
                "Authorization": "x",
                "credentials": "x",
            },
            "…",
        ),
    ],
)
def test_values_of_secret_names_are_hidden(value: dict[str, object], shown: str) -> None:
    """Whatever a property holds whose name looks like a secret's, in any spelling and depth, is
    not shown.
    """
    assert redact([{"a": value}]) == [{"a": dict.fromkeys(value, shown)}]


@cases(
    ("text", "shown"),
    [
        (
            "https://x.example/reset?token=abc&page=2#access_token=abc",
            "https://x.example/reset?token=…&page=2#access_token=…",
        ),
        (
            "key phc_aaaaaaaaaaaa1234 in https://me:pw@x.example/",
            "key phc_…1234 in https://…@x.example/",
        ),
        ("a password of mine = 7", "a password of mine = 7"),
    ],
)
def test_secrets_in_texts_are_masked(text: str, shown: str) -> None:
    """Parameters of addresses that are named like secrets, keys, and credentials;
    other text stays.
    """
    assert redact({"name": text, "n": [1.5, None, True]}) == {"name": shown, "n": [1.5, None, True]}


def test_masking_takes_no_longer_for_hostile_texts() -> None:
    """Its time grows with the text, whatever that repeats: a sender doesn't hold up a process that
    shows its events (it took hours).
    """
    for text in ("=" + "?token" * 20_000, "=?" + "token" * 20_000, "=" + "?&;#" * 20_000):
        assert redact(text) == text


@cases(
    ("text", "shown"),
    [
        ("anna.b+c@mail.example.co.uk", "…@mail.example.co.uk"),
        ("mailto:anna@example.com, b@example.com", "mailto:…@example.com, …@example.com"),
        (
            "https://x.example/?email=anna%40example.com&n=1",
            "https://x.example/?email=…%40example.com&n=1",
        ),
        ("user@localhost, @anna", "user@localhost, @anna"),
        ("https://…@x.example/", "https://…@x.example/"),
    ],
)
def test_email_addresses_are_masked(text: str, shown: str) -> None:
    """Their domain stays; in addresses of pages, too."""
    assert mask_emails({text: [text, 1, None]}) == {shown: [shown, 1, None]}


def test_masking_addresses_takes_no_longer_for_hostile_texts() -> None:
    """Its time grows with the text."""
    for text in ("a" * 200_000 + "@", "a@" * 100_000, "a@" + "a." * 100_000):
        assert len(mask_emails(text)) <= len(text)
