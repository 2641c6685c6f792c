"""From the command line and the configuration to the request for an import."""

from __future__ import annotations

import io
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import forwarder.cli.settings as module
from forwarder.cli.import_options import common_options
from forwarder.cli.import_request import character, moment, pairs, rate, request_of, time_offset
from forwarder.cli.imports import app
from forwarder.core.errors import ConfigurationError
from forwarder.sources.files.record_blocks import Framing
from forwarder.sources.imports.conversion import EventFilters
from forwarder.sources.imports.formats.catalog import BY_NAME
from forwarder.sources.imports.formats.csv import CsvConverter
from forwarder.sources.imports.formats.mapped import MappedConverter
from forwarder.sources.imports.job import ImportRequest
from forwarder.sources.imports.pacing import QuietHours
from tests.support.cases import cases

URL = "https://service.example.com"
KEY = "phc_0123456789hunter2good"
TARGET = ("--upstream", URL, "--api-key", KEY)
RULES = "event: .name\ndistinct_id: .who\ntimestamp: .at\n"


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither variables nor the machine's configuration."""
    monkeypatch.setattr(module, "DEFAULT_FILE", usual(tmp_path))
    for name in [name for name in os.environ if name.startswith("FORWARDER_")]:
        monkeypatch.delenv(name)


def usual(folder: Path) -> Path:
    """Where the machine's configuration would be."""
    return folder / "none" / "forwarder.yaml"


@cache
def parser() -> Any:
    """That of the command, which is made once: parsing leaves nothing in it."""
    return get_command(app)


def typed(name: str, *words: str) -> ImportRequest:
    """The request of `forwarder import` with these words."""
    command = parser()
    parsed = command.commands[name].make_context(name, [*words])
    return request_of(BY_NAME[name], common_options(parsed.params), parsed.params)


def configured(folder: Path, text: str) -> tuple[str, str]:
    """A configuration to be named."""
    file = folder / "forwarder.yaml"
    file.write_text(text)
    return "--config", str(file)


def test_what_is_not_said_is_as_the_surface_has_it() -> None:
    """2000 a second, set_once, no geoip, the two days that events have to be old."""
    request = typed("segment", "a", "b", *TARGET)
    assert (request.paths, request.settings.upstream.url, request.api_key) == (("a", "b"), URL, KEY)
    assert (request.rate, request.person_properties, request.geoip, request.sort) == (
        2000,
        "oldest",
        False,
        False,
    )
    assert (request.filters, request.quiet_hours, request.state, request.via) == (
        EventFilters(),
        None,
        None,
        "",
    )
    assert (request.chosen.name, request.chosen.time_fields) == (
        "segment",
        ("timestamp", "originalTimestamp"),
    )
    assert not request.chosen.zone_said
    assert {
        name: value for name, value in request.chosen.options.items() if value is not None
    } == {}


def test_every_option_arrives(tmp_path: Path) -> None:
    """Each where the engine looks for it."""
    words = [
        "--since",
        "2024-01-01",
        "--until",
        "2024-02-01",
        "--event",
        "a",
        "--event",
        "b",
        "--exclude-event",
        "c",
        "--limit",
        "7",
    ]
    words += ["--rate", "unlimited"]
    words += [
        "--quiet-hours",
        "22:00-06:00 UTC",
        "--state",
        str(tmp_path),
        "--via",
        "http://127.0.0.1:8320/",
        "--sort",
        "--geoip",
    ]
    words += [
        "--person-properties",
        "none",
        "--accept",
        "no-zone",
        "--accept",
        "illegal-merges",
        "--store",
        "region=eu",
        "--framing",
        "json",
    ]
    request = typed("native", "x", *TARGET, *words, "--time-offset", "-01:30")
    filters = request.filters
    assert (filters.since, filters.until, filters.limit) == (
        1_704_067_200_000_000,
        1_706_745_600_000_000,
        7,
    )
    assert (filters.events, filters.exclude_events) == ({"a", "b"}, {"c"})
    assert (request.rate, request.state, request.via, request.sort, request.geoip) == (
        None,
        tmp_path,
        "http://127.0.0.1:8320",
        True,
        True,
    )
    assert request.quiet_hours == QuietHours.parse("22:00-06:00 UTC")
    assert (request.person_properties, sorted(request.accepted)) == (
        "none",
        ["illegal-merges", "no-zone"],
    )
    assert (request.reading.store, request.reading.framing) == ({"region": "eu"}, Framing.JSON)
    assert request.chosen.options == {"time-offset": -90, "framing": "json"}
    assert request.chosen.zone_said


