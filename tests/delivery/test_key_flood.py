"""More keys than can be asked about: what is remembered of them stays bounded."""

from __future__ import annotations

from forwarder.delivery.key_ledger import KeyLedger, KeyStatus

CAPACITY = 100


def test_a_flood_of_made_up_keys_grows_nothing() -> None:
    """However many keys come in while hardly any is checked, no more than twice the capacity is held, and checks go on."""
    ledger = KeyLedger(CAPACITY)
    for number in range(100 * CAPACITY):
        ledger.ask(f"made-up-{number}", 0.0)
        assert len(ledger) <= CAPACITY
        assert len(ledger._queue) <= 2 * CAPACITY
    taken = []
    while (key := ledger.take()) is not None:
        taken.append(key)
    assert taken == [f"made-up-{number}" for number in range(99 * CAPACITY, 100 * CAPACITY)]


def test_a_key_that_is_asked_for_again_gets_its_turn_in_a_flood() -> None:
    """Its sender comes back more often than as many other keys come in as are remembered: then it is checked, once."""
    ledger = KeyLedger(CAPACITY)
    asked = 0
    for number in range(20 * CAPACITY):
        ledger.ask(f"made-up-{number}", 0.0)
        if number % (CAPACITY // 2) == 0:
            ledger.ask("good", 0.0)
        if number % 10 == 0:
            key = ledger.take()
            assert key is not None
            asked += key == "good"
            ledger.answered(key, 200 if key == "good" else 401, 0.0)
    assert asked == 1
    assert ledger.status("good") is KeyStatus.VERIFIED
