"""The section of the management API, as its commands and the daemon read it."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from forwarder.config.display import as_yaml
from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from tests.support.cases import cases

URL = "https://service.example.com"
KEY = "phx_0123456789hunter2good"


def written(folder: Path, text: str) -> Path:
    """A configuration file."""
    file = folder / "forwarder.yaml"
    file.write_text(text)
    return file


for_person = partial(load_settings, require_upstream=False, read_keys=False)
"""As commands that a person runs load it."""


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    """Key by key, as everywhere; where each came from is known."""
    file = written(tmp_path, "management:\n  url: https://old.example.com\n  project: 7\n")
    loaded = for_person(file, {"FORWARDER_MANAGEMENT__URL": URL})
    assert (loaded.settings.management.url, loaded.settings.management.project) == (URL, "7")
    assert str(loaded.origins["management.url"]) == "FORWARDER_MANAGEMENT__URL"
    assert str(loaded.origins["management.project"]) == f"{file}:3"


def test_nothing_is_there(tmp_path: Path) -> None:
    """Without a file and variables, the defaults."""
    assert for_person(None, {}, default_file=tmp_path / "none").settings == Settings()


@cases(
    ("text", "reported"),
    [
        ("upstream: {url: 7}\n", ":1: upstream.url"),
        ("sources: {kafka: [{x: 1}]}\n", ":1: sources.kafka[0].x: unknown setting"),
        ("rules: [{x: 1}]\n", "rules[0].x: unknown setting"),
    ],
)
def test_the_rest_is_checked_too(tmp_path: Path, text: str, reported: str) -> None:
    """A configuration is right or wrong for all commands alike."""
    with pytest.raises(InvalidConfiguration, match=re.escape(reported)):
        for_person(written(tmp_path, f"{text}management: {{url: {URL}}}\n"), {})


def test_files_of_project_keys_are_not_read(tmp_path: Path) -> None:
    """They may be the daemon's alone."""
    file = written(tmp_path, "sources: {http: {api_keys_file: /no/where}}\n")
    assert for_person(file, {}).settings.sources.http.api_keys_file == Path("/no/where")
    with pytest.raises(InvalidConfiguration, match="/no/where"):
        load_settings(file, {}, require_upstream=False)


@cases(
    ("text", "environ", "reported"),
    [
        ("management: 7\n", {}, ":1: management: is a section"),
        (
            "management: {url: x}\n",
            {},
            ":1: management.url: it must begin with http:// or https://",
        ),
        ("management: {url: [}\n", {}, "isn't YAML"),
        ("management: {timeout: 5}\n", {}, ":1: management.timeout: 5 has no unit"),
        ("management: {proxy: x}\n", {}, "management.proxy: it must begin"),
        ("management: {api_key: 7}\n", {}, "management.api_key: it isn't text"),
        ("managment: {}\n", {}, ":1: managment: unknown setting"),
        ("", {"FORWARDER_MANAGEMENT__URI": "x"}, "FORWARDER_MANAGEMENT__URI: unknown setting"),
        (
            "",
            {"FORWARDER_MANAGEMENT__API_KEY": "phc_hunter2hunter2"},
            "FORWARDER_MANAGEMENT__API_KEY: management.api_key: it is a project key",
        ),
        ("", {"FORWARDER_NONSENSE": "x"}, "FORWARDER_NONSENSE: unknown setting"),
    ],
)
def test_errors_of_the_section_are_reported(
    tmp_path: Path, text: str, environ: dict[str, str], reported: str
) -> None:
    """And what belongs to no section, for it may be this one, misspelled."""
    with pytest.raises(InvalidConfiguration) as raised:
        for_person(written(tmp_path, text), environ)
    assert reported in raised.value.message
    assert "hunter2" not in raised.value.message


def test_the_daemon_does_not_care_for_the_section(tmp_path: Path) -> None:
    """Its files may be someone else's: they aren't opened."""
    section = f"{{url: {URL}, api_key_file: /no/where, ca_file: /no/where, organization: o}}"
    file = written(tmp_path, f"upstream: {{url: https://h.example.com}}\nmanagement: {section}\n")
    assert load_settings(file, {}).settings.management.organization == "o"


def test_its_secrets_are_in_no_text(tmp_path: Path) -> None:
    """Neither the key nor the proxy's password."""
    text = f"management: {{url: {URL}, api_key: {KEY}, proxy: 'http://u:hunter2@p:1'}}\n"
    file = written(tmp_path, text)
    assert "hunter2" not in repr(for_person(file, {}))
    shown = as_yaml(load_settings(file, {}, require_upstream=False))
    assert "hunter2" not in shown
    assert "api_key: phx_…good" in shown
