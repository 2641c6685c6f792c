"""The Prometheus exposition, held against docs/metrics.md."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from forwarder.telemetry.metrics import Exposition, SnapshotCollector
from forwarder.telemetry.snapshot import Snapshot, State
from tests.support.snapshots import FULL, GOOD, HALTED

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(forwarder_\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, frozenset[str], str]]:
    """Type, labels and meaning of each metric in the table."""
    rows = ROW.findall(DOCS.read_text())
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows}


def collected(snapshot: Snapshot) -> dict[str, Metric]:
    """The families by the name that a scraper sees."""
    families = list(SnapshotCollector(lambda: snapshot).collect())
    return {family.name + ("_total" if family.type == "counter" else ""): family for family in families}


def value(exposition: str, name: str, **labels: str) -> float:
    """The one sample of that name and those labels."""
    found = [
        sample.value
        for family in parse_text(exposition)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def test_documents_and_collector_agree() -> None:
    """Each metric that exists is documented with its type, labels and meaning, and the other way round."""
    actual = {
        name: (
            family.type,
            frozenset(label for sample in family.samples for label in sample.labels if label != "le"),
            family.documentation,
        )
        for name, family in collected(FULL).items()
    }
    assert actual == documented()


def test_books_are_exposed_per_lane() -> None:
    """Received, delivered, buffered, dead-lettered and dropped carry the lane's label, and source or reason."""
    text = Exposition(lambda: FULL).render()[0].decode()
    assert value(text, "forwarder_events_received_total", source="http", lane=GOOD.label) == 1200
    assert value(text, "forwarder_events_delivered_total", lane=GOOD.label) == 1150
    assert value(text, "forwarder_events_buffered", lane=GOOD.label) == 40
    assert value(text, "forwarder_events_dead_lettered", lane=GOOD.label, reason="refused") == 7
    assert value(text, "forwarder_events_dropped_total", lane=GOOD.label, reason="invalid_overflow") == 1
    assert value(text, "forwarder_lane_halted", lane=HALTED.label, reason="unknown_key") == 1
    assert value(text, "forwarder_oldest_event_age_seconds", lane=HALTED.label) == 4000
    assert value(text, "forwarder_http_requests_total", path="/batch", code="200") == 24
    assert value(text, "forwarder_passthrough_requests_total", path="/static", code="503") == 2
    assert value(text, "forwarder_http_requests_rejected_total", path="/e", reason="undecodable") == 1
    assert value(text, "forwarder_build_info", version="9.8.7") == 1


def test_histograms_are_cumulative() -> None:
    """Buckets hold everything up to their bound; `_count` and `_sum` agree with them."""
    text = Exposition(lambda: FULL).render()[0].decode()
    name = "forwarder_upstream_request_duration_seconds"
    assert [value(text, f"{name}_bucket", le=le) for le in ("0.1", "1.0", "+Inf")] == [10, 12, 15]
    assert (value(text, f"{name}_count"), value(text, f"{name}_sum")) == (15, 7.5)


def test_lanes_that_share_a_label_are_one_series() -> None:
    """Two lanes called `other` are added up: a label set never appears twice."""
    other = replace(GOOD, label="other")
    text = Exposition(lambda: replace(FULL, lanes=(other, other))).render()[0].decode()
    assert value(text, "forwarder_events_received_total", source="http", lane="other") == 2400


@pytest.mark.parametrize("snapshot", [FULL, Snapshot("1", State.STARTING, 0.0, 0.0)], ids=["full", "empty"])
def test_openmetrics_is_rendered_on_request(snapshot: Snapshot) -> None:
    """A scraper that prefers OpenMetrics gets it, well-formed, with the same families; any other gets Prometheus text."""
    exposition = Exposition(lambda: snapshot)
    body, content_type = exposition.render("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert content_type.startswith("application/openmetrics-text")
    families = list(parse_openmetrics(body.decode()))  # type: ignore[no-untyped-call]
    assert {family.name for family in families} == {family.name for family in SnapshotCollector(lambda: snapshot).collect()}
    assert exposition.render("*/*")[1].startswith("text/plain")


def test_nothing_is_taken_before_a_scrape() -> None:
    """Making the exposition takes no snapshot; each scrape takes one."""
    taken: list[Snapshot] = []

    def take() -> Snapshot:
        taken.append(FULL)
        return FULL

    exposition = Exposition(take)
    assert not taken
    exposition.render()
    assert len(taken) == 1
