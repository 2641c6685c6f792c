"""Secrets of destinations: never shown, never lost by sending back what was shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sandbox.exports.destinations import change_destination, without_secrets
from tests.support.cases import cases

S3 = {
    "type": "S3",
    "config": {"bucket_name": "b", "aws_access_key_id": "id", "aws_secret_access_key": "hidden"},
}
_HIDDEN = "hidden"
_NAMES = st.sampled_from(
    [
        "host",
        "port",
        "Password",
        "private-key",
        "user",
        "nested",
        "url",
        "items",
        "aws_access_key_id",
    ]
)
_URLS = st.sampled_from(
    [
        f"https://ann:{_HIDDEN}@host/",
        f"postgres://:{_HIDDEN}@h@x/db",
        f"https://h/?a=1&token={_HIDDEN}",
        "https://host/",
    ]
)
_LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "x", "***"]) | _URLS
_CONFIGS = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_KINDS = st.sampled_from(["S3", "Postgres", "SomethingNew"])


@cases(
    "name",
    [
        *(
            "password",
            "Password",
            "db_password",
            "passwd",
            "secret",
            "clientSecret",
            "api_key",
            "apiKey",
            "access-token",
            "private_key",
        ),
        *(
            "PRIVATE KEY",
            "private_key_passphrase",
            "connection_string",
            "aws_access_key_id",
            "credentials",
            "Authorization",
            "account_key",
        ),
    ],
)
def test_a_name_tells_a_secret(name: str) -> None:
    """For any type of destination, in any spelling, at any depth, whatever the value is."""
    config = {"host": "h", "inner": [{name: {"deep": 1}, "kept": 1}], name: "x"}
    assert without_secrets({"type": "New", "config": config}) == {
        "type": "New",
        "config": {"host": "h", "inner": [{"kept": 1}]},
    }


@cases(
    "name",
    [
        "bucket_name",
        "region",
        "host",
        "port",
        "key_prefix",
        "table_name",
        "database",
        "schema",
        "url",
    ],
)
def test_what_is_no_secret_is_shown(name: str) -> None:
    """Settings that one wants to read."""
    assert without_secrets({"type": "S3", "config": {name: "x"}})["config"] == {name: "x"}


def test_a_type_has_secrets_of_its_own() -> None:
    """The user of a database is one; of an unknown destination it isn't."""
    for kind in ("Postgres", "postgres", "Redshift", "Snowflake"):
        assert without_secrets({"type": kind, "config": {"user": "u", "host": "h"}})["config"] == {
            "host": "h"
        }
    assert without_secrets({"type": "New", "config": {"user": "u"}})["config"] == {"user": "u"}


@cases("config", [None, 3, "text", [], ["a", 1], {}, {"a": None}])
def test_any_config_can_be_shown(config: Any) -> None:
    """It needn't be an object."""
    assert without_secrets({"type": "New", "config": config})["config"] == config


def test_of_an_address_the_password_is_hidden() -> None:
    """The rest of it is of use; sent back so, it keeps the password, and with
    another host it doesn't.
    """
    old = {"type": "New", "config": {"url": "postgres://ann:hid@den@host:5432/db"}}
    shown = without_secrets(old)
    assert shown["config"] == {"url": "postgres://ann:***@host:5432/db"}
    assert change_destination(old, shown) == old
    other = {"type": "New", "config": {"url": "postgres://ann:***@elsewhere/db"}}
    assert change_destination(old, other) == other


@cases("name", ["token", "api_key", "apiKey", "key", "sig", "X-Signature-Secret"])
def test_of_a_query_the_secrets_are_hidden(name: str) -> None:
    """Hooks have their keys there. Sent back so, the address keeps them."""
    old = {
        "type": "HTTP",
        "config": {"url": f"https://host/hook?team=a&{name}=hidden&{name}=hidden#top"},
    }
    shown = without_secrets(old)
    assert shown["config"] == {"url": f"https://host/hook?team=a&{name}=***&{name}=***#top"}
    assert change_destination(old, shown) == old


@pytest.mark.parametrize("user", ["hidden", "hidden:"])
def test_a_user_without_a_password_is_hidden(user: str) -> None:
    """Services take their keys so. Sent back so, the address keeps it."""
    old = {"type": "HTTP", "config": {"url": f"https://{user}@host/hook"}}
    shown = without_secrets(old)
    assert shown["config"] == {"url": "https://***@host/hook"}
    assert change_destination(old, shown) == old


