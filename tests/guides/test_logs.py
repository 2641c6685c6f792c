"""logs.md and log-recipes.md: configurations can be used, and what they say of formats, keys,
metrics and files is so.

What the recipes do is shown by `tests/end_to_end/test_log_recipes.py` and
`tests/end_to_end/test_log_senders.py`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, get_args

import pytest
import yaml

from forwarder.config.load import load_settings
from forwarder.config.source_settings import LineFormatName, LogSourceSettings, MessageFormatName
from forwarder.core.ports import Reason
from forwarder.daemon import logs
from forwarder.demo.logs import MAPPING
from forwarder.sources.logs import following, positions
from forwarder.sources.logs.flow import RESULTS
from forwarder.sources.logs.formats import line_format
from tests.support.cases import cases
from tests.support.documents import sections, spans, text_of
from tests.support.repository import ROOT

TEXT: Final = text_of("logs", "log-files")
PARTS: Final = sections(TEXT)
RECIPES: Final = text_of("log-recipes")
FOLDER: Final = ROOT / "config" / "recipes"
DEFAULTS: Final = LogSourceSettings()
SAMPLES: Final = {
    "combined": (
        (
            b'shop.example:443 203.0.113.9 id ann [23/Nov/2026:09:30:00 +0000] "GET /a?b=c '
            b'HTTP/1.1" 200 5 "https://a.example/" "Firefox" 0.1'
        ),
        b'203.0.113.9 - - [23/Nov/2026:09:30:00 +0000] "\\x16\\x03" 400 5 "-" "-"',
    ),
    "syslog": (b'<34>1 2026-11-23T09:30:00Z web-1 shop 17 ID47 [a@1 b="c"] placed',),
    "cri": (b"2026-11-23T09:30:00.5Z stdout F placed",),
}
"""Lines that have every member of their format."""
PATH: Final = "/var/log/pods/shop_web-1_0b1c/app/0.log"


def table(text: str) -> list[list[str]]:
    """The names in the first column of each row, as they stand in backticks."""
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, | \([^|]*\))?)+)[^|]*\|", text, re.MULTILINE)
    return [re.findall(r"`([^`]+)`", row) for row in rows]


def members(name: str) -> set[str]:
    """The members of a format's lines."""
    form = line_format(name, None, None, None, "sources.logs[0]").for_file(PATH)
    names: set[str] = set()
    for line in SAMPLES[name]:
        parsed = form.parse(line, 1_795_426_200.0)
        assert parsed is not None
        names |= set(yaml.safe_load(parsed[0]))
    return names


def test_the_configuration_to_begin_with(tmp_path: Path) -> None:
    """It can be used as it stands, but for the project key and the directory."""
    [block] = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    file = tmp_path / "forwarder.yaml"
    file.write_text(block.replace("phc_…", "phc_0123456789abcdef0123456789abcdef"))
    [source] = load_settings(file, {}).settings.sources.logs
    assert (source.name, source.path, source.commit) == (
        "shop",
        ("/var/log/shop/*.log*",),
        "delivered",
    )
    assert f"--source {source.name} " in TEXT


def test_it_has_every_format() -> None:
    """The table has those of `format`, the default first; the text those of `message_format`."""
    _, *rows = table(PARTS["Formats"].partition("**`combined`")[0])
    assert [name for row in rows for name in row] == list(get_args(LineFormatName))
    assert rows[0] == [DEFAULTS.format]
    [messages] = re.findall(r"`message_format` parses the message too \(([^)]*)\)", TEXT)
    assert {"text", *re.findall(r"`(\w+)`", messages)} == set(get_args(MessageFormatName))


@cases("name", SAMPLES)
def test_it_has_every_member(name: str) -> None:
    """Of the formats that name them."""
    [part] = re.findall(
        rf"^\*\*`{name}`[^\n]*\n(.*?)(?=^\*\*|\Z)", PARTS["Formats"], re.DOTALL | re.MULTILINE
    )
    assert {member for row in table(part) for member in row} == members(name)


def test_what_the_path_says_of_a_pod() -> None:
    """Each member of `kubernetes` is in the text."""
    parsed = (
        line_format("cri", None, None, None, "sources.logs[0]")
        .for_file(PATH)
        .parse(SAMPLES["cri"][0], 0.0)
    )
    assert parsed is not None
    assert set(yaml.safe_load(parsed[0])["kubernetes"]) <= spans(PARTS["Formats"])


