"""Exceptions in plain English, with the real errors of the system and of libraries."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import errno
import gzip
import http.client
import json
import os
import re
import socket
import sqlite3
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import pytest
from aiokafka import errors as kafka

from forwarder.core import error_text as module
from forwarder.core.error_text import LONGEST, error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.tls import client_context
from tests.support.cases import cases
from tests.support.certificates import Authority
from tests.support.repository import name as path_name
from tests.support.repository import trees

PYTHON: Final = re.compile(
    r"[\[\]{}<>]|_ssl\.c|Errno|\w(?:Error|Exception|Timeout)\b|\('|, "
    r"\d+\)|\bNone\b|\bTrue\b|b'|\(\)|\n"
)
"""What no text has."""


def raised(call: Callable[[], object]) -> Exception:
    """The error of a call."""
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def at_system(number: int) -> OSError:
    """An error as the system's calls raise it."""
    return OSError(number, os.strerror(number), "/some/file")


def kafka_error(text: str) -> Exception:
    error: Exception = kafka.NodeNotReadyError(text)
    return error


LOCAL: Final[dict[str, tuple[Callable[[], Exception], str]]] = {
    "no permission": (lambda: at_system(errno.EACCES), "Permission denied"),
    "disk full": (
        lambda: raised(lambda: Path("/dev/full").write_text("x")),
        "No space left on device",
    ),
    "read-only": (lambda: at_system(errno.EROFS), "Read-only file system"),
    "disk fails": (lambda: at_system(errno.EIO), "Input/output error"),
    "no file": (
        lambda: raised(lambda: Path("/no/such/file").read_text()),
        "No such file or directory",
    ),
    "a folder": (lambda: raised(lambda: Path("/").read_bytes()), "Is a directory"),
    "too many files": (lambda: at_system(errno.EMFILE), "Too many open files"),
    "own words": (
        lambda: type("Foreign", (OSError,), {})(1, "it belongs to another user"),
        "it belongs to another user",
    ),
    "not gzip": (lambda: raised(lambda: gzip.decompress(b"abcdef")), "it isn't gzip"),
    "half of gzip": (
        lambda: raised(lambda: gzip.decompress(gzip.compress(b"abc" * 99)[:20])),
        "Compressed file ended before the end-of-stream marker was reached",
    ),
    "not deflate": (lambda: raised(lambda: zlib.decompress(b"abcdef")), "incorrect header check"),
    "not UTF-8": (
        lambda: raised(b"ab\xff".decode),
        "it isn't text in UTF-8: byte 0xff at offset 2",
    ),
    "not JSON": (
        lambda: raised(lambda: json.loads("{")),
        "expecting property name enclosed in double quotes at line 1, column 2",
    ),
    "not JSON, msgspec": (
        lambda: raised(lambda: msgspec.json.decode(b"{")),
        "Input data was truncated",
    ),
    "not a database": (lambda: raised(not_a_database), "file is not a database"),
    "a bug": (lambda: raised(lambda: attrgetter("x")(object())), "unexpected: attribute"),
    "a missing key": (lambda: raised(lambda: {"a": 1}["(1, 2)"]), "unexpected: key"),
    "ours": (
        lambda: ConfigurationError("The file is empty.", hint="Fill it."),
        "The file is empty.",
    ),
    "several": (
        lambda: ExceptionGroup("both", [at_system(errno.EACCES), ValueError()]),
        "Permission denied",
    ),
    "nothing said": (ValueError, "unexpected: value"),
    "a package": (
        lambda: raised(lambda: __import__("no_such_package")),
        "the package no_such_package is missing",
    ),
    "Kafka": (lambda: kafka_error("no broker is ready"), "no broker is ready"),
    "Kafka, its object": (lambda: kafka_error("<Future pending>"), "node not ready"),
    "Kafka, by number": (
        kafka.RequestTimedOutError,
        "request timed out",
    ),
    "long": (lambda: ValueError("x" * 1000), "x" * (LONGEST - 1) + "…"),
}


def not_a_database() -> None:
    """Open a file of another kind with SQLite."""
    with contextlib.closing(sqlite3.connect(__file__)) as connection:
        connection.execute("SELECT 1 FROM sqlite_master")


@cases("name", LOCAL)
def test_errors_of_files_and_values(name: str) -> None:
    """Each says what is wrong, and nothing of Python."""
    make, text = LOCAL[name]
    assert error_text(make()) == text
    assert not PYTHON.search(text)


async def requested(
    url: str, *, ca: Path | None = None, proxy: str | None = None, seconds: float = 5
) -> Exception:
    """The error of a request."""
    context = client_context(ca) if ca else True
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session:
        with pytest.raises((aiohttp.ClientError, OSError, ValueError)) as caught:
            async with session.get(url, ssl=context, proxy=proxy) as answer:
                await answer.read()
    return caught.value


