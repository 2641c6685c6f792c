"""What must fit together for a Kafka cluster, and in a mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forwarder.config.checks import conflicts
from forwarder.config.settings import Settings
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.documents import text_of

CLUSTER: dict[str, Any] = {"bootstrap_servers": "h:9092", "topics": "x"}
FOREIGN: dict[str, Any] = {**CLUSTER, "format": "json"}
JSON: dict[str, Any] = {**FOREIGN, "api_key_header": "project"}


def conflicts_by_key(*clusters: dict[str, Any], **sections: Any) -> dict[str, str]:
    """What doesn't fit in these settings, by key without the list's name."""
    settings = Settings.parse({"sources": {"kafka": clusters}, **sections})
    return {
        conflict.key.removeprefix("sources.kafka"): f"{conflict.message}: {conflict.hint}".replace(
            "sources.kafka", ""
        )
        for conflict in conflicts(settings)
    }


def test_a_cluster_and_its_topics_are_enough() -> None:
    """No one has to repair what they didn't write, whatever the buffer and the number
    of workers.
    """
    assert conflicts_by_key(CLUSTER) == {}
    assert (
        conflicts_by_key(
            {"bootstrap_servers": ["h:9092", "[::1]:9093"], "topics_pattern": "events"}
        )
        == {}
    )
    assert conflicts_by_key(CLUSTER, buffer={"kind": "disk"}) == {}
    assert conflicts_by_key(CLUSTER, workers=6) == {}
    assert conflicts_by_key(CLUSTER, {**CLUSTER, "name": "other"}) == {}


@cases(
    ("cluster", "key", "message"),
    [
        (
            {"topics": "x"},
            "[0].bootstrap_servers",
            "is missing: where to find the cluster: for example: kafka-1:9092",
        ),
        (
            {"bootstrap_servers": "h:1"},
            "[0].topics",
            "is missing: what to read: name topics, or set [0].topics_pattern",
        ),
        (
            {**CLUSTER, "topics_pattern": "x"},
            "[0].topics_pattern",
            "can't be beside [0].topics: keep one of the two",
        ),
        (
            {**CLUSTER, "format": "json", "api_key": "phc_a"},
            "[0].mapping.event",
            "is missing: format json needs a mapping",
        ),
        (
            {**CLUSTER, "mapping": {"where": ".a"}},
            "[0].mapping",
            "has no effect with format events: set [0].format to json",
        ),
        (
            {**FOREIGN, "mapping": {"event": ".e", "properties": {"a": ".a"}}},
            "[0].api_key",
            "is missing: what a mapping makes",
        ),
        (
            {**CLUSTER, "api_key": "phc_a", "api_key_file": "/dev/null"},
            "[0].api_key_file",
            "can't be beside [0].api_key",
        ),
        (
            {**JSON, "mapping": {"event": ".e", "timestamp": {"zone": "CET"}}},
            "[0].mapping.timestamp.from",
            "is missing: format and zone",
        ),
        (
            {**JSON, "mapping": {"event": ".e", "hash": {"field": ".a"}}},
            "[0].mapping.hash.salt_file",
            "is missing: a hash without a key",
        ),
        (
            {**JSON, "mapping": {"event": ".e", "hash": {"salt_file": "/dev/null"}}},
            "[0].mapping.hash.field",
            "is missing: what to hash",
        ),
        (
            {**JSON, "mapping": {"event": ".e", "hash": {"field": ".a", "salt_file": "/none"}}},
            "[0].mapping.hash.salt_file",
            "/none can't be read: No such file or directory: name a file that this user may read",
        ),
        (
            {**CLUSTER, "commit": "disk"},
            "[0].commit",
            "disk needs buffer.kind: disk: set buffer.kind to disk, or [0].commit to delivered",
        ),
        (
            {**CLUSTER, "max_in_flight": "999999"},
            "[0].max_in_flight",
            "999999 must hold the largest event, upstream.max_event (1MB)",
        ),
        (
            {**CLUSTER, "max_in_flight": "33MiB"},
            "[0].max_in_flight",
            (
                "33MiB may be at most half of buffer.max_bytes (64MiB): lower [0].max_in_flight, "
                "or raise buffer.max_bytes"
            ),
        ),
        (
            {**CLUSTER, "fetch_max_bytes": "1MB"},
            "[0].max_partition_fetch_bytes",
            "1MiB must fit into [0].fetch_max_bytes (1MB)",
        ),
        (
            {**CLUSTER, "fetch_min_bytes": "9MiB"},
            "[0].fetch_min_bytes",
            "9MiB must fit into [0].fetch_max_bytes (8MiB)",
        ),
        (
            {**CLUSTER, "revocation_timeout": "6s", "max_poll_interval": "6s"},
            "[0].revocation_timeout",
            (
                "6s must be less than [0].max_poll_interval (6s): lower [0].revocation_timeout, "
                "or raise [0].max_poll_interval"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_reported(cluster: dict[str, Any], key: str, message: str) -> None:
    """One message, which names the keys and says which way to turn them."""
    reported = conflicts_by_key(cluster)
    assert list(reported) == [key]
    assert message in reported[key]


def test_clusters_have_names_of_their_own() -> None:
    """Metrics and derived uuids tell clusters apart by them."""
    assert conflicts_by_key(CLUSTER, CLUSTER, CLUSTER) == {
        f"[{number}].name": "kafka is the name of [0] too: give each cluster a name of its own"
        for number in (1, 2)
    }


def test_a_member_is_in_its_group_once() -> None:
    """The group would shut out the one that was there first, again and again."""
    member = {**CLUSTER, "group_instance_id": "me"}
    assert list(
        conflicts_by_key(member, {**member, "name": "b", "bootstrap_servers": "other:1,h:9092"})
    ) == ["[1].group_instance_id"]
    assert conflicts_by_key(member, {**member, "name": "b", "group_id": "another"}) == {}
    assert conflicts_by_key(member, {**member, "name": "b", "bootstrap_servers": "other:1"}) == {}


def test_offsets_of_what_is_on_disk_need_no_order() -> None:
    """What waits in one forwarder's buffer would be overtaken when its partition goes
    to another.
    """
    cluster = {**CLUSTER, "commit": "disk"}
    disk = {"kind": "disk"}
    assert conflicts_by_key(cluster, buffer=disk) == {}
    assert conflicts_by_key(cluster, buffer=disk, delivery={"ordering": "none"}) == {}
    for ordering in ("per_distinct_id", "strict"):
        (message,) = conflicts_by_key(
            cluster, buffer=disk, delivery={"ordering": ordering}
        ).values()
        assert message.startswith(
            f"disk can't keep delivery.ordering: {ordering} when a partition goes to another "
            "forwarder"
        )
        assert conflicts_by_key(CLUSTER, buffer=disk, delivery={"ordering": ordering}) == {}


def test_what_may_be_in_flight_just_fits() -> None:
    """One event at least, half of a worker's share at most; a disk buffer bounds it itself."""
    assert conflicts_by_key({**CLUSTER, "max_in_flight": "1MB"}) == {}
    assert conflicts_by_key({**CLUSTER, "max_in_flight": "32MiB"}) == {}
    assert (
        "half of one worker's share of"
        in conflicts_by_key({**CLUSTER, "max_in_flight": "32MiB"}, workers=2)["[0].max_in_flight"]
    )
    assert conflicts_by_key({**CLUSTER, "max_in_flight": "1GiB"}, buffer={"kind": "disk"}) == {}


