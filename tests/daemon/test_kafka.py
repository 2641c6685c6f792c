"""Kafka clusters in the runtime: from settings to policies, as one of several workers, in words."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import Any

from rich.console import Console
from structlog.testing import capture_logs

from forwarder.admin.page.tables import kafka
from forwarder.cli.tables import status_page
from forwarder.config.settings import Settings
from forwarder.core.ack import AckLevel
from forwarder.core.clock import SystemClock
from forwarder.daemon.kafka import kafka_notices, kafka_warnings, policy_of
from forwarder.daemon.pipeline import build
from forwarder.daemon.policies import changed_keys
from forwarder.daemon.roles import ALONE, Role
from forwarder.telemetry.snapshot import KafkaCluster, KafkaPartition
from forwarder.workers.merging import merge_sources
from tests.support.cases import cases
from tests.support.snapshots import FULL, KAFKA

NOW = 1_767_229_265.0
CLUSTER: dict[str, Any] = {
    "name": "main",
    "bootstrap_servers": ("127.0.0.1:1",),
    "topics": ("events",),
    "api_key": "phc_" + "a" * 28,
}


def settings(cluster: dict[str, Any], **others: Any) -> Settings:
    """Settings with one cluster."""
    defaults = {"buffer": {"kind": "memory"}, "upstream": {"url": "http://127.0.0.1:2"}}
    return Settings.parse(
        {
            **defaults,
            **others,
            "sources": {"kafka": ({**CLUSTER, **cluster},), "http": {"listen": "127.0.0.1:0"}},
        }
    )


def test_each_setting_comes_to_the_source() -> None:
    """Times, sizes and levels as they are set; what is derived from other settings too."""
    policy = policy_of(
        settings(
            {
                "topics": (),
                "topics_pattern": "orders-",
                "group_id": "g",
                "auto_offset_reset": "latest",
                "api_key_header": "project",
                "key_is_distinct_id": True,
                "commit_interval": "2s",
                "max_in_flight": "1MiB",
                "max_uncommitted": 77,
                "fetch_max_wait": "100ms",
                "revocation_timeout": "3s",
                "halt_after": "never",
                "missing_topics": "fail",
                "isolation_level": "read_uncommitted",
                "security": {
                    "protocol": "SASL_SSL",
                    "mechanism": "PLAIN",
                    "username": "u",
                    "password": "p",
                },
            }
        ),
        0,
        ALONE,
    )
    assert (
        policy.topics_pattern,
        policy.group_id,
        policy.from_earliest,
        policy.wait_for_topics,
    ) == ("orders-", "g", False, False)
    assert (policy.api_key, policy.api_key_header, policy.key_is_distinct_id) == (
        CLUSTER["api_key"],
        "project",
        True,
    )
    assert (policy.commit_interval, policy.max_in_flight, policy.max_uncommitted) == (
        2.0,
        1_048_576,
        77,
    )
    assert (
        policy.fetch_max_wait,
        policy.revocation_timeout,
        policy.halt_after,
        policy.read_committed,
    ) == (0.1, 3.0, None, False)
    assert (policy.level, policy.mapping, policy.group_instance_id) == (
        AckLevel.DELIVERED,
        None,
        None,
    )
    assert (policy.security.protocol, policy.security.username, policy.security.password) == (
        "SASL_SSL",
        "u",
        "p",
    )
    assert CLUSTER["api_key"] not in repr(policy)


def test_foreign_records_have_a_mapping() -> None:
    """Compiled once, before anything is read."""
    mapping = policy_of(
        settings({"format": "json", "mapping": {"event": ".e", "distinct_id": ".u"}}), 0, ALONE
    ).mapping
    assert mapping is not None
    assert b'"event":"seen"' in (mapping.map_record(b'{"e":"seen","u":"1"}') or b"")


def test_each_worker_is_a_static_member_of_its_own() -> None:
    """One alone has the name that is set; of several each has its number in it."""
    named = settings({"group_instance_id": "host-a"})
    assert policy_of(named, 0, ALONE).group_instance_id == "host-a"
    assert policy_of(named, 0, Role(2, workers=3)).group_instance_id == "host-a-2"


def test_its_keys_need_a_restart() -> None:
    """A reload says so."""
    assert changed_keys(settings({}), settings({"group_id": "other"})) == ["sources.kafka"]


async def test_a_worker_without_listener_reads_nothing() -> None:
    """It only empties what was left."""
    alone = build(settings({}), SystemClock())
    emptier = build(settings({}), SystemClock(), Role(1, listens=False))
    assert [len(pipeline.snapshot().kafka) for pipeline in (alone, emptier)] == [1, 0]
    for pipeline in (alone, emptier):
        await pipeline.close()


def test_workers_clusters_are_one() -> None:
    """What was counted adds up, for the dead too; partitions and state are those of the living,
    and the gravest state is reported.
    """
    down = KafkaCluster(
        "main",
        "forwarder",
        "down",
        why="nothing listens",
        commits={"ok": 1},
        rebalances=1,
        last_commit=5.0,
    )
    dead = replace(
        KAFKA,
        partitions=(KafkaPartition("gone", 0, lag=9),),
        in_flight_bytes=7,
        expired=1,
        note="old",
    )
    [merged, other] = merge_sources(
        [((KAFKA,), True), ((down, KafkaCluster("other")), True), ((dead,), False)], "connecting"
    )
    assert (merged.state, merged.why, merged.note, merged.reads) == (
        "down",
        "nothing listens",
        KAFKA.note,
        False,
    )
    assert (merged.partitions, merged.in_flight_bytes) == (KAFKA.partitions, KAFKA.in_flight_bytes)
    assert (merged.commits, merged.rebalances, merged.expired) == ({"ok": 121, "failed": 4}, 7, 18)
    assert merged.records["taken"] == 4000
    assert merged.last_commit == KAFKA.last_commit
    assert other.name == "other"
    assert merge_sources([((KAFKA,), True)], "connecting") == (KAFKA,)
    [away] = merge_sources([((KAFKA,), False)], "connecting")
    assert (away.records, away.state, away.reads) == (KAFKA.records, "connecting", False), (
        "nobody is there to read it"
    )


def test_a_partition_that_two_workers_tell_of_is_one() -> None:
    """What is known of the one may be of before a rebalance: two series with the same labels are
    none that can be scraped.
    """
    before = KafkaCluster(
        "main",
        state="reading",
        partitions=(KafkaPartition("t", 0, 10, 5), KafkaPartition("t", 1, 3, 1)),
    )
    after = KafkaCluster("main", state="reading", partitions=(KafkaPartition("t", 0, 12, 3),))
    for members in ([((before,), True), ((after,), True)], [((after,), True), ((before,), True)]):
        assert merge_sources(members, "connecting")[0].partitions == (
            KafkaPartition("t", 0, 12, 3),
            KafkaPartition("t", 1, 3, 1),
        )


@cases(
    ("security", "warns"),
    [
        (
            {
                "protocol": "SASL_PLAINTEXT",
                "mechanism": "PLAIN",
                "username": "u",
                "password": "hush-hush",
            },
            True,
        ),
        (
            {"protocol": "SASL_PLAINTEXT", "mechanism": "OAUTHBEARER", "token_file": "/run/token"},
            True,
        ),
        (
            {
                "protocol": "SASL_PLAINTEXT",
                "mechanism": "SCRAM-SHA-256",
                "username": "u",
                "password": "hush-hush",
            },
            False,
        ),
        (
            {
                "protocol": "SASL_SSL",
                "mechanism": "PLAIN",
                "username": "u",
                "password": "hush-hush",
            },
            False,
        ),
        ({}, False),
    ],
)
async def test_a_secret_in_the_clear_is_warned_of_once(
    security: dict[str, str], warns: bool
) -> None:
    """At the start, by one of the workers, with the setting's key and without the secret."""
    configured = settings({"security": security})
    with capture_logs() as logged:
        for number in range(3):
            await build(configured, SystemClock(), Role(number, workers=3)).close()
    lines = [line for line in logged if "in the clear" in line["event"]]
    assert [line["key"] for line in lines] == ["sources.kafka[0].security.protocol"] * warns
    assert "hush-hush" not in str(logged)