@asynccontextmanager
async def server(answer: bytes | None, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Answers each connection with these bytes and closes it; None: resets it. Its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if answer is None:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
        yield listening.sockets[0].getsockname()[1]


def unused() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port: int = bound.getsockname()[1]
        return port


async def test_refused_ports() -> None:
    """With each of the ways by which connections are made; a name with several addresses too."""
    port = unused()
    assert (
        error_text(await requested(f"http://127.0.0.1:{port}"))
        == f"no connection to 127.0.0.1:{port}: connection refused"
    )
    assert (
        error_text(await requested("http://a.example", proxy=f"http://127.0.0.1:{port}"))
        == "no connection to the proxy: connection refused"
    )
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(
            ConnectionRefusedError if host == "127.0.0.1" else OSError, match="Connect call failed"
        ) as caught:
            await asyncio.open_connection(host, port)
        assert error_text(caught.value) == "Connection refused"
    assert (
        error_text(
            raised(lambda: http.client.HTTPConnection("127.0.0.1", port).request("GET", "/"))
        )
        == "Connection refused"
    )
    several = OSError(
        "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] "
        "Connect call failed ('127.0.0.1', 1)"
    )
    assert error_text(several) == "Connection refused"


async def test_an_unknown_name() -> None:
    """The name is shown, and what the resolver says of it."""
    text = error_text(await requested("http://nothing.invalid"))
    assert re.fullmatch(r"unknown host nothing\.invalid: [a-z][a-z ]+", text)


@cases(
    ("answer", "text"),
    [
        (b"", "the connection was closed before an answer came"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf",
            "the answer was cut off before its end",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the answer isn't valid HTTP"),
        (None, "the connection failed: connection reset by peer"),
    ],
)
async def test_broken_answers(answer: bytes | None, text: str) -> None:
    """None, half of one, one in another protocol, a reset."""
    async with server(answer) as port:
        message = error_text(await requested(f"http://127.0.0.1:{port}"))
        assert message in (text, "the connection was closed" if answer is None else text)


async def test_a_timeout_is_named() -> None:
    """A server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert (
            error_text(await requested(f"http://127.0.0.1:{port}", seconds=0.05))
            == "no answer in time"
        )


async def test_certificates_that_are_not_trusted(tmp_path: Path) -> None:
    """Another authority's, an expired one, another name's; and a server without TLS."""
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    good = authority.issue("good")
    old = authority.issue("old", life=timedelta(days=-1))
    elsewhere = authority.issue("elsewhere.example", local=False)
    said = {}
    for name, made, ca in (
        ("other", good, other),
        ("old", old, authority),
        ("name", elsewhere, authority),
    ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.cert_file, made.key_file)
        async with server(b"", context) as port:
            said[name] = error_text(await requested(f"https://127.0.0.1:{port}", ca=ca.ca_file))
    begin = "the certificate of 127.0.0.1 isn't trusted: "
    assert said.pop("name").startswith(
        f"{begin}IP address mismatch, certificate is not valid for '127.0.0.1'"
    )
    assert said == {
        "other": f"{begin}unable to get local issuer certificate",
        "old": f"{begin}certificate has expired",
    }
    async with server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        assert error_text(await requested(f"https://127.0.0.1:{port}")).startswith(
            f"no TLS with 127.0.0.1:{port}: "
        )


def test_files_of_certificates(tmp_path: Path) -> None:
    """No file, no PEM in it, and a key that belongs to another certificate."""
    authority = Authority(tmp_path)
    one = authority.issue("one")
    two = authority.issue("two")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    assert (
        error_text(raised(lambda: context.load_cert_chain(tmp_path / "none")))
        == "No such file or directory"
    )
    assert (
        error_text(raised(lambda: context.load_verify_locations(garbage)))
        == "it holds no certificate in PEM form"
    )
    assert error_text(raised(lambda: context.load_cert_chain(garbage))) == "it isn't valid PEM"
    assert (
        error_text(raised(lambda: context.load_cert_chain(one.cert_file, two.key_file)))
        == "the private key doesn't belong to the certificate"
    )


def test_the_known_classes_exist() -> None:
    """Each name in the table is one of a package that is used, so that none
    is unused.
    """
    packages = {
        "aiohttp": [aiohttp],
        "http": [http.client],
        "ssl": [ssl],
        "gzip": [gzip],
        "json": [json],
        "aiokafka": [kafka],
    }
    for name in module._KNOWN:
        package, _, attribute = name.partition(".")
        classes = [
            getattr(where, attribute, None)
            for where in packages.get(package, [__import__(package)])
        ]
        assert [
            kind for kind in classes if isinstance(kind, type) and issubclass(kind, BaseException)
        ], name


FOREIGN: Final = frozenset(
    {
        "OSError",
        "Exception",
        "BaseException",
        "Error",
        "SSLError",
        "ClientError",
        "KafkaError",
        "HTTPException",
        "error",
    }
)
"""The last words of classes whose errors are other people's."""


def _as_python_says(tree: ast.Module) -> Iterator[int]:
    """Lines on which the text, the class or the words of someone else's
    error are used as they are.
    """
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "strerror"
            and getattr(node.value, "id", "") != "os"
        ):
            yield node.lineno
        if not isinstance(node, ast.ExceptHandler) or node.name is None or node.type is None:
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        foreign = any(ast.unparse(kind).rpartition(".")[2] in FOREIGN for kind in kinds)
        for inner in (
            inner
            for statement in node.body
            for inner in ast.walk(statement)
            if isinstance(inner, ast.expr)
        ):
            text = ast.unparse(inner) if isinstance(inner, ast.Call | ast.Attribute) else ""
            if text == f"type({node.name}).__name__" or (
                foreign and text in (f"str({node.name})", f"repr({node.name})")
            ):
                yield inner.lineno
            if (
                foreign
                and isinstance(inner, ast.FormattedValue)
                and getattr(inner.value, "id", "") == node.name
            ):
                yield inner.lineno


def test_no_error_is_shown_as_python_says_it() -> None:
    """What others raise reaches a text by this function alone."""
    places = [
        f"{path_name(path)}:{line}"
        for path, tree in trees("forwarder", "except ", "except*", "strerror")
        if path.name != "error_text.py"
        for line in _as_python_says(tree)
    ]
    assert places == []
