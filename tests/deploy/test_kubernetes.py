"""The plain Kubernetes manifests: known to Kubernetes, and compared with the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.planning.capacity import Load, LoadSource, process_memory
from tests.support.cases import cases
from tests.support.deployment import (
    IMAGE,
    KUBERNETES,
    POD,
    STATE,
    USER,
    environment,
    manifests,
    of_kind,
    pods,
    port,
    quantity,
    settings,
)
from tests.support.dockerfile import FORWARDER
from tests.support.manifests import (
    admin_paths,
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
from tests.support.typed import command, options

FOLDERS = (
    "sidecar",
    "standalone",
    "monitoring",
    "drain",
    "logs",
    "import",
    "verify",
    "kafka",
    "autoscaling",
)
SIDECAR, STANDALONE, MONITORING, DRAIN, LOGS, IMPORT, VERIFY, KAFKA, AUTOSCALING = (
    manifests(KUBERNETES / folder) for folder in FOLDERS
)
APPLICATION = 15.0
"""Seconds that the sidecar's manifest leaves the application to stop."""
LEAVING = 6.0
"""Seconds that leaving a group takes when no broker answers."""
STARTING = 60.0
"""Seconds that a pod may take to be scheduled and started, with the image there."""


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The standalone ConfigMap's file."""
    return configured(STANDALONE, tmp_path)


def configured(objects: list[dict[str, Any]], place: Path) -> Path:
    """The file of the ConfigMap among the objects."""
    [config_map] = of_kind(objects, "ConfigMap")
    file = place / "forwarder.yaml"
    file.write_text(config_map["data"]["forwarder.yaml"])
    return file


@cases("folder", sorted(folder.name for folder in KUBERNETES.iterdir()))
def test_each_folder_lists_its_files(folder: str) -> None:
    """A kustomization names every other file beside it, so that none is left out."""
    listed = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["resources"]
    assert sorted(["kustomization.yaml", *listed]) == sorted(
        file.name for file in (KUBERNETES / folder).iterdir()
    )


@cases(
    "objects",
    [SIDECAR, STANDALONE, DRAIN, LOGS, IMPORT, VERIFY, KAFKA],
    ids=["sidecar", "standalone", "drain", "logs", "import", "verify", "kafka"],
)
def test_kubernetes_knows_them(objects: list[dict[str, Any]]) -> None:
    """The oldest and the newest version have no objection."""
    assert_known_to_kubernetes(objects)


@cases(
    "objects",
    [SIDECAR, STANDALONE, DRAIN, IMPORT, VERIFY, KAFKA],
    ids=["sidecar", "standalone", "drain", "import", "verify", "kafka"],
)
def test_pods_are_confined(objects: list[dict[str, Any]]) -> None:
    """Every container is without privileges, on a root that it can't write to."""
    for pod in pods(objects):
        assert_confined(pod)


def test_the_sidecar() -> None:
    """It starts before the application and ends after it, answers the pod's own containers, and
    never takes the pod out of service.
    """
    [pod] = pods(SIDECAR)
    parsed = assert_runs_forwarder(pod, None)
    [sidecar] = pod["initContainers"]
    [application] = pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert "readinessProbe" not in sidecar
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert parsed.sources.http.listen == "127.0.0.1:8320"
    assert {
        "name": "ANALYTICS_HOST",
        "value": f"http://{parsed.sources.http.listen}",
    } in application["env"]
    assert_stops_in_time(pod, parsed, APPLICATION)
    [volume] = pod["volumes"]
    assert_room(volume["emptyDir"]["sizeLimit"], parsed)


