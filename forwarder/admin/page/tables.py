"""The tables of the status page: lanes, answers of the upstream and to senders, pass-through,
Kafka clusters, log sources, workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from forwarder.admin.page.markup import (
    Markup,
    breakdown,
    code,
    counted,
    moment,
    pill,
    section,
    table,
    text,
)
from forwarder.core.proposals import proposed
from forwarder.telemetry.attention import (
    Severity,
    lane_health,
    lane_severity,
    source_health,
    worker_health,
)
from forwarder.telemetry.readable import duration, size
from forwarder.telemetry.snapshot import (
    KafkaCluster,
    LaneSnapshot,
    LogFile,
    LogSourceState,
    Snapshot,
)

_LANE_HEADS = (
    "lane",
    "state",
    "received",
    "buffered",
    "oldest",
    "delivered",
    "dead letters",
    "dropped",
    "books",
)
_CLUSTER_HEADS = (
    "cluster",
    "state",
    "partitions",
    "lag",
    "records accepted",
    "not settled",
    "commits",
    "last commit",
)
_SOURCE_HEADS = (
    "source",
    "state",
    "files",
    "lag",
    "lines accepted",
    "bytes read",
    "not settled",
    "commits",
    "last commit",
)
_FILE_HEADS = ("file", "lag", "position", "size", "last read")
_TOPICS = 8
"""Topics whose lag is shown separately, those with the most."""
_FILES = 20
"""Files of a log source that are shown, those with the largest lag."""


def lanes(shown: Sequence[LaneSnapshot], now: float) -> Markup:
    """A row for each lane; those that need attention come first, the others in
    order of first appearance.
    """
    ordered = sorted(shown, key=lambda lane: _ORDER[lane_severity(lane)])
    rows = [(_row_severity(lane_severity(lane)), _lane(lane, now)) for lane in ordered]
    return section(
        "lanes",
        f"Lanes ({len(shown):,})" if shown else "Lanes",
        table(_LANE_HEADS, rows, "Lanes", "stacked"),
    )


def upstream(snapshot: Snapshot) -> Markup:
    """The upstream's answers."""
    rows = [
        ("", [text(name), f"{count:,}"])
        for name, count in sorted(snapshot.upstream_requests.items())
    ]
    return section(
        "upstream",
        "Answers of the upstream",
        table(("answer", "requests"), rows, "Answers of the upstream"),
    )


def senders(snapshot: Snapshot) -> Markup:
    """Answers to senders, by route."""
    return section(
        "senders", "Answers to senders", _answers(snapshot.http_requests, "Answers to senders")
    )


def rejected(snapshot: Snapshot) -> Markup:
    """Rejected requests, with the reason; nothing if there are none."""
    if not snapshot.rejected_requests:
        return Markup("")
    counts = sorted(snapshot.rejected_requests.items())
    rows = [("", [code(path), text(reason), f"{count:,}"]) for (path, reason), count in counts]
    return section(
        "rejected",
        "Rejected requests",
        table(("route", "reason", "requests"), rows, "Rejected requests"),
    )


def rules(snapshot: Snapshot) -> Markup:
    """What each rule did; nothing if there are none."""
    if not snapshot.rule_events:
        return Markup("")
    rows = [
        ("", [text(rule), text(outcome), f"{count:,}"])
        for (rule, outcome), count in snapshot.rule_events.items()
    ]
    return section("rules", "Rules", table(("rule", "outcome", "events"), rows, "Rules"))


def passed(snapshot: Snapshot) -> Markup:
    """Passed-through requests, by route; nothing if there are none."""
    if not snapshot.passthrough_requests:
        return Markup("")
    return section(
        "passed", "Passed through", _answers(snapshot.passthrough_requests, "Passed through")
    )


def kafka(snapshot: Snapshot) -> Markup:
    """A row for each cluster; nothing if none is configured."""
    if not snapshot.kafka:
        return Markup("")
    rows = [
        (_row_severity(source_health(cluster).severity), _cluster(cluster, snapshot.now))
        for cluster in snapshot.kafka
    ]
    return section("kafka", "Kafka", table(_CLUSTER_HEADS, rows, "Kafka", "stacked"))


def logs(snapshot: Snapshot) -> Markup:
    """A row for each log source, then the files of each; nothing if none is configured."""
    if not snapshot.logs:
        return Markup("")
    rows = [
        (_row_severity(source_health(source).severity), _log_source(source, snapshot.now))
        for source in snapshot.logs
    ]
    files = "".join(_files(source, snapshot.now) for source in snapshot.logs if source.files)
    return section("logs", "Logs", table(_SOURCE_HEADS, rows, "Logs", "stacked") + files)


def workers(snapshot: Snapshot) -> Markup:
    """The processes that share the work; nothing if it is one process."""
    if not snapshot.workers:
        return Markup("")
    rows = [
        (
            "",
            [
                text(worker.name),
                pill(worker_health(worker)),
                text(worker.process or ""),
                f"{worker.received:,}",
                f"{worker.restarts:,}",
            ],
        )
        for worker in snapshot.workers
    ]
    return section(
        "workers",
        "Workers",
        table(("worker", "state", "process", "received", "restarts"), rows, "Workers", "stacked"),
    )


