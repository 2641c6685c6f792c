"""Percent-decoding: `urllib`'s, byte for byte, whatever stands behind a `%`."""

from __future__ import annotations

from urllib.parse import quote_from_bytes, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire import percent
from forwarder.wire.percent import unquote

TOKENS = [b"%", b"=", b"\0", b"\r", b"\n", b"_", b" ", b"+", b"%41", b"%3d", b"%3D", b"%00", b"%4", b"%zz", b"g", b"F", b"\x18", b"\xff"]
VALUES = st.lists(st.sampled_from(TOKENS) | st.binary(max_size=4), max_size=40).map(b"".join)


@given(VALUES)
def test_urllib_decodes_the_same(value: bytes) -> None:
    """Valid escapes are decoded, all other bytes stay."""
    assert unquote(value) == unquote_to_bytes(value)


@given(VALUES, st.integers(1, 40))
def test_pieces_decode_the_same(value: bytes, piece: int) -> None:
    """No escape is lost where a long value is decoded piece by piece, wherever it is cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(percent, "_PIECE_BYTES", piece + 3)
        assert unquote(value) == unquote_to_bytes(value)


@given(st.binary(max_size=500))
def test_any_bytes_round_trip(data: bytes) -> None:
    """What is escaped comes out as it was."""
    assert unquote(quote_from_bytes(data, safe="").encode()) == data
