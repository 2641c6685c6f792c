"""What differs between two configurations."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.config.settings import Settings
from forwarder.runtime.pipeline import RELOADABLE
from forwarder.runtime.reloading import changed_keys


def configured(**sections: Any) -> Settings:
    """Settings with an upstream."""
    return Settings.model_validate({"upstream": {"url": "https://analytics.example.com"}, **sections})


def test_nothing_differs_from_itself() -> None:
    """Two readings of the same configuration have no changed keys."""
    assert changed_keys(configured(), configured()) == []


@pytest.mark.parametrize(
    ("sections", "changed"),
    [
        ({"batch": {"max_age": "5s"}}, ["batch.max_age"]),
        ({"sources": {"http": {"tls": {"cert_file": "/c.pem", "key_file": "/k.pem"}}}}, ["tls.cert_file", "tls.key_file"]),
        ({"sources": {"http": {"api_keys": ["phc_abcdefghij"]}}}, ["api_keys"]),
        ({"delivery": {"retry": {"initial": "1s"}, "ordering": "strict"}}, ["delivery.ordering", "delivery.retry.initial"]),
        ({"batch": {"max_age": "1000ms"}}, []),
    ],
)
def test_changed_keys_have_their_dotted_names(sections: dict[str, Any], changed: list[str]) -> None:
    """Down to the key that a user wrote, and only if its value differs, not its spelling."""
    found = changed_keys(configured(), configured(**sections))
    assert [key.removeprefix("sources.http.") for key in found] == changed
    assert set(changed_keys(configured(**sections), configured())) == set(found)


def test_what_can_be_reloaded_exists() -> None:
    """Each name in the list of live keys is a setting."""
    model = configured().model_dump()
    for key in RELOADABLE:
        value: Any = model
        for name in key.split("."):
            value = value[name]
