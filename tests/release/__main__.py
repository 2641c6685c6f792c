"""`make release-check`: builds the wheel and the source archive, and proves each in a fresh
environment outside the repository.

An environment gets the pinned requirements, then forwarder, and no extra: what a command lacks is
installed by the command that its message names. Nothing but the pinned packages is fetched. The
exit code is 1 if a check fails, with what the command printed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from forwarder import __version__
from tests.release.checks import CHECKS
from tests.release.installed import Installed, ReleaseCheckFailed
from tests.support.wheels import build_sdist, build_wheel

_print_lock = threading.Lock()


def timed(what: str, work: Callable[[], object]) -> None:
    """Do it, and print how long it took."""
    began = time.monotonic()
    work()
    with _print_lock:
        sys.stdout.write(f"{what:<50} {time.monotonic() - began:5.1f} s\n")
        sys.stdout.flush()


def prove(name: str, build: Callable[[Path], Path], folder: Path) -> Path:
    """Build one, install it, and run every check with it."""
    (folder / "build").mkdir(parents=True)
    (folder / "home").mkdir()
    built: list[Path] = []
    timed(f"{name}: built", lambda: built.append(build(folder / "build")))
    installed = Installed(folder)
    timed(f"{name}: installed in a fresh environment", lambda: installed.install(built[0]))
    for what, check in CHECKS.items():
        timed(f"{name}: {what}", partial(check, installed))
    return built[0]


def wrong_tag(tag: str) -> str:
    """What is wrong with a release's tag: it names the version of the code."""
    return (
        ""
        if tag == f"v{__version__}"
        else f"the tag {tag} is not that of version {__version__}: v{__version__}"
    )


def main() -> int:
    """Prove both at the same time, each in a folder that is deleted afterwards."""
    parser = argparse.ArgumentParser(
        prog="make release-check", description="Prove the wheel and the source archive."
    )
    parser.add_argument("--tag", help="the tag of the release, which has to name its version")
    parser.add_argument(
        "--output",
        type=Path,
        help="a folder for the wheel and the source archive, once both are proved",
    )
    asked = parser.parse_args()
    if asked.tag is not None and wrong_tag(asked.tag):
        sys.stderr.write(f"{wrong_tag(asked.tag)}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="release-") as made, ThreadPoolExecutor() as both:
        kinds = {"wheel": build_wheel, "sdist": build_sdist}
        running = {
            name: both.submit(prove, name, build, Path(made) / name)
            for name, build in kinds.items()
        }
        failed = {
            name: error
            for name, future in running.items()
            if (error := future.exception()) is not None
        }
        if asked.output is not None and not failed:
            asked.output.mkdir(parents=True, exist_ok=True)
            for future in running.values():
                shutil.copy2(future.result(), asked.output)
    for name, error in failed.items():
        if not isinstance(error, ReleaseCheckFailed):
            raise error
        sys.stderr.write(f"{name}: {error}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
