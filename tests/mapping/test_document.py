"""docs/reference/mapping.md is compared with the rules: its examples give what it says, and it
names every rule and format.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from forwarder.config.load import load_settings
from forwarder.config.section import keys_of
from forwarder.config.source_settings import MappingSettings
from forwarder.daemon.mappings import kafka_mapping
from tests.support.cases import cases
from tests.support.documents import text_of

DOCUMENT = text_of("mapping")
EXAMPLES = re.findall(
    (
        r"## Example: ([^\n]+)\n.*?```yaml\n(.*?)```\n```json\n(.*?)```\nbecomes[^\n]*\n```json\n"
        r"(.*?)```"
    ),
    DOCUMENT,
    re.DOTALL,
)
SALT = "/etc/forwarder/salt"
CLUSTER = """
sources:
  kafka:
    - name: orders
      bootstrap_servers: 127.0.0.1:9092
      topics: [orders]
      api_key: phc_0123456789abcdef
      format: json
      mapping:
"""


def compact(text: str | bytes) -> bytes:
    """JSON without white space, and its numbers and names as they are."""
    return msgspec.json.format(text.encode() if isinstance(text, str) else text, indent=-1)


@cases(
    ("mapping", "record", "event"),
    [example[1:] for example in EXAMPLES],
    ids=[example[0] for example in EXAMPLES],
)
def test_examples(tmp_path: Path, mapping: str, record: str, event: str) -> None:
    """What a reader copies does what it is said to do, to the digit."""
    salt = tmp_path / "salt"
    file = tmp_path / "forwarder.yaml"
    salt.write_text("example\n")
    lines = mapping.replace(SALT, str(salt)).splitlines()
    file.write_text(CLUSTER + "\n".join(f"        {line}" for line in lines))
    cluster = load_settings(file, {}, require_upstream=False).settings.sources.kafka[0]
    compiled = kafka_mapping(cluster, 0)
    assert compiled is not None
    made = compiled.map(record.strip().encode())
    assert made is not None
    assert compact(made) == compact(event)


def test_all_examples_are_tried() -> None:
    """None is left out because it is written otherwise."""
    assert len(EXAMPLES) == DOCUMENT.count("```yaml") == 3


def test_every_rule_is_explained() -> None:
    """The rules that can be written are in the table."""
    table = DOCUMENT.partition("## Rules")[2].partition("\n## ")[0]
    named = set(
        re.findall(r"`([a-z_]+)`", "\n".join(re.findall(r"^\| (`[^|]*)\|", table, re.MULTILINE)))
    )
    assert named == set(keys_of(MappingSettings))
