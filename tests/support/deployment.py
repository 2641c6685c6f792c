"""What deploy/ says, parsed: manifests, containers, their environment; and what the code says
about it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from forwarder import __version__
from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from tests.support.repository import ROOT

DEPLOY: Final = ROOT / "deploy"
KUBERNETES: Final = DEPLOY / "kubernetes"
CHART: Final = DEPLOY / "helm" / "forwarder"
ALERTS: Final = CHART / "files" / "alerts.yaml"
DASHBOARD: Final = CHART / "files" / "dashboard.json"
IMAGE: Final = f"forwarder:{__version__}"
DIGEST: Final = r"@sha256:[0-9a-f]{64}"
"""How an image is pinned, whatever its tag comes to mean."""
STATE: Final = "/var/lib/forwarder"
CONFIGURATION: Final = "/etc/forwarder/forwarder.yaml"
USER: Final = 10001
POD: Final = "forwarder-0"
"""The name of a pod, where a container asks for it."""
MARGIN: Final = 5.0
"""Seconds that a grace period must be longer than the daemon's own stop: it closes files and says
goodbye after the drain.
"""

Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    """The YAML documents of a text, without empty ones."""
    return [document for document in yaml.load_all(text, Loader=yaml.CSafeLoader) if document]


def manifests(folder: Path) -> list[Document]:
    """The Kubernetes objects that a folder's kustomization lists, in its order."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [document for name in listed for document in documents((folder / name).read_text())]


def of_kind(objects: Iterable[Document], kind: str) -> list[Document]:
    """The objects of a kind."""
    return [document for document in objects if document["kind"] == kind]


def pods(objects: Iterable[Document]) -> list[Document]:
    """The pods' specifications among them."""
    return [
        document["spec"]["template"]["spec"]
        for document in objects
        if "template" in document.get("spec", {})
    ]


def containers(pod: Document) -> list[Document]:
    """A pod's containers, initial ones too."""
    return [*pod.get("initContainers", []), *pod["containers"]]


def forwarders(pod: Document) -> list[Document]:
    """Those of them that are forwarder."""
    return [container for container in containers(pod) if container["name"] == "forwarder"]


def environment(container: Document) -> dict[str, str]:
    """The container's own variables; one that comes from elsewhere has a value that can be used: a
    node's name, a pod's, or a proxy.
    """
    return {
        variable["name"]: variable.get("value") or _elsewhere(variable)
        for variable in container.get("env", ())
    }


def _elsewhere(variable: Document) -> str:
    field = variable["valueFrom"].get("fieldRef", {}).get("fieldPath")
    return {"spec.nodeName": "node-1", "metadata.name": POD, None: "http://proxy.example.com:3128"}[
        field
    ]


def settings(
    file: Path | None, environ: Mapping[str, str], image: Mapping[str, str] | None = None
) -> Settings:
    """The effective settings, with what the image sets below what the container sets. Fails as
    `forwarder run` would.
    """
    return load_settings(
        file, {**(image or {}), **environ}, default_file=Path("/nonexistent")
    ).settings


def holds(seconds: float, stop: Settings) -> bool:
    """Whether a grace period is long enough for the daemon's stop, with a margin."""
    return seconds >= stop.shutdown.delay + stop.shutdown.drain_timeout + MARGIN


def port(listen: str) -> int:
    """The port of an address to listen on."""
    return int(listen.rpartition(":")[2])


def quantity(text: str | int) -> int:
    """A Kubernetes quantity of bytes."""
    matched = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", str(text))
    assert matched, text
    return int(matched[1]) << 10 * ("", "Ki", "Mi", "Gi", "Ti").index(matched[2])


def seconds(text: str) -> int:
    """A time as Compose writes it: `40s`, `1m30s`."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", text)
    assert "".join(number + unit for number, unit in parts) == text
    return math.ceil(
        sum(int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit] for number, unit in parts)
    )


def texts() -> Iterator[tuple[Path, str]]:
    """Every file of deploy/ and the Dockerfile, with its text."""
    for path in sorted([*DEPLOY.rglob("*"), ROOT / "Dockerfile"]):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path, path.read_text()