def test_options_of_a_format(tmp_path: Path) -> None:
    """By their names on the command line, sets in order; what stands in `auto` or a default's
    place is nothing said.
    """
    words = [
        "--event-column",
        "kind",
        "--number-column",
        "b",
        "--number-column",
        "a",
        "--delimiter",
        ";",
    ]
    request = typed("csv", "x", *TARGET, *words, "--timestamp-column", "timestamp")
    said = {name: value for name, value in request.chosen.options.items() if value is not None}
    assert said == {"event-column": "kind", "number-column": ["a", "b"], "delimiter": ";"}
    assert (request.reading.framing, request.reading.delimiter) == (Framing.CSV, ";")
    assert isinstance(request.chosen.make(None), CsvConverter)
    assert request.chosen.make(None) is not request.chosen.make(None)
    assert "framing" not in typed("native", "x", *TARGET, "--framing", "auto").chosen.options


def test_columns_that_are_two_things_are_an_error() -> None:
    """Before anything is read."""
    with pytest.raises(ConfigurationError, match="columns that are to be two things: event"):
        typed("csv", "x", *TARGET, "--json-column", "event")


def test_the_configuration_stands_under_what_is_typed(tmp_path: Path) -> None:
    """Key by key."""
    section = (
        f"{{api_key: {KEY}, rate: 7, quiet_hours: 1:00-2:00, person_properties: none, store: "
        f"{{a: b, c: d}}}}"
    )
    config = configured(tmp_path, f"upstream: {{url: {URL}}}\nimport: {section}")
    request = typed("native", "x", *config)
    assert (
        request.settings.upstream.url,
        request.api_key,
        request.rate,
        request.person_properties,
    ) == (URL, KEY, 7, "none")
    assert request.quiet_hours == QuietHours.parse("1:00-2:00")
    request = typed(
        "native",
        "x",
        *config,
        "--rate",
        "8",
        "--quiet-hours",
        "none",
        "--person-properties",
        "history",
        "--store",
        "c=e",
    )
    assert (request.rate, request.quiet_hours, request.person_properties) == (8, None, "history")
    assert request.reading.store == {"a": "b", "c": "e"}


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("import: {state: /i}\nbuffer: {kind: disk, path: /b}", "/i"),
        ("buffer: {kind: disk, path: /b}", "/b/imports"),
        ("buffer: {path: /b}", "/users/imports"),
    ],
)
def test_where_imports_keep_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, root: str
) -> None:
    """Where it is said, else beside a disk buffer, else in the user's own place."""
    monkeypatch.setenv("STATE_DIRECTORY", "/users")
    assert typed("native", "x", *TARGET, *configured(tmp_path, text)).state_root == Path(root)


def test_exports_without_an_order_are_sorted() -> None:
    """Whatever is said: unsorted, nearly each profile would be a request of its own."""
    assert typed("mixpanel-profiles", "x", *TARGET, "--api-key", KEY).sort
    assert not typed("mixpanel", "x", *TARGET, "--api-key", KEY).sort
    assert typed("mixpanel", "x", *TARGET, "--api-key", KEY, "--sort").sort


def test_rules_of_the_configuration_and_of_a_file_are_the_same_job(tmp_path: Path) -> None:
    """What they say counts, not where they stand."""
    mapping = "{event: .name, distinct_id: .who, timestamp: {from: .at}}"
    config = configured(tmp_path, f"import: {{mapping: {mapping}}}\nupstream: {{url: {URL}}}")
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    by_config = typed("mapping", "x", *config, "--api-key", KEY)
    by_file = typed("mapping", "x", *TARGET, "--mapping", str(file))
    assert by_config.chosen.options == by_file.chosen.options
    assert by_file.chosen.options["mapping"] == {
        "event": ".name",
        "distinct_id": ".who",
        "timestamp": {"from": ".at"},
    }
    assert isinstance(by_file.chosen.make(None), MappedConverter)
    assert (by_file.chosen.time_fields, by_file.chosen.zone_said) == (("at",), False)


