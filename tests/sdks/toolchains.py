"""What has to be on the machine for each SDK, and what happens where it isn't: the SDK is skipped
by name; on CI that is a failure.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Final, NoReturn

import pytest

TOOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "python": (),
    "node": ("node", "npm"),
    "js": ("node", "npm"),
    "go": ("go",),
    "java": ("java", "javac", "mvn"),
    "rust": ("cargo",),
    "otel-python": (),
    "otel-node": ("node", "npm"),
    "older-python": (),
    "older-js": ("node", "npm"),
    "older-go": ("go",),
    "older-java": ("java", "javac", "mvn"),
}
"""Commands by SDK; `js` and `older-js` also need a browser, which
`tests.browser.chromium` looks for.
"""


def missing(sdk: str) -> str | None:
    """Why this machine can't run an SDK; None if it can."""
    absent = [tool for tool in TOOLS[sdk] if shutil.which(tool) is None]
    return f"{sdk}: not on the path: {', '.join(absent)}" if absent else None


def require(sdk: str) -> None:
    """Skip the test that needs an SDK which this machine can't run; on CI fail it."""
    reason = missing(sdk)
    if reason is not None:
        refuse(reason)


def refuse(reason: str) -> NoReturn:
    """Skip, saying why; on CI, which has everything, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
