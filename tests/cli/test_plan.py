"""`forwarder plan`: what it prints, which settings it writes, what it makes of a configuration,
and its mistakes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from forwarder.cli.app import app
from forwarder.planning.figures import IMPORTS
from tests.support.cases import cases
from tests.support.commands import invoked

LOADS = [
    pytest.param(["--rate", "20000", "--outage", "8h"], id="http"),
    pytest.param(["--rate", "3e6", "--outage", "1h", "--cores", "16"], id="many workers"),
    pytest.param(
        ["--rate", "500", "--outage", "10m", "--buffer", "memory", "--unstamped"], id="memory"
    ),
    pytest.param(["--rate", "20000", "--outage", "8h", "--source", "kafka"], id="kafka"),
    pytest.param(
        ["--rate", "300000", "--source", "kafka", "--cores", "8", "--latency", "2s"],
        id="busy kafka",
    ),
    pytest.param(["--source", "import", "--events", "10e9", "--format", "amplitude"], id="import"),
    pytest.param(
        ["--source", "import", "--events", "10e9", "--rate", "unlimited", "--shards", "8"],
        id="import without limit",
    ),
]


def printed(*args: str, code: int = 0) -> str:
    """What the command prints, in this process."""
    done = CliRunner().invoke(app, ["plan", *args])
    assert (done.exit_code, done.stderr) == (code, "")
    return done.stdout


def planned(*args: str, code: int = 0) -> dict[str, Any]:
    """The plan as JSON."""
    plan: dict[str, Any] = json.loads(printed(*args, "--output", "json", code=code))
    return plan


def figures(plan: dict[str, Any]) -> dict[str, Any]:
    """Its figures by name."""
    return {figure["name"]: figure for figure in plan["figures"]}


async def test_it_works_without_a_configuration() -> None:
    """The load, each figure with its reason and what moves it, the limits, the settings."""
    done = await invoked("plan", "--rate", "20000", "--outage", "8h")
    assert (done.code, done.err) == (0, "")
    first, *lines = done.out.splitlines()
    assert first == (
        "20,000 events/s over HTTP, 50 events of 600 bytes in a request; buffered on disk "
        "through an outage of 8h"
    )
    names = [line.split()[0] for line in lines if line.startswith(" ") and line[1:2].strip()]
    assert names[:10] == [
        "cores",
        "workers",
        "machines",
        "memory",
        "traffic",
        "disk",
        "batch",
        "requests",
        "connections",
        "catch-up",
    ]
    assert "settings to write:" in lines
    assert "  kind: disk" in lines


@cases("load", LOADS)
async def test_the_settings_are_a_valid_configuration(load: list[str], tmp_path: Path) -> None:
    """What is printed as settings is accepted by `forwarder config check`, without a hint that
    something is too small.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text(printed(*load, "--output", "yaml"))
    checked = await invoked("config", "check", "--elsewhere", "--config", str(file))
    assert checked.code == 0, checked.err
    assert (planned(*load))["settings"] == yaml.safe_load(file.read_text())


WITHOUT_IMPORT = [load for load in LOADS if "import" not in str(load.id)]


@cases("load", WITHOUT_IMPORT)
def test_what_is_planned_carries_the_load(load: list[str], tmp_path: Path) -> None:
    """A plan of the settings that a plan has written finds no limit below the load."""
    file = tmp_path / "forwarder.yaml"
    file.write_text(printed(*load, "--output", "yaml"))
    plan = planned(*load, "--config", str(file))
    assert plan["carried"]
    assert all(limit["factor"] >= 1 for limit in plan["limits"])


def test_a_configuration_is_used_and_its_first_limit_is_shown(tmp_path: Path) -> None:
    """Its batches, concurrency and kind of buffer are planned with; what doesn't carry the load is
    exit code 1, with what to set.
    """
    file = tmp_path / "forwarder.yaml"
    sizes = (
        "buffer: {kind: disk, max_bytes: 1GiB}, batch: {max_events: 100}, delivery: "
        "{concurrency: 2}"
    )
    file.write_text(f"{{upstream: {{url: http://127.0.0.1:9}}, {sizes}}}")
    load = ["--rate", "1000", "--outage", "10m", "--config", str(file)]
    plan = planned(*load, code=1)
    assert figures(plan)["batch"]["value"] == 100
    assert [(limit["name"], limit["factor"] < 1) for limit in plan["limits"]] == [
        ("requests to the service", True),
        ("buffer.max_bytes", False),
        ("CPU", False),
    ]
    text = printed(*load, code=1)
    assert f"limits of {file}:" in text
    assert "set delivery.concurrency to 13, or use larger batches" in text
    assert not (planned(*load[:2], "--outage", "1d", *load[4:], code=1))["carried"]


