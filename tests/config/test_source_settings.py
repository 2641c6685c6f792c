"""What names a source once is known wherever sources are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from forwarder.config.checks import conflicts
from forwarder.config.keys import FIRST, dotted, keys
from forwarder.config.load import examine
from forwarder.config.rule_settings import DaemonSource, MatchSettings, SourceKind
from forwarder.config.section import descriptions
from forwarder.config.settings import Settings
from tests.support.cases import cases
from tests.support.commands import invoke

KEYED: Final = [path[:-1] for path in keys() if path[0] == "sources" and path[-1] == "api_key_file"]
"""The sections of sources that have a project key of their own."""


def sources(path: tuple[str, ...], section: dict[str, Any]) -> dict[str, Any]:
    """The settings in which this section stands at a path."""
    inner: Any = section
    for name in reversed(path):
        inner = [inner] if name == FIRST else {name: inner}
    settings: dict[str, Any] = inner
    return settings


@cases("kind", get_args(SourceKind))
def test_rules_know_every_source(kind: str) -> None:
    """`match.source` accepts and describes it, and so does the command that tries rules."""
    rule = {"match": {"source": kind}, "drop": True}
    (parsed,) = Settings.parse({"rules": [rule]}).rules
    assert parsed.match.source == (kind,)
    assert kind in descriptions(MatchSettings)["source"]
    help_text = " ".join(invoke("rules", "try", "--help").out.split())
    (listed,) = [text for text in help_text.split(".") if "The source of the file's events" in text]
    assert kind in listed


@cases("kind", [*get_args(DaemonSource), "replay"])
def test_a_tap_knows_every_source_of_a_daemon(kind: str, tmp_path: Path) -> None:
    """Its option accepts it, shows it in the help, and offers it to shells."""
    done = invoke("tap", "--source", kind, "--admin", f"unix:{tmp_path}/none")
    assert (done.code, "no daemon answers" in done.err) == (3, True)
    (option,) = [line for line in invoke("tap", "--help").out.splitlines() if "--source" in line]
    assert kind in option.split()[1].split("|")
    line = f"forwarder tap --source {kind}"
    offered = invoke(
        env={"_FORWARDER_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
    )
    assert offered.out.split() == [kind]


def test_a_tap_sees_no_imports() -> None:
    """They are processes of their own, without an admin server."""
    done = invoke("tap", "--source", "import")
    assert done.code == 2
    assert "'import' is not one of 'http', " in done.err


@pytest.mark.parametrize("path", KEYED, ids=dotted)
def test_every_section_with_a_project_key_is_keyed(path: tuple[str, ...], tmp_path: Path) -> None:
    """Its key is read from its file and is one of the sources' keys; two keys don't fit."""
    key_file = tmp_path / "key"
    key_file.write_text("phc_of_the_source\n")
    file = tmp_path / "forwarder.yaml"
    file.write_text(json.dumps(sources(path, {"api_key_file": str(key_file)})))
    read = examine(file, {}).loaded.settings
    assert read.sources.source_keys == ["phc_of_the_source"]
    both = Settings.parse(sources(path, {"api_key": "phc_another", "api_key_file": key_file}))
    assert f"{dotted(path)}.api_key_file" in {conflict.key for conflict in conflicts(both)}
