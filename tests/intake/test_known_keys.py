"""Which project keys are known."""

from __future__ import annotations

from forwarder.core.event import Lane
from forwarder.intake.known_keys import KnownKeys
from forwarder.storage.key_file import MAX_KEYS, KeyHashes


def test_configured_verified_and_remembered_keys_are_known() -> None:
    """And no others; a list that is read again counts from then on."""
    known = KnownKeys(["phc_listed"], ["phc_source"])
    known.verify("phc_verified")
    known.remember(KeyHashes(b"salt", ()).with_keys(["phc_remembered"]))
    for key in ("phc_listed", "phc_source", "phc_verified", "phc_remembered"):
        assert key in known
        assert known.pool_of(Lane(key, historical=True)) is None
    assert "phc_other" not in known
    assert known.pool_of(Lane("phc_other")) is known.unknown
    known.configure(["phc_other"])
    assert "phc_other" in known
    assert "phc_listed" not in known


def test_who_is_told_of_changes() -> None:
    """Once for each key that becomes known; a remembered key that is verified again is no change, but is written down."""
    known, heard = KnownKeys(), []
    known.on_change, known.on_verified = (lambda: heard.append("change")), (lambda: heard.append("verified"))
    hashes = KeyHashes(b"salt", ()).with_keys(["phc_a"])
    known.remember(hashes)
    known.remember(hashes)
    known.verify("phc_a")
    known.verify("phc_b")
    known.verify("phc_b")
    assert heard == ["change", "verified", "change", "verified"]


def test_when_there_is_something_to_protect() -> None:
    """Any known key; without the key check only the list for senders, who could become known in no other way."""
    assert not KnownKeys().protects
    assert KnownKeys([], ["phc_source"]).protects
    assert not KnownKeys([], ["phc_source"], verifiable=False).protects
    assert KnownKeys(["phc_listed"], verifiable=False).protects
    for known in (KnownKeys(), KnownKeys(verifiable=False)):
        known.remember(KeyHashes(b"salt", ()).with_keys(["phc_a"]))
        assert known.protects is known.verifiable


def test_verified_keys_are_bounded() -> None:
    """The one verified longest ago is forgotten first."""
    known = KnownKeys()
    for number in range(MAX_KEYS + 5):
        known.verify(f"phc_{number}")
    assert "phc_4" not in known
    assert "phc_5" in known
    assert len(known.verified()) == MAX_KEYS
