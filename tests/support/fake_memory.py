"""Memory of which a test says how much is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FakeMemory:
    """Implements `forwarder.daemon.memory.MemorySource`."""

    limit: int = 1000
    amount: int = 0
    origin: str = "limits.memory"
    broken: bool = False

    def used(self) -> int:
        """As much as the test says."""
        if self.broken:
            raise OSError
        return self.amount
