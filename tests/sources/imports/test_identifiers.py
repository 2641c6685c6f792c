"""Which ids can be imported (the issue's "illegal ids")."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.sources.imports.events import RecordRefused, RefusalReason
from forwarder.sources.imports.identifiers import ILLEGAL, check_id, is_blank, is_illegal

NAMED_IN_THE_ISSUE = (
    *("null", "undefined", "none", "nil", "nan", "anonymous", "guest", "0", "[object Object]", "true", "false", "not_authenticated"),
    *("empty", "blank", "", " ", "\t\n", "\u3000"),
)


@pytest.mark.parametrize("text", NAMED_IN_THE_ISSUE)
def test_an_id_that_many_share_is_refused(text: str) -> None:
    """Each id that means nobody is refused as illegal, with the id in the explanation."""
    with pytest.raises(RecordRefused) as refused:
        check_id(text)
    assert refused.value.why is RefusalReason.ILLEGAL_ID
    assert repr(text) in refused.value.detail


@pytest.mark.parametrize(
    "text", ['"null"', "'undefined'", "\"'None'\"", "`nan`", '\\"null\\"', "NULL", " Anonymous ", "TRUE", "NaN", "\u00a0guest"]
)
def test_case_quotes_and_blanks_around_it_do_not_make_it_legal(text: str) -> None:
    """An illegal id is found in any case, quoted and with blanks around it."""
    assert is_illegal(text)


@pytest.mark.parametrize(
    "text", ["user-1", "4", "00", "nullable", "guest-17", "anonymous@example.org", "O'Neil", '"17"', " 17 ", "ζ", "null 1"]
)
def test_any_other_id_stays_as_it_is(text: str) -> None:
    """An id that tells persons apart is returned unchanged, with quotes and blanks that are its own."""
    assert check_id(text) == text


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(ILLEGAL)),
    st.lists(st.booleans(), min_size=40, max_size=40),
    st.sampled_from(["", '"', "'", " ", "\"'", "\ufeff"]),
)
def test_every_listed_id_is_found_in_every_spelling(listed: str, upper: list[bool], around: str) -> None:
    """Whatever the case of its letters and whatever stands around it, a listed id is illegal."""
    spelled = "".join(letter.upper() if up else letter for letter, up in zip(listed, upper, strict=False))
    assert is_illegal(around + spelled + around[::-1])


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="abcxyz0123456789-_@.", min_size=1).map(lambda text: f"u{text}"))
def test_ordinary_ids_pass(text: str) -> None:
    """No ordinary id is refused, unless it is on the list itself."""
    assert check_id(text) == text


def test_blank_is_as_good_as_missing() -> None:
    """No id, an empty one and one of white space alone are missing; every other is there."""
    assert all(is_blank(text) for text in (None, "", " ", "\n\t"))
    assert not any(is_blank(text) for text in ("0", "null", " a "))
