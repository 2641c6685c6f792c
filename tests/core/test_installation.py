"""What came with forwarder, and how missing packages are added, by the way it was installed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from forwarder import __version__
from forwarder.core.installation import DISTRIBUTION, IMAGE_MARK, install_extra, shipped
from tests.support.repository import ROOT
from tests.test_repository import PYPROJECT

EXTRAS = PYPROJECT["project"]["optional-dependencies"]


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an environment that this Python seems to be of."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def test_a_clone_gives_its_own_files() -> None:
    """Examples and documents are those that people edit."""
    assert shipped("config") == ROOT / "config"
    assert shipped("docs") == ROOT / "docs"


@pytest.mark.parametrize("extra", ["demo", "import", "kafka-demo", "msk", "testing"])
def test_packages_are_added_to_the_environment_that_lacks_them(extra: str, prefix: Path) -> None:
    """By its own Python, as pyproject.toml lists them; forwarder's own name
    isn't asked for anywhere.
    """
    what, _, command = install_extra(extra).partition(": ")
    assert what == f"Install the extra {extra}"
    assert shlex.split(command) == [sys.executable, "-m", "pip", "install", *EXTRAS[extra]]


def test_pipx_adds_packages_by_a_command_of_its_own(prefix: Path) -> None:
    """Its environments are not for pip: what pipx adds survives `pipx upgrade`."""
    (prefix / "pipx_metadata.json").touch()
    assert (
        install_extra("demo")
        == f"Install the extra demo: pipx inject {DISTRIBUTION} '{EXTRAS['demo'][0]}'"
    )


def test_uv_adds_packages_where_it_installed_forwarder(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environments have no pip."""
    installed = prefix / "analytics_forwarder-9.dist-info"
    installed.mkdir()
    (installed / "INSTALLER").write_text("uv\n")
    (installed / "METADATA").write_text(
        'Requires-Dist: posthog>=3.5; extra == "demo"\nRequires-Dist: obstore>=0.8 ; extra == '
        '"import"\n'
    )
    monkeypatch.syspath_prepend(prefix)
    assert (
        install_extra("import")
        == f"Install the extra import: uv pip install --python {sys.executable} 'obstore>=0.8'"
    )


def test_an_image_names_the_image_that_has_them(prefix: Path) -> None:
    """A container is not changed, and has no pip."""
    (prefix / IMAGE_MARK).touch()
    assert install_extra("import").endswith(
        f": docker build --target full --tag forwarder:{__version__}-full ."
    )


def test_without_metadata_the_list_is_named(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run from its folder without being installed, forwarder doesn't know its own requirements."""
    monkeypatch.setattr(sys, "path", [])
    assert (
        install_extra("msk") == "Install the packages that pyproject.toml lists for the extra msk."
    )
