"""`forwarder config init`, `config schema --output` and `config show KEY`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema.validators import validator_for
from typer.testing import CliRunner

from forwarder.cli.app import app
from forwarder.cli.config_init import ConfigurationUse
from forwarder.config.load import load_settings
from forwarder.core.errors import ConfigurationError
from tests.support.cases import cases


def forwarder(*args: str | Path) -> str:
    """What a command prints; it has to succeed."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@cases("use", ConfigurationUse)
def test_a_file_passes_the_check(tmp_path: Path, use: ConfigurationUse) -> None:
    """It is commented, names itself in its comments and no file of the repository, and is as the
    schema beside it says.
    """
    file = tmp_path / "forwarder.yaml"
    shown = forwarder(
        "config", "init", use, "--output", file, "--upstream", "http://127.0.0.1:8322/", "--schema"
    )
    assert f"--config {file}" in shown
    assert "OK: " in forwarder("config", "check", "--config", file)
    text = file.read_text("utf-8")
    assert load_settings(file, {}).settings.upstream.url == "http://127.0.0.1:8322"
    assert text.startswith("# yaml-language-server: $schema=forwarder.schema.json\n# ")
    assert (f"--config {file}" in text) == (use is not ConfigurationUse.ALL)
    assert "config/" not in text.replace("in config/recipes", "")
    assert "docs/" not in text
    schema = json.loads((tmp_path / "forwarder.schema.json").read_text("utf-8"))
    # that the schema is one is shown in tests/config/test_display.py, and takes half a second
    validator_for(schema)(schema).validate(yaml.safe_load(text))


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    """Without `--force`, the schema too, unless it is the same; with it they are replaced."""
    file = tmp_path / "forwarder.yaml"
    schema = tmp_path / "forwarder.schema.json"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"):
        forwarder("config", "init", "--output", file)
    assert file.read_text() == "mine"
    forwarder("config", "init", "--output", file, "--force")
    assert file.read_text().startswith("# A sidecar")
    schema.write_text("mine")
    with pytest.raises(ConfigurationError, match="exists already"):
        forwarder("config", "schema", "--output", schema)
    forwarder("config", "schema", "--output", schema, "--force")
    forwarder("config", "schema", "--output", schema)
    assert json.loads(schema.read_text())["title"] == "forwarder"


def test_a_file_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    """With what to do; a wrong address of the service, too, before anything is written."""
    with pytest.raises(ConfigurationError, match="can't be written: No such file or directory"):
        forwarder("config", "init", "--output", tmp_path / "missing" / "forwarder.yaml")
    with pytest.raises(ConfigurationError, match="--upstream: it must begin with http"):
        forwarder(
            "config",
            "init",
            "--output",
            tmp_path / "forwarder.yaml",
            "--upstream",
            "us.i.example.com",
        )
    assert list(tmp_path.iterdir()) == []


def test_standard_output_gets_the_file_alone() -> None:
    """To be piped; a schema would be a file beside it."""
    with pytest.raises(ConfigurationError, match="--schema writes a file"):
        forwarder("config", "init", "--output", "-", "--schema")
    shown = forwarder("config", "init", "kafka", "--output", "-")
    assert shown.startswith("# Kafka source")
    assert "--config forwarder.yaml" in shown
    assert "Wrote" not in shown


def test_a_user_gets_a_directory_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the usual one can't be written to; the command says so."""
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shown = forwarder("config", "init", "gateway", "--output", tmp_path / "forwarder.yaml")
    assert (
        load_settings(tmp_path / "forwarder.yaml", {}).settings.buffer.path
        == tmp_path / "state" / "forwarder"
    )
    assert f"Its files are in {tmp_path}/state/forwarder" in shown


def test_some_keys_are_shown_alone() -> None:
    """Keys, sections and lists, in YAML and JSON; an unknown one is a
    mistake, with what may be meant.
    """
    shown = yaml.safe_load(
        forwarder("config", "show", "sources.http.listen", "shutdown", "sources.kafka")
    )
    assert shown == {
        "sources": {"http": {"listen": "127.0.0.1:8320"}, "kafka": []},
        "shutdown": {"delay": "0s", "drain_timeout": "25s"},
    }
    shown = json.loads(forwarder("config", "show", "admin.listen", "--output", "json"))
    assert (shown["settings"], shown["origins"]) == (
        {"admin": {"listen": "127.0.0.1:8321"}},
        {"admin.listen": "default"},
    )
    with pytest.raises(ConfigurationError) as raised:
        forwarder("config", "show", "bufer")
    assert raised.value.hint == "did you mean buffer?"
