"""The Dockerfile, read as text: there is no engine to build it with in every
place that runs the tests.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch

import pytest

from forwarder import __version__
from forwarder.core.installation import IMAGE_MARK
from forwarder.storage.directory import state_directories
from tests.support.cases import cases
from tests.support.deployment import DIGEST, STATE, USER, port, settings
from tests.support.dockerfile import FORWARDER as IMAGE
from tests.support.dockerfile import Dockerfile
from tests.support.documents import page
from tests.support.repository import ROOT, files, name
from tests.test_repository import PYPROJECT

SAMPLE = Dockerfile(ROOT / "deploy" / "compose" / "app" / "Dockerfile")


def test_its_environment_is_known_to_the_settings() -> None:
    """Every FORWARDER_ name in it is a setting, and they make the listeners reachable from outside
    on the exposed ports.
    """
    configured = settings(
        None, {"FORWARDER_UPSTREAM__URL": "https://us.i.example.com"}, IMAGE.environment
    )
    listening = [
        str(listen) for listen in (configured.sources.http.listen, configured.admin.listen)
    ]
    assert listening == [f"0.0.0.0:{exposed}" for exposed in IMAGE.last("EXPOSE")[0].split()]
    assert len({port(address) for address in listening}) == 2


def test_it_runs_as_an_unprivileged_user() -> None:
    """User and group are numbers other than root's, so that an orchestrator can check them, and
    exist in the image.
    """
    assert IMAGE.last("USER") == [f"{USER}:{USER}"]
    made = " ".join(IMAGE.last("RUN"))
    assert f"groupadd --system --gid {USER} forwarder" in made
    assert f"useradd --system --uid {USER} --gid {USER}" in made


def test_it_writes_in_one_directory_alone() -> None:
    """Buffer, dead letters and temporary files are in the one volume, which is the user's; no one
    else may read it.
    """
    assert IMAGE.last("VOLUME") == [STATE]
    assert f"install --directory --owner={USER} --group={USER} --mode=0700 {STATE}" in " ".join(
        IMAGE.last("RUN")
    )
    assert (
        settings(
            None, {"FORWARDER_UPSTREAM__URL": "https://us.i.example.com"}
        ).buffer.path.as_posix()
        == STATE
    )
    assert str(next(state_directories(IMAGE.environment, is_root=False))) == STATE
    assert IMAGE.environment["TMPDIR"] == STATE


def test_it_runs_the_daemon_and_asks_for_its_health() -> None:
    """Entry point, default command and health check are forwarder's own, without a shell that
    would swallow signals.
    """
    assert [json.loads(IMAGE.last(instruction)[0]) for instruction in ("ENTRYPOINT", "CMD")] == [
        ["forwarder"],
        ["run"],
    ]
    assert IMAGE.last("HEALTHCHECK")[0].endswith('CMD ["forwarder", "health"]')
    assert IMAGE.last("STOPSIGNAL") == ["SIGTERM"]


def test_its_labels_say_what_it_is() -> None:
    """Title, version and licence are the project's."""
    labels = dict(
        re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', " ".join(IMAGE.last("LABEL")))
    )
    assert (labels["title"], labels["version"], labels["licenses"]) == (
        "forwarder",
        __version__,
        "MIT",
    )


def test_it_is_built_in_stages() -> None:
    """What builds stays behind: both images are the same but for the finished environment that
    they take, and run no pip.
    """
    for target, built in (("", "build"), ("full", "build-full")):
        assert IMAGE.last("COPY", target) == [f"--from={built} /opt/forwarder /opt/forwarder"]
        assert IMAGE.last("RUN", target) == IMAGE.last("RUN")
        assert "pip" not in " ".join(IMAGE.last("RUN", target))
    assert IMAGE.stages[-1][0] == ""


def test_the_full_image_has_each_extra_that_a_message_can_name() -> None:
    """Its requirements are those of the extras of commands; the default image has none of them.
    Each knows that it is one.
    """
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = {
        re.split(r"[>=]", requirement)[0]
        for extra in ("demo", "import", "kafka-demo", "msk")
        for requirement in extras[extra]
    }
    texts = [(ROOT / "requirements" / file).read_text() for file in ("run.txt", "full.txt")]
    run, full = (set(re.findall(r"^([\w.-]+)==", text, re.MULTILINE)) for text in texts)
    assert wanted <= full
    assert wanted & run == set()
    assert "-r requirements/full.txt" in IMAGE.last("RUN", "build-full")[-1]
    assert f"touch /opt/forwarder/{IMAGE_MARK}" in " ".join(IMAGE.last("RUN", "build"))


@pytest.mark.parametrize("image", [IMAGE, SAMPLE], ids=["forwarder", "sample application"])
def test_it_installs_pinned_requirements_alone(image: Dockerfile) -> None:
    """Every installation is of pins with hashes, or of the wheel of forwarder without an index."""
    installs = re.findall(r"pip install ([^&]*)", image.text)
    assert installs
    assert [
        install
        for install in installs
        if "--require-hashes" not in install and "--no-index" not in install
    ] == []


@pytest.mark.parametrize("image", [IMAGE, SAMPLE], ids=["forwarder", "sample application"])
def test_its_base_is_pinned(image: Dockerfile) -> None:
    """The base's Python version, distribution and digest are given, and are
    the same in every stage.
    """
    bases = {base for _, base, _ in image.stages} - {name for name, _, _ in image.stages}
    assert len(bases) == 1
    assert re.fullmatch(rf"python:3\.\d+-slim-[a-z]+{DIGEST}", bases.pop())


COPIES = [line.split() for line in IMAGE.copied]
IGNORE = [
    line
    for line in (ROOT / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]


@cases("source", [source for copy in COPIES for source in copy[:-1]])
def test_what_it_copies_is_there_and_not_ignored(source: str) -> None:
    """Each copied file exists, and .dockerignore, which ignores everything else, lets
    it through.
    """
    allowed = [line[1:] for line in IGNORE if line.startswith("!")]
    assert (ROOT / source).exists()
    assert any(fnmatch(source, pattern) for pattern in allowed)


def test_everything_else_is_ignored() -> None:
    """Nothing but what it copies goes to the engine: no tests, no history, no local environment,
    no compiled files.
    """
    assert IGNORE[0] == "*"
    assert sorted(line[1:].rstrip("/") for line in IGNORE if line.startswith("!")) == sorted(
        source.rstrip("/") for copy in COPIES for source in copy[:-1]
    )
    assert {"**/__pycache__", "**/*.pyc", "docs/**/*.png", "docs/**/*.svg"} <= set(IGNORE)


def test_the_samples_requirements_are_those_that_are_tested() -> None:
    """Each pin of the sample application is the one that the tests run with, hashes too."""
    tested = set(re.split(r"\n(?=\S)", (ROOT / "requirements" / "dev.txt").read_text().strip()))
    pinned = re.split(
        r"\n(?=\S)", (ROOT / "deploy" / "compose" / "app" / "requirements.txt").read_text().strip()
    )
    assert [pin.split()[0] for pin in pinned if pin not in tested] == []


def test_no_file_names_an_image_without_version() -> None:
    """`latest` is in no file that is deployed: no one could say what runs."""
    where = [*files("", "deploy"), ROOT / "Dockerfile", page("deploy"), page("deploy-kubernetes")]
    assert [name(path) for path in where if re.search(r"\w:latest\b", path.read_text())] == []
