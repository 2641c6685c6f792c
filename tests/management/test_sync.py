"""The blocking client: the same operations, wherever and however it is called."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from forwarder.management import ApiError, Client, InvalidCall, Pages, SyncClient, SyncPages
from forwarder.management.sync import LoopThread, SyncGroup
from tests.management.scripted import DOMAIN, KEY, ORGANIZATION, envelope, said
from tests.support.cases import cases
from tests.support.repository import ROOT
from tests.support.upstream import Answer, Fault, Upstream, failing
from tests.support.waiting import eventually, in_thread

FOUND = said({"id": DOMAIN})


async def blocking(service: Upstream, work: Callable[[SyncClient], Any], *answers: Answer) -> Any:
    """What some work with a client in a thread returns, when the service answers so."""
    service.script.extend(answers)

    def use() -> Any:
        with SyncClient(service.url, KEY) as client:
            return work(client)

    return await in_thread(use)


def public(owner: object) -> dict[str, Any]:
    """What someone may use of it."""
    return {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}


def shape(method: Any) -> list[tuple[str, Any, Any, Any]]:
    """The parameters of a method."""
    return [
        (parameter.name, parameter.kind, parameter.default, parameter.annotation)
        for parameter in inspect.signature(method).parameters.values()
    ]


def test_it_has_the_same_methods_with_the_same_signatures() -> None:
    """Whatever the asynchronous client has, the blocking one has, called the same way."""
    one = Client("http://service.invalid", KEY)
    other = SyncClient("http://service.invalid", KEY)
    assert shape(Client) == shape(SyncClient)
    assert public(one).keys() == public(other).keys()
    for name, ours in public(other).items():
        theirs = getattr(one, name)
        if not isinstance(ours, SyncGroup):
            assert shape(ours) == shape(theirs)
            continue
        assert public(ours).keys() == public(theirs).keys()
        for verb, method in public(ours).items():
            original = public(theirs)[verb]
            assert shape(method) == shape(original)
            assert inspect.getdoc(method) == inspect.getdoc(original)
            assert not inspect.iscoroutinefunction(method)
            answer = str(inspect.signature(original).return_annotation)
            assert str(inspect.signature(method).return_annotation) == answer.replace(
                "Pages", "SyncPages"
            )
    for name, method in public(SyncPages).items():
        assert shape(method) == shape(getattr(Pages, name))
    other.close()


async def test_it_does_what_the_other_does() -> None:
    """Operations, errors, the generic call and lists, which are read page by
    page as they are needed.
    """
    async with Upstream() as service:

        def work(client: SyncClient) -> None:
            assert client.domains.get(ORGANIZATION, DOMAIN)["id"] == DOMAIN
            with pytest.raises(
                ApiError, match=r"domains delete: HTTP 404 not_found: Gone\."
            ) as caught:
                client.domains.delete(ORGANIZATION, DOMAIN)
            assert caught.value.__context__ is None
            listed = client.domains.list(ORGANIZATION, page_size=2)
            assert len(service.requests) == 2
            items = iter(listed)
            assert [next(items)["id"], next(items)["id"]] == ["a", "b"]
            assert len(service.requests) == 3
            assert [item["id"] for item in items] == ["c"]
            assert listed.count() == 3
            assert [page["count"] for page in listed.pages()] == [1]
            assert repr(listed) == "<SyncPages of domains list>"

        next_page = "http://elsewhere.example/?limit=2&offset=2"
        answers = [
            FOUND,
            said({"detail": "Gone."}, 404),
            said(envelope("a", "b", count=3, following=next_page)),
            said(envelope("c", "b", count=3)),
            said(envelope("a", count=3)),
            said(envelope("a", count=1)),
        ]
        await blocking(service, work, *answers)
    assert [request.path.partition("?")[2] for request in service.requests[2:]] == [
        "limit=2",
        "limit=2&offset=2",
        "limit=1",
        "limit=2",
    ]


async def test_it_works_where_a_loop_is_running() -> None:
    """In a notebook the thread that calls has a running loop of its own: calls work
    all the same.
    """
    async with Upstream() as service:
        service.script.extend([FOUND, FOUND])

        async def cell(client: SyncClient) -> Any:
            return client.domains.get(ORGANIZATION, DOMAIN)["id"]

        def notebook() -> list[Any]:
            with SyncClient(service.url, KEY) as client:
                return [asyncio.run(cell(client)) for _ in range(2)]

        assert await in_thread(notebook) == [DOMAIN, DOMAIN]
    assert service.connections == 1


async def test_any_thread_may_call() -> None:
    """Threads share a client; their calls continue at the same time."""
    async with Upstream() as service:
        together = asyncio.Event()
        service.script.extend([Answer(200, FOUND.body, when=together)] * 8)

        def work(client: SyncClient) -> list[Any]:
            with ThreadPoolExecutor(8) as pool:
                return list(
                    pool.map(lambda _: client.domains.get(ORGANIZATION, DOMAIN)["id"], range(8))
                )

        task = asyncio.create_task(blocking(service, work))
        await service.until(lambda: len(service.requests) == 8)
        together.set()
        assert await task == [DOMAIN] * 8


def test_without_a_call_there_is_no_thread() -> None:
    """A client that isn't used starts nothing, and can be closed as often as one likes."""
    before = threading.active_count()
    client = SyncClient("http://service.invalid", KEY)
    assert threading.active_count() == before
    client.close()
    client.close()
    with pytest.raises(InvalidCall, match="the client is closed"):
        client.domains.get(ORGANIZATION, DOMAIN)
    with pytest.raises(InvalidCall, match="the client is closed"):
        list(client.domains.list(ORGANIZATION))


