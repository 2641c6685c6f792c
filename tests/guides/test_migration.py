"""docs/how-to/migration.md: what it tells to type can be typed, and what it says of files,
messages, exit codes and defaults is so.

Its recipe around exports is run by `tests/end_to_end/test_migration_around_exports.py`.
"""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path
from typing import Any, Final

from forwarder.cli.app import COMMANDS, load
from forwarder.cli.exit_codes import ExitCode
from forwarder.config.load import load_settings
from forwarder.config.settings import Settings
from forwarder.core.clock import SystemClock
from forwarder.core.ports import Reason
from forwarder.daemon.imports import ImportRun
from forwarder.sources.files import origins
from forwarder.sources.imports import persons
from forwarder.sources.imports import sorting as spool
from forwarder.sources.imports.format import ChosenFormat, FormatContext, NoOptions
from forwarder.sources.imports.formats.catalog import BY_NAME, FORMATS
from forwarder.sources.imports.job import ImportRequest
from forwarder.sources.imports.preflight_report import STOPPING, PreflightResult
from forwarder.sources.imports.report import VERIFIED
from forwarder.sources.imports.times import RECENT, SECOND
from tests.support.cases import cases
from tests.support.documents import page, sections, spans, text_of
from tests.support.repository import ROOT
from tests.support.upstream import OK, Answer, Request, Upstream

