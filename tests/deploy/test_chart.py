"""The Helm chart, rendered by helm with several sets of values, and what it renders compared with
the code.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from forwarder.config.settings import Settings
from forwarder.testing.daemon import merged
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.deployment import (
    ALERTS,
    CHART,
    DASHBOARD,
    POD,
    Document,
    documents,
    of_kind,
    pods,
    port,
    settings,
)
from tests.support.documents import text_of
from tests.support.go_tools import HELM
from tests.support.manifests import (
    NEWEST,
    assert_confined,
    assert_imports_in_shards,
    assert_known_to_kubernetes,
    assert_policy,
    assert_reads_logs,
    assert_room,
    assert_runs_forwarder,
    assert_scaled,
    assert_selected,
    assert_stops_in_time,
)
from tests.support.repository import ROOT

URL = "https://us.i.example.com"
KEYS = "phc_0123456789abcdef0123456789abcdef\n"
CLUSTER = {
    "name": "kafka",
    "bootstrap_servers": ["kafka-1:9092", "kafka-2:9092"],
    "topics": ["events"],
    "auto_offset_reset": "latest",
}
LEAST = {"config": {"upstream": {"url": URL}}}
MORE = "config.buffer.max_bytes (5GiB) and config.dead_letters.max_bytes (256MiB) together"
SETS: dict[str, dict[str, Any]] = {
    "the least": LEAST,
    "in memory": {
        "mode": "deployment",
        "config": {
            "upstream": {"url": "http://${SERVICE}:8000"},
            "buffer": {"kind": "memory", "max_bytes": "256MiB"},
            "shutdown": {"delay": "1500ms", "drain_timeout": "1m"},
        },
        "extraEnv": [{"name": "SERVICE", "value": "analytics"}],
    },
    "a group of static members": {
        "config": {
            "upstream": {"url": URL},
            "buffer": {"kind": "memory", "max_bytes": "128MiB"},
            "dead_letters": {"max_bytes": "256MiB"},
            "sources": {
                "kafka": [{**CLUSTER, "group_instance_id": "${POD_NAME}", "session_timeout": "2m"}]
            },
        },
        "autoscaling": {"enabled": True, "maxReplicas": 16, "authentication": "kafka-login"},
    },
    "a group that is scaled": {
        "mode": "deployment",
        "config": {
            "upstream": {"url": URL},
            "sources": {
                "kafka": [
                    CLUSTER,
                    {**CLUSTER, "name": "other", "group_id": "shop", "topics": "orders, baskets"},
                ]
            },
        },
        "autoscaling": {"enabled": True},
    },
    "everything": {
        "config": {
            "upstream": {"url": URL, "timeout": "10s"},
            "sources": {
                "http": {
                    "max_connections": 1000000,
                    "trusted_proxies": ["10.0.0.0/8"],
                    "stamp_ip": "never",
                }
            },
            "buffer": {"max_bytes": "20GiB", "when_full": "drop_oldest"},
            "shutdown": {"delay": 0},
        },
        "ports": {"http": 18320, "admin": 18321},
        "persistence": {"size": "30Gi", "storageClass": "fast"},
        "secrets": {
            secret: {"name": f"my-{secret}"} for secret in ("apiKeys", "tls", "proxy", "ca")
        },
        "networkPolicy": {"enabled": True},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
        "podLabels": {"team": "data"},
        "terminationGracePeriodSeconds": 120,
        "fullnameOverride": "events",
    },
}

pytestmark = pytest.mark.slow


def helm(*args: str) -> subprocess.CompletedProcess[str]:
    """Ask helm."""
    return subprocess.run(
        [HELM.path(), *args], capture_output=True, text=True, timeout=180, check=False
    )


def template(place: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Render the chart with values of a file, as a user has them."""
    file = place / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return helm(
        "template",
        "shop",
        str(CHART),
        "--namespace",
        "shop",
        "--kube-version",
        f"{NEWEST}.0",
        "--values",
        str(file),
    )


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """What helm renders of a set of values; each is rendered once."""
    place = tmp_path_factory.mktemp("rendered")

    @functools.cache
    def render(name: str) -> str:
        done = template(place, SETS[name])
        assert done.returncode == 0, done.stderr
        return done.stdout

    return render


@pytest.fixture(params=SETS)
def rendered(request: pytest.FixtureRequest, texts: Callable[[str], str]) -> list[Document]:
    """The objects of one set of values."""
    return documents(texts(request.param))


