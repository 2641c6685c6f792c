"""What is handed out: the wheel as the image's build makes it, and the source archive, with
nothing missing in either.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.repository import ROOT, files, name
from tests.support.wheels import build_sdist, build_wheel

SHIPPED = {
    f"forwarder/shipped/{name(path)}" for path in [*files(".yaml", "config"), *files(".md", "docs")]
}


@pytest.mark.slow
def test_the_wheel_has_every_file_that_a_command_reads_or_names(tmp_path: Path) -> None:
    """Modules and what they read beside them, example configurations, the seed and documents; the
    command and the licence too.
    """
    with zipfile.ZipFile(build_wheel(tmp_path)) as archive:
        held = set(archive.namelist())
    assert ({name(path) for path in files("", "forwarder")} | SHIPPED) - held == set()
    assert [
        member
        for member in held
        if member.startswith("forwarder/shipped/") and member not in SHIPPED
    ] == []
    assert [member for member in held if member.endswith("entry_points.txt")]
    assert [member for member in held if member.endswith("/LICENSE")]
    assert [member for member in held if member.endswith(".data/data/share/man/man1/forwarder.1")]


@pytest.mark.slow
def test_the_source_archive_has_what_a_wheel_is_made_of(tmp_path: Path) -> None:
    """It has what is needed to build it, without tests and benchmarks. `make release-check` proves
    the wheel that is made of it.
    """
    archive = build_sdist(tmp_path)
    with tarfile.open(archive) as packed:
        roots = {
            Path(member).parts[1] for member in packed.getnames() if len(Path(member).parts) > 1
        }
    assert {
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "forwarder",
        "config",
        "docs",
        "requirements",
    } <= roots
    assert roots & {"tests", "benchmarks", "deploy"} == set()


def test_a_clone_has_them_where_people_look() -> None:
    """Without a copy in the package: there would be two to change."""
    assert not (ROOT / "forwarder" / "shipped").exists()
