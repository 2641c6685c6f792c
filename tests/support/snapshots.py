"""Snapshots to show: a full one, in which every field holds something."""

from __future__ import annotations

from forwarder.telemetry.snapshot import (
    Histogram,
    KafkaCluster,
    KafkaPartition,
    LaneSnapshot,
    Snapshot,
    State,
    Upstream,
    UpstreamState,
    Worker,
)

GOOD = LaneSnapshot(
    label="phc_…good#0a1b2c",
    received={"http": 1200},
    delivered=1150,
    buffered=40,
    dead_lettered={"refused": 7, "missing_event": 2},
    dropped={"invalid_overflow": 1},
    oldest_age=75.0,
)
HALTED = LaneSnapshot(
    label="phc_…halt#ffeedd/historical",
    received={"http": 30},
    buffered=30,
    oldest_age=4000.0,
    halted="unknown_key",
    halted_since=1_767_225_000.0,
    next_probe=1_767_229_277.0,
    why="401 from <b>/decide</b>",
    hint="Check the project key.",
)
KAFKA = KafkaCluster(
    name="main",
    group="forwarder",
    state="reading",
    why="",
    note="topic <b>late</b> isn't there",
    partitions=(
        KafkaPartition("events", 0, position=1100, lag=120),
        KafkaPartition("events", 1, position=900, lag=4000, paused="31.0 MiB of records aren't settled (max_in_flight)"),
        KafkaPartition("orders", 0),
    ),
    in_flight_bytes=32_505_856,
    records={"taken": 2000, "tombstone": 3, "filtered": 4, "refused": 1},
    commits={"ok": 60, "failed": 2},
    rebalances=3,
    expired=17,
    last_commit=1_767_229_264.0,
)
FULL = Snapshot(
    version="9.8.7",
    state=State.RUNNING,
    started_at=1_767_225_600.0,
    now=1_767_229_265.0,
    lanes=(GOOD, HALTED),
    buffer_bytes=2_097_152,
    buffer_limit_bytes=67_108_864,
    buffer_disk_bytes=4_194_304,
    buffer_refusing=True,
    upstream=Upstream("https://analytics.example.com", UpstreamState.DOWN, "connection refused"),
    upstream_requests={"200": 12, "connection_refused": 3},
    request_duration=Histogram((0.1, 1.0), (10, 2, 3), 7.5),
    batch_bytes=Histogram((1000.0,), (4, 8), 90_000.0),
    batch_events=Histogram((10.0, 100.0), (0, 6, 6), 1150.0),
    concurrency_limit=8.0,
    in_flight=2,
    http_requests={("/batch", 200): 24, ("/e", 400): 1},
    passthrough_requests={("/flags", 200): 7, ("/static", 503): 2},
    rejected_requests={("/e", "undecodable"): 1, ("/static", "upstream"): 2},
    addresses=("127.0.0.1:8320",),
    connections=5,
    warnings=("upstream is down",),
    ready=True,
    buffer_found=70,
    dead_letters_path="/var/lib/forwarder",
    dead_letters_wanted=3,
    kafka=(KAFKA, KafkaCluster("other", "forwarder", "down", "bootstrap_servers: nothing listens on b:9092", next_try=1_767_229_270.0)),
    workers=(Worker("worker-0", "running", 4711, received=1000), Worker("worker-1", "away", restarts=2, why="it was ended by SIGKILL")),
)
