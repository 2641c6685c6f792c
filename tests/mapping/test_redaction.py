"""What is dropped or hashed is nowhere in what goes out, however the record spells and nests it."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.mapping import HashRule, TimestampRule, Unmappable
from forwarder.mapping.redaction import Redaction
from tests.mapping.mapped import mapped, mapping, properties
from tests.support.cases import cases
from tests.support.spelled import SPACE

SALT = b"0123456789abcdef"
MARK = "s3cret"


def hashed(text: str) -> str:
    """The hash of a text."""
    return hmac.new(SALT, text.encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def salt(tmp_path: Path) -> Path:
    """The file of the salt."""
    file = tmp_path / "salt"
    file.write_bytes(SALT + b"\n")
    return file


@cases(
    ("record", "drop", "expected"),
    [
        ('{"a":1,"b":2,"c":3}', ".a", '{"b":2,"c":3}'),
        ('{"a":1,"b":2,"c":3}', ".b", '{"a":1,"c":3}'),
        ('{"a":1,"b":2,"c":3}', ".c", '{"a":1,"b":2}'),
        ('{ "a" : 1 , "b" : 2 }', ".a", '{"b" : 2 }'),
        ('{ "a" : 1 }', ".a", "{ }"),
        ('\n {"a":1,"b":2} ', ".a", '{"b":2}'),
        (r'{"\u0061":1,"b":2,"a":3,"a":4}', ".a", '{"b":2}'),
        ('{"a":1,"a":2,"b":3,"a":4,"c":5}', ".a", '{"b":3,"c":5}'),
        ('{"u":{"a":1,"b":[{"a":1}]},"a":1}', ".u.a", '{"u":{"b":[{"a":1}]},"a":1}'),
        ('{"u":{"a":1},"u":{"a":2,"b":3}}', ".u.a", '{"u":{},"u":{"b":3}}'),
        ('{"u":[{"a":1},{"b":2},[{"a":3,"b":4}],5]}', ".u.a", '{"u":[{},{"b":2},[{"b":4}],5]}'),
        ('{"u":[{"a":1},{"b":2}]}', ".u[].a", '{"u":[{},{"b":2}]}'),
        ('{"u":[[{"a":1}]]}', ".u[].a", '{"u":[[{}]]}'),
        ('{"u":[{"a":1},{"a":2}]}', ".u[1].a", '{"u":[{"a":1},{}]}'),
        ('{"u":[1, 2 , 3]}', ".u[0]", '{"u":[2 , 3]}'),
        ('{"u":[1, 2 , 3]}', ".u[1]", '{"u":[1 , 3]}'),
        ('{"u":[[1,2],[3]]}', ".u[0]", '{"u":[[3]]}'),
        ('{"u":[1, 2 ]}', ".u[]", '{"u":[ ]}'),
        ('{"u":{"x":1,"y":{}}}', ".u[]", '{"u":{}}'),
        ('{"u":{"x":{"a":1},"y":{"a":2,"b":3}}}', ".u[].a", '{"u":{"x":{},"y":{"b":3}}}'),
        ('{"u":"text"}', ".u.a", '{"u":"text"}'),
        ('{"u":{"a":1,"b":2}}', ".u[].a", '{"u":{"b":2}}'),
        ('{"u":{"a":1,"b":[{"a":2}]}}', ".u[].a", '{"u":{"b":[{}]}}'),
        ('{"u":{"a":1,"b":2}}', ".u[][].a", '{"u":{"b":2}}'),
        ('{"u":[{"a":1},[{"a":2}]]}', ".u[][].a", '{"u":[{},[{}]]}'),
        ('{"u":{"v":{"a":1,"b":2}}}', ".u[].v[].a", '{"u":{"v":{"b":2}}}'),
        ('{"u":"text","v":1}', ".u[]", '{"v":1}'),
        ('{"u":[1,[2],3]}', ".u[][]", '{"u":[[]]}'),
        ('{"u":"text"}', ".u[].a", '{"u":"text"}'),
        (r'{"q\"":1,"c:,{}":2,"z":3}', r'.["q\""]', '{"c:,{}":2,"z":3}'),
    ],
)
def test_drop(record: str, drop: str, expected: str) -> None:
    """A field goes each time that it is there, also from the elements of arrays in its way; all
    else stays.
    """
    assert properties(record, drop=(drop,)) == expected


@cases(
    ("drop", "expected"),
    [
        ((".u[0].b", ".u[]"), '{"u":[]}'),
        ((".u[]", ".u[0].b"), '{"u":[]}'),
        ((".u[0].b", ".u[].a"), '{"u":[{},{"b":1}]}'),
        ((".u.b", ".u[0].a"), '{"u":[{},{"a":1}]}'),
        ((".u", ".u.a"), "{}"),
    ],
)
def test_several_paths_to_one_place(drop: tuple[str, ...], expected: str) -> None:
    """What one of them takes out is out."""
    assert properties('{"u":[{"a":1,"b":1},{"a":1,"b":1}]}', drop=drop) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"x@y"', json.dumps(hashed("x@y"))),
        (r'"\u0078@y"', json.dumps(hashed("x@y"))),
        ('"é"', json.dumps(hashed("é"))),
        ("42", json.dumps(hashed("42"))),
        ('"42"', json.dumps(hashed("42"))),
        ("1.50", json.dumps(hashed("1.50"))),
        ("true", json.dumps(hashed("true"))),
        ("null", "null"),
        ('""', '""'),
        ('" "', '" "'),
        ('["x@y", "", null,[42]]', f'["{hashed("x@y")}", "", null,["{hashed("42")}"]]'),
        ('{"a": 1}', json.dumps(hashed('{"a": 1}'))),
    ],
)
def test_hash(salt: Path, value: str, expected: str) -> None:
    """A value's text is hashed, the elements of an array each; what stands for no one stays, or
    nobodies would all be one.
    """
    rule = HashRule((".m",), salt)
    assert (
        properties(f'{{"m":{value} , "n":{value}}}', hash=rule)
        == f'{{"m":{expected} , "n":{value}}}'
    )


@cases(
    ("record", "path", "expected"),
    [
        ('{"u":"x"}', ".u[]", f'{{"u":"{hashed("x")}"}}'),
        ('{"u":["x",["y"]]}', ".u[][]", f'{{"u":["{hashed("x")}",["{hashed("y")}"]]}}'),
        ('{"u":{"a":"x","b":1}}', ".u[].a", f'{{"u":{{"a":"{hashed("x")}","b":1}}}}'),
        ('{"u":{"a":"x"}}', ".u[]", f'{{"u":{{"a":"{hashed("x")}"}}}}'),
        ('{"u":"x"}', ".u[].a", '{"u":"x"}'),
    ],
)
def test_one_in_place_of_a_list_is_hashed_too(
    salt: Path, record: str, path: str, expected: str
) -> None:
    """Senders write one value where they have no list of them."""
    assert properties(record, hash=HashRule((path,), salt)) == expected


def test_one_value_has_one_hash(salt: Path) -> None:
    """Wherever it stands, number or string: so that a hashed id still tells whose event it is."""
    made = mapped(
        '{"id":42,"user":{"id":"42"}}', distinct_id=".id", hash=HashRule((".id", ".user.id"), salt)
    )
    digest = hashed("42")
    assert made == (
        f'{{"event":"e","distinct_id":"{digest}","properties":{{"id":"{digest}","user":{{"'
        f'id":"{digest}"}}}}}}'
    )


def test_placeholders_of_ids_are_no_ids(salt: Path) -> None:
    """An empty id isn't hashed into someone."""
    for nobody in ('""', "null", '" "'):
        made = mapped(
            f'{{"id":{nobody}}}', distinct_id=".id", properties={}, hash=HashRule((".id",), salt)
        )
        assert made == '{"event":"e","properties":{}}'


