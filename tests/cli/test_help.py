"""`forwarder help`, and that messages name its topics and no file of the repository."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forwarder.cli import help as module
from forwarder.cli.app import COMMANDS, app
from forwarder.cli.help import topics
from forwarder.config.display import json_schema
from forwarder.core.errors import ConfigurationError
from tests.support.cases import cases
from tests.support.commands import forwarder
from tests.support.repository import ROOT, files, source_texts, trees

REPOSITORY = re.compile(r"\b(?:docs|config)/[\w/.-]*\.(?:md|yaml)\b|\b[\w-]+\.md\b")
TOPIC = re.compile(r"forwarder help ([a-z0-9/-]+)")


def shown(*words: str) -> str:
    """What the command prints; it has to succeed."""
    result = CliRunner().invoke(
        app, ["help", *words], catch_exceptions=False, env={"COLUMNS": "100"}
    )
    assert result.exit_code == 0, result.output
    return result.output


def texts() -> Iterator[tuple[Path, int, str]]:
    """The texts that the program can show: all but its docstrings."""
    return (
        (path, line, text)
        for path, line, text, is_statement, _ in source_texts()
        if not is_statement
    )


def test_topics_are_listed_with_what_they_are_about() -> None:
    """Every document but decisions, whatever its folder, in a line of its own that fits."""
    lines = shown().splitlines()
    assert {"buffer", "kafka", "configuration", "commands", "migration"} <= topics().keys()
    assert not [name for name in topics() if name[0].isdigit()]
    for name, topic in topics().items():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(line) <= 100
        assert len(topic.summary()) > 15, name


def test_a_document_is_shown() -> None:
    """As text: its headings and tables, without images and marks of Markdown; with the way to its
    command's options.
    """
    text = shown("buffer")
    assert "What an answer of 200 promises" in text
    assert not re.search(r"^#|\]\(|!\[|\*\*", text, re.MULTILINE)
    assert text.endswith("Options of the command: forwarder buffer --help\n")


@pytest.mark.slow
def test_every_document_is_shown() -> None:
    """Whatever it contains."""
    for name in topics():
        assert len(shown(name)) > 300


def test_a_command_is_shown() -> None:
    """The same as its `--help`, with subcommands too."""
    for words in (["run"], ["config", "check"], ["manage", "domains", "list"]):
        assert (
            shown(*words)
            == CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "100"}).output
        )


@cases(
    ("asked", "hint"),
    [
        (["bufer"], "Did you mean `forwarder help buffer`?"),
        (["kafka.md"], "Did you mean `forwarder help kafka`"),
        (["config", "chek"], "`forwarder help config"),
        (["qqqqqq"], "`forwarder help` lists the topics."),
    ],
)
def test_a_misspelled_topic_gets_suggestions(asked: list[str], hint: str) -> None:
    """Topics and commands that are spelled alike, or the list."""
    with pytest.raises(ConfigurationError) as raised:
        CliRunner().invoke(app, ["help", *asked], catch_exceptions=False)
    assert hint in raised.value.hint


def test_other_words_are_searched_in_all_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rare words and headings count most; each section has a line with the words, and the end says
    how to read on.
    """
    for name, text in {
        "disks": "# Disks\nAll about them.\n\n## When they are full\nA start.\nSenders **wait**.\n",
        "memory": "# Memory\nIt may be full, too.\n\n```\n# full\n```\n",
        "other": "# Other\nNothing.\n",
    }.items():
        (tmp_path / f"{name}.md").write_text(text)
    monkeypatch.setattr(module, "shipped", lambda _: tmp_path)
    assert shown("is", "the", "DISK", "full?").splitlines() == [
        "disks: When they are full",
        "    A start.",
        "disks: Disks",
        "    All about them.",
        "memory: Memory",
        "    It may be full, too.",
        "",
        "`forwarder help disks` shows the first document.",
    ]
    assert "    Senders wait.\n" in shown("waiting")


def test_the_documents_are_searched() -> None:
    """As they are shipped."""
    assert "Halted lanes\n" in shown("why", "is", "a", "lane", "halted")


def test_a_search_that_finds_nothing_is_an_error() -> None:
    """Words that say nothing of what is searched find nothing."""
    for words in (["qqqqqq", "zzzzzz"], ["how", "to"]):
        with pytest.raises(ConfigurationError):
            CliRunner().invoke(app, ["help", *words], catch_exceptions=False)


async def test_a_pipe_that_is_closed_is_no_error() -> None:
    """As by `head`; elsewhere than on a terminal there are no colours and no pager."""
    done = await forwarder("help", "configuration", env={"PAGER": "false"})
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out


def test_documents_of_one_name_are_distinguished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their folders; images, comments, front matter and links to other files are left out."""
    for folder in ("how-to", "reference"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "logs.md").write_text(
            f"---\nicon: x\n---\n# Logs\n\n![](a.png)\nIn {folder}, [see](x.md#y). More.\n"
        )
    (tmp_path / "index.md").write_text("# Index\n")
    monkeypatch.setattr(module, "shipped", lambda _: tmp_path)
    assert {name: topic.summary() for name, topic in topics().items()} == {
        "how-to/logs": "In how-to, see.",
        "reference/logs": "In reference, see.",
    }


@pytest.mark.slow
def test_messages_name_topics_that_exist() -> None:
    """In texts of modules, in the schema's descriptions, and in the examples of configurations."""
    named = {topic for _, _, text in texts() for topic in TOPIC.findall(text)}
    named |= set(TOPIC.findall(json.dumps(json_schema())))
    named |= {
        topic
        for path in files(".yaml", "config")
        for topic in TOPIC.findall(path.read_text("utf-8"))
    }
    for _, tree in trees("forwarder", "help_on("):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        used = [
            call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "help_on"
        ]
        named |= {
            argument.value
            for call in used
            for argument in call.args
            if isinstance(argument, ast.Constant)
        }
    assert {"inspect-buffer", "mapping", "sandbox", "log-recipes"} <= named
    assert named - topics().keys() - COMMANDS.keys() == set()


def test_messages_name_no_file_of_the_repository() -> None:
    """It isn't there where forwarder is installed; `forwarder help TOPIC` is."""
    mentions = [f"{path}:{line}: {text}" for path, line, text in texts() if REPOSITORY.search(text)]
    assert mentions == []
    assert REPOSITORY.findall(json.dumps(json_schema())) == []
    assert [path for path in files(".yaml", "config") if ".md" in path.read_text("utf-8")] == []
    assert ROOT.is_dir()


def test_no_help_shows_a_type_of_python() -> None:
    """The man page has the help of every command: values are named for what they are."""
    assert (
        re.findall(r"<(?:str|path|int|float|list)\b[^>]*>", (ROOT / "man/forwarder.1").read_text())
        == []
    )
    raw = [
        f"{name}: {line.strip()}"
        for name in COMMANDS
        for line in CliRunner().invoke(app, [*name.split(), "--help"]).output.splitlines()
        if re.search(r"<(?:str|path|int|float|list)\b", line)
    ]
    assert raw == []
