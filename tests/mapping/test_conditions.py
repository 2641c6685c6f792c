"""Conditions on several records at once: the same verdicts, and the same errors, as one by one."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from forwarder.mapping.expressions import Expressions
from tests.support.cases import cases

RECORDS = [
    b'{"a":1}',
    b'{"a":null}',
    b'{ "a":"x",\n"b":[] }',
    b'{"a":[1,2]}',
    b"{}",
    '{"a":"ü"}'.encode(),
    b'{"a":false}',
]


@cases(
    "condition",
    [
        ".a",
        ".a == 1",
        ".a[]",
        '.a | startswith("x")',
        ".a, .b",
        "empty",
        ".b | length",
        "[.[]] | any",
        'error("x")',
    ],
)
def test_several_records_are_as_one_by_one(condition: str) -> None:
    """True, false, null, no result, several, an error."""
    expressions = Expressions("rules[0].match")
    expressions.only_where(condition)
    expressions.compile()
    failed: dict[int, str] = {}
    selected = expressions.select(RECORDS, lambda index, error: failed.update({index: str(error)}))
    alone: list[int] = []
    alone_failed: dict[int, str] = {}
    for index, record in enumerate(RECORDS):
        errors: list[Exception] = []
        alone += [
            index
            for _ in expressions.select(
                [record],
                lambda _, error, errors=errors: errors.append(error),  # type: ignore[misc]
            )
        ]
        if errors:
            alone_failed[index] = str(errors[0])
    assert (selected, failed) == (alone, alone_failed)


_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.text("xü\n", max_size=3)


@given(st.lists(st.dictionaries(st.sampled_from("ab"), _VALUES), min_size=2))
def test_verdicts_are_python_s(records: list[dict[str, object]]) -> None:
    """Against the same condition in Python."""
    expressions = Expressions("rules[0].match")
    expressions.only_where('(.a // "x") == (.b // "x")')
    expressions.compile()

    def value(record: dict[str, object], name: str) -> object:
        member = record.get(name)
        return "x" if member is None or member is False else member

    expected = [
        index
        for index, record in enumerate(records)
        if (type(value(record, "a")), value(record, "a"))
        == (type(value(record, "b")), value(record, "b"))
    ]
    assert (
        expressions.select([msgspec.json.encode(record) for record in records], lambda *_: None)
        == expected
    )
