"""How this forwarder was installed: where the files are that came with it, and how missing
packages are added.

A clone has `config/` and `docs/` at its root; a wheel, and so the image, has them inside the
package (`setup.py`). forwarder itself is published on no package index, so no command here names
it as a requirement: whoever takes the name there would be installed.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from forwarder import __version__

if TYPE_CHECKING:
    from importlib.metadata import Distribution

DISTRIBUTION: Final = "analytics-forwarder"
IMAGE_MARK: Final = "forwarder-image"
"""The Dockerfile makes a file of this name in the folder of the environment."""
_PACKAGE: Final = Path(__file__).resolve().parents[1]


def shipped(folder: Literal["config", "docs"]) -> Path:
    """The folder with the example configurations and the sandbox's seed, or the one with the
    documents (Markdown, in any folders).
    """
    inside = _PACKAGE / "shipped" / folder
    return inside if inside.is_dir() else _PACKAGE.parent / folder


def help_on(topic: str) -> str:
    """How a message names a document: the command that shows it, wherever forwarder is installed.
    `topic` is the file's name.
    """
    return f"`forwarder help {topic}`"


def install_extra(extra: str) -> str:
    """The hint for the packages of an extra that are missing: one command that
    works for this installation.
    """
    if (Path(sys.prefix) / IMAGE_MARK).exists():
        return (
            "Use the image with all extras, built in a clone: docker build --target full "
            f"--tag forwarder:{__version__}-full ."
        )
    from importlib import metadata  # noqa: PLC0415 - large, and only read when something is missing

    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"Install the packages that pyproject.toml lists for the extra {extra}."
    return (
        f"Install the extra {extra}: {_installer(distribution)} "
        f"{shlex.join(_packages(distribution, extra))}"
    )


def _packages(distribution: Distribution, extra: str) -> list[str]:
    marked = (requirement.partition(";") for requirement in distribution.requires or ())
    return [
        requirement.strip() for requirement, _, marker in marked if f'extra == "{extra}"' in marker
    ]


def _installer(distribution: Distribution) -> str:
    """The command that adds packages to the environment that this Python is of."""
    if (Path(sys.prefix) / "pipx_metadata.json").exists():
        return f"pipx inject {DISTRIBUTION}"
    if (distribution.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    return f"{shlex.quote(sys.executable)} -m pip install"
