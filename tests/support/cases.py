"""A table of cases as one test. Each parametrized test is collected, set up and reported by
itself, in every process; of thousands of small ones, that is most of what they cost.

Invariants: every case runs, whatever became of those before it; the error of a case that fails
names it.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import pytest

Result = TypeVar("Result")

_LONGEST: Final = 100
_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _LONGEST


class Case(NamedTuple):
    """One case of a table."""

    number: int
    name: str
    arguments: dict[str, Any]


def cases(
    parameters: str | Sequence[str],
    values: Iterable[Any],
    *,
    ids: Iterable[object] | Callable[[Any], object] | None = None,
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Run the test once for each of `values`, as `pytest.mark.parametrize` does, but all in one
    test.

    The cases share the test's fixtures, except `tmp_path`, of which each has a folder: a test that
    changes another one belongs to `parametrize`. So does one that skips. Several tables, one above
    the other, are multiplied. Raises `ValueError` for a table without cases, a case with marks or
    of another length.
    """
    names = (
        [word.strip() for word in parameters.split(",")]
        if isinstance(parameters, str)
        else list(parameters)
    )
    table = _table(names, list(values), ids)

    def decorate(test: Callable[..., Result]) -> Callable[..., Result]:
        if inspect.iscoroutinefunction(test):

            async def run(**fixtures: Any) -> None:
                failed: list[BaseException] = []
                for case in table:
                    with _kept(case, failed):
                        await test(**_own(fixtures, case), **case.arguments)
                _raise(failed, len(table))

        else:
            # pytest asks the function whether it is a coroutine: so there are two of them.
            def run(**fixtures: Any) -> None:  # type: ignore[misc]
                failed: list[BaseException] = []
                for case in table:
                    with _kept(case, failed):
                        test(**_own(fixtures, case), **case.arguments)
                _raise(failed, len(table))

        every = functools.wraps(test)(run)
        signature = inspect.signature(test)
        every.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[
                parameter for name, parameter in signature.parameters.items() if name not in names
            ]
        )
        return every  # type: ignore[return-value]

    return decorate


def _own(fixtures: dict[str, Any], case: Case) -> dict[str, Any]:
    """The fixtures, with a folder of the case's own."""
    if (shared := fixtures.get("tmp_path")) is None:
        return fixtures
    folder = shared / str(case.number)
    folder.mkdir()
    return {**fixtures, "tmp_path": folder}


def _table(
    names: Sequence[str],
    values: Sequence[Any],
    ids: Iterable[object] | Callable[[Any], object] | None,
) -> list[Case]:
    if not values:
        raise ValueError("a table without cases")
    given_names = list(ids) if ids is not None and not callable(ids) else []
    table = []
    for number, given in enumerate(values):
        row: Any = given
        name: object = None
        if isinstance(given, type(pytest.param())):
            if given.marks:
                raise ValueError("a case with marks belongs to parametrize")
            row = given.values if len(names) > 1 else given.values[0]
            name = given.id
        arguments = [row] if len(names) == 1 else list(row)
        if name is None and callable(ids):
            name = "-".join(str(ids(argument)) for argument in arguments)
        elif name is None and given_names:
            name = given_names[number]
        table.append(
            Case(
                number,
                str(name) if name is not None else _shown(arguments),
                dict(zip(names, arguments, strict=True)),
            )
        )
    return table


def _shown(arguments: Sequence[object]) -> str:
    return ", ".join(_REPR.repr(argument) for argument in arguments)


@contextmanager
def _kept(case: Case, failed: list[BaseException]) -> Iterator[None]:
    """Name the case in its error, and keep the error of one that fails; what ends the
    test ends it.
    """
    try:
        yield
    except pytest.skip.Exception:
        raise AssertionError(
            f"the case {case.name} is skipped, and those after it would be: this belongs to "
            "parametrize"
        ) from None
    except (Exception, pytest.fail.Exception) as error:
        error.add_note(f"case: {case.name}")
        failed.append(error)
    except BaseException as error:
        error.add_note(f"case: {case.name}")
        raise


def _raise(failed: Sequence[BaseException], number: int) -> None:
    if len(failed) == 1:
        raise failed[0]
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {number} cases failed", failed)