_ORDER = {Severity.CRITICAL: 0, Severity.WARNING: 1, Severity.NEUTRAL: 2, Severity.GOOD: 2}


def _row_severity(severity: Severity) -> str:
    """The class of a row: only what needs a person now is marked as a whole."""
    return severity if severity is Severity.CRITICAL else ""


def _lane(lane: LaneSnapshot, now: float) -> list[str]:
    return [
        code(lane.shown, lane.label if lane.name else ""),
        pill(lane_health(lane)),
        counted(lane.total_received, "received", lane.label) + _beyond_one(lane.received),
        f"{lane.buffered:,}",
        ""
        if lane.oldest_age is None
        else moment(now - lane.oldest_age, now, duration(lane.oldest_age)),
        counted(lane.delivered, "delivered", lane.label),
        _reasons(lane.dead_lettered),
        _reasons(lane.dropped),
        "balanced"
        if not lane.difference
        else f'<span class="bad-text">off by {lane.difference:,}</span>',
    ]


def _beyond_one(counts: Mapping[str, int]) -> str:
    return breakdown(counts) if len(counts) > 1 else ""


def _reasons(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return f"{total:,}{breakdown(counts)}" if total else "0"


def _answers(requests: Mapping[tuple[str, int], int], caption: str) -> Markup:
    rows = [
        ("", [code(path), text(status), f"{count:,}"])
        for (path, status), count in sorted(requests.items())
    ]
    return table(("route", "answer", "requests"), rows, caption)


def _cluster(cluster: KafkaCluster, now: float) -> list[str]:
    return [
        f'{code(cluster.name)}<br><span class="soft">group {text(cluster.group)}</span>',
        _source_state(cluster, [cluster.why, cluster.hint, cluster.note]),
        _partitions(cluster),
        f"{cluster.lag:,}{_by_topic(cluster)}",
        counted(cluster.records.get("taken", 0), "records", cluster.name) + _others(cluster),
        text(size(cluster.in_flight_bytes)),
        _commits(cluster.commits),
        "" if cluster.last_commit is None else moment(cluster.last_commit, now),
    ]


def _source_state(source: KafkaCluster | LogSourceState, words: Sequence[str]) -> str:
    return pill(source_health(source)) + "".join(f"<br>{text(word)}" for word in words if word)


def _partitions(cluster: KafkaCluster) -> str:
    """How many there are, and why some of them aren't read."""
    reasons = Counter(partition.paused for partition in cluster.partitions if partition.paused)
    paused = {f"paused: {why}": count for why, count in reasons.most_common()}
    return f"{len(cluster.partitions):,}{breakdown(paused)}"


def _by_topic(cluster: KafkaCluster) -> str:
    lags: Counter[str] = Counter()
    for partition in cluster.partitions:
        lags[partition.topic] += partition.lag or 0
    return breakdown(dict(lags.most_common(_TOPICS))) if len(lags) > 1 else ""


def _others(cluster: KafkaCluster) -> str:
    """Records that weren't accepted."""
    outcomes = {outcome: count for outcome, count in cluster.records.items() if outcome != "taken"}
    return breakdown(outcomes | ({"expired unread": cluster.expired} if cluster.expired else {}))


def _commits(commits: Mapping[str, int]) -> str:
    return f"{commits.get('ok', 0):,}{breakdown({'failed': commits.get('failed', 0)})}"


def _log_source(source: LogSourceState, now: float) -> list[str]:
    others = {result: count for result, count in source.lines.items() if result != "taken"}
    rotations = {f"rotated ({kind})": count for kind, count in source.rotations.items()}
    return [
        code(source.name),
        _source_state(source, [source.why, source.hint]),
        (
            f"{source.followed:,}"
            f"{breakdown({'open': source.open, 'unreadable': source.unreadable, **rotations})}"
        ),
        text(size(source.lag)),
        counted(source.lines.get("taken", 0), "lines", source.name)
        + breakdown(others | {"bytes replaced": source.replaced}),
        counted(source.bytes, "log bytes", source.name),
        text(size(source.in_flight_bytes)),
        _commits(source.commits),
        "" if source.last_commit is None else moment(source.last_commit, now),
    ]


def _files(source: LogSourceState, now: float) -> str:
    """The files that are most behind, and how many others there are."""
    shown = sorted(source.files, key=lambda file: -file.lag)[:_FILES]
    more = max(source.followed, len(source.files)) - len(shown)
    files = f"Files of {source.name}"
    rest = (
        (
            f'<p class="soft">and {more:,} more, with less unread or none: '
            f"<code>{text(proposed('logs --all'))}</code></p>"
        )
        if more
        else ""
    )
    rows = [("", _file(file, now)) for file in shown]
    return f"<h3>{text(files)}</h3>{table(_FILE_HEADS, rows, files, 'stacked files')}{rest}"


def _file(file: LogFile, now: float) -> list[str]:
    closed = "" if file.open else ' <span class="soft">closed</span>'
    line = f'<br><bdi class="line">{text(file.last_line)}</bdi>' if file.last_line else ""
    return [
        f"{code(file.path)}{closed}{line}",
        text(size(file.lag)),
        f"{file.position:,}",
        f"{file.size:,}",
        "" if file.last_read is None else moment(file.last_read, now),
    ]
