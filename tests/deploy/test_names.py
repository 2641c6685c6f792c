"""Names that stand anywhere in deploy/, in the Dockerfile and in its document: settings, commands,
options, versions, addresses.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from forwarder import __version__
from forwarder.config.keys import keys
from forwarder.config.settings import Settings
from tests.support.cases import cases
from tests.support.deployment import CHART, DEPLOY, DIGEST, IMAGE, port, texts
from tests.support.documents import page, text_of
from tests.support.go_tools import PROMTOOL
from tests.support.repository import ROOT, name
from tests.support.typed import command, commands, options

DOCUMENTS = (page("deploy"), page("deploy-kubernetes"), page("kafka-kubernetes"))
EVERYTHING = [*texts(), *((path, path.read_text()) for path in DOCUMENTS)]
KEYS = {".".join(path) for path in keys()}
SECTIONS = {key.partition(".")[0] for key in KEYS if "." in key}


@cases(("path", "text"), EVERYTHING, ids=[name(path) for path, _ in EVERYTHING])
def test_variables_and_keys_are_settings(path: Path, text: str) -> None:
    """Each FORWARDER_ variable is a setting, and so is each key that words speak of
    (`shutdown.delay`, also as a value of the chart).
    """
    variables = {key.variable for key in keys().values()}
    assert set(re.findall(r"\bFORWARDER_[A-Z][A-Z_]*[A-Z]\b", text)) <= variables
    spoken = set(
        re.findall(
            (
                rf"(?<![\w./-])(?:config\.)?((?:{'|'.join(sorted(SECTIONS))})\.[a-z_.]*[a-z])(?!["
                r"\w/-])"
            ),
            text,
        )
    )
    assert {spoken_key for spoken_key in spoken if not _is_key(spoken_key)} == set()


def _is_key(spoken: str) -> bool:
    """Whether it is a key, a section, or a file's name."""
    return (
        spoken in KEYS
        or any(key.startswith(spoken + ".") for key in KEYS)
        or spoken.rpartition(".")[2] in {"yaml", "yml", "json", "py"}
    )


@cases(("path", "text"), EVERYTHING, ids=[name(path) for path, _ in EVERYTHING])
def test_commands_can_be_typed(path: Path, text: str) -> None:
    """Each `forwarder …` that is quoted or run is a command of forwarder with options
    of its own.
    """
    quoted = re.findall(
        r"`forwarder ([a-z-]+[^`\n]*)`|(?:-- |exec forwarder |/bin/)forwarder ([a-z-]+[^\n`]*)",
        text,
    )
    for words in ((first or second).split() for first, second in quoted):
        assert words[0] in commands(), words
        assert {word for word in words[1:] if word.startswith("--")} <= options(words), words


def test_versions_are_the_projects() -> None:
    """Every image of forwarder, the sample's and the chart have the version of the code; the
    chart's own is written as Semantic Versioning has it, which helm requires.
    """
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["version"] == re.sub(r"(?<=\d)(rc|a|b)(?=\d)", r"-\1", __version__)
    named = {
        image
        for _, text in EVERYTHING
        for image in re.findall(r"\bforwarder(?:-sample-app)?:(?:\d+\.[\w.-]*\w|latest)\b", text)
    }
    assert named == {IMAGE, f"{IMAGE}-full", IMAGE.replace("forwarder", "forwarder-sample-app")}


def test_other_images_are_pinned() -> None:
    """Images of others are named by version and digest; Prometheus' version is that of the tool
    that the rules are tested with.
    """
    files = [
        yaml.safe_load((DEPLOY / "compose" / name).read_text())
        for name in ("compose.yaml", "kafka.yaml")
    ]
    images = {
        service: definition["image"]
        for file in files
        for service, definition in file["services"].items()
        if "build" not in definition
    }
    assert {"prometheus", "grafana", "kafka"} == images.keys()
    assert [
        image
        for image in images.values()
        if not re.fullmatch(rf"[a-z/]+:v?\d+\.\d+\.\d+{DIGEST}", image)
    ] == []
    tool = re.sub(
        r"^v0\.(\d)(\d\d)\.", lambda match: f"v{match[1]}.{int(match[2])}.", PROMTOOL.version
    )
    assert images["prometheus"].startswith(f"prom/prometheus:{tool}@")


def test_ports_are_the_defaults() -> None:
    """Where a port of forwarder's stands it is a default of the code: ingestion's, the admin
    server's, the sandbox's.
    """
    named = {
        int(number) for _, text in EVERYTHING for number in re.findall(r"\b(83[0-9][0-9])\b", text)
    }
    [sandbox] = [
        parameter.default for parameter in command(["sandbox"]).params if parameter.name == "listen"
    ]
    assert named == {
        port(listen)
        for listen in (Settings().sources.http.listen, Settings().admin.listen, sandbox)
    }


def test_relative_paths_in_the_document_exist() -> None:
    """Files and folders that its commands name are there."""
    named = set(
        re.findall(r"(?<![\w/.])(deploy/[\w./-]*\w|config/[\w./-]*\w)", text_of(*DOCUMENTS))
    )
    assert named
    assert [relative_path for relative_path in named if not (ROOT / relative_path).exists()] == []
