"""forwarder's wheel, built as the image builds it, and its source archive."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
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
