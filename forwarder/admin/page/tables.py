"""The tables of the status page: lanes, answers of the upstream and to senders, pass-through, Kafka clusters, workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from forwarder.admin.page.markup import Markup, breakdown, code, counted, pill, section, table, text
from forwarder.telemetry.readable import duration, size
from forwarder.telemetry.snapshot import KafkaCluster, LaneSnapshot, Snapshot

_LANE_HEADS = ("lane", "state", "received", "buffered", "oldest", "delivered", "dead letters", "dropped", "books")
_CLUSTER_HEADS = ("cluster", "state", "partitions", "lag", "records accepted", "not settled", "commits", "last commit")
_BAD_STATES = ("down", "failed")
_TOPICS = 8
"""Topics whose lag is shown separately, those with the most."""


def lanes(found: Sequence[LaneSnapshot]) -> Markup:
    """A row for each lane; those that need attention come first, the others in order of first appearance."""
    ordered = sorted(found, key=lambda lane: not (lane.halted or lane.difference))
    rows = [("bad" if lane.halted or lane.difference else "", _lane(lane)) for lane in ordered]
    return section("lanes", f"Lanes ({len(found):,})" if found else "Lanes", table(_LANE_HEADS, rows, "Lanes"))


def upstream(snapshot: Snapshot) -> Markup:
    """The upstream's answers."""
    rows = [("bad" if _is_bad(name) else "", [text(name), f"{count:,}"]) for name, count in sorted(snapshot.upstream_requests.items())]
    return section("upstream", "Answers of the upstream", table(("answer", "requests"), rows, "Answers of the upstream"))


def senders(snapshot: Snapshot) -> Markup:
    """Answers to senders, by route."""
    return section("senders", "Answers to senders", _answers(snapshot.http_requests, "Answers to senders"))


def rejected(snapshot: Snapshot) -> Markup:
    """Rejected requests, with the reason; nothing if there are none."""
    if not snapshot.rejected_requests:
        return Markup("")
    counts = sorted(snapshot.rejected_requests.items())
    rows = [("bad", [code(path), text(reason), f"{count:,}"]) for (path, reason), count in counts]
    return section("rejected", "Rejected requests", table(("route", "reason", "requests"), rows, "Rejected requests"))


def passed(snapshot: Snapshot) -> Markup:
    """Passed-through requests, by route; nothing if there are none."""
    if not snapshot.passthrough_requests:
        return Markup("")
    return section("passed", "Passed through", _answers(snapshot.passthrough_requests, "Passed through"))


def kafka(snapshot: Snapshot) -> Markup:
    """A row for each cluster; nothing if none is configured."""
    if not snapshot.kafka:
        return Markup("")
    rows = [("bad" if each.state in _BAD_STATES else "", _cluster(each, snapshot.now)) for each in snapshot.kafka]
    return section("kafka", "Kafka", table(_CLUSTER_HEADS, rows, "Kafka"))


def workers(snapshot: Snapshot) -> Markup:
    """The processes that share the work; nothing if it is one process."""
    if not snapshot.workers:
        return Markup("")
    rows = [
        (
            "bad" if worker.why else "",
            [
                text(worker.name),
                text(f"{worker.state}: {worker.why}".removesuffix(": ")),
                text(worker.process or ""),
                f"{worker.received:,}",
                f"{worker.restarts:,}",
            ],
        )
        for worker in snapshot.workers
    ]
    return section("workers", "Workers", table(("worker", "state", "process", "received", "restarts"), rows, "Workers"))


def _lane(lane: LaneSnapshot) -> list[str]:
    return [
        code(lane.label),
        _state(lane),
        counted(lane.total_received, "received", lane.label) + _beyond_one(lane.received),
        f"{lane.buffered:,}",
        "" if lane.oldest_age is None else duration(lane.oldest_age),
        counted(lane.delivered, "delivered", lane.label),
        _reasons(lane.dead_lettered),
        _reasons(lane.dropped),
        '<span class="good-text">balanced</span>' if not lane.difference else f'<span class="bad-text">off by {lane.difference:,}</span>',
    ]


def _state(lane: LaneSnapshot) -> Markup:
    if lane.halted:
        return pill(f"halted: {lane.halted}", "bad")
    return pill("buffered", "warn") if lane.buffered else pill("delivered", "good")


def _beyond_one(counts: Mapping[str, int]) -> str:
    return breakdown(counts) if len(counts) > 1 else ""


def _reasons(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return f"{total:,}{breakdown(counts)}" if total else "0"


def _answers(requests: Mapping[tuple[str, int], int], caption: str) -> Markup:
    rows = [
        ("bad" if status >= 400 else "", [code(path), text(status), f"{count:,}"]) for (path, status), count in sorted(requests.items())
    ]
    return table(("route", "answer", "requests"), rows, caption)


def _is_bad(answer: str) -> bool:
    return not answer.startswith(("2", "3"))


def _cluster(cluster: KafkaCluster, now: float) -> list[str]:
    return [
        f'{code(cluster.name)}<br><span class="soft">group {text(cluster.group)}</span>',
        _cluster_state(cluster),
        _partitions(cluster),
        f"{cluster.lag:,}{_by_topic(cluster)}",
        counted(cluster.records.get("taken", 0), "records", cluster.name) + _others(cluster),
        text(size(cluster.in_flight_bytes)),
        _commits(cluster),
        "" if cluster.last_commit is None else text(f"{duration(now - cluster.last_commit)} ago"),
    ]


def _cluster_state(cluster: KafkaCluster) -> str:
    mood = "good" if cluster.reads else "bad" if cluster.state in _BAD_STATES else "warn"
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
    """Records that weren't accepted."""
    found = {outcome: count for outcome, count in cluster.records.items() if outcome != "taken"}
    return breakdown(found | ({"expired unread": cluster.expired} if cluster.expired else {}))


def _commits(cluster: KafkaCluster) -> str:
    failed = cluster.commits.get("failed", 0)
    return f"{cluster.commits.get('ok', 0):,}" + (f'<br><span class="bad-text">{failed:,} failed</span>' if failed else "")
