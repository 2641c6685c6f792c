"""The page and the examples say what the settings say."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwarder.config.document import read_document
from forwarder.config.keys import FIRST, dotted, keys, lists, sections
from forwarder.config.keys import Path as KeyPath
from forwarder.config.layers import nested
from forwarder.config.load import load_settings
from forwarder.config.section import Section
from forwarder.config.settings import Settings
from forwarder.config.source_settings import KafkaSettings, LogSourceSettings
from forwarder.daemon.mappings import mapping_of
from forwarder.sources.imports.pacing import QuietHours
from tests.support import chart_schema, configuration_pages
from tests.support.cases import cases
from tests.support.certificates import make_certificate
from tests.support.documents import text_of

ROOT = Path(__file__).parents[2]
ALL = ROOT / "config" / "all.yaml"


@cases("file", configuration_pages.FILES, ids=lambda file: file.stem)
def test_the_pages_are_what_the_settings_say(file: Path) -> None:
    """Each key has a heading, with its meaning, variable, values and default."""
    assert file.read_text("utf-8") == configuration_pages.current(file), (
        "python -m tests.support.configuration_pages writes it again"
    )


def test_every_key_and_section_has_one_heading() -> None:
    """None is left out, because a section's heading was forgotten, or is there twice."""
    headings = [
        match
        for file in configuration_pages.FILES
        for match in re.findall(r"^##+ `(.+)`$", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(headings) == len(set(headings))
    names = {configuration_pages.documented(path) for path in configuration_pages.entries()}
    key_names = {name.removesuffix(f"[{FIRST}]") for name in names - {"sources"}}
    assert key_names <= set(headings)


def test_the_page_names_no_key_that_does_not_exist() -> None:
    """Text that speaks of a key or section speaks of one that is there."""
    known = {key.name for key in keys().values()}
    tops = (
        "upstream|sources|buffer|batch|delivery|dead_letters|limits|shutdown|admin|log|management"
        "|import"
    )
    text = text_of(*configuration_pages.FILES)
    named = re.findall(rf"`((?:{tops})\.[a-z_.\[\]0-9]+)`", text)
    assert set(named) <= known | {dotted(path) for path in sections()}


@pytest.mark.parametrize(("name", "least"), [("kafka", 20), ("logs", 15)])
def test_what_the_page_says_of_an_item_it_says_of_its_keys(name: str, least: int) -> None:
    """Under the words for each item, keys are named as they stand in one."""
    text = (
        text_of("configuration-sources")
        .partition(f"## `sources.{name}`\n")[2]
        .partition(configuration_pages.MARK)[0]
    )
    known = [f".{key.name}." for key in keys().values()]
    named = {span for span in re.findall(r"`([a-z_.]+)(?::[^`]*)?`", text) if span != "token"}
    assert len(named) >= least
    assert {span for span in named if not any(f".{span}." in name for name in known)} == set()


def test_all_yaml_has_every_key_at_its_default() -> None:
    """The file shows each key, and changes nothing."""
    text = ALL.read_text("utf-8")
    assert load_settings(ALL, {}, require_upstream=False).settings == Settings()
    explicit = read_document(ALL, {}).values
    own = [path for path in keys() if FIRST not in path and path not in lists()]
    unset = {path for path in own if path not in explicit}
    assert unset == {path for path in own if keys()[path].default in (None, "")}
    nulls = [
        line
        for line in text.splitlines()
        if line.endswith(": null") and not line.lstrip().startswith("#")
    ]
    assert nulls == [f"{'  ' * (len(path) - 1)}{path[-1]}: null" for path in own if path in unset]


@pytest.mark.parametrize(
    ("name", "section"), [("kafka", KafkaSettings), ("logs", LogSourceSettings)]
)
def test_all_yaml_has_every_key_of_an_item_in_a_comment(
    tmp_path: Path, name: str, section: type[Section]
) -> None:
    """What stands behind `#` instead of an empty list is an item with each key, in order, at
    its default.
    """
    above, _, below = ALL.read_text("utf-8").partition(f"  #{name}:\n")
    lines = below.splitlines()
    item = [
        line.replace("#", "", 1)
        for line in itertools.takewhile(lambda line: line.startswith("  #  "), lines)
    ]
    file = tmp_path / "all.yaml"
    file.write_text(
        "\n".join([above.replace(f"  {name}: []\n", ""), f"  {name}:", *item, *lines[len(item) :]]),
        "utf-8",
    )
    layer = read_document(file, {})
    assert layer.problems == []
    (only,) = nested(layer.values, layer.items)["sources"][name]
    assert section.parse(only) == section()
    path = ("sources", name, FIRST)
    written = [match[1] for line in item if (match := re.match(r" +(?:- )?([a-z_]+):", line))]
    assert written == [key_path[-1] for key_path in _table() if key_path[:3] == path != key_path]


def _table() -> Iterator[KeyPath]:
    """Sections and keys, as a file has them."""
    seen: set[KeyPath] = set()
    for path in keys():
        for around in (path[:length] for length in range(1, len(path) + 1)):
            if around not in seen:
                yield around
            seen.add(around)


def test_all_yaml_says_what_each_key_means() -> None:
    """Each key's description stands above it."""
    words = " ".join(line.strip().lstrip("#- ") for line in ALL.read_text("utf-8").splitlines())
    assert [key.name for key in keys().values() if key.description not in words] == []


@cases(
    "file",
    sorted(set((ROOT / "config").glob("*.yaml")) - {ROOT / "config" / "sandbox-seed.yaml"}),
    ids=lambda file: file.name,
)
def test_the_examples_can_be_used(file: Path) -> None:
    """Every example is a configuration that runs, once the upstream is named."""
    loaded = load_settings(file, {"FORWARDER_UPSTREAM__URL": "https://h.example.com"})
    assert loaded.settings.upstream.url == "https://h.example.com"


def test_what_the_kafka_example_has_in_comments_can_be_used(tmp_path: Path) -> None:
    """Every key that stands in a comment is one, and fits in when it is taken out of it."""
    text = (
        (ROOT / "config" / "kafka.yaml")
        .read_text("utf-8")
        .replace("/run/secrets/kafka", str(tmp_path / "secret"))
    )
    text = text.replace("      format: events\n", "").replace(
        "/etc/ssl/kafka-ca.pem", str(make_certificate(tmp_path).cert_file)
    )
    (tmp_path / "secret").write_text("hunter2")
    file = tmp_path / "kafka.yaml"
    file.write_text(re.sub(r"# ( *[a-z_]+:(?: |$))", r"\1", text, flags=re.MULTILINE))
    environ = {"PROJECT_KEY": "phc_abcdefghij"}
    (cluster,) = load_settings(file, environ).settings.sources.kafka
    assert (cluster.format, cluster.api_key, cluster.security.mechanism) == (
        "json",
        "phc_abcdefghij",
        "SCRAM-SHA-512",
    )
    assert cluster.mapping.properties == {"plan": ".account.plan", "amount": ".amount_cents / 100"}


def test_what_the_migration_example_has_in_comments_can_be_used(tmp_path: Path) -> None:
    """Every key that stands in a comment is one, and fits in when it is taken out
    of it; the rules compile.
    """
    file = tmp_path / "migration.yaml"
    file.write_text(
        re.sub(
            r"# ( *[a-z_]+:(?: |$))",
            r"\1",
            (ROOT / "config" / "migration.yaml").read_text("utf-8"),
            flags=re.MULTILINE,
        )
    )
    section = load_settings(file, {}).settings.import_
    assert QuietHours.parse(section.quiet_hours or "").quiet(1_750_000_000)
    assert (section.api_key_file, section.store) == (
        Path("/run/secrets/project-key"),
        {"region": "eu-central-1"},
    )
    record = (
        b'{"kind":"order","state":"paid","customer":{"id":"c"},"placed":"2024-05-01T10:00:00",'
        b'"number":"n","total":7,"city":"x"}'
    )
    mapped = mapping_of(section.mapping, "import", "import.mapping").map(record)
    assert mapped is not None
    assert json.loads(mapped)["properties"] == {"total": 7, "city": "x"}


def test_the_sidecar_takes_its_upstream_from_the_environment() -> None:
    """One variable makes the example one's own."""
    file = ROOT / "config" / "sidecar.yaml"
    assert (
        load_settings(file, {"UPSTREAM_URL": "https://mine.example.com"}).settings.upstream.url
        == "https://mine.example.com"
    )
    assert load_settings(file, {}).settings.upstream.url == "https://us.i.example.com"


def test_the_charts_schema_is_current() -> None:
    """The chart checks `config` and `logs.config` against what `forwarder config schema` prints."""
    assert chart_schema.FILE.read_text() == chart_schema.current(), (
        "python -m tests.support.chart_schema writes it again"
    )
