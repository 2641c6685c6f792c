"""What a message proposes for a name that doesn't exist."""

from __future__ import annotations

from forwarder.core.near_names import near_name, propose_name
from tests.support.cases import cases

KNOWN = ("active", "rollout_percentage", "Key")


@cases(
    ("name", "near"),
    [
        ("actve", "active"),
        ("ACTIVE", "active"),
        ("key", "Key"),
        ("rollout", "rollout_percentage"),
        ("rolout", "rollout_percentage"),
        ("active_flag", "active"),
        ("ro", None),
        ("zzz", None),
    ],
)
def test_the_nearest(name: str, near: str | None) -> None:
    """By its letters, or by a word in it."""
    assert near_name(name, KNOWN) == near


def test_a_proposal() -> None:
    """The nearest, or all."""
    assert propose_name("actve", KNOWN) == "did you mean active?"
    assert propose_name("zzz", KNOWN) == "known here: Key, active, rollout_percentage"
