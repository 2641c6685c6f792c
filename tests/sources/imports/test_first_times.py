"""What was seen before is known within bounds, and the answers follow from the keys alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.first_times import FirstSeenKeys

KEYS = st.lists(st.integers(0, 12), max_size=120)


def answers(keys: list[int], remembered: int) -> list[bool]:
    """Which of the keys count as new, one after the other."""
    seen = FirstSeenKeys(remembered)
    return [seen.is_new(b"%d" % key) for key in keys]


@settings(deadline=None, max_examples=60)
@given(keys=KEYS, remembered=st.integers(1, 6))
def test_a_key_among_the_last_different_ones_is_known_and_an_unseen_one_is_new(keys: list[int], remembered: int) -> None:
    """Nothing unseen is ever known; what was seen with fewer than `remembered` other keys since then always is."""
    found = answers(keys, remembered)
    for place, key in enumerate(keys):
        before = keys[:place]
        if key not in before:
            assert found[place]
        elif len(set(before[place - 1 - before[::-1].index(key) :])) <= remembered:
            assert not found[place]


@settings(deadline=None, max_examples=60)
@given(keys=KEYS, remembered=st.integers(1, 6))
def test_no_more_than_twice_the_number_is_remembered(keys: list[int], remembered: int) -> None:
    """However many keys come, memory stays within its bound."""
    seen = FirstSeenKeys(remembered)
    for key in keys:
        seen.is_new(b"%d" % key)
        assert len(seen) <= min(2 * remembered, len(set(keys)))


@settings(deadline=None, max_examples=30)
@given(keys=KEYS, remembered=st.integers(1, 6))
def test_the_same_keys_get_the_same_answers(keys: list[int], remembered: int) -> None:
    """A source that is read again is answered as it was the first time."""
    assert answers(keys, remembered) == answers(keys, remembered)


def test_a_memory_of_nothing_is_refused() -> None:
    """With no place for a key, every key would be new for ever."""
    with pytest.raises(ValueError, match="at least one"):
        FirstSeenKeys(0)
