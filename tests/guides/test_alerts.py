"""docs/how-to/alerts.md, the rules in deploy/, and the metrics say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cases import cases
from tests.support.documents import text_of
from tests.support.repository import ROOT

ROW = re.compile(r"^\| `(Forwarder\w+)` \| (\w+) \| ([\w ]+) \| ([^|]+) \|", re.MULTILINE)
ROWS = ROW.findall(text_of("alerts"))
DOCUMENTED = {
    name: (severity, "" if after == "at once" else after) for name, severity, after, _ in ROWS
}
THRESHOLDS = {
    "ForwarderEventsOld": ("300", "over 5 minutes"),
    "ForwarderBufferFilling": ("0.8", "over 80 %"),
    "ForwarderUpstreamFailing": ("0.5", "more than half"),
    "ForwarderPassThroughFailing": ("0.5", "more than half"),
}
FILES = sorted((ROOT / "deploy" / "helm").rglob("files/*alerts*.y*ml")) + sorted(
    (ROOT / "deploy").glob("kubernetes/**/*rule*.y*ml")
)
SUFFIXES = ("_bucket", "_sum", "_count")


def rules_in(file: Path) -> list[dict[str, Any]]:
    """The rules of a file, whether it is Prometheus' own or the operator's."""
    document = yaml.safe_load(file.read_text("utf-8"))
    groups = document["groups"] if "groups" in document else document["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_there_are_rules() -> None:
    """Both forms are found, so that the other tests have something to hold."""
    assert len(FILES) >= 2


def test_each_alert_stands_once() -> None:
    """In the page and in each form of the rules: a second row, or rule, of one name would say
    something else sooner or later.
    """
    pages = re.findall(r"\bForwarder[A-Z]\w+", text_of("alerts"))
    for names in (pages, *[[rule["alert"] for rule in rules_in(file)] for file in FILES]):
        assert sorted(names) == sorted(DOCUMENTED)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_alert_is_documented_as_it_is(file: Path) -> None:
    """Each alert is in the page with its severity and its time, and no other."""
    assert {
        rule["alert"]: (rule["labels"]["severity"], rule.get("for", "")) for rule in rules_in(file)
    } == DOCUMENTED


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_metric_in_the_rules_exists(file: Path) -> None:
    """What a rule asks for is one of docs/reference/metrics.md, which is compared with the code."""
    known = set(re.findall(r"^\| `(forwarder_\w+)`", text_of("metrics"), re.MULTILINE))
    named = {
        name for rule in rules_in(file) for name in re.findall(r"\bforwarder_\w+", rule["expr"])
    }
    assert {name for name in named if name not in known and not name.endswith(SUFFIXES)} == set()
    assert named


@cases("alert", THRESHOLDS)
def test_thresholds_are_those_of_the_page(alert: str) -> None:
    """The page says 5 minutes, 80 % and half; so do the rules."""
    threshold, said = THRESHOLDS[alert]
    assert said in next(when for name, _, _, when in ROWS if name == alert)
    for file in FILES:
        [rule] = [rule for rule in rules_in(file) if rule["alert"] == alert]
        assert re.search(rf"> {re.escape(threshold)}$", rule["expr"].strip())
