"""A project whose tests are the examples of docs/how-to/testing.md. That the plugin comes with the
wheel is shown by `make release-check`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.documents import text_of
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
def test_the_examples_pass_and_a_failure_says_what_arrived(tmp_path: Path) -> None:
    """All that the page shows passes; an expectation that fails lists the sandbox's events."""
    write(
        tmp_path, {**FILES, "test_failing.py": FAILING, "pytest.ini": "[pytest]\npythonpath = .\n"}
    )
    run = run_tests(tmp_path, "--strict-markers", "--durations=10")
    assert (run.code, run.outcomes) == (1, {"failed": 1, "passed": 6}), run.text
    assert "FAILED test_failing.py::test_it_fails" in run.text
    words = (
        "0 of 1 event with event 'signup' and distinct_id 'ann' arrived within 0.2 s. The "
        "sandbox has 1 event: login 1."
    )
    assert f"AssertionError: {words}" in run.text
