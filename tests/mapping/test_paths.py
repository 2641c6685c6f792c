"""Which expressions are plain paths, and that a plain path means what jq means by it."""

from __future__ import annotations

import json

import jq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forwarder.mapping import Unmappable
from forwarder.mapping.paths import Step, parse_path, spelled
from tests.mapping.mapped import mapping
from tests.support.cases import cases


@cases(
    ("text", "path"),
    [
        (".", ()),
        (".user.id", ("user", "id")),
        (' .["odd name"] ', ("odd name",)),
        ('."odd name".x', ("odd name", "x")),
        ('.a["b"].c', ("a", "b", "c")),
        ('.a.["b"]', ("a", "b")),
        (r'.["q\"\u00e9"]', ('q"é',)),
        (".items[0].sku", ("items", 0, "sku")),
        (".[0]", (0,)),
        (".items[].email", ("items", None, "email")),
        (".[]", (None,)),
        ('.["$ip"]', ("$ip",)),
    ],
)
def test_paths(text: str, path: tuple[Step, ...]) -> None:
    """These are read without jq."""
    assert parse_path(text) == path
    assert parse_path(spelled(path)) == path


@cases(
    "text",
    [
        "",
        "a",
        "..",
        ".a.",
        ".$a",
        ".a-b",
        ".a[-1]",
        ".a[1:2]",
        '.["\\(.a)"]',
        ".a?",
        ".a|.b",
        "[0]",
        ".[.b]",
        ".a[1.]",
        '"a"',
        ".é",
        "a b",
    ],
)
def test_other_expressions(text: str) -> None:
    """These are jq's, or no one's."""
    assert parse_path(text) is None


NAMES = ["a", "b", 'q"x', "é\\"]
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1.5, "", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)
PATHS = st.lists(st.sampled_from(NAMES) | st.integers(0, 3), min_size=1, max_size=4)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES), st.lists(PATHS, min_size=1, max_size=3))
@example({"a": {"b": 1}}, [["a", "b"], ["a"], ["a", 0]])
def test_a_plain_path_means_what_jq_means(
    record: dict[str, object], paths: list[list[str | int]]
) -> None:
    """Several paths that share their beginnings read what jq reads, and fail where it fails."""
    expressions = [spelled(tuple(path)) for path in paths]
    text = json.dumps(record)
    try:
        expected = [jq.compile(expression).input_text(text).first() for expression in expressions]
    except ValueError:
        with pytest.raises(Unmappable):
            mapping(
                properties={str(at): expression for at, expression in enumerate(expressions)}
            ).map(text.encode())
        return
    made = mapping(
        properties={str(at): expression for at, expression in enumerate(expressions)}
    ).map(text.encode())
    assert made is not None
    assert json.loads(made)["properties"] == {
        str(at): value for at, value in enumerate(expected) if value is not None
    }


@cases("name", ["", "\0", "\x1f", 'q"', "back\\", "$ip", "é", "\U0001f600", "a.b", "[0]", " "])
def test_every_name_can_be_read(name: str) -> None:
    """Names that have to be escaped too, alone and beside others."""
    path = spelled((name,))
    made = mapping(
        properties={"p": path, "o": ".other"}, distinct_id=f".deep{path.removeprefix('.')}"
    ).map(json.dumps({name: 1, "other": 2, "deep": {name: "x"}}).encode())
    assert made == b'{"event":"e","distinct_id":"x","properties":{"p":1,"o":2}}'
