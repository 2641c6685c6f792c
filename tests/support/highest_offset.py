"""`python -m tests.support.highest_offset run …`: forwarder with a fault, so that a test can show
that it would be noticed.

It commits the highest offset of which anything is settled, not the one up to which everything is.
"""

from __future__ import annotations

from collections.abc import Sequence

from forwarder.cli.main import main
from forwarder.sources.hand_over import Span, Watermark

_settle = Watermark.settle


def highest(self: Watermark, span: Span) -> Sequence[Span]:
    """In place of `Watermark.settle`."""
    passed = _settle(self, span)
    self.position = max(self.position, span.end)
    return passed


if __name__ == "__main__":
    Watermark.settle = highest  # type: ignore[method-assign]
    main()
