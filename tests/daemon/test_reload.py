"""What differs between two configurations."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.config.keys import keys
from forwarder.config.settings import Settings
from forwarder.daemon.daemon import OWN_KEYS
from forwarder.daemon.pipeline import RELOADABLE
from forwarder.daemon.reload import changed_keys
from tests.support.repository import ROOT


def configured(**sections: Any) -> Settings:
    """Settings with an upstream."""
    return Settings.parse({"upstream": {"url": "https://analytics.example.com"}, **sections})


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


def test_what_can_be_reloaded_exists_and_is_documented() -> None:
    """Each name in the lists of live keys is a setting, or a section of them, that docs/operations.md names."""
    document = (ROOT / "docs" / "operations.md").read_text()
    names = {".".join(path) for path in keys()}
    assert names >= RELOADABLE
    assert all(any(name.startswith(section) for name in names) for section in OWN_KEYS)
    assert [key for key in (*RELOADABLE, *(f"{section}*" for section in OWN_KEYS)) if f"`{key}`" not in document] == []
