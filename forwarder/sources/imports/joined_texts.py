"""JSON texts in one, as they stand in a request: each of them by itself only where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import overload


class JoinedTexts(Sequence[bytes]):
    """Texts joined by commas."""

    __slots__ = ("_ended", "_longer", "_sizes")

    def __init__(self, ended: bytes, sizes: Sequence[int], longer: int = 0) -> None:
        """`ended`: the texts, each with a comma after it. One has `longer` bytes more than its size says, which counts the comma."""
        self._ended = ended
        self._sizes = sizes
        self._longer = longer

    @property
    def text(self) -> memoryview:
        """The texts, with commas between them."""
        return memoryview(self._ended)[:-1]

    @property
    def size(self) -> int:
        """How many bytes they have, without the commas."""
        return len(self._ended) - len(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> JoinedTexts: ...
    def __getitem__(self, index: int | slice) -> bytes | JoinedTexts:
        """One text, or some neighbours."""
        if not isinstance(index, slice):
            at = range(len(self))[index]
            start = self._start(at)
            return self._ended[start : start + self._sizes[at] + self._longer - 1]
        first, last, step = index.indices(len(self))
        if step != 1:
            raise ValueError("only neighbours can be taken")
        return JoinedTexts(self._ended[self._start(first) : self._start(last)], self._sizes[first:last], self._longer)

    def __iter__(self) -> Iterator[bytes]:
        starts = accumulate([size + self._longer for size in self._sizes], initial=0)
        return (self._ended[start : start + size + self._longer - 1] for start, size in zip(starts, self._sizes, strict=False))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _start(self, index: int) -> int:
        return sum(self._sizes[:index]) + index * self._longer
