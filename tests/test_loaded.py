"""What is loaded when: a sidecar and a client hold in memory, and wait for, only the parts that
they use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

UPSTREAM = {"FORWARDER_UPSTREAM__URL": "http://127.0.0.1:9"}
COMMAND_LINE = ("typer", "click", "pydantic", "rich.console", "pygments", "textual")
AS_A_USER = (
    "import os, sys; os.geteuid = lambda: 1000\nfrom forwarder.cli.main import main\nsys.argv "
    "= ['forwarder', 'run']\nmain()\n"
)
"""A user without a home directory, whose dead letters stay in memory."""


def loaded_by(script: str) -> set[str]:
    """The modules that are there after a script."""
    script += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=180
    )
    return set(done.stdout.split())


def loaded_by_daemon(folder: Path, configured: Mapping[str, str]) -> set[str]:
    """The modules that a daemon has imported until it listened, was stopped, and had ended."""
    listen = {
        "FORWARDER_SOURCES__HTTP__LISTEN": f"unix:{folder}/http",
        "FORWARDER_ADMIN__LISTEN": f"unix:{folder}/admin",
    }
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FORWARDER_", "XDG_", "HOME", "STATE_"))
    }
    environ = {**inherited, **UPSTREAM, **listen, **configured}
    command = [sys.executable, "-X", "importtime", "-c", AS_A_USER]
    modules = set()
    with subprocess.Popen(
        command, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as daemon:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            if line.startswith("import time:"):
                modules.add(line.rpartition("|")[2].strip())
            elif '"listening"' in line:
                daemon.send_signal(signal.SIGTERM)
    assert daemon.returncode == 0
    return modules


def under(modules: set[str], *packages: str) -> list[str]:
    """Those of the modules that are one of these packages, or in one."""
    return sorted(
        module
        for module in modules
        if any(f"{module}.".startswith(f"{package}.") for package in packages)
    )


def test_a_sidecar_loads_only_what_is_configured(tmp_path: Path) -> None:
    """HTTP into memory: no Kafka, no disk, no database, no import, no supervisor, no YAML, and no
    command line.
    """
    modules = loaded_by_daemon(tmp_path, {})
    assert "forwarder.sources.http.listener" in modules
    others = (
        "aiokafka",
        "sqlite3",
        "yaml",
        "pyarrow",
        "obstore",
        "jq",
        "prometheus_client",
        "zstandard",
        "opentelemetry",
        "google",
        "watchfiles",
        *COMMAND_LINE,
    )
    assert under(modules, *others) == []
    ours = (
        "buffer.disk.buffer",
        "deadletter.store",
        "sources.kafka",
        "sources.logs",
        "sources.imports",
        "imports",
        "sandbox",
        "demo",
        "management",
    )
    assert (
        under(
            modules,
            *(f"forwarder.{name}" for name in (*ours, "mapping", "workers.supervisor", "inspect")),
        )
        == []
    )


def test_a_disk_buffer_loads_its_parts(tmp_path: Path) -> None:
    """What isn't loaded in a sidecar without it is loaded where it is configured."""
    modules = loaded_by_daemon(
        tmp_path,
        {"FORWARDER_BUFFER__KIND": "disk", "FORWARDER_BUFFER__PATH": str(tmp_path / "state")},
    )
    assert {"forwarder.buffer.disk.buffer", "forwarder.deadletter.store", "sqlite3"} <= modules
    assert under(modules, "aiokafka", *COMMAND_LINE) == []


def test_logs_load_their_source(tmp_path: Path) -> None:
    """Where they are configured; neither another source nor a command line comes with it."""
    log = {
        "PATH": str(tmp_path / "*.log"),
        "API_KEY": "phc_logslogslogs",
        "MAPPING__EVENT": ".e",
        "MAPPING__DISTINCT_ID": ".u",
    }
    configured = {f"FORWARDER_SOURCES__LOGS__0__{name}": value for name, value in log.items()}
    modules = loaded_by_daemon(
        tmp_path, {**configured, "FORWARDER_DEAD_LETTERS__PATH": str(tmp_path / "state")}
    )
    assert {"forwarder.sources.logs.source", "sqlite3"} <= modules
    assert (
        under(
            modules,
            "aiokafka",
            "opentelemetry",
            "google",
            "yaml",
            "forwarder.sources.imports",
            *COMMAND_LINE,
        )
        == []
    )


def test_otlp_loads_its_mapping(tmp_path: Path) -> None:
    """Where it is configured; the schema is loaded by the first body in protobuf."""
    otlp = {
        "API_KEY": "phc_otlpotlpotlp",
        "MAPPING__EVENT": ".event_name",
        "MAPPING__DISTINCT_ID": ".attributes.user",
    }
    modules = loaded_by_daemon(
        tmp_path, {f"FORWARDER_SOURCES__HTTP__OTLP__{name}": value for name, value in otlp.items()}
    )
    assert "forwarder.mapping.mapping" in modules
    assert under(modules, "opentelemetry", "google", "aiokafka", *COMMAND_LINE) == []


def test_the_management_client_loads_no_daemon() -> None:
    """Neither the daemon's parts and settings nor what they need."""
    modules = loaded_by("import forwarder.management")
    rooms = {module.split(".")[1] for module in modules if module.startswith("forwarder.")}
    assert rooms <= {"config", "contract", "core", "management"}
    assert (
        under(
            modules,
            "forwarder.config.settings",
            "yaml",
            "structlog",
            "uvloop",
            "msgspec",
            "sqlite3",
            "typer",
            "rich",
            "aiokafka",
        )
        == []
    )


def test_the_configuration_needs_no_validation_library(tmp_path: Path) -> None:
    """A file is read and checked without pydantic."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: https://us.i.example.com}\n")
    load = (
        "from pathlib import Path\nfrom forwarder.config.load import load_settings\n"
        f"load_settings(Path({str(file)!r}), {{}})"
    )
    modules = loaded_by(load)
    assert "yaml" in modules
    assert under(modules, "pydantic", "pydantic_core", "aiohttp", "structlog") == []