async def test_closing_ends_what_runs() -> None:
    """A call that is in progress in another thread when the client is closed ends with an error
    that says so.
    """
    async with Upstream() as service:
        service.script.append(failing(Fault.HANG))

        def work(client: SyncClient) -> ApiError:
            with ThreadPoolExecutor(1) as pool:
                call = pool.submit(client.domains.delete, ORGANIZATION, DOMAIN)
                asked.wait()
                client.close()
                error = call.exception()
            assert isinstance(error, ApiError)
            return error

        asked = threading.Event()
        task = asyncio.create_task(blocking(service, work))
        await eventually(lambda: service.requests)
        asked.set()
        error = await task
    assert (error.code, error.unsure) == ("closed", True)


def test_an_interrupt_cancels_the_call() -> None:
    """Ctrl-C while a call waits ends it at once and drops its connection; the client can be used
    on, or closed.
    """
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        main = threading.get_ident()

        def interrupt() -> bytes:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                signal.pthread_kill(main, signal.SIGUSR1)
                return connection.recv(1)

        def raises(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGUSR1, raises)
        try:
            seen = pool.submit(interrupt)
            with SyncClient(f"http://127.0.0.1:{server.getsockname()[1]}", KEY) as client:
                with pytest.raises(KeyboardInterrupt):
                    client.domains.delete(ORGANIZATION, DOMAIN)
                assert seen.result(10) == b""
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_it_shows_no_key() -> None:
    """Neither the client nor its parts show the key, and none of them can be pickled."""
    with SyncClient("https://example.com", KEY) as client:
        shown = f"{client} {client.domains} {client.domains.list(ORGANIZATION)}"
        assert shown == (
            "<SyncClient of https://example.com> <SyncDomainOperations at "
            "https://example.com> <SyncPages of domains list>"
        )
        with pytest.raises(TypeError, match="a client holds a key"):
            pickle.dumps(client)


