"""The Prometheus exposition, compared with docs/reference/metrics.md."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from forwarder.telemetry.exposition import expose, gauge
from forwarder.telemetry.metrics import metrics
from forwarder.telemetry.snapshot import (
    LOG_FILES,
    LogFile,
    LogSourceState,
    Snapshot,
    State,
    most_behind,
)
from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.snapshots import FULL, GOOD, HALTED, LOGS

ROW = re.compile(r"^\| `(forwarder_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, frozenset[str], str]]:
    """Type, labels and meaning of each metric in the table."""
    rows = ROW.findall(text_of("metrics"))
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in rows
    }


def collected(snapshot: Snapshot) -> dict[str, Metric]:
    """The families by the name that a scraper sees."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in metrics(snapshot)
    }


def value(exposition: str, name: str, **labels: str) -> float:
    """The one sample of that name and those labels."""
    values = [
        sample.value
        for family in parse_text(exposition)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(values) == 1, (name, labels, values)
    return values[0]


def test_documents_and_collector_agree() -> None:
    """Each metric that exists is documented with its type, labels and meaning,
    and the reverse.
    """
    actual = {
        name: (
            family.type,
            frozenset(
                label for sample in family.samples for label in sample.labels if label != "le"
            ),
            family.documentation,
        )
        for name, family in collected(FULL).items()
    }
    assert actual == documented()


def test_books_are_exposed_per_lane() -> None:
    """Received, delivered, buffered, dead-lettered and dropped carry the lane's label, and source
    or reason.
    """
    text = expose(metrics(FULL))[0].decode()
    assert value(text, "forwarder_events_received_total", source="http", lane=GOOD.label) == 1200
    assert value(text, "forwarder_events_delivered_total", lane=GOOD.label) == 1150
    assert value(text, "forwarder_events_buffered", lane=GOOD.label) == 40
    assert value(text, "forwarder_events_dead_lettered", lane=GOOD.label, reason="refused") == 7
    assert (
        value(text, "forwarder_events_dropped_total", lane=GOOD.label, reason="invalid_overflow")
        == 1
    )
    assert value(text, "forwarder_lane_halted", lane=HALTED.label, reason="unknown_key") == 1
    assert value(text, "forwarder_oldest_event_age_seconds", lane=HALTED.label) == 4000
    assert value(text, "forwarder_http_requests_total", path="/batch", code="200") == 24
    assert value(text, "forwarder_passthrough_requests_total", path="/static", code="503") == 2
    assert (
        value(text, "forwarder_http_requests_rejected_total", path="/e", reason="undecodable") == 1
    )
    assert value(text, "forwarder_build_info", version="9.8.7") == 1


def test_histograms_are_cumulative() -> None:
    """Buckets hold everything up to their bound; `_count` and `_sum` agree with them."""
    text = expose(metrics(FULL))[0].decode()
    name = "forwarder_upstream_request_duration_seconds"
    assert [value(text, f"{name}_bucket", le=le) for le in ("0.1", "1.0", "+Inf")] == [10, 12, 15]
    assert (value(text, f"{name}_count"), value(text, f"{name}_sum")) == (15, 7.5)


def test_lanes_that_share_a_label_are_one_series() -> None:
    """Two lanes called `other` are added up: a label set never appears twice."""
    other = replace(GOOD, label="other")
    text = expose(metrics(replace(FULL, lanes=(other, other))))[0].decode()
    assert value(text, "forwarder_events_received_total", source="http", lane="other") == 2400


def test_log_sources_count_from_zero() -> None:
    """A source has every series from the start, so that its first unmatched line or failed commit
    is growth.
    """
    text = expose(metrics(replace(FULL, logs=(LOGS, LogSourceState("new")))))[0].decode()
    assert value(text, "forwarder_logs_lines_total", source="web", result="taken") == 5000
    assert value(text, "forwarder_logs_unmatched_total", source="web") == 30
    assert value(text, "forwarder_logs_files", source="web", state="followed") == 12
    assert value(text, "forwarder_logs_files", source="web", state="unreadable") == 1
    assert value(text, "forwarder_logs_lag_bytes", source="web") == 4096
    assert (
        value(
            text, "forwarder_log_file_offset_bytes", source="web", path="/var/log/nginx/access.log"
        )
        == 9000
    )
    assert value(text, "forwarder_logs_up", source="new") == 0
    for name, labels in (
        ("lines", {"result": "overlong"}),
        ("unmatched", {}),
        ("replaced", {}),
        ("bytes", {}),
        ("rotations", {"kind": "truncate"}),
        ("commits", {"result": "failed"}),
    ):
        assert value(text, f"forwarder_logs_{name}_total", source="new", **labels) == 0


def test_files_have_few_series() -> None:
    """Of thousands of files those that are most behind have a series; two files of one path have
    one, of the one that is more behind.
    """
    many = most_behind(
        LogFile(f"/var/log/{number}", position=number, lag=number) for number in range(5000)
    )
    twice = (LogFile("/var/log/x", "new", 1, 9, 8), LogFile("/var/log/x", "old", 5, 6, 1))
    text = expose(
        metrics(
            replace(
                FULL, logs=(replace(LOGS, files=many), replace(LOGS, name="other", files=twice))
            )
        )
    )[0].decode()
    [family] = [
        family for family in parse_text(text) if family.name == "forwarder_log_file_offset_bytes"
    ]
    assert len(family.samples) == LOG_FILES + 1
    assert value(text, family.name, source="web", path="/var/log/4999") == 4999
    assert value(text, family.name, source="other", path="/var/log/x") == 1


@pytest.mark.parametrize(
    "snapshot", [FULL, Snapshot("1", State.STARTING, 0.0, 0.0)], ids=["full", "empty"]
)
def test_openmetrics_is_rendered_on_request(snapshot: Snapshot) -> None:
    """A scraper that prefers OpenMetrics gets it, well-formed, with the same families; any other
    gets Prometheus text.
    """
    body, content_type = expose(
        metrics(snapshot), "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert content_type.startswith("application/openmetrics-text")
    families = list(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]
    assert {family.name for family in families} == {family.name for family in metrics(snapshot)}


@cases(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/openmetrics-text", True),
        (
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;"
                "version=0.0.4;q=0.2,*/*;q=0.1"
            ),
            True,
        ),
    ],
)
def test_the_format_is_the_one_that_a_scraper_names(accept: str, openmetrics: bool) -> None:
    """OpenMetrics in the version that is written here, else Prometheus text."""
    assert (
        expose([], accept)[1].startswith(
            "application/openmetrics-text" if openmetrics else "text/plain; version=0.0.4"
        )
        is True
    )


def test_texts_are_escaped() -> None:
    """Quotes, backslashes and line breaks in a label's value are read back as they were."""
    odd = 'a"b\\c\nd'
    text = expose([gauge("g", "A line\nand another.", ("label",), [((odd,), 1)])])[0].decode()
    assert value(text, "g", label=odd) == 1
