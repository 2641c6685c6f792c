"""JSON fields and ids of persons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from forwarder.core.ports import Reason
from forwarder.core.unmerged_ids import is_never_merged
from forwarder.sources.imports import values as jsonvalues
from forwarder.sources.imports.format import RecordRefused
from forwarder.sources.imports.values import SHARED, is_blank, is_shared, refused_merge
from tests.support.cases import cases

FIELDS = msgspec.json.decode(
    (
        b'{"text":"a\\u00e9","int":12345678901234567890123,"decimal":1.10,"power":2e3,"yes":true,"'
        b'object":{"b":1.0},"list":[1,"x"],"null":null}'
    ),
    type=dict[str, Raw],
)
decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
CUT_OR_ANOTHER_VALUE = [b"", b"{", b'{"a":', b"[]", b"null", b'"a"', b"{} {}"]
NO_UTF_8 = [
    b'{"a":"\xff"}',
    b'{"a":{"b":["\xff"]}}',
    b'{"\xff":1}',
    b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\\ud800"}',
]
NO_TOKENS = [b'{"a":NaN}', b'{"a":01}', b'{"a":"\x01"}', b'{"a":' + b"[" * 100_000]
NO_OBJECTS = [*CUT_OR_ANOTHER_VALUE, *NO_UTF_8, *NO_TOKENS]


@cases(
    ("read", "name", "value"),
    [
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
def test_a_field_is_read_with_its_type(
    read: Callable[[Raw | None, str], Any], name: str, value: object
) -> None:
    """Numbers are exact, numbers as ids keep their digits, and null is as good as nothing."""
    assert read(FIELDS.get(name), name) == value


@cases(
    ("read", "names"),
    [
        (jsonvalues.text_or_number, ["yes", "object", "list"]),
        (jsonvalues.nested, ["text", "int", "yes", "list"]),
        (jsonvalues.items, ["text", "int", "yes", "object"]),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(
    read: Callable[[Raw | None, str], object], names: list[str]
) -> None:
    """Anyone who repairs the record learns which field it was."""
    for name in names:
        with pytest.raises(RecordRefused, match=f"^{name} is") as refused:
            read(FIELDS[name], name)
        assert refused.value.why is Reason.INVALID_EVENT


def test_nested_values_keep_their_bytes() -> None:
    """1.0 stays 1.0, in objects and in lists."""
    assert bytes(jsonvalues.nested(FIELDS["object"], "object")["b"]) == b"1.0"
    assert [bytes(item) for item in jsonvalues.items(FIELDS["list"], "list")] == [b"1", b'"x"']


@cases("record", NO_OBJECTS)
def test_what_is_no_json_object_is_refused(record: bytes) -> None:
    """Cut off, not UTF-8 (not even deep inside), lone surrogates, tokens that aren't JSON, other
    values than objects, endless nesting.
    """
    with pytest.raises(RecordRefused) as refused:
        jsonvalues.decode_record(record, decode_object)
    assert refused.value.why is Reason.UNDECODABLE


def test_a_field_of_another_type_and_a_value_that_is_no_object_differ() -> None:
    """The first names the field; the second has none."""
    with pytest.raises(RecordRefused, match=r"\$\.a`$") as refused:
        jsonvalues.decode_record(
            b' {"a":"x"}', msgspec.json.Decoder(msgspec.defstruct("Record", [("a", int)])).decode
        )
    assert refused.value.why is Reason.INVALID_EVENT


@settings(deadline=None, max_examples=50)
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
        ),
        max_leaves=5,
    )
)
def test_any_json_value_survives_untouched(value: object) -> None:
    """The bytes of a value come out as they went in."""
    record = msgspec.json.encode({"a": value})
    assert msgspec.json.encode(jsonvalues.decode_record(record, decode_object)) == record


NAMED_IN_THE_ISSUE = (
    *(
        "null",
        "undefined",
        "none",
        "nil",
        "nan",
        "anonymous",
        "guest",
        "0",
        "[object Object]",
        "true",
        "false",
        "not_authenticated",
    ),
    *("empty", "blank", "", " ", "\t\n", "\u3000"),
)


@cases("text", NAMED_IN_THE_ISSUE)
def test_an_id_that_many_share_is_known(text: str) -> None:
    """Each id that means no one."""
    assert is_shared(text)


@cases(
    ("own", "second"),
    [("nil", "a1"), ("u1", "blank"), ("u1", " NULL "), ("u1", "0.0"), ("Nan", "a1")],
)
def test_a_merge_by_an_id_that_only_we_know_is_refused(own: str, second: str) -> None:
    """The service would make one person of many, for good."""
    why = refused_merge(own, [second])
    assert why is not None
    assert why.why is Reason.ILLEGAL_DISTINCT_ID
    assert repr(own if is_shared(own) else second) in why.detail


@cases(
    ("own", "second"),
    [("u1", "a1"), ("u1", "null"), ("GUEST", "a1"), ("u1", "'0'"), ("nil", "nil"), ("u1", " ")],
)
def test_any_other_merge_is_the_services_to_do_or_not(own: str, second: str) -> None:
    """Of persons, or by an id that it knows as one that many share."""
    assert refused_merge(own, [second]) is None


def test_every_id_that_the_service_never_merges_is_known_here() -> None:
    """The list is one: what the service passes over is counted as shared."""
    for text in (
        "guest",
        "0",
        "[object Object]",
        "NaN",
        "None",
        '"undefined"',
        "Not_Authenticated",
    ):
        assert is_never_merged(text)
        assert is_shared(text)
    assert not is_never_merged("nan")
    assert not is_never_merged("user-1")


@cases(
    "text",
    [
        '"null"',
        "'undefined'",
        "\"'None'\"",
        "`nan`",
        '\\"null\\"',
        "NULL",
        " Anonymous ",
        "TRUE",
        "NaN",
        "\u00a0guest",
    ],
)
def test_case_quotes_and_blanks_around_it_do_not_make_it_legal(text: str) -> None:
    """An illegal id is found in any case, quoted and with blanks around it."""
    assert is_shared(text)


@cases(
    "text",
    [
        "user-1",
        "4",
        "00",
        "nullable",
        "guest-17",
        "anonymous@example.org",
        "O'Neil",
        '"17"',
        " 17 ",
        "ζ",
        "null 1",
    ],
)
def test_any_other_id_is_of_one_person(text: str) -> None:
    """An id that tells persons apart, with quotes and blanks that are its own."""
    assert not is_shared(text)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(SHARED)),
    st.lists(st.booleans(), min_size=40, max_size=40),
    st.sampled_from(["", '"', "'", " ", "\"'", "\ufeff"]),
)
def test_every_listed_id_is_found_in_every_spelling(
    listed: str, upper: list[bool], around: str
) -> None:
    """Whatever the case of its letters and whatever stands around it, a listed id is illegal."""
    spelled = "".join(
        letter.upper() if up else letter for letter, up in zip(listed, upper, strict=False)
    )
    assert is_shared(around + spelled + around[::-1])


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="abcxyz0123456789-_@.", min_size=1).map(lambda text: f"u{text}"))
def test_ordinary_ids_pass(text: str) -> None:
    """No ordinary id is taken for one."""
    assert not is_shared(text)


def test_blank_is_as_good_as_missing() -> None:
    """No id, an empty one and one of white space alone are missing; every other is there."""
    assert all(is_blank(text) for text in (None, "", " ", "\n\t"))
    assert not any(is_blank(text) for text in ("0", "null", " a "))
