"""How deep a text is nested."""

from __future__ import annotations

import random

from forwarder.core.nesting import MAX_NESTING, any_deeper, are_deeper, is_deeper
from tests.support.cases import cases


def nested(depth: int, dice: random.Random) -> tuple[str, int]:
    """A JSON text with brackets in its strings, and its levels."""
    if not depth or dice.random() < 0.2:
        return dice.choice(["1", '"x"', '"[[{"', r'"a\\"', r'"\"]"', r'"{\\\"["', '""']), 0
    inner = [nested(depth - 1, dice) for _ in range(dice.randint(0, 3))]
    levels = 1 + max((level for _, level in inner), default=0)
    texts = [text for text, _ in inner]
    if dice.random() < 0.5:
        return f"[{','.join(texts)}]", levels
    keys = [dice.choice(['"a"', '"}"', r'"\"{"']) for _ in texts]
    members = [f"{key}: {text}" for key, text in zip(keys, texts, strict=True)]
    return f"{{{','.join(members)}}}", levels


def test_levels_are_counted_outside_of_strings() -> None:
    """Exactly the levels that a text has are too many for a limit that is one less."""
    dice = random.Random(7)
    for _ in range(3000):
        text, levels = nested(dice.randint(0, 9), dice)
        data = text.encode()
        for limit in range(max(0, levels - 2), levels + 3):
            assert is_deeper(data, limit) is (levels > limit), text


@cases(
    ("text", "levels"),
    [
        (b"[" * 5, 5),
        (b"[[[]", 3),
        (b'[["[[[[', 2),
        (b'["\\\\"[[', 3),
        (b"]]]]]][[", 0),
        (b"[[][][]" * 3, 4),
    ],
)
def test_text_that_is_cut_off_is_as_deep_as_it_goes(text: bytes, levels: int) -> None:
    """Of what isn't JSON the beginning counts."""
    assert not is_deeper(text, levels)
    assert not levels or is_deeper(text, levels - 1)


def test_parts_are_within_levels() -> None:
    """Of a text in parts, each part's levels are those around it and its own."""
    deep = b"[" * (MAX_NESTING - 2) + b"]" * (MAX_NESTING - 2)
    text = b'[{"a":%b},{"a":%b}]' % (deep, deep)
    starts = [6, text.rindex(b'{"a":') + 5]
    assert not are_deeper(memoryview(text), starts, 2)
    assert are_deeper(memoryview(text), starts, 3)


def test_one_deep_text_among_many_is_found() -> None:
    """Also where many have brackets side by side, and whichever of them it is."""
    flat = b'{"a":[' + b",".join([b"{}"] * 100) + b"]}"
    deep = b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1)
    assert not any_deeper([flat] * 50)
    assert not any_deeper([])
    for at in (0, 15, 16, 49):
        texts = [flat] * 50
        texts[at] = deep
        assert any_deeper(texts)
