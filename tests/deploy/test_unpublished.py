"""No image and no package of forwarder is published: what texts tell people to run works from a
clone as written.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from tests.support.cases import cases
from tests.support.deployment import DEPLOY
from tests.support.repository import ROOT, files, name
from tests.support.typed import command, commands, options
from tests.test_repository import PYPROJECT, lines_with

EXCLUDED = [
    path
    for path in files()
    if path.suffix in {".md", ".py", ".yaml", ".tpl", ".txt"} and path != Path(__file__)
]
DOCUMENTS = files(".md")
DISTRIBUTION = re.compile(
    r"(?:pip3?|pipx|uv tool|uv add|uvx)\b[^\n`]*\banalytics-forwarder|analytics-forwarder\["
)
INSTALLATION = re.compile(r"(?:pipx|uv tool) install (?:--force )?'?([^\s`;,)'\"]+)")
EXTRA = re.compile(r"""(?:install_extra\("|'\.\[)([\w-]+)""")
ELSEWHERE = re.compile(
    r"\b(?:[\w-]+\.)+[a-z]+(?::\d+)?/(?:[\w-]+/)*forwarder(?::\S+)?(?=[\s\"'`,}]|$)|docker pull"
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ALONE = (
    "python3 -m venv ~/.local/share/forwarder",
    "~/.local/share/forwarder/bin/pip install .",
    "mkdir -p ~/.local/bin && ln -sf ~/.local/share/forwarder/bin/forwarder ~/.local/bin/",
)
"""An installation by Python alone; `make first-hour` runs it."""
FIRST = ("README.md", "docs/how-to/connect-sdks.md")
"""The pages that a new user types from."""


def typed(text: str) -> list[str]:
    """The commands of a page's blocks, without their comments."""
    blocks = [block for language, block in BLOCK.findall(text) if language in {"", "sh"}]
    lines = [re.sub(r"\s+#.*", "", line) for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_nothing_installs_a_package_from_an_index() -> None:
    """The distribution's name is free on any index: anyone who takes it would be installed."""
    assert lines_with(DISTRIBUTION, EXCLUDED) == []


def test_each_installation_is_of_the_clone() -> None:
    """And each extra that is named exists."""
    texts = [path.read_text() for path in EXCLUDED]
    sources = {
        source for text in texts for source in INSTALLATION.findall(text) if "{" not in source
    }
    assert {re.sub(r"\[.*\]$", "", source) for source in sources} == {"."}
    extras = {extra for text in texts for extra in EXTRA.findall(text)}
    assert (
        {"demo", "kafka-demo", "import", "msk"}
        <= extras
        <= set(PYPROJECT["project"]["optional-dependencies"])
    )


def test_no_image_is_pulled() -> None:
    """An image of forwarder has no registry before its name; only an example
    of one's own registry has.
    """
    assert [
        image
        for image in lines_with(ELSEWHERE, EXCLUDED)
        if "registry.example.com/forwarder" not in image
    ] == []


@cases("path", DOCUMENTS, ids=name)
def test_each_container_is_of_an_image_that_was_built_before(path: Path) -> None:
    """Docker asks its registry for a name that it doesn't know, unless it is configured not to."""
    lines = typed(path.read_text())
    for index, line in enumerate(lines):
        if line.startswith("docker run "):
            words = shlex.split(line)
            assert words[2:4] == ["--pull", "never"]
            assert f"docker build --tag {words[-1]} ." in lines[:index]


@pytest.mark.parametrize("file", ["compose.yaml", "kafka.yaml"])
def test_compose_builds_what_is_ours(file: str) -> None:
    """`pull_policy: build`: also `up` without `--build` pulls none of them."""
    services = yaml.safe_load((DEPLOY / "compose" / file).read_text())["services"].values()
    ours = [service for service in services if service["image"].startswith("forwarder")]
    assert ours
    assert [
        service["image"]
        for service in ours
        if service.get("pull_policy") != "build" or "build" not in service
    ] == []


@pytest.mark.parametrize("page", FIRST)
def test_what_a_new_user_types_exists(page: str) -> None:
    """Each line is a target of the Makefile, a command of forwarder with its options, or builds
    and runs forwarder from the clone.
    """
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = typed((ROOT / page).read_text())
    assert lines
    for line in lines:
        words = [word for word in shlex.split(line) if not re.fullmatch(r"FORWARDER_\w+=\S*", word)]
        if words[:4] == ["docker", "exec", "forwarder", "forwarder"]:
            words = words[3:]
        if words[0] == "make":
            assert set(words[1:]) <= targets, line
        elif words[0] == "forwarder":
            assert words[1] in commands(), line
            assert {word for word in words[2:] if word.startswith("--")} <= options(
                words[1:]
            ) | _nested(words[1:]), line
        else:
            assert (
                tuple(words[:2]) in {("docker", "build"), ("docker", "run"), ("pipx", "install")}
                or line in ALONE
            ), line


def _nested(words: list[str]) -> set[str]:
    """The options of the command below, where the second word names one."""
    below = getattr(command(words[:1]), "commands", {}).get(words[1] if len(words) > 1 else "")
    return (
        {option for parameter in below.params for option in parameter.opts}
        if below is not None
        else set()
    )
