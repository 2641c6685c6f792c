"""The effective configuration, shown."""

from __future__ import annotations

from pathlib import Path

import yaml

from forwarder.config import Loaded, Settings, load_settings
from forwarder.config.display import as_json, as_yaml, effective, inline
from forwarder.config.keys import keys
from forwarder.config.origins import DEFAULT

KEY = "phc_0123456789abcdefSECRETlast"


def loaded(folder: Path) -> Loaded:
    """Settings from all three places, with secrets."""
    file = folder / "forwarder.yaml"
    file.write_text("upstream:\n  timeout: 90s\n  proxy: http://user:hunter2@proxy:3128\n")
    environ = {"FORWARDER_UPSTREAM__URL": "https://h.example.com", "FORWARDER_SOURCES__HTTP__API_KEYS": f"{KEY},short"}
    return load_settings(file, environ)


def test_yaml_shows_each_value_and_where_it_came_from(tmp_path: Path) -> None:
    """One line a key, the origin behind it."""
    lines = [line.split() for line in as_yaml(loaded(tmp_path)).splitlines()]
    assert ["timeout:", "90s", "#", f"{tmp_path}/forwarder.yaml:2"] in lines
    assert ["url:", "https://h.example.com", "#", "FORWARDER_UPSTREAM__URL"] in lines
    assert ["max_events:", "5000", "#", "default"] in lines
    assert sum("#" in line for line in lines) == len(keys())


def test_the_yaml_can_be_read_again(tmp_path: Path) -> None:
    """Apart from the secrets it is a configuration with the same effect."""
    settings = Settings.model_validate(
        {"upstream": {"url": "https://h"}, "sources": {"http": {"listen": "[::1]:8320", "trusted_proxies": ["10.0.0.0/8"]}}}
    )
    file = tmp_path / "shown.yaml"
    file.write_text(as_yaml(Loaded(settings, dict.fromkeys((key.name for key in keys().values()), DEFAULT), None)))
    assert effective(load_settings(file, {}).settings) == effective(settings)


def test_keys_that_are_not_set_show_what_they_amount_to(tmp_path: Path) -> None:
    """What the buffer's kind decides is shown decided, as a default."""
    for kind, limit, kept in (("memory", "64MiB", "16MiB"), ("disk", "1GiB", "256MiB")):
        loaded = load_settings(None, {"FORWARDER_BUFFER__KIND": kind}, default_file=tmp_path / "none", require_upstream=False)
        shown = as_json(loaded)
        assert shown["settings"]["buffer"] == {
            "kind": kind,
            "path": "/var/lib/forwarder",
            "max_bytes": limit,
            "ack": kind,
            "ack_timeout": "5s",
            "when_full": "reject",
        }
        assert shown["settings"]["dead_letters"]["max_bytes"] == kept
        assert shown["origins"]["buffer.max_bytes"] == shown["origins"]["buffer.ack"] == "default"


def test_json_holds_settings_origins_and_file(tmp_path: Path) -> None:
    """For programs: the same, as an object."""
    shown = as_json(loaded(tmp_path))
    assert shown["settings"]["upstream"]["timeout"] == "90s"
    assert shown["origins"]["batch.max_age"] == "default"
    assert shown["file"] == str(tmp_path / "forwarder.yaml")
    assert set(shown["origins"]) == {key.name for key in keys().values()}


def test_secrets_are_masked_in_both(tmp_path: Path) -> None:
    """Keys keep their last four characters, the proxy its host."""
    settings = loaded(tmp_path)
    for text in (as_yaml(settings), str(as_json(settings)), str(effective(settings.settings))):
        assert "hunter2" not in text
        assert "SECRET" not in text
        assert "short" not in text
        assert "phc_…last" in text
        assert "http://…@proxy:3128" in text


def test_values_stay_on_one_line() -> None:
    """Long lists are not folded, and text that looks like something else is quoted."""
    assert yaml.safe_load(inline(["x" * 80] * 5)) == ["x" * 80] * 5
    assert "\n" not in inline(["x" * 80] * 5)
    assert inline("null") == "'null'"
    assert inline(None) == "null"