def test_a_mapping_names_no_project() -> None:
    """Whatever is among the properties."""
    for mapping in ({"properties": {"token": ".t"}}, {"properties": ".p"}, {}):
        foreign = {**CLUSTER, "format": "json", "mapping": {"event": ".e", **mapping}}
        assert list(conflicts_by_key(foreign)) == ["[0].api_key"]
        assert conflicts_by_key({**foreign, "api_key_header": "project"}) == {}


def sasl(mechanism: str, **others: Any) -> dict[str, Any]:
    """A section that signs in."""
    return {"protocol": "SASL_SSL", "mechanism": mechanism, **others}


USER = {"username": "u", "password": "p"}
CLIENT = {"token_url": "https://login.example.com/token", "client_id": "c", "client_secret": "s"}


@cases(
    "security",
    [
        {},
        {"protocol": "ssl"},
        sasl("plain", **USER),
        sasl("SCRAM-SHA-256", **USER),
        sasl("scram-sha-512", **USER, protocol="sasl_plaintext"),
        sasl("OAUTHBEARER", **CLIENT),
        sasl("OAUTHBEARER", **CLIENT, scope="kafka"),
        sasl("AWS_MSK_IAM", aws_region="eu-central-1"),
    ],
)
def test_each_way_to_sign_in_fits(security: dict[str, Any]) -> None:
    """With what it needs, and nothing else."""
    assert conflicts_by_key({**CLUSTER, "security": security}) == {}


