"""What holds for every test: it leaves no task, thread, file, socket or HTTP session behind, and
it ends within its time.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Final

import hypothesis
import pytest
import pytest_asyncio
import typer.testing
from typer.main import get_command

from forwarder.storage import failpoints
from tests.support.clock import FakeClock
from tests.support.leaks import (
    forget_applications,
    leaked_files,
    leaked_sessions,
    leaked_tasks,
    leaked_threads,
    logging_restored,
    open_files,
    open_sessions,
    open_signal_pipe,
    watch_sessions,
)

ASYNC_SHARE: Final = 0.75
"""Of the limit that pytest has for a test: that of an asynchronous one, or for one example of a
property. Pytest's own can only end the whole run: an exception that a signal raises inside a
running loop ends whichever task it meets, not the test.
"""

QUICK: Final = "quick"
MOST_QUICK: Final = 40
"""Examples of a property that says how many, by the profile of `make check`."""

# No limit for one example: what a machine does in a given moment is no property of the code.
# Pytest's own limit ends what hangs. In continuous integration a change is judged by the same
# examples each time, as in Hypothesis's own profile for it; elsewhere they vary.
hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=os.environ.get("CI") == "true"
)
hypothesis.settings.load_profile("tests")
# `make check` tries fewer; `make test` tries them all.
hypothesis.settings.register_profile(
    QUICK, hypothesis.settings.get_profile("tests"), max_examples=25
)

pytest_plugins = ["tests.support.kafka", "tests.support.secure_kafka"]

BROKERS: Final = frozenset({"kafka", "secure_kafka"})
"""The fixtures that start one for each process."""
_places: Final = itertools.count()

watch_sessions()
open_signal_pipe()
# a shell has what it starts in the background ignore it, and so would every command under test
signal.signal(signal.SIGINT, signal.default_int_handler)

_HANDLERS: Final[dict[int, Any]] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
"""What tests begin with."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Hide from the garbage collector what collection makes, as it stays until the end: each
    search for garbage would walk through it.

    Tests leave little behind, so the search is rarer than by default. `leaves_nothing_open`
    searches where a file seems to be left.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(5_000, 20, 15)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the check for tasks around asynchronous tests and their fixtures, and a limit around
    each body. Put tests with a broker first.

    The check for what is open is around that: it looks once the test's loop is closed.
    """
    # One process begins with all of them, so that it alone starts a broker.
    items.sort(key=lambda item: BROKERS.isdisjoint(getattr(item, "fixturenames", ())))
    is_quick = hypothesis.settings.get_current_profile_name() == QUICK
    for item in items:
        if is_quick and isinstance(item, pytest.Function):
            _try_fewer(item)
        if isinstance(item, pytest.Function) and pytest_asyncio.is_async_test(item):
            item.fixturenames.insert(
                item.fixturenames.index("leaves_nothing_open") + 1, "leaves_no_task"
            )
            _limit(item)


@pytest.fixture(autouse=True)
def leaves_nothing_open() -> Iterator[None]:
    """Fail the test that leaves a thread, a file, a socket or an HTTP session behind, naming it.
    Its loop is closed by then.

    Logging is as before the test, too.
    """
    files = open_files()
    sessions = open_sessions()
    threads = threading.enumerate()
    with logging_restored():
        yield
    forget_applications()
    _fail_for([*leaked_threads(threads), *leaked_files(files), *leaked_sessions(sessions)])


@pytest_asyncio.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    """Fail the test that leaves a task on its loop, naming it. Its fixtures are torn
    down by then.
    """
    yield
    _fail_for(await leaked_tasks())


@pytest.fixture(autouse=True)
def state_of_its_own(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a forwarder keeps by default goes to a place that no other test has seen,
    made only when it is used.
    """
    place = tmp_path_factory.getbasetemp() / f"state-{next(_places)}"
    monkeypatch.setenv("STATE_DIRECTORY", str(place))
    monkeypatch.setenv("XDG_STATE_HOME", str(place))


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    """No failpoint outlives its test: the next one of the same process would fail for it."""
    yield
    failpoints.arm("")


@pytest.fixture(autouse=True)
def hears_signals() -> Iterator[None]:
    """A daemon that has ended ignores signals from then on: where it ended in a test, the commands
    of the tests after it would inherit that.
    """
    yield
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def parsers_made_once() -> Iterator[None]:
    """Make the parser of a command's options once, not each time that a test runs the command:
    that takes longer than most commands. A run leaves nothing in it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(get_command))
        yield


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


def _try_fewer(item: pytest.Function) -> None:
    """Give a property `MOST_QUICK` examples at most. A state machine has its settings in its class,
    any other property in an attribute that `hypothesis.settings` sets when it decorates.
    """
    owner, name = (
        (item.cls, "settings")
        if hasattr(item.cls, "settings")
        else (getattr(item.obj, "__func__", item.obj), "_hypothesis_internal_use_settings")
    )
    given = getattr(owner, name, None)
    if isinstance(given, hypothesis.settings) and given.max_examples > MOST_QUICK:
        setattr(owner, name, hypothesis.settings(given, max_examples=MOST_QUICK))


def _limit(item: pytest.Function) -> None:
    mark = item.get_closest_marker("timeout")
    limit = ASYNC_SHARE * float(mark.args[0] if mark else item.config.getini("timeout"))
    handle = getattr(item.obj, "hypothesis", None)
    if handle is not None:
        handle.inner_test = _limited(handle.inner_test, limit)
    else:
        item.obj = _limited(item.obj, limit)


def _limited(
    test: Callable[..., Awaitable[object]], limit: float
) -> Callable[..., Awaitable[object]]:
    if getattr(test, "is_limited", False):
        return test

    @functools.wraps(test)
    async def within_limit(*arguments: Any, **named: Any) -> object:
        async with asyncio.timeout(limit):
            return await test(*arguments, **named)

    # The mark is of this module: parameters of one property share its test.
    within_limit.is_limited = True  # type: ignore[attr-defined]
    return within_limit


def _fail_for(leaks: list[str]) -> None:
    if leaks:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)