TEXT: Final = text_of("migration", "migration-exports", "repair-imports", "imports")
PARTS: Final = sections(TEXT)
BLOCK: Final = re.compile(r"^```(?:sh)?\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS: Final = BLOCK.findall(TEXT)
KEY: Final = "phc_guides_of_imports_0001"
OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def command_lines(text: str) -> list[str]:
    """What is typed: each `forwarder …` of the blocks that concerns imports, also within others,
    up to where its output goes elsewhere.
    """
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    typed = [
        command
        for line in lines
        for command in re.findall(r"(?:^|\(|\| )(forwarder [^|>]*?)(?: [|>]|\)$|$)", line)
    ]
    return [
        command for command in typed if command.split()[1] in {"import", "dead-letters", "manage"}
    ]


TYPED: Final = (
    *(
        page(title)
        for title in ("migration", "migration-exports", "repair-imports", "imports", "dead-letters")
    ),
    ROOT / "README.md",
)


def groups() -> dict[str, Any]:
    """The commands of the first level."""
    return {name: load(name) for name in COMMANDS}


def test_there_is_something_to_hold() -> None:
    """The page has its commands in blocks."""
    assert len(command_lines(TEXT)) >= 20
    assert {line.split()[1] for line in command_lines(TEXT)} == {"import", "dead-letters", "manage"}


@cases("line", dict.fromkeys(line for file in TYPED for line in command_lines(text_of(file))))
def test_each_command_can_be_typed(line: str) -> None:
    """With these words and options; it isn't run."""
    _, name, *words = shlex.split(line)
    command = groups()[name]
    while children := getattr(command, "commands", None):
        word = words.pop(0)
        command = children[word]
        name = f"{name} {word}"
    with command.make_context(name, words) as context:
        assert context.params


@cases("page", ["migration", "imports", "import-formats", "import-preflight"])
def test_each_option_in_the_text_exists(page: str) -> None:
    """Those of imports, and what goes with them."""
    every = groups()
    known = {
        option for name in ("import", "dead-letters", "sandbox") for option in options(every[name])
    } | {"--config"}
    named = {option for span in spans(text_of(page)) for option in OPTION.findall(span)}
    assert named
    assert named <= known


def options(command: Any) -> set[str]:
    """All options of a command and of those below it."""
    below = getattr(command, "commands", {}).values()
    return {name for parameter in command.params for name in parameter.opts}.union(
        *(options(subcommand) for subcommand in below)
    )


def test_codes_and_reasons_are_real() -> None:
    """What is accepted is a finding that stops, and the letters shown have reasons
    that there are.
    """
    accepted = set(re.findall(r"--accept ([a-z-]+)", "\n".join(BLOCKS)))
    assert accepted
    assert accepted <= set(STOPPING)
    shown = re.findall(r"^ +\d+  ([a-z_]+) ", "\n".join(BLOCKS), re.MULTILINE)
    assert len(shown) == 3
    assert set(shown) <= {reason.value for reason in Reason}


def test_formats_are_real() -> None:
    """Each format that is named is one."""
    known = {form.name for form in FORMATS} | {"status", "verify"}
    assert set(re.findall(r"forwarder import ([a-z-]+)", TEXT)) <= known


def test_messages_are_those_of_the_program() -> None:
    """What someone sees in the terminal is what the table has, so that it can be searched for."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]+ \|$", PARTS["Troubleshooting"], re.MULTILINE)
    quoted = [
        part
        for row in rows
        for words in re.findall(r'"([^"]+)"', row)
        for part in re.split(r" … |^waiting: ", words)
        if part
    ]
    folders = [
        ROOT / "forwarder" / name
        for name in ("cli", "sources", "imports", "daemon", "inspect", "storage")
    ]
    sources = [file.read_text("utf-8") for folder in folders for file in folder.rglob("*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    assert len(quoted) >= 12
    assert [
        words for words in quoted if words.lower() not in code.lower() and words != "no space left"
    ] == []


def test_exit_codes_are_those_of_the_command() -> None:
    """The table has each once."""
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", PARTS["Exit codes"], re.MULTILINE)}
    assert table == set(ExitCode)


def test_documented_defaults_match_the_code() -> None:
    """Where a default or a limit is put into words, it is the code's."""
    assert "At most 2,000 events a second" in TEXT
    assert Settings().import_.rate == 2000
    assert "ends 48 h before the first run" in TEXT
    assert RECENT == 48 * 3600 * SECOND
    assert "first and last 64 KiB" in TEXT
    assert origins.ENDS == 64 << 10
    assert Settings().import_.person_properties is None


def tabulated() -> set[str]:
    """The files of the table."""
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", PARTS["The state folder"], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


async def test_the_state_folder_has_these_files(tmp_path: Path) -> None:
    """After a run, and while one sorts and sends; no one else may read them, and the key is among
    the dead letters alone.
    """
    state = tmp_path / "state"
    source = tmp_path / "events.jsonl"
    seen = set[str]()
    source.write_text(
        '{"event":"seen","distinct_id":"u1","timestamp":"2024-01-01T00:00:00Z"}\n{"event":"no '
        'id"}\n'
    )

    def answer(_: Request) -> Answer:
        seen.update(path.name for path in state.iterdir())
        return OK

    async with Upstream(answer) as upstream:
        await whole_import(source, state, tmp_path / "imports", upstream.url)
    left = {path.name for path in state.iterdir()}
    passing = {spool.FILE, spool.SPOOL}
    of_persons = {persons.INDEX, persons.HEAD}
    # `import verify` writes the last one
    assert tabulated() == left | passing | of_persons | {VERIFIED}
    assert {re.sub("-(wal|shm)$", "", name) for name in seen} <= tabulated()
    assert seen >= {spool.FILE, spool.SPOOL}
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()} == {0o600}
    assert [path.name for path in state.iterdir() if KEY.encode() in path.read_bytes()] == [
        "dead-letters.db"
    ]
    assert [path.name[:5] for path in (tmp_path / "imports").iterdir()] == ["rate-"]


async def whole_import(source: Path, state: Path, root: Path, url: str) -> None:
    """A look and a run, as the command does them."""
    form = BY_NAME["native"]
    settings = load_settings(None, {"FORWARDER_UPSTREAM__URL": url}).settings
    chosen = ChosenFormat("native", {}, lambda _: form.make(NoOptions(), FormatContext()))
    request = ImportRequest(
        chosen, (str(source),), settings, KEY, state=state, state_root=root, rate=1e6, sort=True
    )
    job = ImportRun(request, SystemClock())
    try:
        PreflightResult.assess(job.preflight(lambda _records, _bytes: None)[0], frozenset()).save(
            state
        )
        assert (await job.run(lambda _: None)).complete
    finally:
        job.close()
