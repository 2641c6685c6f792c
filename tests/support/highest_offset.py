"""`python -m tests.support.highest_offset run …`: forwarder with a fault, so that a test can show that it would be noticed.

It commits the highest offset of which anything is settled, not the one up to which everything is.
"""

from __future__ import annotations

from forwarder.cli.main import main
from forwarder.sources.kafka.watermark import Span, Watermark

_settle = Watermark.settle


def highest(self: Watermark, span: Span) -> bool:
    """In place of `Watermark.settle`."""
    moved = _settle(self, span)
    before, self.position = self.position, max(self.position, span.end)
    return moved or self.position != before


if __name__ == "__main__":
    Watermark.settle = highest  # type: ignore[method-assign]
    main()
