"""docs/how-to/deploy.md: what it tells people to type. Names in it are held by test_names, helm's
part by test_chart.
"""

from __future__ import annotations

import re

import yaml

from tests.support.deployment import DEPLOY, KUBERNETES, STATE, holds, settings
from tests.support.documents import text_of
from tests.support.repository import ROOT

TEXT = text_of("deploy", "deploy-kubernetes", "kafka-kubernetes")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]


def test_the_container_may_drain_and_writes_to_its_volume() -> None:
    """`docker run` gives it a read-only root, the volume, an environment that can be used, and the
    time that its stop takes.
    """
    [command] = [shell_line for shell_line in COMMANDS if shell_line.startswith("docker run ")]
    configured = settings(None, dict(re.findall(r"--env (\w+)=(\S+)", command)))
    assert configured.buffer.kind == "disk"
    assert f"--volume forwarder:{STATE} " in command
    assert " --read-only " in command
    [timeout] = re.findall(r"--stop-timeout (\d+)", command)
    assert holds(int(timeout), configured)


def test_it_has_every_folder_of_manifests() -> None:
    """Each can be applied as it says."""
    applied = {
        path.rpartition("/")[2]
        for path in re.findall(r"kubectl apply --kustomize (deploy/kubernetes/\w+)", TEXT)
    }
    assert applied == {folder.name for folder in KUBERNETES.iterdir()}


def test_its_addresses_are_published() -> None:
    """What it says to look at is published by Compose."""
    files = [
        yaml.safe_load((DEPLOY / "compose" / name).read_text())
        for name in ("compose.yaml", "kafka.yaml")
    ]
    services = [service for file in files for service in file["services"].values()]
    published = {
        mapping.rpartition(":")[0].rpartition(":")[2]
        for service in services
        for mapping in service.get("ports", ())
    }
    named = set(re.findall(r"[<`](?:http://)?127\.0\.0\.1:(\d+)[/`]", TEXT))
    assert named
    assert named <= published


def test_its_installation_is_of_pins() -> None:
    """Each installation by pip is of pins with hashes, or of forwarder alone, with what was pinned
    to build it.
    """
    installs = [shell_line for shell_line in COMMANDS if "pip install" in shell_line]
    assert installs
    assert [
        install
        for install in installs
        if "--require-hashes" not in install and "--no-deps --no-build-isolation ." not in install
    ] == []
    assert [
        path for path in re.findall(r"-r (\S+)", " ".join(installs)) if not (ROOT / path).exists()
    ] == []


def test_its_unit_is_where_it_is_copied_from() -> None:
    """The unit expects the command where the document puts it."""
    [directory] = re.findall(r"python3 -m venv (\S+)", TEXT)
    assert f"ExecStart={directory}/bin/forwarder run" in (DEPLOY / "forwarder.service").read_text()
