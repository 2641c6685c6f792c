"""The Compose file: read as text, and its sample application run against a forwarder and a sandbox
with the same settings.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.deploy.composing import check_mounts, check_privileges, published_to_others
from tests.support.cases import cases
from tests.support.commands import Running, running
from tests.support.deployment import DASHBOARD, DEPLOY, STATE, holds, port, seconds, settings
from tests.support.dockerfile import FORWARDER as FORWARDER_IMAGE
from tests.support.repository import ROOT
from tests.support.typed import options

FOLDER = DEPLOY / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("app", "forwarder", "sandbox")
FORWARDER = settings(None, SERVICES["forwarder"]["environment"], FORWARDER_IMAGE.environment)


@cases("service", SERVICES)
def test_ports_are_published_to_this_machine_alone(service: str) -> None:
    """The admin server, the sandbox and Grafana have no password."""
    assert published_to_others(SERVICES[service]) == []


@cases("service", SERVICES)
def test_services_have_no_privileges(service: str) -> None:
    """All capabilities are dropped, none can be gained, and ours can't write
    to their root file system.
    """
    check_privileges(SERVICES[service], read_only=service in OURS)


@cases("service", SERVICES)
def test_what_is_mounted_exists(service: str) -> None:
    """Each file or folder is there and can't be written to; each volume is declared."""
    check_mounts(SERVICES[service], FOLDER, COMPOSE["volumes"])


@cases("service", OURS)
def test_what_is_built_is_there(service: str) -> None:
    """Each of ours is built from a folder with a Dockerfile."""
    assert (FOLDER / SERVICES[service]["build"]["context"] / "Dockerfile").is_file()


def test_the_daemon_is_configured() -> None:
    """Its environment can be used; its events are on the volume; its published ports are those
    that it listens on.
    """
    assert FORWARDER.buffer.kind == "disk"
    assert (
        [volume.partition(":")[2] for volume in SERVICES["forwarder"]["volumes"]]
        == [FORWARDER.buffer.path.as_posix()]
        == [STATE]
    )
    listening = [port(FORWARDER.sources.http.listen), port(FORWARDER.admin.listen)]
    assert SERVICES["forwarder"]["ports"] == [
        f"127.0.0.1:{port_number}:{port_number}" for port_number in listening
    ]


def test_the_daemon_may_drain() -> None:
    """Compose waits longer than its stop takes."""
    assert holds(seconds(SERVICES["forwarder"]["stop_grace_period"]), FORWARDER)


def test_addresses_between_services() -> None:
    """The application sends to the daemon, the daemon to the sandbox, Prometheus asks the daemon,
    and Grafana asks Prometheus.
    """
    command = SERVICES["sandbox"]["command"]
    listens = command[command.index("--listen") + 1]
    assert {option for option in command if option.startswith("--")} <= options(command)
    assert FORWARDER.upstream.url == f"http://sandbox:{port(listens)}"
    assert f":{port(listens)}/livez" in SERVICES["sandbox"]["healthcheck"]["test"][-1]
    assert (
        SERVICES["app"]["environment"]["ANALYTICS_HOST"]
        == f"http://forwarder:{port(FORWARDER.sources.http.listen)}"
    )
    scraped = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert [(job["job_name"], job["metrics_path"], job["static_configs"]) for job in scraped] == [
        ("forwarder", "/metrics", [{"targets": [f"forwarder:{port(FORWARDER.admin.listen)}"]}])
    ]
    [source] = yaml.safe_load(
        (FOLDER / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    )["datasources"]
    assert (source["url"], source["type"]) == ("http://prometheus:9090", "prometheus")


def test_grafana_finds_the_dashboard() -> None:
    """The dashboard is mounted where its provider looks, and is the page to begin with."""
    [provider] = yaml.safe_load(
        (FOLDER / "grafana/provisioning/dashboards/forwarder.yaml").read_text()
    )["providers"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    mounted = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    [source] = [source for source, target in mounted.items() if target == home]
    assert (FOLDER / source).resolve() == DASHBOARD
    assert Path(home).parent.as_posix() == provider["options"]["path"]


def test_prometheus_finds_the_rules() -> None:
    """The rules are mounted where its configuration looks."""
    [pattern] = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["rule_files"]
    assert any(
        Path(volume.split(":")[1]).match(pattern) for volume in SERVICES["prometheus"]["volumes"]
    )


async def _visits(host: str) -> list[str]:
    """Let the sample application have 25 visits; what it said."""
    environment = {
        **SERVICES["app"]["environment"],
        "ANALYTICS_HOST": host,
        "VISITS": "25",
        "VISITS_PER_SECOND": "1000",
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "app.py"),
        env=environment,
        cwd=FOLDER / "app",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    app = Running(process)
    assert await app.ended() == 0, app.lines
    return app.lines


@pytest.mark.slow
async def test_the_sample_runs(tmp_path: Path) -> None:
    """The application's events arrive in the sandbox, each once, by way of the daemon with
    Compose's settings.
    """
    command = [
        "127.0.0.1:0" if "0.0.0.0" in argument else argument.replace(STATE, str(tmp_path))
        for argument in SERVICES["sandbox"]["command"]
    ]
    async with running(*command) as sandbox:
        url = (await sandbox.line("listening on")).rpartition(" ")[2].strip()
        environment = {
            **SERVICES["forwarder"]["environment"],
            "FORWARDER_UPSTREAM__URL": url,
            "FORWARDER_BUFFER__PATH": str(tmp_path),
            "FORWARDER_SOURCES__HTTP__LISTEN": "127.0.0.1:0",
            "FORWARDER_ADMIN__LISTEN": "127.0.0.1:0",
        }
        async with running("run", env=environment) as daemon:
            listening = json.loads(await daemon.line('"event": "listening"'))
            assert await _visits(f"http://{listening['ingestion'][0]}") == ["25 visits"]
            daemon.send(signal.SIGTERM)
            assert await daemon.ended() == 0
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{url}/sandbox/summary") as response,
        ):
            summary = await response.json()
    assert summary["events"] >= 25
    assert (summary["conflicts"], summary["not_ingested"]) == (0, 0)


def test_the_samples_image_runs_the_sample() -> None:
    """What its Dockerfile starts is the file that is copied."""
    text = (ROOT / "deploy" / "compose" / "app" / "Dockerfile").read_text()
    assert 'CMD ["python", "app.py"]' in text
    assert "COPY app.py ./" in text
