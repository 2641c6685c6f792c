"""The policies that settings become, and the keys that a reload can change."""

from __future__ import annotations

from typing import Any

from forwarder.config.keys import keys
from forwarder.config.settings import Settings
from forwarder.core.event import Lane
from forwarder.core.ports import Ordering
from forwarder.daemon.policies import (
    LIVE_KEYS,
    LIVE_SECTIONS,
    batch_policy,
    changed_keys,
    keys_needing_restart,
    lane_ordering,
)
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.whole import KEY, settings

NOWHERE = "http://127.0.0.1:9"
LIVE = Lane(KEY)
HISTORICAL = Lane(KEY, historical=True)


def configured(**sections: Any) -> Settings:
    """Settings with an upstream."""
    return Settings.parse({"upstream": {"url": "https://analytics.example.com"}, **sections})


def test_nothing_differs_from_itself() -> None:
    """Two readings of the same configuration have no changed keys."""
    assert changed_keys(configured(), configured()) == []


@cases(
    ("sections", "changed"),
    [
        ({"batch": {"max_age": "5s"}}, ["batch.max_age"]),
        (
            {"sources": {"http": {"tls": {"cert_file": "/c.pem", "key_file": "/k.pem"}}}},
            ["tls.cert_file", "tls.key_file"],
        ),
        ({"sources": {"http": {"api_keys": ["phc_abcdefghij"]}}}, ["api_keys"]),
        (
            {"delivery": {"retry": {"initial": "1s"}, "ordering": "strict"}},
            ["delivery.ordering", "delivery.retry.initial"],
        ),
        ({"batch": {"max_age": "1000ms"}}, []),
    ],
)
def test_changed_keys_have_their_dotted_names(sections: dict[str, Any], changed: list[str]) -> None:
    """Down to the key that a user wrote, and only if its value differs, not its spelling."""
    changes = changed_keys(configured(), configured(**sections))
    assert [key.removeprefix("sources.http.") for key in changes] == changed
    assert set(changed_keys(configured(**sections), configured())) == set(changes)


def test_only_what_a_reload_cannot_change_needs_a_restart() -> None:
    """The keys that the pipeline changes live don't, nor do those that
    loading and the shutdown apply.
    """
    live = {
        "log": {"level": "error"},
        "shutdown": {"drain_timeout": "1s"},
        "batch": {"max_events": 7},
    }
    assert keys_needing_restart(configured(), configured(**live)) == []
    assert keys_needing_restart(
        configured(), configured(**live, buffer={"max_bytes": "32MiB"})
    ) == ["buffer.max_bytes"]


def test_reloadable_settings_exist_and_are_documented() -> None:
    """Each name in the lists of live keys is a setting, or a section of them, that
    docs/how-to/operations.md names.
    """
    document = text_of("restart")
    names = {".".join(path) for path in keys()}
    assert names >= LIVE_KEYS
    assert all(any(name.startswith(section) for name in names) for section in LIVE_SECTIONS)
    assert [
        key
        for key in (*LIVE_KEYS, *(f"{section}*" for section in LIVE_SECTIONS))
        if f"`{key}`" not in document
    ] == []


@cases(
    ("configured", "live", "historical"),
    [
        (None, Ordering.NONE, Ordering.PER_DISTINCT_ID),
        (Ordering.NONE, Ordering.NONE, Ordering.NONE),
        (Ordering.PER_DISTINCT_ID, Ordering.PER_DISTINCT_ID, Ordering.PER_DISTINCT_ID),
        (Ordering.STRICT, Ordering.STRICT, Ordering.STRICT),
    ],
)
def test_orderings(configured: Ordering | None, live: Ordering, historical: Ordering) -> None:
    """What is configured holds for all lanes; without it history is kept in
    order, and live events aren't.
    """
    ordering_of = lane_ordering(
        settings(NOWHERE, delivery={"ordering": configured.value} if configured else {})
    )
    assert (ordering_of(LIVE), ordering_of(HISTORICAL)) == (live, historical)


def test_bodies_stay_below_the_services_limit() -> None:
    """A batch is never larger than the upstream takes, whatever `batch.max_bytes` says."""
    assert batch_policy(settings(NOWHERE, upstream={"max_body": "1MB"})).max_bytes == 1_000_000
    assert batch_policy(settings(NOWHERE, batch={"max_bytes": "2MB"})).max_bytes == 2_000_000
