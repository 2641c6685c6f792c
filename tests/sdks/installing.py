"""The SDKs, unchanged, as their registries have them: `python -m tests.sdks.installing` puts each
into a folder of its own in `.venv/sdks`.

Versions are exact and every archive is checked: by `requirements.txt`, `package-lock.json` and
`go.sum`, by `crates.txt` for Rust, and for Java, which has none of these, by `checksums.txt` with
the SHA-256 of each jar. Each folder is a copy of the program's with its packages beside it; it is
made again when one of the program's files changes. No file names a registry: that is the machine's
setting. SDKs whose tools aren't on this machine are passed over. Downloads of several SDKs
overlap; what is compiled has the machine to itself in turn.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.sdks.toolchains import TOOLS, missing
from tests.support.repository import ROOT

PROGRAMS: Final = ROOT / "tests" / "sdks" / "programs"
INSTALLED: Final = ROOT / ".venv" / "sdks"
_STAMP: Final = ".installed"
_AT_ONCE: Final = 2
_LONGEST: Final = frozenset({"rust"})
"""What takes longest begins first."""


def folder(sdk: str) -> Path:
    """Where an SDK and the program that uses it are installed."""
    return INSTALLED / sdk


def installed(sdk: str) -> bool:
    """Whether an SDK is installed as its program's files ask for."""
    stamp = folder(sdk) / _STAMP
    return stamp.exists() and stamp.read_text() == _fingerprint(sdk)


def install(sdk: str) -> None:
    """Install an SDK with its program. Raises `CalledProcessError` if a package client fails,
    `ValueError` for a wrong checksum.
    """
    place = folder(sdk)
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(PROGRAMS / sdk, place)
    _CLIENTS[sdk](place)
    (place / _STAMP).write_text(_fingerprint(sdk))


def checked(jars: Path, checksums: Path) -> None:
    """Compare jars with the checksums that are pinned. Raises `ValueError` where they differ, or
    where there is one more or less.
    """
    pinned = {
        name: digest
        for digest, name in (line.split() for line in checksums.read_text().splitlines())
    }
    digests = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars.glob("*.jar")}
    if digests != pinned:
        wrong = sorted(
            name for name in digests.keys() | pinned.keys() if digests.get(name) != pinned.get(name)
        )
        raise ValueError(f"{checksums} says otherwise of: {', '.join(wrong)}")


def _fingerprint(sdk: str) -> str:
    digest = hashlib.sha256(str(ROOT).encode())
    for path in sorted(
        path
        for path in (PROGRAMS / sdk).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ):
        digest.update(str(path.relative_to(PROGRAMS)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _python(place: Path) -> None:
    _run(place, sys.executable, "-m", "venv", "venv")
    _run(
        place,
        "venv/bin/python",
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        *_PIP,
        "-r",
        "requirements.txt",
    )


def _older_python(place: Path) -> None:
    for requirements in sorted(place.glob("*.txt")):
        venv = f"venv-{requirements.stem}"
        _run(place, sys.executable, "-m", "venv", venv)
        _run(
            place,
            f"{venv}/bin/python",
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            *_PIP,
            "-r",
            requirements.name,
        )


def _node(place: Path) -> None:
    _run(place, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")


def _go(place: Path) -> None:
    # -modcacherw: an ordinary removal must be able to remove it
    _run(
        place,
        "go",
        "build",
        "-modcacherw",
        "-mod=readonly",
        "-o",
        "program",
        ".",
        GOMODCACHE=str(place / "modules"),
        GOTOOLCHAIN="local",
    )


def _java(place: Path) -> None:
    _run(
        place,
        "mvn",
        "-q",
        "-B",
        "-C",
        f"-Dmaven.repo.local={place}/repository",
        "dependency:copy-dependencies",
    )
    checked(place / "lib", place / "checksums.txt")
    _run(place, "javac", "-d", "classes", "-cp", "lib/*", "Program.java")


def _rust(place: Path) -> None:
    _lock_crates(place)
    (place / "bin").mkdir()
    # one by one: together, the last one's features would be the others' too
    for program in ("older", "newest", "newest-v1"):
        _run(place, "cargo", "build", "--quiet", "--locked", "--package", program)
        shutil.copy(place / "target" / "debug" / program, place / "bin")
    shutil.rmtree(place / "target")


def _lock_crates(place: Path) -> None:
    """Write Cargo.lock from `crates.txt`, which is the same without the registry's address. Cargo
    itself supplies the address.
    """
    _run(place, "cargo", "generate-lockfile", "--quiet")
    lock = place / "Cargo.lock"
    source = re.search(r'^source = ".+"$', lock.read_text(), re.MULTILINE)
    assert source is not None, "cargo names no registry"
    lock.write_text(
        re.sub(
            r"^checksum = ",
            f"{source[0]}\n\\g<0>",
            (place / "crates.txt").read_text(),
            flags=re.MULTILINE,
        )
    )


_PIP: Final = ("--require-hashes", "--only-binary", ":all:")
_CLIENTS: Final[Mapping[str, Callable[[Path], None]]] = {
    "python": _python,
    "node": _node,
    "js": _node,
    "go": _go,
    "java": _java,
    "rust": _rust,
    "otel-python": _python,
    "otel-node": _node,
    "older-python": _older_python,
    "older-js": _node,
    "older-go": _go,
    "older-java": _java,
}


def _run(place: Path, *command: str, **environment: str) -> None:
    subprocess.run(
        command, cwd=place, env={**os.environ, **environment}, check=True, stdin=subprocess.DEVNULL
    )


def main() -> None:
    """Install what isn't, and say what is passed over."""
    absent = []
    for sdk in sorted(TOOLS, key=lambda sdk: sdk not in _LONGEST):
        if reason := missing(sdk):
            sys.stderr.write(f"passed over: {reason}\n")
        elif not installed(sdk):
            absent.append(sdk)
    sys.stderr.write(f"installing the SDKs: {', '.join(absent) or 'all are there'}\n")
    with ThreadPoolExecutor(_AT_ONCE) as executor:
        list(executor.map(install, absent))  # raises what an installation raised


if __name__ == "__main__":
    main()
