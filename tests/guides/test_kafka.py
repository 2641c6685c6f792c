"""docs/how-to/kafka.md: its configurations can be used, and what it says of defaults, reasons and
metrics is so.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from forwarder.config.load import load_settings
from forwarder.config.source_settings import KafkaSettings
from forwarder.core.ports import Reason
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.documents import sections, text_of

TEXT = text_of("kafka", "kafka-operate")
PARTS = sections(TEXT)
SECURITY = re.findall(r"^\| ([^|]+) \| `(\{.*?\})`", PARTS["Security"], re.MULTILINE)
DEFAULTS = KafkaSettings()


def used(tmp_path: Path, cluster: str) -> KafkaSettings:
    """The cluster of a configuration, whose files are made up."""
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    made = make_certificate(tmp_path)
    files = {
        "ca.pem": made.cert_file,
        "client.pem": made.cert_file,
        "client.key": made.key_file,
        "kafka": secret,
        "token": secret,
    }
    cluster = re.sub(
        r"/(?:etc/kafka|run/secrets)/([\w.]+)", lambda match: str(files[match[1]]), cluster
    )
    file = tmp_path / "forwarder.yaml"
    file.write_text(cluster.replace("phc_…", "phc_0123456789abcdef0123456789abcdef"))
    [source] = load_settings(file, {}).settings.sources.kafka
    return source


def test_the_configuration_to_begin_with(tmp_path: Path) -> None:
    """It can be used as it stands, but for the project key."""
    [block] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    source = used(tmp_path, block)
    assert (source.name, source.topics, source.group_id) == (
        "orders",
        ("shop-events", "app-events"),
        DEFAULTS.group_id,
    )
    [pattern] = re.findall(r"or topics_pattern: \"(.*)\"", block)
    assert (
        used(
            tmp_path, re.sub(r"topics: \[.*?\]", f'topics_pattern: "{pattern}"', block)
        ).topics_pattern
        == pattern
    )


@cases(("wanted", "security"), SECURITY)
def test_every_way_of_signing_in(tmp_path: Path, wanted: str, security: str) -> None:
    """Each example of the section is valid, and says nothing that has no effect."""
    cluster = {
        "bootstrap_servers": "kafka:9093",
        "topics": ["t"],
        "security": yaml.safe_load(security),
    }
    whole = {"upstream": {"url": "https://us.i.example.com"}, "sources": {"kafka": [cluster]}}
    settings = used(tmp_path, yaml.safe_dump(whole)).security
    assert set(settings.as_document(changed_only=True)) >= set(yaml.safe_load(security)) - {
        "protocol"
    }, wanted


def test_there_is_an_example_of_each_mechanism() -> None:
    """And of each protocol that anybody should use."""
    shown = [yaml.safe_load(security) for _, security in SECURITY]
    assert {example.get("mechanism") for example in shown} == {
        None,
        "PLAIN",
        "SCRAM-SHA-512",
        "OAUTHBEARER",
        "AWS_MSK_IAM",
    }
    assert {example.get("protocol") for example in shown} == {None, "SSL", "SASL_SSL"}
    assert "SCRAM-SHA-256" in PARTS["Security"]


def test_reasons_are_those_of_dead_letters() -> None:
    """Each reason of the table is one."""
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PARTS["What can't be delivered"], re.MULTILINE)
    named = {reason for row in rows for reason in re.findall(r"`(\w+)`", row)}
    assert {
        "undecodable",
        "unmappable",
        "invalid_token",
        "missing_timestamp",
        "lane_halted",
    } <= named
    assert named <= {reason.value for reason in Reason}


def test_documented_defaults_match_the_code() -> None:
    """Where a default is put into words, it is the code's."""
    assert "`halt_after` (an hour)" in TEXT
    assert DEFAULTS.halt_after == 3600
    assert DEFAULTS.missing_topics == "wait"
    assert DEFAULTS.commit == "delivered"
    assert "(5 s)" in text_of("0017-rebalances-settle-then-return")
    assert DEFAULTS.revocation_timeout == 5
