"""Tests with the official SDKs: they run when this folder is asked for by name, with the SDKs
installed (`make test-sdks` does both).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.sdks import toolchains
from tests.sdks.installing import installed
from tests.sdks.outcomes import SdkOutcome, outcome_of
from tests.sdks.variants import Variant

HERE = Path(__file__).parent
BY_VARIANT: Final = frozenset({"test_contract", "test_effects"})
"""Modules whose tests look at one run of each variant (`outcome`)."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the folder out unless it, or something in it, is among what was asked for."""
    asked = [
        Path(config.invocation_params.dir, argument.partition("::")[0]).resolve()
        for argument in config.args
    ]
    return None if any(path == HERE or HERE in path.parents for path in asked) else True


class SharedRuns(LoadScopeScheduling):  # type: ignore[misc]  # the plugin has no types
    """Keeps tests that share a run in one process: those of a variant, else those of a module."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        return test.partition("[")[2] if Path(module).stem in BY_VARIANT else module


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SharedRuns:
    """Of the processes of `make test-sdks`."""
    return SharedRuns(config, log)


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> Variant:
    """The variant that the test is about; the test is skipped where this machine lacks
    its tools.
    """
    wanted: Variant = request.param
    ready(wanted.sdk)
    return wanted


@pytest.fixture
def outcome(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> SdkOutcome:
    """What came of the variant's thousand events."""
    return outcome_of(variant, tmp_path_factory.getbasetemp())


def ready(sdk: str) -> None:
    """Skip where this machine can't run an SDK, and fail where it only isn't installed."""
    toolchains.require(sdk)
    if sdk == "js":
        # The other SDKs need no browser.
        from tests.browser.chromium import executable  # noqa: PLC0415

        executable()
    if not installed(sdk):
        pytest.fail(
            (
                f"the SDK for {sdk} isn't installed, or its pins have changed: python -m "
                "tests.sdks.installing"
            ),
            pytrace=False,
        )