SEVERAL = """
upstreams:
  us: {url: "http://127.0.0.1:9"}
  eu: {url: "http://127.0.0.1:8", api_keys: {phc_us_shop1234567: phc_eu_shop7654321}}
  lab: {url: "http://127.0.0.1:7", required: false}
  spare: {url: "http://127.0.0.1:6"}
routes:
  - {match: {api_key: phc_us_shop1234567}, to: [us, eu]}
  - {match: {event: "order*"}, to: [us, {lab: {sample: 0.1}}]}
buffer: {kind: disk, max_bytes: 64MiB}
delivery: {concurrency: 1}
"""


def test_each_destination_is_planned(tmp_path: Path) -> None:
    """With what its routes may bring it, on machines that carry all copies; what is written
    carries the load.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text(SEVERAL)
    load = ["--rate", "20000", "--outage", "1h", "--config", str(file)]
    plan = planned(*load, code=1)
    shown = figures(plan)
    assert shown["copies"]["value"] == 40_000
    alone = figures(planned(*load[:4]))
    assert shown["cores"]["value"] == pytest.approx(2 * alone["cores"]["value"])
    assert shown["disk@us"]["value"] == shown["disk@eu"]["value"]
    assert shown["disk@lab"]["value"] == pytest.approx(shown["disk@us"]["value"] / 10, rel=0.02)
    assert "disk@spare" not in shown
    assert {"requests@us", "catch-up@eu", "batch@lab"} <= shown.keys()
    failing = {limit["name"] for limit in plan["limits"] if limit["factor"] < 1}
    assert {"buffer.max_bytes@us", "buffer.max_bytes@eu", "requests to the service@us"} <= failing
    text = printed(*load, code=1)
    assert "disk@eu" in text
    assert "phc_" not in text
    written = yaml.safe_load(SEVERAL)
    assert plan["settings"]["upstreams"]["eu"] == {"url": "http://127.0.0.1:8"}
    file.write_text(
        yaml.safe_dump({**plan["settings"], **{k: written[k] for k in ("upstreams", "routes")}})
    )
    assert planned(*load)["carried"]


def test_kafka_is_planned_where_it_is_configured(tmp_path: Path) -> None:
    """Without `--source`; the settings keep its brokers and topics."""
    file = tmp_path / "forwarder.yaml"
    cluster = (
        "{name: shop, bootstrap_servers: 'kafka-1:9092', topics: [orders], max_in_flight: "
        "64MiB, api_key: phc_0123456789abcdef}"
    )
    file.write_text(
        f"{{upstream: {{url: http://127.0.0.1:9}}, buffer: {{max_bytes: 256MiB}}, sources: "
        f"{{kafka: [{cluster}]}}}}"
    )
    plan = planned("--rate", "20000", "--config", str(file))
    assert {"partitions", "lag", "retention", "in flight"} <= figures(plan).keys()
    [written] = plan["settings"]["sources"]["kafka"]
    assert (written["name"], written["bootstrap_servers"], written["topics"]) == (
        "shop",
        ["kafka-1:9092"],
        ["orders"],
    )


def test_a_migration() -> None:
    """Ten billion events at the rate that an import has by itself: 58 days; each format that was
    measured can be planned.
    """
    for form in IMPORTS:
        estimates = figures(planned("--source", "import", "--events", "10e9", "--format", form))
        assert estimates["duration"]["text"] == "57d 20h"
    estimates = figures(planned("--source", "import", "--events", "1e6", "--shards", "3"))
    assert estimates["shards"]["value"] == 3


@cases(
    ("typed", "says"),
    [
        ([], "--rate is missing"),
        (["--rate", "many"], "--rate: 'many' is not a whole number from 1 on"),
        (["--rate", "0.5"], "--rate: '0.5' is not a whole number from 1 on"),
        (["--rate", "1000", "--outage", "8"], "--outage: '8' has no unit of time"),
        (["--rate", "1000", "--event-bytes", "big"], "--event-bytes: 'big' is not a size"),
        (["--rate", "1000", "--events", "5"], "--events and --shards are for imports"),
        (["--source", "import"], "--events is missing"),
        (["--source", "import", "--events", "5", "--machines", "2"], "are for HTTP and Kafka"),
        (["--rate", "1000", "--config", "/nonexistent.yaml"], "/nonexistent.yaml"),
    ],
)
async def test_mistakes(typed: list[str], says: str) -> None:
    """What is missing or can't be used is exit code 2, with how to write it."""
    done = await invoked("plan", *typed)
    assert done.code == 2
    assert says in done.err


def test_a_service_that_takes_no_more_than_the_load_never_catches_up() -> None:
    """It is said, and is null for programs."""
    estimates = figures(planned("--rate", "1000", "--service-rate", "1000"))
    assert (estimates["catch-up"]["value"], estimates["catch-up"]["text"]) == (None, "never")