@cases(
    ("cluster", "words"),
    [
        (
            KafkaCluster(
                "m",
                state="down",
                why="bootstrap_servers: nothing listens on b:9092",
                hint="Start it.",
                next_try=NOW + 4,
            ),
            ["kafka m: bootstrap_servers: nothing listens on b:9092 (Start it); retried in 4s"],
        ),
        (
            KafkaCluster("m", state="down", why="no answer"),
            ["kafka m: no answer; retried continuously"],
        ),
        (
            KafkaCluster(
                "m", state="waiting", why="topic x isn't there", note="topic x isn't there"
            ),
            ["kafka m: topic x isn't there; nothing is read until then"],
        ),
        (
            KafkaCluster("m", state="failed", why="topic x isn't there"),
            [
                (
                    "kafka m: topic x isn't there; nothing is read from it until this process is "
                    "restarted"
                )
            ],
        ),
        (
            KafkaCluster("m", state="reading", note="topic x is missing"),
            ["kafka m: topic x is missing"],
        ),
        (
            KafkaCluster(
                "m",
                state="reading",
                partitions=(KafkaPartition("t", 0, paused="full"), KafkaPartition("t", 1)),
                expired=1200,
            ),
            [
                (
                    "kafka m: 1,200 records expired unread since the start: the topic's retention "
                    "is shorter than the delay"
                ),
                "kafka m: 1 of 2 partitions is paused: full",
            ],
        ),
        (
            KafkaCluster(
                "m", state="stopping", partitions=(KafkaPartition("t", 0, paused="about to end"),)
            ),
            [],
        ),
        (KafkaCluster("m", state="joining"), []),
    ],
)
def test_kafka_warnings_of_the_status(cluster: KafkaCluster, words: list[str]) -> None:
    """A sentence for each thing that isn't as it should be; that a
    partition is paused needs no one.
    """
    assert [*kafka_warnings([cluster], NOW), *kafka_notices([cluster])] == words
    assert all("paused" in notice for notice in kafka_notices([cluster]))


def test_the_status_command_shows_clusters() -> None:
    """A line for each, on the one screen."""
    console = Console(file=StringIO(), width=200, color_system=None)
    console.print(status_page(FULL, "127.0.0.1:8321"))
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    assert (
        "kafka main (group forwarder) is reading; 3 partitions, 1 of them paused, lag 4,120, "
        "31.0 MiB not settled"
    ) in shown
    assert "last commit 1s ago" in shown
    assert "kafka other (group forwarder) is down; 0 partitions, lag 0" in shown


def test_the_page_shows_clusters() -> None:
    """State, partitions with why they wait, lag, what became of records; nothing where no cluster
    is read.
    """
    shown = kafka(FULL)
    for fact in (
        "main",
        "reading",
        "4,120",
        "max_in_flight",
        "2,000",
        "tombstone",
        "31.0 MiB",
        "failed</span> 2",
        "expired unread",
    ):
        assert fact in shown
    assert "topic &lt;b&gt;late&lt;/b&gt; isn&#x27;t there" in shown
    assert "nothing listens on b:9092" in shown
    assert kafka(replace(FULL, kafka=())) == ""
