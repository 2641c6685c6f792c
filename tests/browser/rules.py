"""The rules of axe-core, which find what keeps people with a screen reader, a keyboard or weak
eyes from using a page.

`python -m tests.browser.rules` installs it from npm's registry, in the version and with the
checksum of `axe/package-lock.json`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Page

from tests.support.repository import ROOT

PACKAGE: Final = Path(__file__).parent / "axe"
INSTALLED: Final = ROOT / ".venv" / "axe"
LOCK: Final = "package-lock.json"
_RUN: Final = """
async () => {
  const { violations } = await axe.run(document);
  const words = ({ id, help }, { target, html }) => `${id}: ${help}: ${target.join(" ")}: \
${html.slice(0, 120)}`;
  return violations.flatMap((rule) => rule.nodes.map((node) => words(rule, node)));
}
"""


def install() -> None:
    """Install it, unless it is there in this version. Raises `CalledProcessError` if npm fails."""
    if _is_installed():
        return
    shutil.rmtree(INSTALLED, ignore_errors=True)
    shutil.copytree(PACKAGE, INSTALLED)
    command = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    subprocess.run(command, cwd=INSTALLED, check=True, stdin=subprocess.DEVNULL)


def _is_installed() -> bool:
    lock_file = INSTALLED / LOCK
    script = _script()
    return (
        script.is_file()
        and lock_file.is_file()
        and lock_file.read_bytes() == (PACKAGE / LOCK).read_bytes()
    )


def _script() -> Path:
    return INSTALLED / "node_modules" / "axe-core" / "axe.min.js"


def source() -> str:
    """Its script. Without it the test is skipped, saying so; on CI, where it
    must be there, it fails.
    """
    if _is_installed():
        return _script().read_text("utf-8")
    reason = "axe-core isn't installed: `make test-browser` does it, with npm"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


async def violations(page: Page, script: str) -> list[str]:
    """What breaks a rule, with the rule and the place; `script` is axe-core's."""
    await page.evaluate(f"{script}; undefined")
    problems: list[str] = await page.evaluate(_RUN)
    return problems


if __name__ == "__main__":
    if shutil.which("npm"):
        install()
