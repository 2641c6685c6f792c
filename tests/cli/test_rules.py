"""`forwarder rules`: events before and after, from a file and from a running daemon, and hashes
for files of ids.
"""

import hashlib
import hmac
import json
from pathlib import Path

import pytest

from tests.support.commands import invoke

RULES = """
upstream: {url: https://us.i.example.com}
rules:
  - {name: noise, match: {event: "$autocapture", api_key: phc_shop12345}, drop: true}
  - {name: secrets, remove: .properties.password}
  - {name: strict, match: {where: '.properties.n | startswith("a")', event: strict}, remove: \
.properties.x}
  - {name: lax, match: {where: '.properties.n | startswith("a")', event: lax}, set: \
{.properties.x: 1}}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration with rules."""
    path = tmp_path / "forwarder.yaml"
    path.write_text(RULES)
    return str(path)


def sample(folder: Path, *events: object) -> str:
    """A file with an event a line; a text is a line as it is."""
    path = folder / "events.jsonl"
    path.write_text(
        "".join(f"{entry if isinstance(entry, str) else json.dumps(entry)}\n" for entry in events)
    )
    return str(path)


def event(name: str, **properties: object) -> dict[str, object]:
    """An event."""
    return {"event": name, "distinct_id": "p", "api_key": "phc_shop12345", "properties": properties}


def test_events_before_and_after(tmp_path: Path, config: str) -> None:
    """Each with the rules that did it, and the counts."""
    file = sample(
        tmp_path,
        event("$autocapture"),
        event("order", password="x"),
        event("order"),
        event("lax", n=1),
    )
    done = invoke("rules", "try", "--config", config, file)
    assert done.code == 0
    lines = done.out.splitlines()
    assert [line for line in lines if line.startswith("event")] == [
        "event 1: dropped by noise",
        "event 2: changed by secrets",
        "event 3: unchanged",
        "event 4: unchanged; lax failed: where: jq: startswith() requires string inputs",
    ]
    assert '"properties": {"password": "x"}' in lines[3]
    assert '"properties": {}' in lines[4]
    assert lines[-1] == "4 events: 1 changed, 1 dropped, 0 dead letter, 2 unchanged"
    assert "phc_shop12345" not in done.out


def test_for_programs(tmp_path: Path, config: str) -> None:
    """An object a line; a dead letter or an unreadable line is exit code 1."""
    done = invoke(
        "rules",
        "try",
        "--config",
        config,
        "--output",
        "json",
        sample(tmp_path, event("strict", n=1), "{", event("order")),
    )
    assert done.code == 1
    first, second = [json.loads(line) for line in done.out.splitlines()]
    assert (first["fate"], first["after"]) == ("dead letter", None)
    assert first["why"].startswith("rule strict: where: jq: startswith")
    assert (second["fate"], second["before"]) == ("unchanged", second["after"])
    assert "line 2" in done.err


def test_what_there_is_to_try(tmp_path: Path, config: str) -> None:
    """One of a file and `--live`; and there are rules."""
    assert invoke("rules", "try", "--config", config).code == 2
    assert invoke("rules", "try", "--config", config, "--live", "x").code == 2
    empty = tmp_path / "empty.yaml"
    empty.write_text("upstream: {url: https://us.i.example.com}\n")
    done = invoke("rules", "try", "--config", str(empty), sample(tmp_path, event("order")))
    assert (done.code, "there are no rules" in done.err) == (2, True)


def test_a_source_that_no_rule_can_name_is_refused(config: str) -> None:
    """Rules that match by source would silently leave its events as they are."""
    done = invoke("rules", "try", "--source", "kafak", "--config", config, "-")
    assert done.code == 2
    assert "'kafak' is not one of 'http', 'otlp', 'kafka', 'logs', 'import'" in done.err


def test_hashes(tmp_path: Path) -> None:
    """HMAC-SHA256 of each id, keyed with the file's content."""
    salt = tmp_path / "salt"
    ids = tmp_path / "ids"
    salt.write_text("key\n")
    ids.write_text("ann\n\nü\n")
    done = invoke("rules", "hash", "--salt-file", str(salt), str(ids))
    assert done.out.split() == [
        hmac.new(b"key", plain_id.encode(), hashlib.sha256).hexdigest() for plain_id in ("ann", "ü")
    ]


def test_the_check_compiles_rules_and_says_what_they_do_not_touch(
    tmp_path: Path, config: str
) -> None:
    """With the key of what is wrong."""
    done = invoke("config", "check", "--elsewhere", "--config", config)
    assert done.code == 0
    assert (
        "hint: rules don't touch calls that are passed through: recordings, AI events and flags"
        in done.err
    )
    path = tmp_path / "wrong.yaml"
    path.write_text(RULES.replace("startswith(", "starts_with("))
    done = invoke("config", "check", "--elsewhere", "--config", str(path))
    assert done.code == 2
    assert "rules[2].match.where" in done.err