@cases(
    "text",
    ["https://host/@ann", "what?key=x", "https://host/?team=a&page=2", "https://host/token=a"],
)
def test_other_text_is_shown(text: str) -> None:
    """What is no address, and what is no secret of one."""
    assert without_secrets({"type": "HTTP", "config": {"note": text}})["config"] == {"note": text}


@cases("mask", ["*", "********", "••••", "…", "<masked>", "[REDACTED]"])
def test_a_mask_keeps_a_secret(mask: str) -> None:
    """Where there is none yet, a mask makes none."""
    config = {"bucket_name": "c", "aws_secret_access_key": mask}
    assert change_destination(S3, {"type": "S3", "config": config})["config"] == {
        # The section is an object, which its type doesn't say.
        **S3["config"],  # type: ignore[dict-item]
        "bucket_name": "c",
    }
    answer = change_destination({"type": "S3", "config": None}, {"type": "S3", "config": config})
    assert answer["config"] == {"bucket_name": "c"}


def test_a_secret_that_is_sent_is_the_new_one() -> None:
    """Also an empty one, and null."""
    for secret in ("new", "", None):
        change = {"type": "s3", "config": {"aws_secret_access_key": secret}}
        assert change_destination(S3, change) == {
            "type": "s3",
            "config": {"aws_access_key_id": "id", "aws_secret_access_key": secret},
        }


def test_another_type_takes_no_secret_over() -> None:
    """Nor anything else of the old config."""
    assert change_destination(S3, {"type": "New", "config": {"a": 1}}) == {
        "type": "New",
        "config": {"a": 1},
    }
    assert change_destination(S3, {"type": "New"}) == {"type": "New", "config": None}


def test_a_change_without_config_leaves_it() -> None:
    """And null empties it, secrets and all."""
    assert change_destination(S3, {"type": "S3"}) == S3
    assert change_destination(S3, {"type": "S3", "config": None}) == {"type": "S3", "config": None}


def test_secrets_in_a_list_go_with_what_is_the_same() -> None:
    """Also in another order; what has become something else has none."""
    old = {
        "type": "New",
        "config": [
            {"host": "a", "password": 1},
            {"host": "b", "password": 2},
            {"password": 3},
            {"password": 4},
        ],
    }
    change = {"type": "New", "config": [{"host": "b"}, {"host": "c"}, {"host": "a"}, {}, {}, {}]}
    merged = [
        {"host": "b", "password": 2},
        {"host": "c"},
        {"host": "a", "password": 1},
        {"password": 3},
        {"password": 4},
        {},
    ]
    assert change_destination(old, change)["config"] == merged


@settings(deadline=None)
@given(_KINDS, _CONFIGS)
def test_secrets_are_never_shown_and_never_lost(kind: str, config: Any) -> None:
    """What was shown, sent back, is the same destination; showing what is shown changes nothing."""
    destination = {"type": kind, "config": config}
    shown = without_secrets(destination)
    assert _HIDDEN not in json.dumps(shown)
    assert "assword" not in json.dumps(shown)
    assert without_secrets(shown) == shown
    assert change_destination(destination, shown) == destination


@settings(deadline=None)
@given(_KINDS, _CONFIGS, _CONFIGS)
def test_a_change_is_shown_as_it_was_sent(kind: str, config: Any, new: Any) -> None:
    """But for its secrets, whatever was there before."""
    before = {"type": kind, "config": config}
    change = {"type": kind, "config": new}
    after = change_destination(before, change)
    assert without_secrets(after) == without_secrets(change)
    assert change_destination(after, change) == after


def test_what_lies_deep_is_looked_at_once() -> None:
    """Not once more for each list around it."""
    config: Any = [{"password": 1, "host": [number]} for number in range(5_000)]
    for _ in range(60):
        config = [config]
    old = {"type": "New", "config": config}
    assert change_destination(old, without_secrets(old)) == old


def test_a_long_list_takes_no_long_time() -> None:
    """Nothing is compared with everything."""
    old = {
        "type": "New",
        "config": [{"host": number, "password": number} for number in range(5_000)],
    }
    change = {"type": "New", "config": without_secrets(old)["config"][::-1]}
    assert change_destination(old, change)["config"][0] == {"host": 4_999, "password": 4_999}
