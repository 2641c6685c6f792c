"""`forwarder mapping try`: what would be sent of each record, and why others would not."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forwarder.cli.mapping import app
from forwarder.core.errors import ConfigurationError
from tests.support.commands import running

KEY = "phc_0123456789hunter2good"
CONFIG = f"""
sources:
  kafka:
    - {{name: events, bootstrap_servers: "127.0.0.1:9092", topics: events}}
    - name: orders
      bootstrap_servers: 127.0.0.1:9092
      topics: [orders]
      api_key: {KEY}
      format: json
      mapping:
        where: .state != "draft"
        event: '"order " + .state'
        distinct_id: .customer.id
        timestamp: .placed_at
        uuid: .id
        drop: [.card]
upstream: {{max_event: 2kB}}
batch: {{max_bytes: 100kB}}
"""
GOOD = (
    '{"state":"placed","customer":{"id":"ann"},"placed_at":"2026-01-31T12:00:00Z","id":"o-1","'
    'card":1,"total":12345678901234567890.10}'
)
BARE = '{"state":"paid","customer":{"id":"ann"}}'
DRAFT = '{"state":"draft"}'
NO_ID = '{"state":"paid"}'


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test."""
    for name in [name for name in os.environ if name.startswith("FORWARDER_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of two clusters, without an upstream."""
    file = tmp_path / "kafka.yaml"
    file.write_text(CONFIG)
    return file


def run(config: Path, *records: str, source: str = "orders", more: tuple[str, ...] = ()) -> Result:
    """What the command says to records on its standard input."""
    arguments = ["try", "--config", str(config), "--source", source, "-", *more]
    return CliRunner().invoke(app, arguments, input="\n".join(records))


def test_what_would_be_sent(config: Path) -> None:
    """The event with its digits, and what the intake would put in."""
    result = run(config, GOOD, "", BARE, DRAFT)
    assert result.exit_code == 0, result.output
    assert '"event": "order placed"' in result.stdout
    assert '"timestamp": "2026-01-31T12:00:00.000Z"' in result.stdout
    assert "12345678901234567890.10" in result.stdout
    assert '"card"' not in result.stdout
    first, _, second = result.stdout.partition("line 3: sent")
    assert "the record's" not in first
    assert "timestamp: the record's own time" in second
    assert "uuid: derived from the record's position" in second
    assert "line 4: skipped by where" in second
    assert result.stdout.endswith("3 records: 2 sent, 1 skipped by where, 0 not sent\n")


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ("{", "undecodable: "),
        ("5", "unmappable: the record is the number 5"),
        ('{"state":1}', "unmappable: event: jq: "),
        (
            '{"state":"a","customer":"ann"}',
            'unmappable: distinct_id: .customer is the string "ann"',
        ),
        (
            '{"state":"a","customer":{"id":"x"},"placed_at":"soon"}',
            'unmappable: timestamp: the string "soon"',
        ),
        (NO_ID, "missing_distinct_id: "),
        (f"[{BARE},{NO_ID}]", "missing_distinct_id: "),
        (BARE.replace("ann", "x" * 2000), "too_large: 4,0"),
    ],
)
def test_what_would_be_a_dead_letter(config: Path, record: str, why: str) -> None:
    """Its reason, and why; the answer is no."""
    result = run(config, BARE, record)
    assert result.exit_code == 1
    assert f"line 2: not sent, {why}" in result.stdout
    assert result.stdout.endswith("2 records: 1 sent, 0 skipped by where, 1 not sent\n")


def test_ids_from_elsewhere(config: Path) -> None:
    """Where the record's key stands for a missing distinct_id it is said; one among the properties
    counts, as it does for the intake.
    """
    assert run(config, '{"state":"paid","distinct_id":"ann"}').exit_code == 0
    config.write_text(
        CONFIG.replace("format: json", "format: json\n      key_is_distinct_id: true")
    )
    result = run(config, NO_ID)
    assert result.exit_code == 0, result.output
    assert "distinct_id: the record's key" in result.stdout


def test_an_array_is_several_events(config: Path) -> None:
    """Each is shown."""
    result = run(config, f"[{GOOD},{DRAFT},{BARE}]")
    assert result.stdout.count("line 1: sent") == 2
    assert result.exit_code == 0


def test_json(config: Path) -> None:
    """The same for programs, numbers with all their digits."""
    result = run(config, GOOD, DRAFT, NO_ID, f"[{BARE},{BARE}]", more=("--output", "json"))
    assert result.exit_code == 1
    assert "12345678901234567890.10" in result.stdout
    document = json.loads(result.stdout)
    assert [document[name] for name in ("count", "sent", "skipped", "refused")] == [4, 2, 1, 1]
    assert [record["outcome"] for record in document["results"]] == [
        "sent",
        "skipped",
        "refused",
        "sent",
    ]
    assert [record["reason"] for record in document["results"]] == [
        None,
        None,
        "missing_distinct_id",
        None,
    ]
    assert [len(record["events"]) for record in document["results"]] == [1, 0, 0, 2]
    assert document["results"][0]["events"][0]["event"]["event"] == "order placed"
    assert document["results"][3]["events"][1]["derived"] == {
        "timestamp": "the record's own time",
        "uuid": "derived from the record's position",
    }


@pytest.mark.parametrize("more", [(), ("--output", "json")])
def test_keys_are_masked(config: Path, more: tuple[str, ...]) -> None:
    """A sample is real data: what looks like a key isn't shown, sent or not."""
    result = run(config, BARE.replace("ann", KEY), f'{{"state":"a","customer":"{KEY}"}}', more=more)
    assert "phc_…good" in result.stdout
    assert "hunter2" not in result.stdout