def test_another_key_of_hashes_is_another_job(tmp_path: Path) -> None:
    """Its hashes are others; of the key itself nothing is kept."""
    options = []
    for number, secret in enumerate(
        ("hunter2-hunter2-hunter2", "hunter3-hunter3-hunter3", "hunter2-hunter2-hunter2\n")
    ):
        salt = tmp_path / f"salt{number}"
        file = tmp_path / "rules.yaml"
        salt.write_text(secret)
        file.write_text(f"{RULES}hash: {{field: .who, salt_file: {salt}}}\n")
        options.append(typed("mapping", "x", *TARGET, "--mapping", str(file)).chosen.options)
    assert options[0] == options[2] != options[1]
    assert "hunter" not in str(options)


@cases(
    ("text", "reported"),
    [
        (None, "can't be read: No such file"),
        ("", "has no rules"),
        ("evnt: .x", r"rules\.yaml:1: evnt: unknown setting"),
        ("event: .[", r"event: jq can't compile"),
        (
            "event: .x\ntimestamp: {format: unix}",
            r"timestamp\.from is missing|timestamp\.from: is missing",
        ),
        ("event: .x\nhash: {field: .y, salt_file: /no/where}", "salt_file"),
    ],
)
def test_rules_that_cannot_be_used_are_reported(
    tmp_path: Path, text: str | None, reported: str
) -> None:
    """With file and line where there is one; nothing points at the daemon's configuration."""
    file = tmp_path / "rules.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=reported) as raised:
        typed("mapping", "x", *TARGET, "--mapping", str(file))
    assert "config check" not in raised.value.hint


def test_a_mapping_without_rules_is_an_error() -> None:
    """It says where they belong."""
    with pytest.raises(ConfigurationError, match="the format mapping has no rules"):
        typed("mapping", "x", *TARGET)


@cases(
    ("words", "reported"),
    [
        (("--accept", "nonsense"), "no finding is called 'nonsense'"),
        (("--since", "2025-01-01", "--until", "2024-01-01"), "no event is left"),
        (("--quiet-hours", "soon"), "--quiet-hours"),
        (("--rate", "0"), "--rate"),
        (("--time-offset", "2"), "--time-offset"),
        (("--via", "nowhere"), "--via: it must begin with http"),
        (("--upstream", "https://h.example.com/batch/"), "--upstream: it is the base address"),
        (("--store", "x"), "--store"),
        (("--api-key", "phx_0123456789hunter2"), "--api-key: it is a personal key"),
    ],
)
def test_what_cannot_be_meant_is_said_before_anything_is_opened(
    words: tuple[str, ...], reported: str
) -> None:
    """By the option's name, and without the key."""
    with pytest.raises(ConfigurationError, match=reported) as raised:
        typed("native", "x", *TARGET, *words)
    assert "hunter2" not in raised.value.message + raised.value.hint


def test_no_address_is_an_error_unless_nothing_is_sent() -> None:
    """A look needs none; a daemon that is named is enough."""
    with pytest.raises(ConfigurationError, match="--upstream URL is missing"):
        typed("native", "x", "--api-key", KEY)
    assert typed("native", "x", "--dry-run").api_key == ""
    assert (
        typed("native", "x", "--api-key", KEY, "--via", "http://127.0.0.1:8320").via
        == "http://127.0.0.1:8320"
    )


def test_the_key_of_a_file(tmp_path: Path) -> None:
    """The only one in it."""
    file = tmp_path / "key"
    file.write_text(f"# the shop\n{KEY}\n")
    config = configured(tmp_path, f"import: {{api_key_file: {file}}}\nupstream: {{url: {URL}}}")
    assert typed("native", "x", *config).api_key == KEY
    file.write_text(f"{KEY}\n{KEY}2\n")
    with pytest.raises(ConfigurationError, match="contains 2 keys"):
        typed("native", "x", *config)
    file.unlink()
    with pytest.raises(ConfigurationError, match=r"import\.api_key_file: .* can't be read"):
        typed("native", "x", *config)


