"""Tables of cases (`tests/support/cases.py`): every case runs, and one that fails is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import cases


def test_each_case_runs() -> None:
    """One value, several, those of tables above each other; named or not."""
    seen: list[object] = []

    @cases("letter", ["a", pytest.param("b", id="second")])
    @cases(("number", "text"), [(1, "x"), pytest.param(2, "y", id="two")], ids=["one", "not used"])
    def test(letter: str, number: int, text: str) -> None:
        seen.append((letter, number, text))

    test()
    assert seen == [("a", 1, "x"), ("a", 2, "y"), ("b", 1, "x"), ("b", 2, "y")]


async def test_each_case_of_a_coroutine_runs() -> None:
    """In the test's loop."""
    seen: list[int] = []

    @cases("number", [1, 2])
    async def test(number: int) -> None:
        seen.append(number)

    await test()
    assert seen == [1, 2]


def test_a_case_that_fails_is_named() -> None:
    """The others run all the same; the error is the case's own."""
    seen: list[int] = []

    @cases("number, square", [(1, 1), (2, 5), (3, 9)])
    def test(number: int, square: int) -> None:
        seen.append(number)
        assert number * number == square

    with pytest.raises(AssertionError) as caught:
        test()
    assert seen == [1, 2, 3]
    assert caught.value.__notes__ == ["case: 2, 5"]


@pytest.mark.parametrize(
    "ids",
    [["one", "two", "three"], lambda number: {1: "one", 2: "two", 3: "three"}[number]],
    ids=["list", "function"],
)
def test_several_that_fail_are_reported_together(ids: list[str]) -> None:
    """Each by its id; what `pytest.fail` says counts, too."""

    @cases("number", [1, 2, 3], ids=ids)
    def test(number: int) -> None:
        if number == 3:
            pytest.fail("three")
        assert number > 1, "small"
        raise KeyError(number)

    with pytest.raises(BaseExceptionGroup, match="3 of 3 cases failed") as caught:
        test()
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["case: one"],
        ["case: two"],
        ["case: three"],
    ]


def test_each_case_has_a_folder(tmp_path: Path) -> None:
    """Nothing that one writes is there for the next, in tables above each other either."""
    seen: list[Path] = []

    @cases("letter", ["a", "b"])
    @cases("number", [1, 2])
    def test(letter: str, number: int, tmp_path: Path) -> None:
        assert list(tmp_path.iterdir()) == []
        (tmp_path / "file").touch()
        seen.append(tmp_path)

    test(tmp_path=tmp_path)
    assert len(set(seen)) == 4


def test_what_ends_the_test_names_its_case() -> None:
    """An interruption isn't kept until the others have run."""
    seen: list[int] = []

    @cases("number", [1, 2])
    def test(number: int) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        test()
    assert (seen, caught.value.__notes__) == ([1], ["case: 1"])


def test_what_no_table_can_have() -> None:
    """No case at all; marks of a case; a case that skips, which would skip the others; a row that
    is too short.
    """
    with pytest.raises(ValueError, match="without cases"):
        cases("number", [])
    with pytest.raises(ValueError, match="marks"):
        cases("number", [pytest.param(1, marks=pytest.mark.slow)])
    with pytest.raises(ValueError, match="zip"):
        cases("number, square", [(1,)])

    @cases("number", [1])
    def test(number: int) -> None:
        pytest.skip("not here")

    with pytest.raises(AssertionError, match="the case 1 is skipped"):
        test()
