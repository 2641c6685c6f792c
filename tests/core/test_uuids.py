"""Derived UUIDs are those of the standard library, one by one and several at once."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.uuids import uuid5, uuids5


@given(st.uuids(), st.lists(st.text(st.characters(codec="utf-8"), max_size=20), max_size=8))
def test_they_are_those_of_the_standard_library(namespace: uuid.UUID, names: list[str]) -> None:
    """For every namespace and name."""
    right = [str(uuid.uuid5(namespace, name)).encode() for name in names]
    encoded = [name.encode() for name in names]
    assert [uuid5(namespace.bytes, name) for name in encoded] == right
    assert uuids5(namespace.bytes, encoded) == right