def test_a_file_is_read(config: Path, tmp_path: Path) -> None:
    """Lines may end as they do elsewhere, and the last one needn't."""
    sample = tmp_path / "sample.jsonl"
    sample.write_bytes(f"{GOOD}\r\n\r\n{DRAFT}".encode())
    result = CliRunner().invoke(
        app, ["try", "--config", str(config), "--source", "orders", str(sample)]
    )
    assert result.exit_code == 0, result.output
    assert "2 records: 1 sent, 1 skipped" in result.stdout


def test_no_records(config: Path) -> None:
    """Nothing to send is no mistake."""
    result = run(config)
    assert result.exit_code == 0
    assert result.stdout == "0 records: 0 sent, 0 skipped by where, 0 not sent\n"


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("nobody", "'nobody' is not a configured source", "events, orders"),
        (
            "events",
            "events has no mapping; its records are events already",
            "sources.kafka[0].format: json",
        ),
    ],
)
def test_sources_without_a_mapping(config: Path, source: str, message: str, hint: str) -> None:
    """The names that there are, or the key that would make it one with a mapping."""
    result = run(config, GOOD, source=source)
    assert isinstance(result.exception, ConfigurationError)
    assert message in result.exception.message
    assert hint in result.exception.hint


def test_a_rule_that_cant_be_used(config: Path) -> None:
    """The key is named, as the daemon would at its start."""
    config.write_text(CONFIG.replace("uuid: .id", "uuid: id"))
    result = run(config, GOOD)
    assert isinstance(result.exception, ConfigurationError)
    assert result.exception.message.startswith(
        "sources.kafka[1].mapping.uuid: jq can't compile id: "
    )


def test_a_sample_that_cant_be_read(config: Path, tmp_path: Path) -> None:
    """What is wrong with it is said in words."""
    for sample in (tmp_path / "none", tmp_path):
        result = CliRunner().invoke(
            app, ["try", "--config", str(config), "--source", "orders", str(sample)]
        )
        assert isinstance(result.exception, ConfigurationError)
        assert "can't be read" in result.exception.message


@pytest.fixture
def looping(config: Path, tmp_path: Path) -> list[str]:
    """The words that try a rule on two records, of which the second has it loop indefinitely."""
    config.write_text(
        CONFIG.replace("uuid: .id", "uuid: 'if .loops then (def f: f; f) else null end'")
    )
    sample = tmp_path / "sample.jsonl"
    sample.write_text(f'{BARE}\n{{"loops":true,"state":"a"}}\n')
    return ["mapping", "try", "--config", str(config), "--source", "orders", str(sample)]


@pytest.mark.slow
async def test_an_expression_that_loops_can_be_ended(looping: list[str]) -> None:
    """Ctrl-C works, though jq never comes back."""
    async with running(*looping, env={"PYTHONUNBUFFERED": "1"}) as command:
        await command.line("line 1: sent")
        command.send(signal.SIGINT)
        assert await command.ended() == -signal.SIGINT
    assert not [line for line in command.lines if "line 2" in line]


RULES = """
where: .state != "draft"
event: '"order " + .state'
distinct_id: .customer.id
timestamp: .placed_at
drop: [.card]
"""


def test_rules_alone_need_no_source_and_no_configuration(tmp_path: Path) -> None:
    """Their file and sample records, from standard input or a file; what an import would refuse is
    said as a dead letter.
    """
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    result = CliRunner().invoke(
        app, ["try", "--mapping", str(rules), "-", "--output", "json"], input=f"{GOOD}\n{DRAFT}\n"
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert [record["outcome"] for record in document["results"]] == ["sent", "skipped"]
    assert document["results"][0]["events"][0]["event"]["event"] == "order placed"
    assert "12345678901234567890.10" in result.output

    sample = tmp_path / "orders.jsonl"
    sample.write_text(f"{BARE}\n{NO_ID}\n")
    result = CliRunner().invoke(app, ["try", "--mapping", str(rules), str(sample)])
    assert result.exit_code == 1
    assert "line 1: not sent, missing_timestamp: timestamp: the expression" in result.output
    assert "line 2: not sent, missing_distinct_id: distinct_id: the expression" in result.output


def test_rules_of_the_configurations_import_are_tried_without_a_source(tmp_path: Path) -> None:
    """Where neither a source nor a file is named; without any rules the message says both ways."""
    config = tmp_path / "import.yaml"
    config.write_text(f"import:\n  mapping:{RULES.replace(chr(10), chr(10) + '    ')}")
    words = ["try", "--config", str(config), "-"]
    result = CliRunner().invoke(app, words, input=GOOD)
    assert result.exit_code == 0, result.output
    assert "1 record: 1 sent" in result.output
    config.write_text("{}")
    with pytest.raises(ConfigurationError, match="the format mapping has no rules"):
        CliRunner().invoke(app, words, input=GOOD, catch_exceptions=False)


def test_rules_beside_a_source_are_an_error(config: Path, tmp_path: Path) -> None:
    """It has rules of its own."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    words = ["try", "--config", str(config), "--source", "orders", "--mapping", str(rules), "-"]
    with pytest.raises(ConfigurationError, match="--mapping can't be beside --source"):
        CliRunner().invoke(app, words, input=GOOD, catch_exceptions=False)
