"""forwarder's wheel, built as the image builds it, its source archive, and environments that have
it installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.support.dockerfile import FORWARDER
from tests.support.repository import ROOT, files


def build_wheel(folder: Path) -> Path:
    """The wheel, made in a folder by the Dockerfile's own command from the files that it copies."""
    for *sources, target in (line.split() for line in FORWARDER.copied):
        for source in sources:
            _copy(
                ROOT / source, folder / target / ("" if source.endswith("/") else Path(source).name)
            )
    [command] = re.findall(r"\bpip (wheel [^&]*[^&\s])", FORWARDER.text)
    _pip(*command.split(), cwd=folder)
    [made] = (folder / "wheels").iterdir()
    return made


def build_sdist(folder: Path) -> Path:
    """The source archive, made of a copy of the repository in a folder."""
    for path in files():
        _copy(path, folder / path.relative_to(ROOT))
    command = "import setuptools.build_meta as build; build.build_sdist('dist')"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [made] = (folder / "dist").iterdir()
    return made


def wheel_of(sdist: Path, folder: Path) -> Path:
    """The wheel, made of a source archive in a folder, with what is installed here to build it."""
    _pip(
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        "wheels",
        str(sdist),
        cwd=folder,
    )
    [made] = (folder / "wheels").iterdir()
    return made


def install_wheel(wheel: Path, folder: Path) -> str:
    """A new environment that has the wheel; its Python. What the wheel depends on is that of the
    running environment, so nothing is fetched.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    _pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel), cwd=folder)
    [packages] = folder.glob("lib/python*/site-packages")
    # after its own: the wheel's forwarder comes first
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return str(python)


def _pip(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
