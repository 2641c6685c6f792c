"""How far a partition is settled: the offset up to which nothing is outstanding, whatever was
settled beyond it.

For every source with positions: a partition is a topic's, or a file, or a whole job; an offset is
whatever counts its records upwards.

Invariants: `position` never passes an offset whose record isn't settled, and never goes back;
batches are opened in the order of their offsets and settled in any. What is kept is one small
entry for each batch past the first unsettled one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class Span:
    """The offsets of one batch in its partition: it ends before offset `end`,
    and holds so many records.
    """

    __slots__ = ("count", "end", "settled")

    def __init__(self, end: int, count: int) -> None:
        self.end = end
        self.count = count
        self.settled = False


class Watermark:
    """The watermark of one partition."""

    def __init__(self, start: int) -> None:
        """`start`: the first offset that is read."""
        self.position = start
        """The next offset that would be read after a restart: everything before it is settled."""
        self.read = start
        """The next offset to be read."""
        self.window = 0
        """Records from the first unsettled one on, settled or not."""
        self._spans: deque[Span] = deque()

    @property
    def outstanding(self) -> bool:
        """Whether anything that was read isn't settled."""
        return bool(self._spans)

    def open(self, first: int, end: int, count: int) -> Span:
        """`count` records are read, in offsets from `first` to before `end`; offsets that are left
        out hold nothing.

        Raises `ValueError` if they aren't all past what was read.
        """
        if not self.read <= first < end:
            raise ValueError(f"offsets {first} to {end} don't follow {self.read}")
        span = Span(end, count)
        self._spans.append(span)
        self.read = end
        self.window += count
        return span

    def settle(self, span: Span) -> Sequence[Span]:
        """All records of the span are settled; the spans that the position passes by that, in
        order. Settling twice does nothing.
        """
        span.settled = True
        spans = self._spans
        passed: list[Span] = []
        while spans and spans[0].settled:
            first = spans.popleft()
            self.position = first.end if spans else self.read
            self.window -= first.count
            passed.append(first)
        return passed

    def pass_by(self, offset: int) -> bool:
        """Nothing is left to be read before `offset`, such as the marks of transactions; whether
        the position moved by that.
        """
        if offset <= self.read:
            return False
        self.read = offset
        if self._spans:
            return False
        self.position = offset
        return True

    def split(self, span: Span, end: int, count: int) -> Span:
        """The span's first `count` records, up to before `end`, are by themselves from now on; the
        span of the others.
        """
        rest = Span(span.end, span.count - count)
        span.end = end
        span.count = count
        self._spans.insert(self._spans.index(span) + 1, rest)
        return rest

    def rewind(self, span: Span, offset: int) -> list[Span]:
        """The span, which begins at `offset`, and all that was read after it are to be read again;
        these spans count no more.
        """
        gone: list[Span] = []
        while not gone or gone[-1] is not span:
            gone.append(self._spans.pop())
            self.window -= gone[-1].count
        self.read = offset
        if not self._spans:
            self.position = offset
        return gone