@pytest.fixture
def configuration(rendered: list[Document], tmp_path: Path) -> Path:
    """The configuration among them, as the daemon finds it: its variables and the files of its
    Secrets are there.
    """
    file = tmp_path / "forwarder.yaml"
    [text] = [
        config_map["data"]["forwarder.yaml"]
        for config_map in of_kind(rendered, "ConfigMap")
        if "forwarder.yaml" in config_map["data"]
    ]
    file.write_text(text.replace("${SERVICE}", "analytics"))
    return file


def with_files(pod: Document, place: Path) -> Document:
    """The pod, with the files that it mounts from Secrets made up in `place`. Each is one that it
    does mount.
    """
    [container] = pod["containers"]
    mounted = {
        mount["mountPath"]
        for mount in container["volumeMounts"]
        if mount["name"] in {volume["name"] for volume in pod["volumes"]}
    }
    made = make_certificate(place)
    own = made.cert_file.read_text()
    key = made.key_file.read_text()
    contents = {
        "project-keys": KEYS,
        "tls.crt": own,
        "tls.key": key,
        "ca.crt": own,
        "api-key": KEYS,
    }
    for variable in container["env"]:
        if variable["name"].endswith("_FILE"):
            path = Path(variable["value"])
            assert str(path.parent) in mounted
            (place / path.name).write_text(contents[path.name])
            variable["value"] = str(place / path.name)
    return pod


def test_helm_finds_nothing_to_say() -> None:
    """`helm lint --strict` passes."""
    done = helm("lint", str(CHART), "--strict", "--set", f"config.upstream.url={URL}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_knows_what_it_renders(rendered: list[Document]) -> None:
    """The oldest and the newest version have no objection."""
    assert_known_to_kubernetes(rendered)


def test_what_it_renders_runs(
    rendered: list[Document], configuration: Path, tmp_path: Path
) -> None:
    """Pods are confined, the configuration can be used as it is, ports, probes, grace period and
    volume fit it.
    """
    [pod] = pods(rendered)
    assert_confined(pod)
    parsed = assert_runs_forwarder(with_files(pod, tmp_path), configuration)
    assert_stops_in_time(pod, parsed)
    assert_selected(rendered)
    for stateful in of_kind(rendered, "StatefulSet"):
        assert parsed.buffer.kind == "disk" or parsed.sources.kafka
        assert_room(
            stateful["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"],
            parsed,
        )
        assert stateful["spec"]["serviceName"] in {
            service["metadata"]["name"] for service in of_kind(rendered, "Service")
        }
    for policy in of_kind(rendered, "NetworkPolicy"):
        assert_policy(policy, parsed)
    by_port = {
        service_port["name"]: service_port["port"]
        for service in of_kind(rendered, "Service")
        for service_port in service["spec"]["ports"]
    }
    assert by_port == {"http": port(parsed.sources.http.listen), "admin": port(parsed.admin.listen)}


def test_a_group_is_scaled_by_its_lag(
    rendered: list[Document], configuration: Path, tmp_path: Path
) -> None:
    """With autoscaling the number of pods is KEDA's; else it is what `replicas` says."""
    [workload] = [*of_kind(rendered, "StatefulSet"), *of_kind(rendered, "Deployment")]
    scaled = of_kind(rendered, "ScaledObject")
    assert ("replicas" in workload["spec"]) is not bool(scaled)
    for scaled_object in scaled:
        logins = [
            trigger.pop("authenticationRef", None)
            for trigger in scaled_object["spec"]["triggers"][:-1]
        ]
        parsed = assert_runs_forwarder(with_files(pods(rendered)[0], tmp_path), configuration)
        assert_scaled(scaled_object, workload, parsed)
        assert logins in ([{"name": "kafka-login"}], [None, None])
        assert parsed.sources.kafka[0].group_instance_id == (
            POD if workload["kind"] == "StatefulSet" else None
        )


LOGS: dict[str, Any] = {
    "config": {"upstream": {"url": URL}, "shutdown": {"drain_timeout": "20s"}},
    "replicas": 0,
    "secrets": {"ca": {"name": "my-ca"}},
    "serviceMonitor": {"enabled": True},
    "logs": {
        "enabled": True,
        "secret": "forwarder-logs",
        "config": {
            "sources": {
                "logs": [
                    {
                        "name": "pods",
                        "host": "${NODE_NAME}",
                        "path": "/var/log/pods/shop_*/*/*.log*",
                        "format": "cri",
                        "api_key": "phc_0123456789abcdef0123456789abcdef",
                        "mapping": {"event": '"line"', "distinct_id": ".stream"},
                    }
                ]
            }
        },
    },
}


def of_logs(objects: list[Document]) -> list[Document]:
    """The objects that are about the nodes' logs."""
    return [document for document in objects if document["metadata"]["name"].endswith("-logs")]


def test_the_readers_of_logs(tmp_path: Path) -> None:
    """They are pods of their own, to which no Service for senders leads; they deliver to the same
    address, and can be scraped.
    """
    done = template(tmp_path, LOGS)
    assert done.returncode == 0, done.stderr
    objects = documents(done.stdout)
    assert_known_to_kubernetes(objects)
    assert_selected([document for document in objects if document not in of_logs(objects)])
    own = of_logs(objects)
    [pod] = pods(own)
    assert_confined(pod, root=True)
    [configured] = of_kind(own, "ConfigMap")
    file = tmp_path / "forwarder.yaml"
    file.write_text(configured["data"]["forwarder.yaml"])
    parsed = assert_runs_forwarder(with_files(pod, tmp_path), file)
    assert_reads_logs(pod, parsed)
    assert_stops_in_time(pod, parsed)
    assert parsed.upstream.url == URL
    assert_selected([document for document in own if document["kind"] != "ServiceMonitor"])
    [monitor] = of_kind(own, "ServiceMonitor")
    [service] = of_kind(own, "Service")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )


