"""One event of the v1 protocol in the classic shape."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forwarder.wire.v1_event import (
    INVALID_OPTIONS,
    INVALID_SESSION,
    MALFORMED_EVENT,
    MALFORMED_PROPERTIES,
    Rewriter,
    Rewritten,
)
from tests.support.cases import cases

UUID = "0190a0a0-1111-7222-8333-444455556666"
SDK = b"posthog-python/7.1"
HEAD = f'"event":"e","uuid":"{UUID}","distinct_id":"d","timestamp":"2026-01-01T00:00:00Z"'
PROMOTED = {
    "session_id": "$session_id",
    "window_id": "$window_id",
    "cookieless_mode": "$cookieless_mode",
    "disable_skew_correction": "$ignore_sent_at",
    "product_tour_id": "$product_tour_id",
    "process_person_profile": "$process_person_profile",
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [*PROMOTED.values(), "$lib", "$lib_version", "properties", "options", "$set"]
) | st.text(max_size=5)
SPACE = st.sampled_from(["", " ", "\n\t "])


def rewritten(text: str, sdk: bytes = SDK, original: str | None = None) -> Rewritten:
    """The event of a text."""
    return Rewriter(sdk).rewrite(text.encode(), (original or text).encode())


def properties_of(text: str, sdk: bytes = SDK) -> Any:
    """What an event's properties have become."""
    result = rewritten(text, sdk)
    assert not result.problem
    return json.loads(result.data)["properties"]


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, none of whose keys is there twice."""
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), keys
    return dict(pairs)


@given(
    st.dictionaries(NAMES, VALUES, max_size=6),
    st.dictionaries(st.sampled_from(["session_id", "window_id"]), st.text(max_size=4) | st.none()),
    st.fixed_dictionaries(
        {},
        optional={
            "cookieless_mode": st.booleans(),
            "disable_skew_correction": st.booleans(),
            "process_person_profile": st.booleans() | st.none(),
            "product_tour_id": st.text(max_size=4),
        },
    ),
    SPACE,
    st.booleans(),
)
def test_what_was_promoted_goes_back(
    properties: dict[str, Any],
    ids: dict[str, str | None],
    options: dict[str, Any],
    space: str,
    sdk: bool,
) -> None:
    """Read again, the properties are those that were sent, with each promoted value in place of
    one of the same name; no key is twice.
    """
    known = {"event": "e", "uuid": UUID, "distinct_id": "d", "timestamp": "t"}
    event = {**ids, "options": options, **known, "$set": {"x": 1}, "properties": properties}
    text = json.dumps(event, separators=("," + space, ":" + space), ensure_ascii=not space)
    result = rewritten(text, SDK if sdk else b"")
    assert result.problem == ""
    expected = {
        **properties,
        **{
            PROMOTED[name]: value for name, value in {**ids, **options}.items() if value is not None
        },
    }
    if sdk:
        expected |= {"$lib": "posthog-python", "$lib_version": "7.1"}
    assert json.loads(result.data, object_pairs_hook=once) == {**known, "properties": expected}


@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda name: name not in ("$lib", "$lib_version")),
        VALUES,
        min_size=1,
    ),
    SPACE,
)
def test_the_bytes_of_properties_are_kept(properties: dict[str, Any], space: str) -> None:
    """All that stood between the braces of the properties stands there still, byte for byte,
    behind what was put in.
    """
    raw = json.dumps(properties, separators=("," + space, ":" + space))
    result = rewritten(f'{{{HEAD},"properties":{{{space}{raw[1:]},"session_id":"s"}}')
    assert result.data.decode().endswith(
        f'"$session_id":"s","$lib":"posthog-python","$lib_version":"7.1",{space}{raw[1:]}}}'
    )


@cases(
    "raw",
    [
        '{"big":12345678901234567890,"half":1.50e+2,"x":"\\u00e9\\/"}',
        '{"a":1,"a":2}',
        '{ "x" : [ ] }',
    ],
)
def test_numbers_and_escapes_stay_as_they_are_written(raw: str) -> None:
    """Nothing of the properties is read and written again."""
    assert raw[1:].encode() in rewritten(f'{{{HEAD},"properties":{raw}}}').data


@cases("properties", ["", ',"properties":null', ',"properties":{}', ',"properties":{ }'])
def test_no_properties(properties: str) -> None:
    """They are made of what is to go into them; without anything they are empty."""
    assert properties_of(f'{{{HEAD},"session_id":"s"{properties}}}', b"") == {"$session_id": "s"}
    assert properties_of(f"{{{HEAD}{properties}}}", b"") == {}


@cases(
    ("value", "expected"),
    [
        ("true", True),
        ("false", False),
        ('"true"', True),
        ('" FALSE "', False),
        ('"1"', True),
        ('"0"', False),
        ("7", True),
        ("-0.5", True),
        ("0", False),
        ("0.0", False),
        ("0e5", False),
        ("1e999", True),
        ("null", None),
    ],
)
def test_flags_are_read_as_the_service_does(value: str, expected: bool | None) -> None:
    """Booleans, the four words for them in any case, numbers; null is none."""
    properties = properties_of(f'{{{HEAD},"options":{{"process_person_profile":{value}}}}}', b"")
    assert properties == ({} if expected is None else {"$process_person_profile": expected})


@cases(
    ("value", "expected"),
    [('"t-1"', {"$product_tour_id": "t-1"}), ("12", {"$product_tour_id": "12"}), ("null", {})],
)
def test_tours_are_text(value: str, expected: dict[str, str]) -> None:
    """A whole number is written as text."""
    assert properties_of(f'{{{HEAD},"options":{{"product_tour_id":{value}}}}}', b"") == expected


@cases(
    ("event", "problem"),
    [
        ("5", MALFORMED_EVENT),
        ("[]", MALFORMED_EVENT),
        ("null", MALFORMED_EVENT),
        (f'{{{HEAD},"properties":[]}}', MALFORMED_PROPERTIES),
        (f'{{{HEAD},"properties":"{{}}"}}', MALFORMED_PROPERTIES),
        (f'{{{HEAD},"session_id":5}}', INVALID_SESSION),
        (f'{{{HEAD},"window_id":{{}}}}', INVALID_SESSION),
        (f'{{{HEAD},"options":[]}}', INVALID_OPTIONS),
        (f'{{{HEAD},"options":"x"}}', INVALID_OPTIONS),
        (f'{{{HEAD},"options":{{"cookieless_mode":"yes"}}}}', INVALID_OPTIONS),
        (f'{{{HEAD},"options":{{"process_person_profile":{{}}}}}}', INVALID_OPTIONS),
        (f'{{{HEAD},"options":{{"product_tour_id":1.5}}}}', INVALID_OPTIONS),
        (f'{{{HEAD},"options":{{"product_tour_id":true}}}}', INVALID_OPTIONS),
    ],
)
def test_what_is_none_of_the_protocol(event: str, problem: str) -> None:
    """The event stays as it was received, with a word that says what is wrong."""
    result = rewritten(event)
    assert (result.problem, result.data) == (problem, event.encode())


def test_missing_members_stay_missing() -> None:
    """Whether an event can do without them is decided later."""
    assert rewritten("{}", b"").data == b'{"properties":{}}'
    assert (
        rewritten('{"distinct_id":5,"uuid":null}', b"").data
        == b'{"uuid":null,"distinct_id":5,"properties":{}}'
    )


@cases("padded", ['"  d\\t"', '"\\u0020d"', '"d\u2003"', '" d"', '"d\\n"'])
def test_ids_lose_the_white_space_around_them(padded: str) -> None:
    """As the service has it in this protocol; the key of the result is as it was sent."""
    result = rewritten(f'{{"event":"e","uuid":{padded},"distinct_id":{padded}}}', b"")
    assert result.data == b'{"event":"e","uuid":"d","distinct_id":"d","properties":{}}'
    assert result.uuid == padded.encode()


@cases("unchanged", ['"a b"', '"\\u0041"', '"é"', '""', '"\\\\"', "5", "null"])
def test_other_ids_keep_their_bytes(unchanged: str) -> None:
    """Escapes too."""
    result = rewritten(f'{{"uuid":{unchanged},"distinct_id":{unchanged}}}', b"")
    assert result.data == b'{"uuid":%b,"distinct_id":%b,"properties":{}}' % (
        unchanged.encode(),
        unchanged.encode(),
    )
    assert result.uuid == (unchanged.encode() if unchanged.startswith('"') else b"")


def test_long_ids() -> None:
    """Of an id with over 200 characters it is said that it will be cut."""
    assert not rewritten(f'{{"distinct_id":"{"é" * 200}"}}').id_is_cut
    assert rewritten(f'{{"distinct_id":"{"é" * 201}"}}').id_is_cut


def test_what_is_no_text_is_kept_as_it_was_received() -> None:
    """Of an event with a lone surrogate the classic shape is made too, with the surrogate in it:
    it may be repaired by hand.
    """
    original = f'{{{HEAD},"session_id":"\\ud800","properties":{{"$lib":"\\udc00","x":"\\ud83d"}}}}'
    masked = (
        original.replace("\\ud800", "\\ufffd")
        .replace("\\udc00", "\\ufffd")
        .replace("\\ud83d", "\\ufffd")
    )
    result = rewritten(masked, original=original)
    assert result.data.decode() == (
        f'{{{HEAD},"properties":{{"$session_id":"\\ud800","$lib_version":"7.1","$lib":"posthog'
        f'-python","x":"\\ud83d"}}}}'
    )
    assert rewritten('{"event":"\\ufffd"}', original='{"event":"\\ud800"}').problem == ""
