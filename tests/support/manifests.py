"""What must hold for Kubernetes objects that run forwarder, no matter who wrote them: a
person, or helm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from forwarder.admin.server import AdminServer
from forwarder.cli.exit_codes import ExitCode
from forwarder.config.load import DEFAULT_FILE
from forwarder.config.settings import Settings
from forwarder.daemon.imports import STOP_SECONDS
from forwarder.planning.capacity import RESERVE, Load, LoadSource, lag_threshold
from forwarder.sources.imports.job import Shard
from forwarder.storage.directory import state_directories
from tests.support.deployment import (
    IMAGE,
    MARGIN,
    STATE,
    USER,
    Document,
    containers,
    environment,
    forwarders,
    of_kind,
    pods,
    port,
    quantity,
    settings,
)
from tests.support.dockerfile import FORWARDER
from tests.support.snapshots import FULL
from tests.support.typed import command

NEWEST: Final = "1.37"
OLDEST: Final = "1.29"
"""Versions of Kubernetes that the objects are for: 1.29 is the first with native sidecars."""
LOGS: Final = ("/var/log/pods", "/var/log/containers")
"""Where a node has the logs of its pods."""


def admin_paths() -> set[str]:
    """The paths that the admin server answers."""
    routes = AdminServer(lambda: FULL)._application().router.routes()
    return {route.resource.canonical for route in routes if route.resource is not None}


def assert_known_to_kubernetes(objects: Iterable[Document]) -> None:
    """Each object is one that these versions of Kubernetes know, with no field that they don't.
    Skips the test without the schemas.
    """
    schemas = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate isn't installed"
    )
    for document in objects:
        # the Prometheus operator's own, and KEDA's
        if not document["apiVersion"].startswith(("monitoring.coreos.com/", "keda.sh/")):
            for version in (OLDEST, NEWEST):
                schemas.validate(document, version, strict=True)


def assert_confined(pod: Document, *, root: bool = False) -> None:
    """No container has privileges, a writable root or root's number (but where `root` needs it),
    and no one gets a token of the cluster.
    """
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"].get("runAsNonRoot", False) is not root
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(pod):
        own = container["securityContext"]
        assert (
            own["readOnlyRootFilesystem"],
            own["allowPrivilegeEscalation"],
            own["capabilities"],
        ) == (True, False, {"drop": ["ALL"]})
        assert (own.get("runAsUser", pod["securityContext"].get("runAsUser", 0)) == 0) is root
        assert quantity(container["resources"]["limits"]["memory"]) >= quantity(
            container["resources"]["requests"]["memory"]
        )


def assert_runs_forwarder(pod: Document, file: Path | None) -> Settings:
    """Its forwarder is configured, probed where it answers, has its volume, and the time to stop;
    the settings that it will have.
    """
    [container] = forwarders(pod)
    assert container["image"] == IMAGE
    configuration = settings(file, environment(container), FORWARDER.environment)
    assert_ports(container, configuration)
    assert_probes(container)
    user = container["securityContext"].get("runAsUser", pod["securityContext"].get("runAsUser"))
    if user != 0:
        assert (user, pod["securityContext"]["fsGroup"]) == (USER, USER)
    [events] = [
        mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "events"
    ]
    assert events == configuration.buffer.path.as_posix() == STATE
    return configuration


def assert_reads_logs(pod: Document, settings: Settings) -> None:
    """It sees the node's logs and can't change them; buffer and positions are on the node; uuids
    and paths are what the mounts give.
    """
    [container] = forwarders(pod)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    hosts = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in pod["volumes"]
        if "hostPath" in volume
    }
    assert {
        path
        for path, mount in mounts.items()
        if mount["name"] in hosts and not mount.get("readOnly")
    } == {STATE}
    assert {path: hosts[mounts[path]["name"]] for path in LOGS} == {path: path for path in LOGS}
    assert settings.buffer.kind == "disk"
    for source in settings.sources.logs:
        assert source.host == environment(container)["NODE_NAME"]
        assert all(path.startswith(LOGS) for path in source.path)
    assert {"operator": "Exists"} in pod["tolerations"]


def assert_imports_in_shards(job: Document, file: Path) -> Settings:
    """Each index imports its own shard, as often as it takes, into a folder on the claim; the
    settings that it will have.

    The key and the configuration are mounted where they are looked for, the source's files can't
    be changed.
    """
    spec = job["spec"]
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] in {IMAGE, f"{IMAGE}-full"}
    assert (spec["completionMode"], pod["restartPolicy"]) == ("Indexed", "Never")
    assert spec["parallelism"] <= spec["completions"]
    assert spec["backoffLimitPerIndex"] > 0
    tries = {rule["action"]: rule.get("onExitCodes") for rule in spec["podFailurePolicy"]["rules"]}
    assert tries == {
        "Ignore": None,
        "FailIndex": {
            "containerName": container["name"],
            "operator": "In",
            "values": [ExitCode.NO],
        },
    }
    for index in range(spec["completions"]):
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]]
        typed = command(words).make_context("import", words[2:]).params
        assert Shard.parse(typed["shard"]) == Shard(index, spec["completions"])
        assert (typed["yes"], typed["dry_run"]) == (True, False)
    mounted = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {path for path, mount in mounted.items() if not mount.get("readOnly")} == {STATE}
    [state] = [volume for volume in pod["volumes"] if volume["name"] == mounted[STATE]["name"]]
    assert "persistentVolumeClaim" in state
    configuration = settings(file, environment(container), FORWARDER.environment)
    assert configuration.import_.state is None
    assert next(state_directories(FORWARDER.environment, is_root=False)) == Path(STATE)
    assert str(DEFAULT_FILE.parent) in mounted
    assert configuration.import_.api_key_file is not None
    assert pod["terminationGracePeriodSeconds"] >= STOP_SECONDS + MARGIN
    return configuration


def assert_ports(container: Document, settings: Settings) -> None:
    """Each named port is that of an address it listens on, which others can reach; an address
    without a port is the pod's own.
    """
    named = {named_port["name"]: named_port["containerPort"] for named_port in container["ports"]}
    for name, listen in (("http", settings.sources.http.listen), ("admin", settings.admin.listen)):
        if listen.startswith("127.0.0.1:"):
            assert name not in named
        else:
            assert (named[name], listen) == (port(listen), f"0.0.0.0:{port(listen)}")


def assert_probes(container: Document) -> None:
    """Each probe asks the admin server for a path that it has: life for life,
    readiness for readiness.
    """
    probes = {name: probe["httpGet"] for name, probe in container.items() if name.endswith("Probe")}
    assert {"startupProbe", "livenessProbe"} <= set(probes)
    assert {probe["port"] for probe in probes.values()} == {"admin"}
    assert {probe["path"] for probe in probes.values()} <= admin_paths()
    assert probes["livenessProbe"]["path"] == "/livez"
    assert probes.get("readinessProbe", {"path": "/readyz"})["path"] == "/readyz"


def assert_stops_in_time(pod: Document, settings: Settings, application: float = 0.0) -> None:
    """The grace period holds the daemon's stop, a margin, and `application` seconds for who is
    stopped before it.
    """
    needed = application + settings.shutdown.delay + settings.shutdown.drain_timeout + MARGIN
    assert pod["terminationGracePeriodSeconds"] >= needed
    assert all("preStop" not in container.get("lifecycle", {}) for container in containers(pod))


def assert_room(volume: str | int, settings: Settings) -> None:
    """A volume has room for what the buffer and the dead letters may take together."""
    assert quantity(volume) >= settings.buffer.limit + settings.dead_letter_limit


def assert_selected(objects: list[Document]) -> None:
    """Services, budgets and policies select the pods, and services lead to ports that
    these name.
    """
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in objects
        if "template" in document.get("spec", {})
    ]
    ports = {
        named_port["name"]
        for pod in pods(objects)
        for container in forwarders(pod)
        for named_port in container["ports"]
    }
    for service in of_kind(objects, "Service"):
        assert [_selects(service["spec"]["selector"], pod_labels) for pod_labels in labels] == [
            True
        ]
        assert {service_port["targetPort"] for service_port in service["spec"]["ports"]} <= ports
    for policy in of_kind(objects, "PodDisruptionBudget"):
        assert [_selects(policy["spec"]["selector"]["matchLabels"], pod) for pod in labels] == [
            True
        ]
    for policy in of_kind(objects, "NetworkPolicy"):
        assert [_selects(policy["spec"]["podSelector"]["matchLabels"], pod) for pod in labels] == [
            True
        ]


def assert_policy(policy: Document, settings: Settings) -> None:
    """Only the addresses that it listens on can be reached, each by its own peers; names and the
    service can be asked.
    """
    opened = [
        (bool(ingress["from"]), [allowed["port"] for allowed in ingress["ports"]])
        for ingress in policy["spec"]["ingress"]
    ]
    assert opened == [
        (True, [port(settings.sources.http.listen)]),
        (True, [port(settings.admin.listen)]),
    ]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    allowed = {
        (allowed_port["protocol"], allowed_port["port"])
        for rule in policy["spec"]["egress"]
        for allowed_port in rule["ports"]
    }
    assert {("UDP", 53), ("TCP", 53), ("TCP", 443)} <= allowed


def assert_scaled(scaled: Document, workload: Document, settings: Settings) -> None:
    """KEDA scales this workload by the lag of each of its groups, as the formulas say, and by CPU;
    pods go slowly, and one stays.
    """
    spec = scaled["spec"]
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (workload["kind"], workload["metadata"]["name"])
    assert 1 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
    down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 300
    assert [policy["value"] for policy in down["policies"] if policy["type"] == "Pods"] == [1]
    *lags, cpu = spec["triggers"]
    for trigger, cluster in zip(lags, settings.sources.kafka, strict=True):
        assert cluster.commit == "delivered"
        asked = trigger["metadata"]
        topic = {"topic": cluster.topics[0]} if len(cluster.topics) == 1 else {}
        group = {"consumerGroup": cluster.group_id, "offsetResetPolicy": cluster.auto_offset_reset}
        assert asked == {
            "bootstrapServers": ",".join(cluster.bootstrap_servers),
            **group,
            **topic,
            "lagThreshold": asked["lagThreshold"],
        }
        assert int(asked["lagThreshold"]) == pytest.approx(
            lag_threshold(Load(rate=1.0, source=LoadSource.KAFKA), settings), rel=0.25
        )
    assert {lag_trigger["type"] for lag_trigger in lags} == {"kafka"}
    assert cpu == {
        "type": "cpu",
        "metricType": "AverageValue",
        "metadata": {"value": f"{1000 // RESERVE}m"},
    }


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()
