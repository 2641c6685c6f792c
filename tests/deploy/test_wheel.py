"""The image's build, as far as it goes without an engine: what is copied makes forwarder's wheel, with nothing missing in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.dockerfile import FORWARDER
from tests.support.repository import ROOT, files


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel, made by the Dockerfile's own command from the files that it copies."""
    for *sources, target in (line.split() for line in FORWARDER.copied):
        for source in sources:
            _copy(ROOT / source, tmp_path / target / ("" if source.endswith("/") else Path(source).name))
    [command] = re.findall(r"\bpip (wheel [^&]*[^&\s])", FORWARDER.text)
    pip = [sys.executable, "-m", "pip", *command.split()]
    done = subprocess.run(pip, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    [made] = (tmp_path / "wheels").iterdir()
    return made


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


@pytest.mark.slow
def test_the_image_has_every_file_of_the_package(wheel: Path) -> None:
    """Modules and what they read beside them (pages, scripts, styles) are in the wheel, and the command and the licence too."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {str(path.relative_to(ROOT)) for path in files("", "forwarder")} - held == set()
    assert [each for each in held if each.endswith("entry_points.txt")]
    assert [each for each in held if each.endswith("/LICENSE")]
