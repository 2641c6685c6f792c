"""The section of imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.config.display import as_json, as_yaml
from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import load_part, load_settings
from forwarder.config.settings import FORMER_PERSON_PROPERTIES
from tests.support.cases import cases


def written(folder: Path, text: str) -> Path:
    """A configuration file."""
    file = folder / "forwarder.yaml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    "text",
    [
        "{region: eu, retries: 3, skip_signature: true, x: null}",
        "'region=eu, retries=3, skip_signature=true'",
    ],
)
def test_options_of_a_store(tmp_path: Path, text: str) -> None:
    """A mapping, or a text of pairs; what YAML takes for a number or a truth is text again."""
    store = load_settings(
        written(tmp_path, f"import: {{store: {text}}}"), {}, require_upstream=False
    )
    assert store.settings.import_.store == {
        "region": "eu",
        "retries": "3",
        "skip_signature": "true",
    }


@cases("text", ["7", "[hunter2]", "hunter2", "=hunter2"])
def test_what_is_no_mapping_of_texts(tmp_path: Path, text: str) -> None:
    """Nothing of it is repeated: it may be a secret."""
    with pytest.raises(InvalidConfiguration, match=r"import\.store") as raised:
        load_settings(
            written(tmp_path, f"import: {{store: {text!r}}}"),
            {"FORWARDER_IMPORT__RATE": "5"},
        )
    assert "hunter2" not in raised.value.message


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """Neither the key nor what the store's options say."""
    file = written(
        tmp_path,
        (
            "import: {api_key: phc_hunter2hunter2good, store: {region: hunter2, "
            "secret_access_key: hunter2}}"
        ),
    )
    loaded = load_settings(file, {}, require_upstream=False)
    assert "hunter2" not in as_yaml(loaded) + str(as_json(loaded)) + repr(loaded)
    assert "store: {region: …, secret_access_key: …}" in as_yaml(loaded)


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    """By names that begin with the section's, whatever Python calls it."""
    environ = {"FORWARDER_IMPORT__RATE": "unlimited", "FORWARDER_IMPORT__MAPPING__TIMESTAMP": ".at"}
    file = written(tmp_path, "import: {rate: 7, quiet_hours: 1:00-2:00}")
    section = load_settings(file, environ, require_upstream=False).settings.import_
    assert (section.rate, section.quiet_hours, section.mapping.timestamp.source) == (
        "unlimited",
        "1:00-2:00",
        ".at",
    )


@cases(("rate", "events"), [("10k", 10_000), ("100/s", 100), ("1k/s", 1000), ("'50'", 50)])
def test_rates_as_people_write_them(tmp_path: Path, rate: str, events: int) -> None:
    """A rate may have its unit, and thousands their letter; the schema accepts them, too."""
    file = written(tmp_path, f"import: {{rate: {rate}}}\nbatch: {{max_events: 10k}}")
    settings = load_settings(file, {}, require_upstream=False).settings
    assert (settings.import_.rate, settings.batch.max_events) == (events, 10_000)


@cases(("former", "new"), FORMER_PERSON_PROPERTIES.items())
def test_former_choices_for_persons(tmp_path: Path, former: str, new: str) -> None:
    """The error says what they are called now; the present ones are accepted."""
    file = written(tmp_path, f"import: {{person_properties: {former}}}")
    with pytest.raises(
        InvalidConfiguration,
        match=rf":1: import\.person_properties: {former} is called {new} now\n *write {new}",
    ):
        load_settings(file, {}, require_upstream=False)
    environ = {"FORWARDER_IMPORT__PERSON_PROPERTIES": new}
    loaded = load_settings(file, environ, require_upstream=False)
    assert loaded.settings.import_.person_properties == new


def test_rules_in_a_file_of_their_own(tmp_path: Path) -> None:
    """The section alone, with `${VAR}`; what is wrong in it is reported with its line."""
    file = written(tmp_path, "event: .name\ntimestamp: ${WHEN}\nproperties: {a: .b}\n")
    rules = load_part("import.mapping", file, {"WHEN": ".at"}).import_.mapping
    assert (rules.event, rules.timestamp.source, rules.properties) == (".name", ".at", {"a": ".b"})
    with pytest.raises(
        InvalidConfiguration, match=r"forwarder\.yaml:1: import\.mapping\.evnt: unknown setting"
    ):
        load_part("import.mapping", written(tmp_path, "evnt: .name\n"), {})
    with pytest.raises(
        InvalidConfiguration, match=r"forwarder\.yaml:2: import\.mapping\.where: it isn't text"
    ):
        load_part("import.mapping", written(tmp_path, "event: .name\nwhere: 7\n"), {})