def test_standalone(configuration: Path) -> None:
    """Each pod has a volume for its buffer, and keeps taking events until no node sends new
    connections to it.
    """
    [stateful] = of_kind(STANDALONE, "StatefulSet")
    [pod] = pods(STANDALONE)
    parsed = assert_runs_forwarder(pod, configuration)
    assert parsed.buffer.kind == "disk"
    assert parsed.shutdown.delay >= 5.0
    assert_stops_in_time(pod, parsed)
    [claim] = stateful["spec"]["volumeClaimTemplates"]
    assert_room(claim["spec"]["resources"]["requests"]["storage"], parsed)
    assert stateful["spec"]["podManagementPolicy"] == "Parallel"
    assert set(stateful["spec"]["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    [container] = pod["containers"]
    assert (
        container["readinessProbe"]["periodSeconds"]
        * container["readinessProbe"]["failureThreshold"]
        < parsed.shutdown.delay
    )
    assert container["args"] == ["run", "--config", "/etc/forwarder/forwarder.yaml"]


def test_what_leads_to_the_standalone_pods(configuration: Path) -> None:
    """Senders reach ingestion alone; the pods' own service is headless, names each pod, and shows
    those that aren't ready too.
    """
    assert_selected(STANDALONE)
    [stateful] = of_kind(STANDALONE, "StatefulSet")
    services = {
        service["metadata"]["name"]: service["spec"] for service in of_kind(STANDALONE, "Service")
    }
    own = services.pop(stateful["spec"]["serviceName"])
    assert (own["clusterIP"], own["publishNotReadyAddresses"]) == ("None", True)
    [senders] = services.values()
    parsed = assert_runs_forwarder(pods(STANDALONE)[0], configuration)
    assert [service_port["port"] for service_port in senders["ports"]] == [
        port(parsed.sources.http.listen)
    ]
    assert [service_port["port"] for service_port in own["ports"]] == [port(parsed.admin.listen)]


def test_who_may_talk_to_whom(configuration: Path) -> None:
    """The policy opens ingestion to senders and the admin server to Prometheus, and the way out to
    names and https alone.
    """
    [policy] = of_kind(STANDALONE, "NetworkPolicy")
    assert_policy(policy, assert_runs_forwarder(pods(STANDALONE)[0], configuration))


def test_the_readers_of_logs(tmp_path: Path) -> None:
    """One on each node, never two at once; root without a capability; the configuration can be
    used, and its key is where it is mounted.
    """
    [daemons] = of_kind(LOGS, "DaemonSet")
    [pod] = pods(LOGS)
    assert_confined(pod, root=True)
    file = configured(LOGS, tmp_path)
    assert "api_key_file: /etc/forwarder-logs/api-key" in file.read_text()
    assert "/etc/forwarder-logs" in {
        mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]
    }
    (tmp_path / "api-key").write_text("phc_0123456789abcdef0123456789abcdef")
    file.write_text(file.read_text().replace("/etc/forwarder-logs", str(tmp_path)))
    parsed = assert_runs_forwarder(pod, file)
    assert_stops_in_time(pod, parsed)
    assert_reads_logs(pod, parsed)
    assert (parsed.sources.logs[0].format, parsed.sources.logs[0].commit) == ("cri", "disk")
    assert daemons["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0
    assert pod["containers"][0]["args"] == ["run", "--config", "/etc/forwarder/forwarder.yaml"]


def test_the_members_of_a_kafka_group(tmp_path: Path) -> None:
    """Pods are static members by their names; what isn't delivered stays in the topic; stopping
    leaves time to leave the group; a pod that is replaced is back within its session.
    """
    [stateful] = of_kind(KAFKA, "StatefulSet")
    [pod] = pods(KAFKA)
    parsed = assert_runs_forwarder(pod, configured(KAFKA, tmp_path))
    [cluster] = parsed.sources.kafka
    assert (cluster.group_instance_id, cluster.commit, parsed.buffer.kind) == (
        POD,
        "delivered",
        "memory",
    )
    assert_stops_in_time(pod, parsed, LEAVING)
    assert cluster.session_timeout >= pod["terminationGracePeriodSeconds"] + STARTING
    assert stateful["spec"]["minReadySeconds"] > 0
    assert_selected(KAFKA)
    [service] = of_kind(KAFKA, "Service")
    assert service["metadata"]["name"] == stateful["spec"]["serviceName"]
    assert [service_port["name"] for service_port in service["spec"]["ports"]] == ["admin"]
    [claim] = stateful["spec"]["volumeClaimTemplates"]
    assert quantity(claim["spec"]["resources"]["requests"]["storage"]) >= parsed.dead_letter_limit
    assert str(parsed.dead_letters.path) == STATE
    assert quantity(pod["containers"][0]["resources"]["limits"]["memory"]) >= process_memory(
        Load(rate=1.0, source=LoadSource.KAFKA), parsed, parsed.buffer.limit
    )
    [monitor] = of_kind(MONITORING, "ServiceMonitor")
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )


def test_the_group_is_scaled_by_its_lag(tmp_path: Path) -> None:
    """The other folder's workload, by its own brokers, group and topic."""
    [scaled] = AUTOSCALING
    [stateful] = of_kind(KAFKA, "StatefulSet")
    assert_scaled(
        scaled, stateful, assert_runs_forwarder(pods(KAFKA)[0], configured(KAFKA, tmp_path))
    )
    assert scaled["spec"]["minReplicaCount"] == stateful["spec"]["replicas"]


def test_the_drain() -> None:
    """The job runs a command of forwarder on the claim of one of the StatefulSet's pods, as the
    user that wrote there.
    """
    [pod] = pods(DRAIN)
    [stateful] = of_kind(STANDALONE, "StatefulSet")
    [container] = pod["containers"]
    assert container["args"][:3] == ["buffer", "drain", STATE]
    assert {option for option in container["args"] if option.startswith("--")} <= options(
        container["args"]
    )
    [claim] = stateful["spec"]["volumeClaimTemplates"]
    claimed = pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
    assert (
        claimed.rpartition("-")[0] == f"{claim['metadata']['name']}-{stateful['metadata']['name']}"
    )
    assert (container["image"], pod["securityContext"]["fsGroup"]) == (IMAGE, USER)
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == [STATE]


def test_the_import(tmp_path: Path) -> None:
    """A shard for each index, with what it needs; the key is where the Secret is mounted."""
    [job] = of_kind(IMPORT, "Job")
    [claim] = of_kind(IMPORT, "PersistentVolumeClaim")
    parsed = assert_imports_in_shards(job, with_key(configured(IMPORT, tmp_path), tmp_path))
    assert parsed.import_.rate == 2000
    [pod] = pods(IMPORT)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    [container] = pod["containers"]
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounted[container["args"][2]]["persistentVolumeClaim"]["readOnly"] is True
    assert mounted["/etc/forwarder-import"]["secret"]["defaultMode"] == 0o440


def test_the_comparison_of_all_shards(tmp_path: Path) -> None:
    """It reads the state of the import's shards, with the import's configuration."""
    [pod] = pods(VERIFY)
    [imports] = pods(IMPORT)
    [container] = pod["containers"]
    words = container["args"]
    typed = command(words).make_context("verify", words[2:]).params
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert (words[:2], [*mounted][-1]) == (["import", "verify"], typed["export"][0])
    own, others = (
        {volume["name"]: volume for volume in some["volumes"] if volume["name"] != "export"}
        for some in (pod, imports)
    )
    assert own == others
    parsed = settings(
        with_key(configured(IMPORT, tmp_path), tmp_path),
        environment(container),
        FORWARDER.environment,
    )
    assert (parsed.import_.state, STATE in mounted) == (None, True)
    assert container["image"] == f"{IMAGE}-full"


def with_key(file: Path, place: Path) -> Path:
    """The configuration, with a key where it names one."""
    text = file.read_text()
    assert "api_key_file: /etc/forwarder-import/api-key" in text
    (place / "api-key").write_text("phc_0123456789abcdef0123456789abcdef")
    file.write_text(text.replace("/etc/forwarder-import", str(place)))
    return file


def test_prometheus_finds_both() -> None:
    """The monitors select what the manifests label, at the admin port, and call the job forwarder,
    as alerts and dashboard do.
    """
    [of_services] = of_kind(MONITORING, "ServiceMonitor")
    [of_pods, of_logs] = of_kind(MONITORING, "PodMonitor")
    wanted = of_services["spec"]["selector"]["matchLabels"].items()
    [service] = [
        document
        for document in of_kind(STANDALONE, "Service")
        if wanted <= document["metadata"]["labels"].items()
    ]
    [endpoint] = of_services["spec"]["endpoints"]
    [pod] = of_pods["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {service_port["name"] for service_port in service["spec"]["ports"]}
    assert service["metadata"]["labels"][of_services["spec"]["jobLabel"]] == "forwarder"
    [sidecars] = of_kind(SIDECAR, "Deployment")
    [daemons] = of_kind(LOGS, "DaemonSet")
    assert (
        of_pods["spec"]["selector"]["matchLabels"].items()
        <= sidecars["spec"]["template"]["metadata"]["labels"].items()
    )
    assert (
        of_logs["spec"]["selector"]["matchLabels"].items()
        <= daemons["spec"]["template"]["metadata"]["labels"].items()
    )
    assert of_logs["spec"]["podMetricsEndpoints"] == of_pods["spec"]["podMetricsEndpoints"]
    assert pod["relabelings"] == [
        {"action": "replace", "targetLabel": "job", "replacement": "forwarder"}
    ]
    assert pod["port"] in {
        container_port["name"] for container_port in pods(SIDECAR)[0]["initContainers"][0]["ports"]
    }
    assert {endpoint["path"], pod["path"]} == {"/metrics"} <= admin_paths()
