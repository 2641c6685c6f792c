"""The pytest plugin (`pytest11`): `analytics_sandbox`, `forwarder_daemon`, and the marker
`forwarder`.

One sandbox serves a run of tests (each process of pytest-xdist has its own); every test gets it
empty, at the present time, and with a project key of its own. A forwarder is started for each test
that asks for one. Neither is started before a test does.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from forwarder.testing.daemon import ForwarderDaemon
    from forwarder.testing.sandbox import AnalyticsSandbox, SandboxServer


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "forwarder(settings): settings of forwarder_daemon, above those of forwarder_settings",
    )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Show the forwarder's log with a test that fails."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    daemon = getattr(item, "funcargs", {}).get("forwarder_daemon")
    if report.when == "call" and report.failed and daemon is not None:
        report.sections.append(("log of forwarder_daemon", daemon.log))


@pytest.fixture(scope="session")
def analytics_sandbox_options() -> Sequence[str]:
    """Options of `forwarder sandbox`, such as `["--strict"]`; override it for others."""
    return ()


@pytest.fixture(scope="session")
def analytics_sandbox_server(analytics_sandbox_options: Sequence[str]) -> Iterator[SandboxServer]:
    """The process of the sandbox, whose `url` is the same for all tests of a run."""
    from forwarder.testing.sandbox import SandboxServer

    server = SandboxServer(analytics_sandbox_options)
    yield server
    server.stop()


@pytest.fixture
def analytics_sandbox_api_key() -> str:
    """The project key of `analytics_sandbox`, a new one for each test; override it for an
    application whose key is fixed.
    """
    from forwarder.testing.sandbox import new_api_key

    return new_api_key()


@pytest.fixture
def analytics_sandbox(
    analytics_sandbox_server: SandboxServer, analytics_sandbox_api_key: str
) -> Iterator[AnalyticsSandbox]:
    """An analytics service in small, empty: `url` and `api_key` for SDKs, and what tests
    ask it (`forwarder.testing.sandbox`).
    """
    sandbox = analytics_sandbox_server.sandbox(analytics_sandbox_api_key)
    yield sandbox
    # Otherwise what an SDK sends at the end of the run waits for faults, and the next test has the
    # flags of this one.
    sandbox.clear()


@pytest.fixture
def forwarder_settings() -> Mapping[str, Any]:
    """Settings of `forwarder_daemon`, as a configuration file has them; override it for others."""
    return {}


@pytest.fixture
def forwarder_daemon(
    request: pytest.FixtureRequest,
    analytics_sandbox: AnalyticsSandbox,
    forwarder_settings: Mapping[str, Any],
    tmp_path: Path,
) -> Iterator[ForwarderDaemon]:
    """A `forwarder run` that delivers to `analytics_sandbox`, from memory, on a port of its own:
    `url`, `log`, `stop()`.
    """
    from forwarder.testing.daemon import merged, running_forwarder

    settings = merged({"upstream": {"url": analytics_sandbox.url}}, forwarder_settings)
    for marker in reversed(list(request.node.iter_markers("forwarder"))):
        settings = merged(settings, _settings(marker))
    folder = tmp_path / "forwarder"
    folder.mkdir()
    with running_forwarder(settings, folder) as daemon:
        yield daemon
        analytics_sandbox.clear_faults()  # it delivers at its end


def _settings(marker: pytest.Mark) -> Mapping[str, Any]:
    given = [*marker.args, *(value for name, value in marker.kwargs.items() if name == "settings")]
    if len(given) != 1 or marker.kwargs.keys() - {"settings"} or not isinstance(given[0], Mapping):
        pytest.fail("write the marker as @pytest.mark.forwarder(settings={…})", pytrace=False)
    settings: Mapping[str, Any] = given[0]
    return settings
