"""The digest of uuids that doesn't depend on their order."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.import_books import digest_hex, uuid_hash, uuid_hashes
from tests.support.cases import cases

MASK = (1 << 128) - 1
GOLDEN = "127941135f3ac5316c84cbb946b6449c"
spellings = st.sampled_from(["{}", "{}", "{}", "{{{}}}", "urn:uuid:{}"])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, MASK), spellings, st.booleans()), max_size=20))
def test_many_at_once_are_hashed_as_one_by_one(drawn: list[tuple[int, str, bool]]) -> None:
    """However each of them is spelled."""
    uuids = [
        form.format(str(UUID(int=number)).upper() if upper else UUID(int=number).hex)
        for number, form, upper in drawn
    ]
    assert uuid_hashes(uuids) == sum(uuid_hash(uuid) for uuid in uuids)


@cases("count", [0, 1, 2, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025, 2050, 2500])
def test_any_number_of_them_has_a_digest(count: int) -> None:
    """Also more than are hashed at once, and the largest ones."""
    uuids = [str(UUID(int=MASK - number)) for number in range(count)]
    assert uuid_hashes(uuids) == sum(uuid_hash(uuid) for uuid in uuids)


def test_a_digest_never_changes() -> None:
    """Manifests of earlier years hold it."""
    uuids = ["0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "6f1c1d5e-6f0e-5f8f-9f0a-7b1d7f7d6b02"]
    assert digest_hex(uuid_hashes(uuids)) == GOLDEN
    assert digest_hex(uuid_hashes(uuids[::-1])) == GOLDEN
    assert digest_hex(0) == "0" * 32


def test_numbered_uuids_are_distinguished() -> None:
    """Neither sums nor sums of squares or cubes that are the same make the same digest."""
    for one, other in (([1, 4], [2, 3]), ([1, 5, 6], [2, 3, 7]), ([1, 12], [9, 10])):
        for high in (0, 1 << 127, 0x0193A1B2 << 96):
            assert uuid_hashes([str(UUID(int=high | number)) for number in one]) != uuid_hashes(
                [str(UUID(int=high | number)) for number in other]
            )


def test_neighbours_have_nothing_in_common() -> None:
    """One bit changes about half of the bits of the hash, whichever it is."""
    for bit in range(128):
        changed = (
            uuid_hash(str(UUID(int=1 << 77 | 12345)))
            ^ uuid_hash(str(UUID(int=(1 << 77 | 12345) ^ (1 << bit))))
        ).bit_count()
        assert 30 <= changed <= 98


@cases(
    "spelled",
    [
        "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
        "0193A1B2-C3D4-7E5F-8A9B-0C1D2E3F4A5B",
        "0193a1b2c3d47e5f8a9b0c1d2e3f4a5b",
        "{0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b}",
        "urn:uuid:0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b",
    ],
)
def test_a_uuid_counts_the_same_however_it_is_spelled(spelled: str) -> None:
    """The service writes its own spelling into its exports."""
    assert uuid_hash(spelled) == uuid_hash("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")


@cases(
    "text",
    [
        "",
        "no uuid",
        "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5",
        "zz93a1b2c3d47e5f8a9b0c1d2e3f4a5b",
        "ab " * 16,
    ],
)
def test_an_invalid_uuid_has_no_hash(text: str) -> None:
    """It is an error, not some number."""
    with pytest.raises(ValueError, match=r".+"):
        uuid_hash(text)