def test_a_key_beside_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's counts; both in one place are an error."""
    file = tmp_path / "key"
    file.write_text(KEY)
    one = configured(tmp_path, f"import: {{api_key_file: {file}}}\nupstream: {{url: {URL}}}")
    monkeypatch.setenv("FORWARDER_IMPORT__API_KEY", "phc_environment")
    assert typed("native", "x", *one).api_key == "phc_environment"
    monkeypatch.setenv("FORWARDER_IMPORT__API_KEY_FILE", str(file))
    with pytest.raises(
        ConfigurationError, match=r"import\.api_key and import\.api_key_file are both set"
    ):
        typed("native", "x", *one)


def test_a_missing_key_is_asked_for_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal; elsewhere the error says how else to give it."""
    with pytest.raises(ConfigurationError, match="the project key is missing") as raised:
        typed("native", "x", "--upstream", URL)
    assert "FORWARDER_IMPORT__API_KEY" in raised.value.hint
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("getpass.getpass", lambda *_: f" {KEY}\n")
    assert typed("native", "x", "--upstream", URL).api_key == KEY
    monkeypatch.setattr("getpass.getpass", lambda *_: "phx_hunter2hunter2")
    with pytest.raises(ConfigurationError, match="personal key") as raised:
        typed("native", "x", "--upstream", URL)
    assert "hunter2" not in raised.value.message


def test_a_configuration_that_may_not_be_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The usual one is the daemon's; that is said."""
    opens = os.open

    def refuse(path: Any, *arguments: Any, **named: Any) -> int:
        if path == usual(tmp_path):
            raise PermissionError(str(path))
        return opens(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert typed("native", "x", *TARGET).settings.upstream.url == URL
    assert "is not readable by this user and is skipped" in capsys.readouterr().err


@cases(
    ("text", "micros"),
    [
        ("2024-01-01", 1_704_067_200_000_000),
        ("2024-01-01T01:00:00+01:00", 1_704_067_200_000_000),
        ("2024-01-01 00:00:00.5", 1_704_067_200_500_000),
        ("1704067200", 1_704_067_200_000_000),
    ],
)
def test_times(text: str, micros: int) -> None:
    """Dates, ISO 8601, and epochs; UTC where no zone is named."""
    assert moment("--since", text) == micros


@cases("text", ["yesterday", "48h", "", "2024-13-01"])
def test_a_time_that_moves_is_none(text: str) -> None:
    """The same command has to mean the same import tomorrow."""
    with pytest.raises(ConfigurationError, match=r"--until: .* is not a time"):
        moment("--until", text)


@cases(
    ("text", "minutes"),
    [
        ("0", 0),
        ("UTC", 0),
        ("z", 0),
        ("+02:00", 120),
        ("-0830", -510),
        ("+5:45", 345),
        ("-00:30", -30),
    ],
)
def test_offsets(text: str, minutes: int) -> None:
    """With their sign, in hours and minutes."""
    assert time_offset(text) == minutes


@pytest.mark.slow
def test_a_zone_or_an_offset_is_what_times_without_one_are(tmp_path: Path) -> None:
    """Typed or configured; what is typed wins, and each names the import that it is of."""
    config = configured(tmp_path, "import: {zone: Europe/Berlin, encoding: utf-16}")
    for words, options in (
        (("--zone", "Asia/Tokyo"), {"zone": "Asia/Tokyo"}),
        (("--zone", "UTC"), {"zone": "UTC"}),
        (("--zone", "+02:00"), {"zone": "+02:00"}),
        (("--time-offset", "+02:00"), {"time-offset": 120}),
        (config, {"zone": "Europe/Berlin", "encoding": "utf-16"}),
        ((*config, "--zone", "Asia/Tokyo", "--encoding", "utf-8"), {"zone": "Asia/Tokyo"}),
        (
            (*config, "--time-offset", "0", "--encoding", "latin-1"),
            {"time-offset": 0, "encoding": "iso8859-1"},
        ),
    ):
        for name in ("native", "csv", "segment", "amplitude", "mixpanel", "mixpanel-profiles"):
            request = typed(name, "x", *TARGET, *words)
            assert {
                key: value for key, value in request.chosen.options.items() if value is not None
            } == options
            assert request.chosen.zone_said


@cases(
    ("words", "message", "hint"),
    [
        (
            ("--zone", "Europe/Berlin", "--time-offset", "+01:00"),
            "--zone can't be beside --time-offset",
            "Keep one of the two",
        ),
        (
            ("--zone", "Europe/Berln"),
            "--zone: 'Europe/Berln' is no zone",
            "Did you mean Europe/Berlin?",
        ),
        (("--zone", "berlin"), "--zone: 'berlin' is no zone", "Did you mean Europe/Berlin?"),
        (
            ("--zone", "Los Angeles"),
            "--zone: 'Los Angeles' is no zone",
            "Did you mean America/Los_Angeles?",
        ),
        (
            ("--zone", "PST"),
            "--zone: 'PST' is an abbreviation, which is no zone",
            "Did you mean America/Los_Angeles?",
        ),
        (
            ("--zone", "XYZ"),
            "--zone: 'XYZ' is an abbreviation, which is no zone",
            "Write a name such as Europe/Berlin",
        ),
        (
            ("--zone", "Mars/Base"),
            "--zone: 'Mars/Base' is no zone",
            "Write a name such as Europe/Berlin",
        ),
        (
            ("--time-offset", "Europe/Berlin"),
            "--time-offset: 'Europe/Berlin' is not an offset",
            "--zone Europe/Berlin",
        ),
        (
            ("--encoding", "utf-61"),
            "--encoding: 'utf-61' is not an encoding",
            "Did you mean utf-16",
        ),
    ],
)
def test_what_is_no_zone_or_encoding_says_what_may_be_meant(
    words: tuple[str, ...], message: str, hint: str
) -> None:
    """Before anything is read."""
    with pytest.raises(ConfigurationError) as raised:
        typed("csv", "x", *TARGET, *words)
    assert message in raised.value.message
    assert hint in raised.value.hint


@cases("text", ["2", "120", "+2", "02:00", "+02:60", "+15:00", "Europe/Berlin", ""])
def test_an_offset_that_could_mean_two_things_is_none(text: str) -> None:
    """Two could be hours or minutes."""
    with pytest.raises(ConfigurationError, match="is not an offset"):
        time_offset(text)


@cases(
    ("text", "events"),
    [
        ("2000", 2000),
        ("0.5", 0.5),
        ("2,000", 2000),
        ("unlimited", None),
        ("Unlimited", None),
        ("10k", 10_000),
        ("100/s", 100),
    ],
)
def test_rates(text: str, events: float | None) -> None:
    """Events a second, or no limit."""
    assert rate(text) == events


@cases("text", ["0", "-1", "fast", "nan", "inf", "1e9", ""])
def test_an_invalid_rate_is_rejected(text: str) -> None:
    """Nothing and everything aren't rates."""
    with pytest.raises(ConfigurationError, match="invalid rate"):
        rate(text)


def test_options_of_a_store() -> None:
    """The text may hold an equals sign, and is in no error: it may be a secret."""
    assert pairs("--store", ["region=eu", "secret_access_key=a=b"]) == {
        "region": "eu",
        "secret_access_key": "a=b",
    }
    for wrong in ("hunter2", "=hunter2"):
        with pytest.raises(ConfigurationError) as raised:
            pairs("--store", [wrong])
        assert "hunter2" not in raised.value.message + raised.value.hint


def test_characters() -> None:
    """A tab can't be typed in most shells."""
    assert [character("--delimiter", text) for text in (";", r"\t", "tab", "\t")] == [
        ";",
        "\t",
        "\t",
        "\t",
    ]
    with pytest.raises(ConfigurationError, match="is not one character"):
        character("--delimiter", "ab")
