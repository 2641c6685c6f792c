"""What all formats' events have in common."""

from __future__ import annotations

from uuid import uuid5

from hypothesis import given
from hypothesis import strategies as st

from forwarder.sources.imports.format import NAMESPACE, derived_uuid


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_derived_uuid_is_of_version_five(natural_key: str) -> None:
    """It is what the standard library makes of the same name."""
    assert derived_uuid(natural_key) == str(uuid5(NAMESPACE, natural_key))
