"""The sum that tells what was read from something else."""

from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from forwarder.migration.sources.running_sum import RunningSum


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_it_is_of_the_bytes_however_they_are_cut(pieces: list[bytes]) -> None:
    """CRC-32 and Adler-32 of all of them, as anyone computes them; a copy goes on by itself."""
    whole = b"".join(pieces)
    total = RunningSum()
    for piece in pieces:
        total.update(piece)
    another = total.copy()
    another.update(b"more")
    assert total.hexdigest() == f"{zlib.crc32(whole):08x}{zlib.adler32(whole):08x}"
    assert another.hexdigest() == f"{zlib.crc32(whole + b'more'):08x}{zlib.adler32(whole + b'more'):08x}"


def test_a_change_of_one_bit_anywhere_is_seen() -> None:
    """Also of a byte in the middle of many that are alike."""
    content = bytes(1000)
    sums = set()
    for at in range(0, 1000, 7):
        total = RunningSum()
        total.update(content[:at] + b"\1" + content[at + 1 :])
        sums.add(total.hexdigest())
    assert len(sums) == len(range(0, 1000, 7))