def test_a_forked_process_must_create_its_own_client() -> None:
    """The thread doesn't come along into a process that is forked off: a call there
    fails at once.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with SyncClient(url, KEY, timeout=0.1) as client:
            with pytest.raises(ApiError, match="no whole answer"):
                client.domains.get(ORGANIZATION, DOMAIN)
            # as it looks to a fork; a real one isn't safe in a process with threads
            client._thread._process += 1
            with pytest.raises(InvalidCall, match="of another process"):
                client.domains.get(ORGANIZATION, DOMAIN)
            client._thread._process -= 1


@pytest.mark.slow
@cases("ending", ["", "sys.exit()", "del client", "client.close()"])
def test_a_program_that_does_not_close_it_ends_all_the_same(ending: str) -> None:
    """No one has to close a client for the program to end, and nothing is complained about."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"""
import sys
from forwarder.management import ApiError, SyncClient
client = SyncClient("http://127.0.0.1:{server.getsockname()[1]}", "{KEY}", timeout=0.2)
try:
    client.domains.get("o", "d")
except ApiError as error:
    print(error.code)
{ending}
"""
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("timeout\n")


LINES = (3, 4, 5, 7)
"""Of `LoopThread.run`, counted as they are executed: from the first inside its `try`
to the one that waits. Not the sixth, at which the lock is given back: no signal is
looked at before that is done.
"""


class Works:
    """What is done in a loop thread, and whether it has ended."""

    def __init__(self) -> None:
        self.last_done = 0
        self.begun = threading.Event()
        self.ended = threading.Event()
        self.thread = LoopThread(self.last)

    async def last(self) -> None:
        self.last_done += 1

    async def waiting(self) -> str:
        """Waits until it is cancelled, or for a while."""
        self.begun.set()
        try:
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        finally:
            self.ended.set()
        return "never"


@pytest.fixture
def works() -> Iterator[Works]:
    """A thread, ended afterwards."""
    under_test = Works()
    yield under_test
    under_test.thread.end()


@contextmanager
def interrupted(function: Callable[..., Any], line: int) -> Iterator[None]:
    """Raise an interrupt before a line of a function is executed; lines count from 1."""
    passed = 0

    def traced(_: FrameType, event: str, __: object) -> Any:
        nonlocal passed
        passed += event == "line"
        if event == "line" and passed == line:
            raise KeyboardInterrupt
        return traced

    before = sys.gettrace()
    sys.settrace(lambda frame, _, __: traced if frame.f_code is function.__code__ else None)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("line", LINES)
def test_an_interrupt_ends_the_work_whenever_it_comes(works: Works, line: int) -> None:
    """Ctrl-C may come between any two lines: what has begun is cancelled and has ended, and
    nothing begins afterwards.
    """
    with pytest.raises(KeyboardInterrupt), interrupted(LoopThread.run, line):
        works.thread.run(works.waiting())
    assert not works.begun.is_set() or works.ended.is_set()
    assert works.thread.run(_answer()) == 42
    assert not works.begun.is_set() or works.ended.is_set()


def test_the_last_line_is_the_one_that_waits(works: Works) -> None:
    """The test above reaches as far as it says."""
    lines: list[int] = []

    def traced(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines.append(frame.f_lineno)
        return traced

    before = sys.gettrace()
    sys.settrace(lambda frame, _, __: traced if frame.f_code is LoopThread.run.__code__ else None)
    try:
        works.thread.run(_answer())
    finally:
        sys.settrace(before)
    assert len(lines) == LINES[-1]


def test_the_end_comes_once(works: Works) -> None:
    """What is last is done once, if there was anything before; after that nothing is."""
    works.thread.run(_answer())
    works.thread.end()
    works.thread.end()
    assert works.last_done == 1
    with pytest.raises(InvalidCall, match="the client is closed"):
        works.thread.run(_answer())
    unused = Works()
    unused.thread.end()
    assert unused.last_done == 0


def test_a_thread_that_cannot_start_is_no_half_thread(
    works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If there is no thread to be had, the call says so, and the next one tries again."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            works.thread.run(_answer())
    assert works.thread.run(_answer()) == 42


async def _answer() -> int:
    return 42