def test_dropped_goes_before_hashed(salt: Path) -> None:
    """A field that both are asked of is gone."""
    assert (
        properties(
            '{"m":"x","n":{"o":"x"}}', drop=(".m", ".n.o"), hash=HashRule((".m", ".n"), salt)
        )
        == f'{{"n":"{hashed("{}")}"}}'
    )


NAMES = st.sampled_from(['"pw"', r'"\u0070w"', r'"p\u0077"'])
OTHERS = st.sampled_from(['"a"', '"b"', '"$set"', r'"\u0061"'])
SECRETS = st.sampled_from(
    [f'"{MARK}"', f'["{MARK}"]', f'{{"a":"{MARK}","pw":["{MARK}"]}}', f'[[{{"x":"{MARK}"}}]]']
)


@st.composite
def leaking(draw: st.DrawFn, depth: int = 3) -> str:
    """An object whose `pw` holds the secret, however it is spelled, several times, and within
    arrays under `a`.
    """
    members = draw(st.lists(st.builds("{}:{}".format, NAMES, SECRETS), max_size=3))
    members += draw(
        st.lists(
            st.builds("{}:{}".format, OTHERS, st.sampled_from(["1", '"x"', "null", "[]"])),
            max_size=2,
        )
    )
    if depth:
        inner = leaking(depth - 1)
        nested = inner | st.lists(inner | st.just("1"), max_size=2).map(
            lambda elements: f"[{','.join(elements)}]"
        )
        nested |= st.lists(inner, max_size=1).map(lambda elements: f"[ [{','.join(elements)}],[] ]")
        members += draw(
            st.lists(
                st.builds("{}:{}".format, st.sampled_from(['"a"', r'"\u0061"']), nested), max_size=2
            )
        )
    space = draw(SPACE)
    return "{" + space + f"{space},{space}".join(draw(st.permutations(members))) + space + "}"


