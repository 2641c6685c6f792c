"""What pyproject.toml can't say: the wheel has `config/` and the documents inside the package,
where commands look for them.

In a clone they stay where people look for them (`forwarder/core/installation.py` finds either).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = {"config": "*.yaml", "docs": "*.md"}


class BuildWithFiles(build_py):
    """Copies the files beside the modules; an editable installation reads them in the clone."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._shipped():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    # FBT001, FBT002: setuptools' own signature
    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002
        return [
            *super().get_outputs(include_bytecode),
            *(str(target) for _, target in self._shipped() if not self.editable_mode),
        ]

    def _shipped(self) -> Iterator[tuple[Path, Path]]:
        for folder, pattern in SHIPPED.items():
            for source in sorted((ROOT / folder).rglob(pattern)):
                yield (
                    source,
                    Path(self.build_lib, "forwarder", "shipped") / source.relative_to(ROOT),
                )


setup(cmdclass={"build_py": BuildWithFiles})
