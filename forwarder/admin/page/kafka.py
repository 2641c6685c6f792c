"""The Kafka clusters on the status page: how each is, and how far behind."""

from __future__ import annotations

from collections import Counter

from forwarder.admin.page.parts import Markup, breakdown, code, counted, pill, section, table, text
from forwarder.telemetry.readable import duration, size
from forwarder.telemetry.snapshot import KafkaCluster, Snapshot

_HEADS = ("cluster", "state", "partitions", "lag", "records taken", "not settled", "commits", "last commit")
_BAD = ("down", "failed")
_TOPICS = 8
"""Topics whose lag is shown by itself, those with the longest."""


def kafka(snapshot: Snapshot) -> Markup:
    """A row for each cluster; nothing if none is configured."""
    if not snapshot.kafka:
        return Markup("")
    rows = [("bad" if each.state in _BAD else "", _cluster(each, snapshot.now)) for each in snapshot.kafka]
    return section("kafka", "Kafka", table(_HEADS, rows, "Kafka"))


def _cluster(cluster: KafkaCluster, now: float) -> list[str]:
    return [
        f'{code(cluster.name)}<br><span class="soft">group {text(cluster.group)}</span>',
        _state(cluster),
        _partitions(cluster),
        f"{cluster.lag:,}{_by_topic(cluster)}",
        counted(cluster.records.get("taken", 0), "records", cluster.name) + _others(cluster),
        text(size(cluster.in_flight_bytes)),
        _commits(cluster),
        "" if cluster.last_commit is None else text(f"{duration(now - cluster.last_commit)} ago"),
    ]


def _state(cluster: KafkaCluster) -> str:
    mood = "good" if cluster.reads else "bad" if cluster.state in _BAD else "warn"
    words = [each for each in (cluster.why, cluster.note) if each]
    return pill(cluster.state, mood) + "".join(f"<br>{text(each)}" for each in words)


def _partitions(cluster: KafkaCluster) -> str:
    """How many there are, and why some of them aren't read."""
    reasons = Counter(each.paused for each in cluster.partitions if each.paused)
    return f"{len(cluster.partitions):,}{breakdown({f'paused: {why}': count for why, count in reasons.most_common()})}"


def _by_topic(cluster: KafkaCluster) -> str:
    lags: Counter[str] = Counter()
    for each in cluster.partitions:
        lags[each.topic] += each.lag or 0
    return breakdown(dict(lags.most_common(_TOPICS))) if len(lags) > 1 else ""


def _others(cluster: KafkaCluster) -> str:
    """Records that weren't taken."""
    found = {outcome: count for outcome, count in cluster.records.items() if outcome != "taken"}
    return breakdown(found | ({"expired unread": cluster.expired} if cluster.expired else {}))


def _commits(cluster: KafkaCluster) -> str:
    failed = cluster.commits.get("failed", 0)
    return f"{cluster.commits.get('ok', 0):,}" + (f'<br><span class="bad-text">{failed:,} failed</span>' if failed else "")
