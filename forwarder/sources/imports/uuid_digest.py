"""A digest of uuids that doesn't depend on their order: the sum of their hashes modulo 2^128.

The hash of a uuid x, as a number of 128 bits, is m(m(x, A), B) with m(x, k) = the low 128 bits of p ^ (p >> 64), where p = x * k. Hashed,
because uuids may be numbered through, and sums of such numbers are soon the same; by this hash and not by a cryptographic one, because a
collision here is of no use to anyone, and it can be computed for a whole batch at once: one large number holds all of them, 256 bits apart,
and what is done to it is done to each. So a batch costs a sixth of what a cryptographic hash of each uuid would.

Invariants: the digest is that of the uuids as numbers, however they are spelled; it never changes, for manifests hold it for years.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final
from uuid import UUID

_A: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
_B: Final = 0xD6E8FEB86659FD93C2B2AE3D27D4EB4F
_MASK: Final = (1 << 128) - 1
_SLOT: Final = 256
_BYTES: Final = 16
_SLOT_BYTES: Final = 32
_TOGETHER: Final = 1024 * _BYTES
"""Bytes of the uuids in one number."""


def uuid_hash(uuid: str) -> int:
    """128 bits that follow from a uuid, however it is spelled. Raises ValueError if it is none."""
    return _mixed(UUID(uuid).int, _MASK)


def uuid_hashes(uuids: Sequence[str]) -> int:
    """The sum of the hashes of these. Raises ValueError if one is no uuid."""
    digits = "".join(uuids).replace("-", "")
    packed = bytes.fromhex(digits) if len(digits) == 2 * _BYTES * len(uuids) else b""
    if len(packed) != _BYTES * len(uuids):  # some are spelled otherwise; no spelling is shorter
        return sum(map(uuid_hash, uuids))
    return sum(_packed_hashes(packed[start : start + _TOGETHER]) for start in range(0, len(packed), _TOGETHER))


def digest_hex(total: int) -> str:
    """A sum of hashes, as it is written."""
    return f"{total & _MASK:032x}"


def _packed_hashes(packed: bytes) -> int:
    """The same of uuids of sixteen bytes each: every second of them is hashed, and then the others."""
    slots = 1 << ((len(packed) + _BYTES) // _SLOT_BYTES - 1).bit_length()
    numbers, masks = int.from_bytes(packed), _masks(slots)
    return _folded(_mixed(numbers & masks, masks), slots) + _folded(_mixed(numbers >> _SLOT // 2 & masks, masks), slots)


def _mixed(numbers: int, mask: int) -> int:
    """Each of the numbers that stand `_SLOT` bits apart is hashed; `mask` has the low 128 bits of each slot."""
    numbers *= _A
    numbers = (numbers ^ (numbers >> 64)) & mask
    numbers *= _B
    return (numbers ^ (numbers >> 64)) & mask


def _folded(numbers: int, slots: int) -> int:
    """The sum of all slots: half of them are added to the other half, until there is one."""
    while slots > 1:
        slots //= 2
        half = slots * _SLOT
        numbers = (numbers >> half) + (numbers & ((1 << half) - 1))
    return numbers


@cache
def _masks(slots: int) -> int:
    return int.from_bytes((bytes(16) + b"\xff" * 16) * slots)