def test_it_has_every_key() -> None:
    """Each key of a source is explained, and `config/logs.yaml` shows it, in use or in
    a comment.
    """
    named = {
        word
        for span in re.findall(r"`([^`\n]+)`|^ +(?:- )?(\w+):", TEXT, re.MULTILINE)
        for part in span
        for word in re.findall(r"\w+", part)
    }
    keys = set(DEFAULTS.as_document())
    assert len(keys) > 15
    assert keys - named == set()
    example = (ROOT / "config" / "logs.yaml").read_text("utf-8")
    shown = set(re.findall(r"^ +(?:- |# )?(\w+):", example, re.MULTILINE)) | {
        "stdin",
        "message_format",
        "max_in_flight",
        "commit_interval",
    }
    assert keys - shown == {"api_key_file"}
    assert "api_key_file:" in example


def test_the_example_shows_defaults() -> None:
    """What isn't in a comment is a default, but for what there is none of."""
    [source] = load_settings(ROOT / "config" / "logs.yaml", {}).settings.sources.logs
    changed = source.as_document(changed_only=True)
    assert changed.keys() <= {"path", "mapping", "api_key"}


def test_what_the_example_has_in_comments_can_be_used(tmp_path: Path) -> None:
    """Every key that stands in a comment is one, and fits in when it is taken out of it."""
    (tmp_path / "salt").write_text("salt")
    text = (
        (ROOT / "config" / "logs.yaml")
        .read_text("utf-8")
        .replace("/etc/forwarder/salt", str(tmp_path / "salt"))
    )
    text = text.replace("      format: json\n", "")
    file = tmp_path / "logs.yaml"
    file.write_text(re.sub(r"# ( *[a-z_]+:(?: |$))", r"\1", text, flags=re.MULTILINE))
    [source] = load_settings(file, {}).settings.sources.logs
    assert (source.format, source.host) == ("regex", "web-1")
    assert source.pattern is not None
    assert source.multiline.start is not None
    assert (source.mapping.timestamp.source, source.mapping.drop) == (".time", (".password",))


def test_documented_defaults_and_limits_match_the_code() -> None:
    """Where a number is put into words, it is the code's."""
    assert "256 KiB at a time" in TEXT
    assert following.TURN_BYTES == 256 << 10
    assert "kept for 30 days" in TEXT
    assert positions.KEPT_SECONDS == 30 * 86400
    assert f"`{logs.DIRECTORY}/{positions.FILE}`" in TEXT


def test_reasons_are_those_of_dead_letters() -> None:
    """Each reason that a line becomes a dead letter for is one."""
    named = set(re.findall(r"it is a dead letter \(`(\w+)`\)", TEXT))
    assert named == {"too_large", "unmappable"}
    assert named <= {reason.value for reason in Reason}


def test_results_of_a_line_are_documented() -> None:
    """The page of metrics has each; lines of another format have a metric of their own."""
    [labels] = re.findall(r"^- `result` of a line: (.*?)^- ", text_of("metrics"), re.DOTALL | re.M)
    assert set(RESULTS) - {"unmatched"} <= spans(labels)


def test_every_recipe_is_described() -> None:
    """Each file of config/recipes is named, once at least."""
    assert set(re.findall(r"`config/recipes/([\w.-]+)`", RECIPES)) == {
        file.name for file in FOLDER.iterdir()
    }


def test_commands_are_those_of_the_files() -> None:
    """The pipe's first half is the same in the recipe, on the page, and in the service."""
    [command] = re.findall(r"^(journalctl .*) \| forwarder run", RECIPES, re.MULTILINE)
    recipe = (FOLDER / "journald.yaml").read_text("utf-8")
    assert f"#   {command} | forwarder run --config config/recipes/journald.yaml" in recipe
    assert f"< <(exec {command})" in RECIPES


def test_the_demos_mapping_is_the_recipes() -> None:
    """`forwarder demo --logs` runs the mapping that the page describes."""
    recipe = yaml.safe_load((FOLDER / "nginx.yaml").read_text("utf-8"))
    mapping = recipe["sources"]["logs"][0]["mapping"]
    assert mapping["hash"].pop("salt_file") == "/etc/forwarder/salt"
    assert mapping == MAPPING


def test_the_service_of_the_journal(tmp_path: Path) -> None:
    """systemd has nothing to say about the unit with the page's addition, and neither has the
    shell about its command.
    """
    [addition] = re.findall(r"```ini\n(.*?)```", RECIPES, re.DOTALL)
    [script] = re.findall(r"ExecStart=/bin/bash -c '(.*)'", addition)
    subprocess.run(["bash", "-n", "-c", script], check=True)
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze isn't installed")
    unit = tmp_path / "forwarder.service"
    unit.write_text((ROOT / "deploy" / "forwarder.service").read_text())
    (tmp_path / "forwarder.service.d").mkdir()
    (tmp_path / "forwarder.service.d" / "override.conf").write_text(addition)
    done = subprocess.run(
        [program, "verify", str(unit)], capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