MIGRATION: dict[str, Any] = {
    "config": {"upstream": {"url": URL}},
    "replicas": 0,
    "secrets": {"ca": {"name": "my-ca"}, "proxy": {"name": "my-proxy"}},
    "migration": {
        "enabled": True,
        "args": ["mixpanel", "/export", "--accept", "illegal-merges", "--sort"],
        "shards": 12,
        "secret": "forwarder-import",
        "source": {"claim": "export"},
        "config": {"import": {"rate": 8000}},
    },
}


def of_import(objects: list[Document]) -> list[Document]:
    """The objects that are about a migration."""
    return [
        document
        for document in objects
        if document["metadata"]["labels"]["app.kubernetes.io/name"] == "forwarder-import"
    ]


def imports(place: Path, values: dict[str, Any]) -> tuple[list[Document], Document]:
    """What is rendered of a migration, and its Job."""
    done = template(place, values)
    assert done.returncode == 0, done.stderr
    assert_known_to_kubernetes(documents(done.stdout))
    own = of_import(documents(done.stdout))
    [job] = of_kind(own, "Job")
    return own, job


def changed(**section: Any) -> dict[str, Any]:
    """Other values of the migration."""
    return {**MIGRATION, "migration": {**MIGRATION["migration"], **section}}


def test_a_migration_in_shards(tmp_path: Path) -> None:
    """Each index is a shard, whose state is on a claim that outlives the release; no Service leads
    to it.
    """
    own, job = imports(tmp_path, MIGRATION)
    [pod] = pods(own)
    assert_confined(pod)
    [configured] = of_kind(own, "ConfigMap")
    [claim] = of_kind(own, "PersistentVolumeClaim")
    file = tmp_path / "forwarder.yaml"
    file.write_text(configured["data"]["forwarder.yaml"])
    parsed = assert_imports_in_shards(
        {**job, "spec": {**job["spec"], "template": {"spec": with_files(pod, tmp_path)}}}, file
    )
    assert (parsed.upstream.url, parsed.import_.rate, job["spec"]["completions"]) == (URL, 8000, 12)
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert claims == {"state": claim["metadata"]["name"], "export": "export"}
    assert of_kind(own, "Service") == []
    _, job = imports(tmp_path, {**changed(shards=10_000), "fullnameOverride": "x" * 50})
    assert len(f"{job['metadata']['name']}-9999") <= 63, "the name of a pod's host"


def test_a_migrations_own_claim_and_bucket(tmp_path: Path) -> None:
    """A claim that is there already, and a source that is none."""
    own, _ = imports(
        tmp_path,
        changed(
            state={"existingClaim": "mine"},
            source={"claim": ""},
            args=["native", "s3://bucket/export"],
        ),
    )
    assert of_kind(own, "PersistentVolumeClaim") == []
    [pod] = pods(own)
    assert [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    ] == ["mine"]