@cases(
    ("security", "keys", "message"),
    [
        (
            {"protocol": "SASL_SSL"},
            ["mechanism"],
            "is missing: SASL_SSL signs in: write one of PLAIN, SCRAM-SHA-256",
        ),
        (
            {"mechanism": "PLAIN", **USER},
            ["mechanism"],
            "PLAIN needs a protocol that signs in, and [0].security.protocol is PLAINTEXT",
        ),
        (
            sasl("PLAIN", **USER, protocol="SSL"),
            ["mechanism"],
            "set [0].security.protocol to SASL_SSL",
        ),
        (
            sasl("PLAIN", password="p"),
            ["username"],
            "is missing: PLAIN signs in with a user and a password",
        ),
        (
            sasl("SCRAM-SHA-256", username="u"),
            ["password_file"],
            "needs it or [0].security.password: set one of the two",
        ),
        (
            sasl("PLAIN", **USER, password_file="FILE"),
            ["password"],
            "can't be beside [0].security.password_file",
        ),
        (
            sasl("PLAIN", username="u", password_file="/none"),
            ["password_file"],
            "/none can't be read: No such file",
        ),
        (
            sasl("PLAIN", username="u", password_file="EMPTY"),
            ["password_file"],
            "is empty: write the secret into it",
        ),
        (
            sasl("OAUTHBEARER"),
            ["token_file"],
            "is missing: OAUTHBEARER needs it or [0].security.token_url",
        ),
        (
            sasl("OAUTHBEARER", token_file="FILE", **CLIENT),
            ["token_url"],
            "can't be beside [0].security.token_file",
        ),
        (
            sasl("OAUTHBEARER", token_file="FILE", scope="x"),
            ["scope"],
            "has an effect only with [0].security.token_url",
        ),
        (sasl("OAUTHBEARER", token_file="EMPTY"), ["token_file"], "is empty"),
        (
            sasl("OAUTHBEARER", token_url="https://t", client_secret="s"),
            ["client_id"],
            "is missing",
        ),
        (
            sasl("OAUTHBEARER", token_url="https://t", client_id="c"),
            ["client_secret_file"],
            "or [0].security.client_secret",
        ),
        (
            sasl("OAUTHBEARER", **CLIENT, client_secret_file="FILE"),
            ["client_secret"],
            "can't be beside",
        ),
        (
            sasl("AWS_MSK_IAM"),
            ["aws_region"],
            "is missing: AWS_MSK_IAM signs for a region: for example: eu-central-1",
        ),
        (
            sasl("AWS_MSK_IAM", aws_region="x", protocol="SASL_PLAINTEXT"),
            ["protocol"],
            "set [0].security.protocol to SASL_SSL",
        ),
        (
            sasl("AWS_MSK_IAM", aws_region="x", **USER),
            ["username", "password"],
            "only with PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512",
        ),
        (
            sasl("PLAIN", **USER, token_file="FILE"),
            ["token_file"],
            "has an effect only with OAUTHBEARER",
        ),
        ({"username": "u"}, ["username"], "has an effect only with PLAIN or SCRAM-SHA-256"),
        (
            {"ca_file": "CERT"},
            ["ca_file"],
            (
                "has no effect: PLAINTEXT isn't encrypted: set [0].security.protocol to SSL or "
                "SASL_SSL"
            ),
        ),
        ({"protocol": "SSL", "ca_file": "FILE"}, ["ca_file"], "holds no certificate in PEM form"),
        ({"protocol": "SSL", "cert_file": "CERT"}, ["key_file"], "is missing: name both files"),
        ({"protocol": "SSL", "key_file": "KEY"}, ["cert_file"], "is missing: name both files"),
        (
            {"protocol": "SSL", "cert_file": "CERT", "key_file": "FILE"},
            ["key_file"],
            "holds no private key in PEM form",
        ),
        (
            {"protocol": "SSL", "cert_file": "CERT", "key_file": "/none"},
            ["key_file"],
            "/none can't be read",
        ),
    ],
)
def test_ways_to_sign_in_that_do_not_fit_are_reported(
    tmp_path: Path, security: dict[str, Any], keys: list[str], message: str
) -> None:
    """Each key that is missing, too many or without effect, and files that can't be used."""
    pair = make_certificate(tmp_path)
    files = {
        "FILE": tmp_path / "secret",
        "EMPTY": tmp_path / "empty",
        "CERT": pair.cert_file,
        "KEY": pair.key_file,
    }
    files["FILE"].write_text("hunter2")
    files["EMPTY"].write_text("\n")
    reported = conflicts_by_key(
        {
            **CLUSTER,
            "security": {key: str(files.get(value, value)) for key, value in security.items()},
        }
    )
    assert list(reported) == [f"[0].security.{key}" for key in keys]
    assert message in next(iter(reported.values()))


def test_certificates_that_belong_together_fit(tmp_path: Path) -> None:
    """Ours with its key, and the authority's."""
    pair = make_certificate(tmp_path)
    security = {
        "protocol": "SSL",
        "ca_file": pair.cert_file,
        "cert_file": pair.cert_file,
        "key_file": pair.key_file,
    }
    assert conflicts_by_key({**CLUSTER, "security": security}) == {}


def test_the_page_tells_what_is_sent_in_the_clear() -> None:
    """There is no place for warnings in a check: the document has it."""
    assert "SASL_PLAINTEXT with PLAIN sends the password" in text_of("configuration-sources")
