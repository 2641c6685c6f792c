"""A project whose environment has forwarder's wheel: the examples of docs/how-to/testing.md are
its tests, and the plugin is just there.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import text_of
from tests.support.wheels import build_wheel, install_wheel
from tests.testing.projects import run_tests, write

FILES = dict(
    re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text_of("testing"), re.DOTALL | re.MULTILINE)
)
FAILING = """
from posthog import Posthog

def test_it_fails(analytics_sandbox):
    analytics = Posthog(analytics_sandbox.api_key, host=analytics_sandbox.url)
    analytics.capture("login", distinct_id="ann")
    analytics.shutdown()
    analytics_sandbox.wait_for(1, event="login")
    analytics_sandbox.wait_for(1, event="signup", distinct_id="ann", timeout=0.2)
"""


@pytest.mark.slow
def test_a_projects_tests_run_with_the_wheel(tmp_path: Path) -> None:
    """With nothing but forwarder installed: all that the page shows passes, and an expectation
    that fails says what did arrive.
    """
    for name in ("build", "environment", "project"):
        (tmp_path / name).mkdir()
    python = install_wheel(build_wheel(tmp_path / "build"), tmp_path / "environment")
    where = subprocess.run(
        [python, "-P", "-c", "import forwarder; print(forwarder.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout).is_relative_to(tmp_path / "environment")
    write(
        tmp_path / "project",
        {**FILES, "test_failing.py": FAILING, "pytest.ini": "[pytest]\npythonpath = .\n"},
    )
    run = run_tests(
        tmp_path / "project", "--strict-markers", "--durations=10", python=python, plugins=None
    )
    assert (run.code, run.outcomes) == (1, {"failed": 1, "passed": 6}), run.text
    assert "FAILED test_failing.py::test_it_fails" in run.text
    words = (
        "0 of 1 event with event 'signup' and distinct_id 'ann' arrived within 0.2 s. The "
        "sandbox has 1 event: login 1."
    )
    assert f"AssertionError: {words}" in run.text