PATHS = (".pw", ".a.pw", ".a.a.pw", ".a.a.a.pw")
LEAKS: list[dict[str, Any]] = [
    {},
    {"properties": ". + {}"},
    {"properties": {"all": ".", "text": "tojson", "deep": "[.. | scalars]"}},
    {"properties": {"pw": ".pw", "deep": ".a"}},
    {"distinct_id": "tojson"},
    {"event": "tojson | error"},
    {"event": ".a"},
    {"where": ".pw | not"},
    {"uuid": ".pw", "timestamp": TimestampRule(".pw")},
    {"set": ".", "set_once": "{x: .}", "groups": {"g": "tojson"}},
]


@given(leaking(), st.sampled_from(LEAKS))
def test_nothing_dropped_leaks(record: str, rules: dict[str, Any]) -> None:
    """By no rule, not even by an error."""
    try:
        made = mapped(record, drop=PATHS, **rules)
    except Unmappable as error:
        made = error.message
    assert MARK not in str(made)


@given(leaking())
def test_nothing_hashed_leaks(record: str) -> None:
    """What is left is JSON, and the secret is nowhere in it."""
    redaction = Redaction([], [(*("a",) * depth, "pw") for depth in range(4)])
    text = redaction.apply(record.encode()).decode()
    json.loads(text)
    assert MARK not in text


@given(leaking())
def test_what_is_left_is_what_a_parser_would_leave(record: str) -> None:
    """The text without the fields says the same as the parsed record without them."""

    def without(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {
            str(at): pair
            for at, pair in enumerate([(name, value) for name, value in pairs if name != "pw"])
        }

    redaction = Redaction([(*("a",) * depth, "pw") for depth in range(4)])
    left = redaction.apply(record.encode()).decode()
    assert json.loads(left, object_pairs_hook=without) == json.loads(
        record, object_pairs_hook=without
    )


def test_a_mapping_that_only_hashes_reads_the_file_once(salt: Path) -> None:
    """A salt that is changed takes effect with the next start: half a topic hashed otherwise would
    help no one.
    """
    mapper = mapping(properties={"m": ".m"}, hash=HashRule((".m",), salt))
    first = mapper.map(b'{"m":"x"}')
    salt.write_bytes(b"another")
    assert mapper.map(b'{"m":"x"}') == first
