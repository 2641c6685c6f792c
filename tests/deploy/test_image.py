"""The Dockerfile, read as text: there is no engine to build it with in every place that runs the tests."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from forwarder.config.load import load_settings
from tests.support.repository import ROOT

TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
INSTRUCTIONS = [line.split(maxsplit=1) for line in TEXT.splitlines() if line and not line.startswith("#")]


def arguments(instruction: str) -> list[str]:
    """What follows each use of an instruction, in the last stage alone."""
    last = max(number for number, line in enumerate(INSTRUCTIONS) if line[0] == "FROM")
    return [line[1] for line in INSTRUCTIONS[last:] if line[0] == instruction]


ENVIRONMENT = dict(re.findall(r"(\w+)=(\S+)", " ".join(arguments("ENV"))))


def test_its_environment_is_known_to_the_settings() -> None:
    """Every FORWARDER_ name in it is a setting, and they make the listeners reachable from outside on the exposed ports."""
    own = {key: value for key, value in ENVIRONMENT.items() if key.startswith("FORWARDER_")}
    settings = load_settings(None, own, default_file=Path("/nonexistent"), require_upstream=False).settings
    ports = [str(listen).rpartition(":") for listen in (settings.sources.http.listen, settings.admin.listen)]
    assert [(host, port) for host, _, port in ports] == [("0.0.0.0", port) for port in arguments("EXPOSE")[0].split()]


def test_it_runs_as_an_unprivileged_user() -> None:
    """The user is a number other than root's, so that an orchestrator can check it, and exists in the image."""
    [user] = arguments("USER")
    assert user.isdigit()
    assert int(user) > 0
    assert f"--uid {user}" in " ".join(arguments("RUN"))


def test_it_runs_the_daemon_and_asks_for_its_health() -> None:
    """Entry point, default command and health check are forwarder's own, without a shell that would swallow signals."""
    assert [json.loads(arguments(each)[0]) for each in ("ENTRYPOINT", "CMD")] == [["forwarder"], ["run"]]
    assert arguments("HEALTHCHECK")[0].endswith('CMD ["forwarder", "health"]')
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_it_installs_pinned_requirements_alone() -> None:
    """Every installation is of pins with hashes, or of the wheel of forwarder without an index."""
    installs = re.findall(r"pip install ([^&]*)", TEXT)
    assert installs
    assert [each for each in installs if "--require-hashes" not in each and "--no-index" not in each] == []


COPIES = [line[1].split() for line in INSTRUCTIONS if line[0] == "COPY" and "--from" not in line[1]]


@pytest.mark.parametrize("source", [each for copy in COPIES for each in copy[:-1]])
def test_what_it_copies_is_there_and_not_ignored(source: str) -> None:
    """Each copied file exists, and .dockerignore, which ignores everything else, lets it through."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert (ROOT / source).exists()
    assert any(fnmatch(source, pattern) for pattern in allowed)
