"""Commands that messages propose can be pasted: they name the configuration that the user gave."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import forwarder
from forwarder.cli.app import COMMANDS, load
from forwarder.core.proposals import WITHOUT_CONFIG, proposed, use_configuration
from tests.support.repository import source_texts, trees

ROOT = Path(forwarder.__file__).parent
A_COMMAND = re.compile(rf"\bforwarder ({'|'.join(set(COMMANDS) - WITHOUT_CONFIG)})\b")
DOCUMENTS = ("contract", "sandbox/openapi", "cli/manage_fields.py", "cli/config_init.py")
"""Modules whose texts stand in documents and in help; the last names the file
that it has written itself.
"""

AS_TYPED = ("Write: forwarder import ", "| forwarder import FORMAT -")
"""Texts that repeat what was typed, with its options, or are a pattern and no command."""


@pytest.fixture(autouse=True)
def no_configuration() -> Iterator[None]:
    """No file is given before the test or after it."""
    use_configuration(None)
    yield
    use_configuration(None)


def beginning(node: ast.expr) -> str:
    """The text that an argument begins with, up to its first value."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    assert isinstance(first, ast.Constant), ast.unparse(node)
    return str(first.value)


def options_of(command: str) -> set[str]:
    """The options of a command that is typed like this."""
    name, *rest = command.split()
    target: Any = load(name)
    for word in rest:
        if hasattr(target, "commands") and word in target.commands:
            target = target.commands[word]
    # a group: `import FORMAT`
    commands = list(target.commands.values())[:1] if hasattr(target, "commands") else [target]
    return {option for one in commands for parameter in one.params for option in parameter.opts}


def _proposes(text: str) -> bool:
    return A_COMMAND.search(text) is not None and not any(known in text for known in AS_TYPED)


def _in_documents(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(DOCUMENTS)


def test_no_message_proposes_a_command_by_itself() -> None:
    """Every text with a command line in it has it from `proposed`, which adds the configuration.
    Help of options, and the examples in help, are no messages.
    """
    problems = [
        f"{path}:{line}: {text}"
        for path, line, text, is_statement, is_option_help in source_texts()
        if not (is_statement or is_option_help or "Example: " in text)
        and _proposes(text)
        and not _in_documents(path)
    ]
    assert problems == []


def test_proposed_commands_exist_and_take_the_configuration() -> None:
    """Each command that is proposed takes `--config`, or is one that is listed as taking none."""
    calls = [
        (path, beginning(node.args[0]))
        for path, tree in trees("forwarder", "proposed(")
        if not _in_documents(path)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "proposed"
    ]
    assert len(calls) > 20
    for path, command in calls:
        if command.endswith("--help"):
            continue
        assert ("--config" in options_of(command)) == (command.split()[0] not in WITHOUT_CONFIG), (
            path,
            command,
        )


def test_a_message_names_the_file_that_was_given(tmp_path: Path) -> None:
    """What a command proposes after a mistake can be pasted; without the option it
    proposes none.
    """
    file = tmp_path / "my forwarder.yaml"
    file.write_text("log: {level: loud}")
    environ = {"FORWARDER_ADMIN__LISTEN": f"unix:{tmp_path}/none"}
    checked = CliRunner().invoke(load("config"), ["check", "--config", str(file)], env=environ)
    assert f"When fixed: forwarder config check --config '{file}'" in checked.stderr
    for config in (["--config", str(file)], []):
        asked = CliRunner().invoke(load("status"), config, env=environ)
        assert (
            f"Start one with `{'forwarder run' if not config else proposed('run')}`" in asked.stderr
        )


def test_the_configuration_is_quoted_for_a_shell(tmp_path: Path) -> None:
    """A name with a blank is one word; without a file nothing is added."""
    assert proposed("status") == "forwarder status"
    use_configuration(tmp_path / "my config.yaml")
    assert (
        proposed("buffer ls", "/a b")
        == f"forwarder buffer ls '/a b' --config '{tmp_path}/my config.yaml'"
    )
    assert proposed("sandbox") == "forwarder sandbox"
