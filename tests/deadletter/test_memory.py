"""Dead letters in memory: they are as safe at once as they will ever be. What else they promise is
in test_contract.py.
"""

from __future__ import annotations

from forwarder.deadletter.memory import MemoryDeadLetters
from tests.deadletter.rig import COST, HoldingCallback, letter


def test_nothing_is_waited_for() -> None:
    """There is nothing to wait for, and no caller is notified."""
    store = MemoryDeadLetters(10 * COST)
    held = HoldingCallback()
    buried = [letter(), letter()]
    assert store.add(buried)
    assert store.when_durable(held)
    assert (store.dead_letters, held.reported) == (buried, [])
