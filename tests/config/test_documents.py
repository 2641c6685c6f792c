"""The page and the examples say what the settings say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forwarder.config import Settings, load_settings
from forwarder.config.display import inline
from forwarder.config.document import read_document
from forwarder.config.keys import Key, keys

ROOT = Path(__file__).parents[2]
ALL = ROOT / "config" / "all.yaml"
PAGE = ROOT / "docs" / "configuration.md"


def row(key: Key) -> str:
    """A key's row in the page's table."""
    default = "(none)" if key.default in (None, "") else f"`{inline(key.default)}`"
    return f"| `{key.name}` | `{key.variable}` | {default} | {key.description} |"


def test_the_page_has_every_key_with_its_variable_default_and_meaning() -> None:
    """The table is exactly the settings, in their order."""
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if re.match(r"\| `[a-z_.]+` \| `FORWARDER_", line)]
    assert rows == [row(key) for key in keys().values()]


def test_the_page_names_no_key_that_does_not_exist() -> None:
    """Text that speaks of a key speaks of one that is there."""
    known = {key.name for key in keys().values()}
    named = re.findall(r"`((?:upstream|sources|buffer|batch|delivery|dead_letters|shutdown|admin|log)\.[a-z_.]+)`", PAGE.read_text("utf-8"))
    assert set(named) <= known


def test_all_yaml_has_every_key_at_its_default() -> None:
    """The file shows each key, and changes nothing."""
    text = ALL.read_text("utf-8")
    assert load_settings(ALL, {}, require_upstream=False).settings == Settings()
    explicit = read_document(ALL, {}).values
    unset = {path for path in keys() if path not in explicit}
    assert unset == {path for path, key in keys().items() if key.default in (None, "")}
    nulls = [line for line in text.splitlines() if line.endswith(": null")]
    assert nulls == [f"{'  ' * (len(path) - 1)}{path[-1]}: null" for path in keys() if path in unset]


def test_all_yaml_says_what_each_key_means() -> None:
    """Each key's description stands above it."""
    words = " ".join(line.strip().lstrip("# ") for line in ALL.read_text("utf-8").splitlines())
    assert [key.name for key in keys().values() if key.description not in words] == []


@pytest.mark.parametrize(
    "file", sorted(set((ROOT / "config").glob("*.yaml")) - {ROOT / "config" / "sandbox-seed.yaml"}), ids=lambda file: file.name
)
def test_the_examples_can_be_used(file: Path) -> None:
    """Every example is a configuration that runs, once the upstream is named."""
    loaded = load_settings(file, {"FORWARDER_UPSTREAM__URL": "https://h.example.com"})
    assert loaded.settings.upstream.url == "https://h.example.com"


def test_the_sidecar_takes_its_upstream_from_the_environment() -> None:
    """One variable makes the example one's own."""
    file = ROOT / "config" / "sidecar.yaml"
    assert load_settings(file, {"UPSTREAM_URL": "https://mine.example.com"}).settings.upstream.url == "https://mine.example.com"
    assert load_settings(file, {}).settings.upstream.url == "https://us.i.example.com"