def test_an_upgrade_replaces_a_migrations_job(tmp_path: Path) -> None:
    """Where its pods are others, for Kubernetes refuses to change them; how many run at a time can
    be changed in place.
    """
    others = (
        changed(parallelism=5),
        changed(shards=13),
        changed(config={"import": {"rate": 1}}),
        {**MIGRATION, "podLabels": {"a": "b"}},
    )
    names = [imports(tmp_path, values)[1]["metadata"]["name"] for values in (MIGRATION, *others)]
    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_everything_is_rendered_when_it_is_asked_for(texts: Callable[[str], str]) -> None:
    """Monitor, rules and dashboard are there with the labels that were asked for; rules and
    dashboard are the chart's files.
    """
    objects = documents(texts("everything"))
    [monitor] = of_kind(objects, "ServiceMonitor")
    [rules] = of_kind(objects, "PrometheusRule")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    [service] = [
        document
        for document in of_kind(objects, "Service")
        if wanted <= document["metadata"]["labels"].items()
    ]
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} == {
        service_port["name"] for service_port in service["spec"]["ports"]
    }
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "forwarder"
    assert rules["spec"] == yaml.safe_load(ALERTS.read_text())
    [board] = [
        config_map
        for config_map in of_kind(objects, "ConfigMap")
        if "forwarder.json" in config_map["data"]
    ]
    assert json.loads(board["data"]["forwarder.json"]) == json.loads(DASHBOARD.read_text())
    [pod] = pods(objects)
    assert pod["terminationGracePeriodSeconds"] == 120


def reading(cluster: dict[str, Any], autoscaling: dict[str, Any] | None = None) -> dict[str, Any]:
    """Values that read a topic and are scaled by its lag, with a mistake in them."""
    sources = {"kafka": [{**CLUSTER, **cluster}]}
    return {
        "config": {**LEAST["config"], "sources": sources},
        "autoscaling": {"enabled": True, **(autoscaling or {})},
    }


@cases(
    ("values", "says"),
    [
        ({}, "config.upstream.url is needed"),
        ({**LEAST, "terminationGracePeriodSeconds": 30}, "must be more than"),
        (
            {
                **LEAST,
                "mode": "statefulset",
                "config": {**LEAST["config"], "buffer": {"kind": "memory"}},
            },
            "set mode: deployment",
        ),
        (
            {"config": {"upstream": {"url": URL, "timout": "3s"}}},
            "at '/config/upstream': additional properties 'timout' not allowed",
        ),
        (
            {"config": {**LEAST["config"], "buffer": {"max_bytes": "5GiB"}}},
            f"persistence.size (5Gi) can't hold {MORE}: make it 5376Mi",
        ),
        (
            {**LEAST, "persistence": {"size": "4G"}},
            "persistence.size (4G) can't hold config.buffer.max_bytes (4GiB)",
        ),
        (
            {"config": {**LEAST["config"], "buffer": {"max_bytes": 2**33}}},
            "persistence.size (5Gi) can't hold",
        ),
        (
            {"config": {**LEAST["config"], "dead_letters": {"max_bytes": "2GiB"}}},
            "config.dead_letters.max_bytes (2GiB) together",
        ),
        (
            {**LEAST, "mode": "deployment", "emptyDir": {"sizeLimit": "1Gi"}},
            "emptyDir.sizeLimit (1Gi) can't hold",
        ),
        ({**LEAST, "logs": {"enabled": True}}, "logs.config.sources.logs is needed"),
        ({**LEAST, "migration": {"enabled": True, "secret": "x"}}, "migration.args is needed"),
        (
            {**LEAST, "migration": {"enabled": True, "args": ["native", "/export"]}},
            "migration.secret is needed",
        ),
        (
            {
                **LEAST,
                "migration": {
                    "enabled": True,
                    "secret": "x",
                    "args": ["native", "/export", "--shard=0/2"],
                },
            },
            "set migration.shards",
        ),
        (
            {**LEAST, "autoscaling": {"enabled": True}},
            "autoscaling.enabled needs config.sources.kafka",
        ),
        (
            reading({}, {"minReplicas": 9}),
            "autoscaling.minReplicas is more than autoscaling.maxReplicas",
        ),
        (reading({"commit": "disk"}), "config.sources.kafka[0].commit: disk can't be scaled"),
        (
            reading({"bootstrap_servers": "${BROKERS}"}),
            "KEDA needs bootstrap_servers and group_id without variables",
        ),
        (
            reading({"group_instance_id": "me"}),
            "config.sources.kafka[0].group_instance_id (me) would be that of every pod",
        ),
        (
            {**reading({"group_instance_id": "${POD_NAME}"}), "mode": "deployment"},
            "group_instance_id needs mode: statefulset",
        ),
        (
            {**reading({}), "terminationGracePeriodSeconds": 35},
            "and 6 s to leave Kafka's groups (36 s)",
        ),
    ],
    ids=[
        "no address",
        "no time to stop",
        "memory on volumes",
        "misspelled key",
        "no room for dead letters",
        "no room for the default",
        "no room for a number of bytes",
        "no room for many dead letters",
        "no room in the pod",
        "no logs",
        "no format",
        "no project key",
        "a shard of its own",
        "no group to scale",
        "more than most",
        "scaled with volumes",
        "brokers in a variable",
        "one name for all members",
        "a name that does not last",
        "no time to leave a group",
    ],
)
def test_what_cant_work_is_refused(values: dict[str, Any], says: str, tmp_path: Path) -> None:
    """A mistake is reported when the chart is rendered, by the name of the value."""
    done = template(tmp_path, values)
    assert done.returncode != 0
    assert says in done.stderr


