"""Alert rules and dashboard: every metric and label in them is one that forwarder exposes, and
each alert fires for its cause.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forwarder.cli.help import topics
from forwarder.core.ports import DropReason
from forwarder.telemetry.metrics import metrics
from tests.support.cases import cases
from tests.support.deployment import ALERTS, DASHBOARD, DEPLOY, KUBERNETES
from tests.support.go_tools import PROMTOOL
from tests.support.promql import grouping_labels, selectors
from tests.support.repository import ROOT
from tests.support.snapshots import FULL

OF_A_SCRAPE = {"job", "instance", "namespace", "pod"}
"""Labels that Prometheus adds to what it scrapes."""


def _exposed() -> dict[str, set[str]]:
    """Each series that forwarder exposes, with its labels."""
    series: dict[str, set[str]] = {"up": set()}
    for family in metrics(FULL):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


EXPOSED = _exposed()
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def _plain(expression: str) -> str:
    """A panel's expression with the dashboard's variables filled in."""
    return (
        expression.replace("$__rate_interval", "1m")
        .replace("$job", "forwarder")
        .replace("$instance", ".+")
    )


def _queries() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", _plain(target["expr"])


QUERIES = dict(_queries())


@cases("title", QUERIES)
def test_its_metrics_exist(title: str) -> None:
    """Every metric that is named is exposed; this needs no parser."""
    named = set(re.findall(r"\bforwarder_\w+", QUERIES[title]))
    assert named <= set(EXPOSED)
    assert named or "up{" in QUERIES[title]


@cases("title", QUERIES)
def test_its_labels_exist(title: str) -> None:
    """It is PromQL; each label that it matches is one of that metric, and each that it groups by
    is one of those that it selects.
    """
    selected = selectors(QUERIES[title])
    assert [
        (metric, labels)
        for metric, labels in selected
        if not labels <= EXPOSED[metric] | OF_A_SCRAPE
    ] == []
    assert grouping_labels(QUERIES[title]) <= OF_A_SCRAPE.union(
        *(EXPOSED[metric] for metric, _ in selected)
    )


@cases("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_what_is_wrong(rule: dict[str, Any]) -> None:
    """Each has a severity, a summary and a description; the labels and documents that these name
    are there.
    """
    assert rule["labels"]["severity"] in {"warning", "critical"}
    words = rule["annotations"]["summary"] + " " + rule["annotations"]["description"]
    of_its_metrics = OF_A_SCRAPE.union(
        *(EXPOSED[name] for name in re.findall(r"\b(?:forwarder_\w+|up)\b", rule["expr"]))
    )
    assert set(re.findall(r"\$labels\.(\w+)", words)) <= of_its_metrics
    assert [
        topic for topic in re.findall(r"forwarder help ([\w-]+)", words) if topic not in topics()
    ] == []
    assert "docs/" not in words


def test_reasons_are_those_of_the_code() -> None:
    """A reason that a rule leaves out or looks for exists."""
    named = {
        reason
        for rule in RULES
        for matched in re.findall(r'reason[!=~]+"([^"]+)"', rule["expr"])
        for reason in matched.split("|")
    }
    assert named
    assert named <= {reason.value for reason in DropReason}


def test_the_same_rules_are_everywhere() -> None:
    """Compose's Prometheus reads the chart's file, and the operator's object has the same rules."""
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
    [mounted] = [
        volume for volume in compose["services"]["prometheus"]["volumes"] if "alerts" in volume
    ]
    assert (DEPLOY / "compose" / mounted.split(":")[0]).resolve() == ALERTS
    operators = yaml.safe_load((KUBERNETES / "monitoring" / "prometheusrule.yaml").read_text())
    assert operators["spec"]["groups"] == yaml.safe_load(ALERTS.read_text())["groups"]


def test_panels_have_distinct_titles_and_dont_overlap() -> None:
    """Each panel has a number, a title and a place of its own on a grid of 24 columns."""
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    cells = [
        (place["x"] + column, place["y"] + row)
        for place in (panel["gridPos"] for panel in BOARD["panels"])
        for column in range(place["w"])
        for row in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24


def test_the_dashboard_asks_any_data_source() -> None:
    """Every panel asks the data source that is chosen at the top, about the job and the instances
    that are chosen there.
    """
    assert {variable["name"] for variable in BOARD["templating"]["list"]} == {
        "datasource",
        "job",
        "instance",
    }
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    for title, expression in (
        (panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]
    ):
        assert expression.count('{job="$job", instance=~"$instance"}') == len(
            re.findall(r"\bforwarder_\w+", expression)
        ), title


@pytest.mark.slow
def test_each_alert_fires_for_its_cause(tmp_path: Path) -> None:
    """Prometheus' own tool plays what happened to the rules, and sees the alerts that it should,
    and no others.
    """
    promtool = PROMTOOL.path()
    played = (ROOT / "tests" / "deploy" / "alerts.yaml").read_text()
    script = tmp_path / "alerts.yaml"
    script.write_text(played.replace("[RULES]", json.dumps([str(ALERTS)])))
    done = subprocess.run(
        [promtool, "test", "rules", str(script)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_played() -> None:
    """No rule is without a test that sees it fire."""
    played = (ROOT / "tests" / "deploy" / "alerts.yaml").read_text()
    assert [rule["alert"] for rule in RULES if f'alertname="{rule["alert"]}"' not in played] == []
