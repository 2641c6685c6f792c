"""Values of records are read with their type, or refused by name, and the rest keep their bytes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.sources.imports import jsonvalues
from forwarder.sources.imports.events import RecordRefused, RefusalReason

FIELDS = jsonvalues.object_of(
    b'{"text":"a\\u00e9","int":12345678901234567890123,"decimal":1.10,"power":2e3,"yes":true,"object":{"b":1.0},"list":[1,"x"],"null":null}'
)
CUT_OR_ANOTHER_VALUE = [b"", b"{", b'{"a":', b"[]", b"null", b'"a"', b"{} {}"]
NO_UTF_8 = [b'{"a":"\xff"}', b'{"a":{"b":["\xff"]}}', b'{"\xff":1}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\\ud800"}']
NO_TOKENS = [b'{"a":NaN}', b'{"a":01}', b'{"a":"\x01"}', b'{"a":' + b"[" * 100_000]
NO_OBJECTS = [*CUT_OR_ANOTHER_VALUE, *NO_UTF_8, *NO_TOKENS]


@pytest.mark.parametrize(
    ("read", "name", "value"),
    [
        (jsonvalues.text, "text", "aé"),
        (jsonvalues.text, "null", None),
        (jsonvalues.text, "missing", None),
        (jsonvalues.text_or_number, "text", "aé"),
        (jsonvalues.text_or_number, "int", "12345678901234567890123"),
        (jsonvalues.text_or_number, "decimal", "1.10"),
        (jsonvalues.text_or_number, "null", None),
        (jsonvalues.text_or_number, "missing", None),
        (jsonvalues.nested, "null", {}),
        (jsonvalues.nested, "missing", {}),
        (jsonvalues.items, "null", []),
        (jsonvalues.items, "missing", []),
    ],
)
def test_a_field_is_read_with_its_type(read: Callable[[dict[str, Raw], str], Any], name: str, value: object) -> None:
    """Numbers are exact, numbers as ids keep their digits, and null is as good as nothing."""
    assert read(FIELDS, name) == value


@pytest.mark.parametrize(
    ("read", "names"),
    [
        (jsonvalues.text, ["int", "yes", "object", "list"]),
        (jsonvalues.text_or_number, ["yes", "object", "list"]),
        (jsonvalues.nested, ["text", "int", "yes", "list"]),
        (jsonvalues.items, ["text", "int", "yes", "object"]),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(read: Callable[[dict[str, Raw], str], object], names: list[str]) -> None:
    """Whoever mends the record learns which field it was."""
    for name in names:
        with pytest.raises(RecordRefused, match=f"^{name} is") as refused:
            read(FIELDS, name)
        assert refused.value.why is RefusalReason.WRONG_TYPE


@pytest.mark.parametrize(
    ("digits", "number"),
    [(b"7", 7), (b"-7", -7), (b"12345678901234567890123", 12345678901234567890123), (b"1.10", Decimal("1.10")), (b"-2e3", Decimal(-2000))],
)
def test_numbers_are_read_exactly(digits: bytes, number: int | Decimal) -> None:
    """No digit is lost to a float."""
    assert jsonvalues.number_of(digits) == number


@pytest.mark.parametrize("digits", [b"", b"null", b"1.2.3", b"9" * 5000, b"1e99999999999999999999"])
def test_what_is_no_number_of_any_use_is_told(digits: bytes) -> None:
    """More digits than are read, or a power out of all bounds, is no number either."""
    with pytest.raises(ValueError, match=r"."):
        jsonvalues.number_of(digits)


def test_nested_values_keep_their_bytes() -> None:
    """1.0 stays 1.0, in objects and in lists."""
    assert bytes(jsonvalues.nested(FIELDS, "object")["b"]) == b"1.0"
    assert [bytes(item) for item in jsonvalues.items(FIELDS, "list")] == [b"1", b'"x"']


@pytest.mark.parametrize("record", NO_OBJECTS)
def test_what_is_no_json_object_is_refused(record: bytes) -> None:
    """Cut off, not UTF-8 (not even deep inside), lone surrogates, tokens that aren't JSON, other values than objects, endless nesting."""
    with pytest.raises(RecordRefused) as refused:
        jsonvalues.object_of(record)
    assert refused.value.why is RefusalReason.NOT_JSON


def test_a_written_value_and_null_are_told_apart() -> None:
    """What is written stands among a record's own values."""
    assert bytes(jsonvalues.written("é")) == '"é"'.encode()
    assert jsonvalues.is_null(jsonvalues.written(None))
    assert not jsonvalues.is_null(jsonvalues.written("null"))


@settings(deadline=None, max_examples=50)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
        max_leaves=5,
    )
)
def test_any_json_value_survives_untouched(value: object) -> None:
    """The bytes of a value come out as they went in."""
    record = msgspec.json.encode({"a": value})
    assert msgspec.json.encode(jsonvalues.object_of(record)) == record
