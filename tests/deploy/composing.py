"""What holds for each service of any of our Compose files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def published_to_others(service: Mapping[str, Any]) -> list[str]:
    """The ports of a service that other machines can reach."""
    return [port for port in service.get("ports", ()) if not port.startswith("127.0.0.1:")]


def check_privileges(service: Mapping[str, Any], *, read_only: bool) -> None:
    """All capabilities are dropped, none can be gained; `read_only`: nor can it write to its root
    file system.
    """
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("read_only", False) is read_only


def check_mounts(service: Mapping[str, Any], folder: Path, volumes: Mapping[str, Any]) -> None:
    """Each file or folder that is mounted is there and can't be written to;
    each volume is declared.
    """
    for mounted in service.get("volumes", ()):
        source, _, rest = mounted.partition(":")
        assert (
            ((folder / source).exists() and rest.endswith(":ro"))
            if source.startswith(".")
            else source in volumes
        ), mounted
