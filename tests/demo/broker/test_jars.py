"""The broker's jars: fetched once, from the repository that the machine names, and only if they
are the right ones.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forwarder.demo.broker import jars
from forwarder.demo.broker.jars import BrokerUnavailable, class_path, listed

JAR = b"not really a jar"
CORRECT = hashlib.sha256(JAR).hexdigest()


class Repository:
    """A repository of Maven's on this machine, which has one jar; and a cache for what is fetched
    of it.
    """

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.list = folder / "jars.txt"
        self.asked: list[str] = []
        place = folder / "served" / "org" / "example" / "thing" / "1.0"
        place.mkdir(parents=True)
        (place / "thing-1.0.jar").write_bytes(JAR)
        (place / "thing-1.0.jar.sha1").write_text(hashlib.sha1(JAR).hexdigest())
        self.expect(CORRECT)

    def expect(self, sha256: str, thing: str = "thing") -> None:
        """What the list says."""
        self.list.write_text(f"# a list\n{sha256} org.example:{thing}:1.0\n")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """One that jgo's configuration names."""
    made = Repository(tmp_path)

    class JarHandler(SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def log_message(self, _format: str, *args: Any) -> None:
            made.asked.append(str(args[0]))

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(JarHandler, directory=str(tmp_path / "served"))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    config = tmp_path / "jgo.conf"
    config.write_text(f"[repositories]\ncentral = http://127.0.0.1:{server.server_port}\n")
    monkeypatch.setenv("JGO_CONFIG_FILE", str(config))
    monkeypatch.setattr(jars, "LIST", made.list)
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_jar_is_fetched_once(repository: Repository) -> None:
    """The second time it is there."""
    classpath = class_path(repository.cache)
    assert Path(classpath).read_bytes() == JAR
    asked = len(repository.asked)
    assert asked
    assert class_path(repository.cache) == classpath
    assert len(repository.asked) == asked


def test_another_list_is_another_folder(repository: Repository) -> None:
    """Jars of an older version don't stay on the class path."""
    before = class_path(repository.cache)
    repository.list.write_text(repository.list.read_text() + "# a newer one\n")
    assert class_path(repository.cache) != before


def test_a_jar_that_isnt_the_expected_one_is_refused(repository: Repository) -> None:
    """Nothing of it is kept."""
    repository.expect("0" * 64)
    with pytest.raises(
        BrokerUnavailable, match=r"thing-1\.0\.jar isn't the one that was expected"
    ) as caught:
        class_path(repository.cache)
    assert CORRECT in caught.value.message
    assert list(repository.cache.rglob("*.jar")) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_jar_that_cant_be_fetched_says_what_to_do(repository: Repository) -> None:
    """Another broker, or another repository. (jgo leaves answers that it has no use for to the
    collector, which warns.)
    """
    repository.expect(CORRECT, "nothing")
    with pytest.raises(
        BrokerUnavailable, match=r"nothing-1\.0\.jar, a part of Apache Kafka, can't be fetched"
    ) as caught:
        class_path(repository.cache)
    assert "KAFKA_BOOTSTRAP_SERVERS" in caught.value.hint
    assert "jgo.conf" in caught.value.hint


def test_the_list_is_one_of_jars() -> None:
    """Each has a digest and coordinates, once."""
    jar_list = listed()
    assert len({jar.file for jar in jar_list}) == len(jar_list) > 40
    assert {len(bytes.fromhex(jar.sha256)) for jar in jar_list} == {32}
