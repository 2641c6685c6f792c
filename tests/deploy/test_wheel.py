"""The image's build, as far as it goes without an engine: what is copied makes forwarder's wheel, with nothing missing in it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.support.repository import ROOT, files
from tests.support.wheels import build_wheel


@pytest.mark.slow
def test_the_image_has_every_file_of_the_package(tmp_path: Path) -> None:
    """Modules and what they read beside them (pages, scripts, styles) are in the wheel, and the command and the licence too."""
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        held = set(archive.namelist())
    assert {str(path.relative_to(ROOT)) for path in files("", "forwarder")} - held == set()
    assert [each for each in held if each.endswith("entry_points.txt")]
    assert [each for each in held if each.endswith("/LICENSE")]