@cases(
    ("values", "says"),
    [
        ({"config": {"upstream": {"url": "us.i.example.com"}}}, "/config/upstream/url"),
        (
            {"config": {**LEAST["config"], "admin": {"listen": "0.0.0.0:1"}}},
            "at '/config/admin': False schema does not allow '0.0.0.0:1'",
        ),
        (
            {"config": {**LEAST["config"], "sources": {"http": {"listen": "0.0.0.0:1"}}}},
            "at '/config/sources/http': False schema does not allow '0.0.0.0:1'",
        ),
        ({"config": {**LEAST["config"], "shutdown": {"delay": "soon"}}}, "/config/shutdown/delay"),
        ({"config": {**LEAST["config"], "batch": {"max_age": 5}}}, "/config/batch/max_age"),
        (
            {**LEAST, "logs": {"config": {"buffer": {"knd": "disk"}}}},
            "at '/logs/config/buffer': Additional properties are not allowed ('knd'",
        ),
        ({**LEAST, "image": {"tag": "latest"}}, "/image/tag"),
        ({**LEAST, "replica": 3}, "replica"),
        ({**LEAST, "logs": {"state": "here"}}, "/logs/state"),
        ({**LEAST, "migration": {"shards": 0}}, "/migration/shards"),
        (
            {**LEAST, "migration": {"config": {"import": {"rat": 1}}}},
            "at '/migration/config/import': Additional properties are not allowed ('rat'",
        ),
        (reading({}, {"lagThreshold": "many"}), "/autoscaling/lagThreshold"),
    ],
    ids=[
        "no url",
        "admin address",
        "address",
        "no time",
        "no unit",
        "misspelled key of the nodes",
        "latest",
        "unknown value",
        "relative state",
        "no shards",
        "misspelled key of the migration",
        "no number of records",
    ],
)
def test_a_value_that_no_one_reads_is_refused(values: dict[str, Any], says: str) -> None:
    """The schema refuses it by its path. That helm checks the schema is shown above, by a
    misspelled key.
    """
    schema = json.loads((CHART / "values.schema.json").read_text())
    default = yaml.safe_load((CHART / "values.yaml").read_text())
    errors = jsonschema.Draft7Validator(schema).iter_errors(merged(default, values))
    messages = [
        f"at '/{'/'.join(map(str, error.absolute_path))}': {error.message}" for error in errors
    ]
    assert [message for message in messages if says in message], messages


DOCUMENT = text_of("deploy", "deploy-kubernetes", "kafka-kubernetes")


@cases(
    "block",
    [
        block
        for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
        if "replicas:" in block
    ],
)
def test_the_documents_values_can_be_rendered(block: str, tmp_path: Path) -> None:
    """The values in the document give objects whose volume has room for their buffer."""
    done = template(tmp_path, yaml.safe_load(block))
    assert done.returncode == 0, done.stderr
    assert_known_to_kubernetes(documents(done.stdout))
    [stateful] = of_kind(documents(done.stdout), "StatefulSet")
    file = tmp_path / "forwarder.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(block)["config"]))
    assert_room(
        stateful["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"],
        settings(file, {"POD_NAME": POD}),
    )


@pytest.mark.parametrize(
    "command", re.findall(r"^helm install (\w+) (\S+) .*?(--set \S+)$", DOCUMENT, re.MULTILINE)
)
def test_the_documents_command_can_be_typed(command: tuple[str, str, str]) -> None:
    """`helm install` as it stands there renders, with a Service for senders at the default port."""
    name, chart, given = command
    done = helm(
        "template", name, str(ROOT / chart), *given.split(), "--kube-version", f"{NEWEST}.0"
    )
    assert done.returncode == 0, done.stderr
    services = {
        service["metadata"]["name"]: service["spec"]["ports"]
        for service in of_kind(documents(done.stdout), "Service")
    }
    assert [service_port["port"] for service_port in services[f"{name}-forwarder"]] == [
        port(Settings().sources.http.listen)
    ]


def test_each_value_has_a_schema() -> None:
    """The defaults fit the schema, and the schema knows every value."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.validate(values, schema)
    assert set(values) == set(schema["properties"]) - {"global"}
