"""Where each value stands in a JSON text."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.sandbox.ingest.parsing import read_envelope
from forwarder.sandbox.protocol.http import RequestRejected
from forwarder.sandbox.protocol.json_scanner import InvalidJson, JsonScanner
from tests.support.cases import cases
from tests.support.spelled import SPACE, SpelledEvent, spelled_events

BROKEN = [
    *[
        "",
        " ",
        "{",
        "[",
        '{"a"',
        '{"a":',
        '{"a":1',
        '{"a":1,',
        '{"a":1,}',
        '{"a" 1}',
        "{1:2}",
        "{a:1}",
        '{"a":1}}',
        '{"a":1} x',
    ],
    *[
        '{"a":NaN}',
        '{"a":-Infinity}',
        '{"a":01}',
        '{"a":1.}',
        '{"a":.5}',
        '{"a":"\n"}',
        '{"a":"\\x"}',
        '{"a":tru}',
        "[{},]",
        "[{} {}]",
    ],
    *["\ufeff{}", "\x0b{}", "{} \x00", "[" * 100_000, '{"a":' * 100_000],
]


@cases("text", BROKEN, ids=range(len(BROKEN)))
def test_what_is_not_json_is_refused(text: str) -> None:
    """A text that breaks off, has something after its end, or bends the grammar is 400, however
    deep it is nested.
    """
    with pytest.raises(RequestRejected) as refused:
        read_envelope(text)
    assert refused.value.status == 400


@pytest.mark.slow
@given(st.lists(st.tuples(SPACE, spelled_events(), SPACE), min_size=1, max_size=4), SPACE)
def test_an_events_text_is_what_was_sent(
    sent: list[tuple[str, SpelledEvent, str]], space: str
) -> None:
    """Whatever the spacing, escapes, numbers, order and repetition of keys: each event is cut out
    exactly, of an array and of a batch.
    """
    array = "[" + ",".join(before + one.text + after for before, one, after in sent) + "]"
    for body in (
        array,
        f'{{"batch"{space}:{space}{array},"api_key":"k"}}',
        f'{space}{{"x":[{{}}],"\\u0062atch":{array}}}{space}',
    ):
        assert [element.raw for element in read_envelope(body).elements] == [
            one.text for _, one, _ in sent
        ]


@given(spelled_events(with_properties=True))
def test_a_values_text_is_what_was_sent(one: SpelledEvent) -> None:
    """The text of the properties is theirs alone, byte for byte; null is none."""
    [element] = read_envelope(one.text).elements
    [member] = [member for member in one.members if member.name == "properties"]
    assert element.source("properties") == (None if member.value == "null" else member.value)


@given(st.text(alphabet='{}[]":,0.1e-+ \\nultrsa', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """What is read as an array or an object is JSON to another reader too;
    everything else is refused.
    """
    with suppress(RequestRejected):
        envelope = read_envelope(text)
        assert [json.loads(element.raw) for element in envelope.elements] == objects_of(
            json.loads(text)
        )


def objects_of(value: Any) -> list[Any]:
    """The events of a parsed body."""
    return value if isinstance(value, list) else value.get("batch", [value])


@cases(
    ("number", "infinite"),
    [
        ("1e308", False),
        ("1e309", True),
        ("-1e999", True),
        ("1" * 308, False),
        ("9" * 310, True),
        ("1" * 5000, True),
    ],
)
def test_a_number_out_of_range_is_noted(number: str, infinite: bool) -> None:
    """A number that no double holds is noted, however it is written; its text stays, in an integer
    of any length too.
    """
    scanner = JsonScanner(f"[{number}]")
    scanner.value(0)
    assert scanner.infinite is infinite


def test_finish_wants_nothing_more() -> None:
    """White space may follow a value, anything else may not."""
    JsonScanner("1 \r\n\t").finish(1)
    with pytest.raises(InvalidJson):
        JsonScanner("1 2").finish(1)
