"""Address, key, ids and body of a call: from options, the environment and the configuration."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

import forwarder.cli.settings as module
from forwarder.cli.manage_request import ManagementAccess, access, body_of
from forwarder.core.errors import ConfigurationError
from tests.cli.managing import BY_NAME
from tests.support.cases import cases

KEY = "phx_0123456789hunter2good"
OTHER = "phx_0123456789hunter2else"
URL = "https://service.example.com"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings but those of the test, and no one to ask."""
    for name in [name for name in os.environ if name.startswith("FORWARDER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "none" / "forwarder.yaml")
    monkeypatch.setattr("sys.stdin", io.StringIO())


def access_of(name: str = "domains list", **typed: Any) -> ManagementAccess:
    """The access of a command."""
    return access(BY_NAME[name], typed)


def refused(name: str = "domains list", **typed: Any) -> str:
    """Why there is none; its two lines."""
    with pytest.raises(ConfigurationError) as raised:
        access_of(name, **typed)
    assert "hunter2" not in f"{raised.value.message}{raised.value.hint}"
    return f"{raised.value.message}\n{raised.value.hint}"


def settings(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """Set them in the environment."""
    for name, value in values.items():
        monkeypatch.setenv(f"FORWARDER_MANAGEMENT__{name.upper()}", value)


def written(folder: Path, text: str) -> Path:
    """A configuration file."""
    file = folder / "forwarder.yaml"
    file.write_text(text)
    return file


def test_all_of_it_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every setting has its variable, also without any file; a project may be a number."""
    settings(monkeypatch, url=f"{URL}/", api_key=KEY, organization="o", project="7", timeout="5s")
    gate = access_of("dashboards list")
    assert (gate.settings.url, gate.key, gate.ids, gate.settings.timeout) == (
        URL,
        KEY,
        {"project_id": "7"},
        5.0,
    )
    assert access_of().ids == {"organization_id": "o"}
    assert KEY not in repr(gate)


def test_all_of_it_from_the_file(tmp_path: Path) -> None:
    """The section `management`; files that others would have to read aren't."""
    key = tmp_path / "key"
    key.write_text(f"# whose it is\n\n  {KEY}  \n")
    text = f"management: {{url: {URL}, api_key_file: {key}, organization: o, project: 7}}\n"
    text += "sources: {http: {api_keys_file: /nowhere/at.all}}\n"
    gate = access_of("dashboards list", config=written(tmp_path, text))
    assert (gate.settings.url, gate.key, gate.ids) == (URL, KEY, {"project_id": "7"})


@cases("text", ["management: {url: x}\n", "management: [\n", "managment: {}\n"])
def test_an_error_of_the_file_does_not_name_the_daemons_check(tmp_path: Path, text: str) -> None:
    """`config check` asks for an upstream, which no one needs here."""
    said = refused(config=written(tmp_path, text))
    assert said.startswith(f"the configuration has 1 thing to fix\n{tmp_path}")
    assert "config check" not in said


def test_options_go_before_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each of them."""
    settings(
        monkeypatch, url="https://old.example.com", api_key=OTHER, organization="old", timeout="5s"
    )
    (tmp_path / "key").write_text(KEY)
    gate = access_of(
        url=f"{URL}/base/", api_key_file=str(tmp_path / "key"), organization="new", timeout="1m"
    )
    assert (gate.settings.url, gate.key, gate.ids, gate.settings.timeout) == (
        f"{URL}/base",
        KEY,
        {"organization_id": "new"},
        60.0,
    )


def test_the_key_may_come_by_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-` is that."""
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{KEY}\n"))
    assert access_of(url=URL, organization="o", api_key_file="-").key == KEY


def test_of_two_keys_that_of_the_environment_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether it is the key or its file that stands there; two in one place are an error."""
    file = tmp_path / "key"
    file.write_text(OTHER)
    named, inline = (
        written(tmp_path, f"management: {{{what}}}\n")
        for what in (f"api_key_file: {file}", f"api_key: {OTHER}")
    )
    settings(monkeypatch, url=URL, organization="o", api_key=KEY)
    written(tmp_path, f"management: {{api_key_file: {file}}}\n")
    assert access_of(config=named).key == KEY
    settings(monkeypatch, api_key_file=str(file))
    assert "management.api_key and management.api_key_file are both set" in refused()
    monkeypatch.delenv("FORWARDER_MANAGEMENT__API_KEY")
    written(tmp_path, f"management: {{api_key: {KEY}}}\n")
    assert access_of(config=inline).key == OTHER


@pytest.mark.parametrize(
    ("name", "what"), [("domains list", "organization"), ("dashboards list", "project")]
)
def test_a_missing_owner_is_named_by_option_and_key(
    monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    """Each way to give it."""
    settings(monkeypatch, url=URL, api_key=KEY)
    said = refused(name)
    assert f"--{what} ID is missing" in said
    assert f"`management.{what}`" in said
    assert f"FORWARDER_MANAGEMENT__{what.upper()}" in said


def test_a_missing_address_is_named_by_option_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upstream's isn't taken for it."""
    monkeypatch.setenv("FORWARDER_UPSTREAM__URL", "https://events.example.com")
    said = refused(organization="o")
    assert "--url URL is missing" in said
    assert "`management.url`" in said


def test_a_missing_key_is_asked_for_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, unseen; elsewhere it is said how to give one."""
    said = refused(url=URL, organization="o")
    assert "the personal API key is missing" in said
    assert "--api-key-file" in said
    asked: list[str] = []

    def ask(prompt: str, _: object) -> str:
        asked.append(prompt)
        return f" {KEY} "

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", ask)
    assert "organization" in refused(url=URL)
    assert asked == []
    assert access_of(url=URL, organization="o").key == KEY
    assert asked == ["Personal API key: "]


def test_standard_input_that_is_a_terminal_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed there isn't shown, whichever way the key was asked for."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda *_: KEY)
    assert access_of(url=URL, organization="o", api_key_file="-").key == KEY


@pytest.mark.parametrize(
    "text",
    ["", "phc_hunter2hunter2", "two words hunter2", "hunter2\x00", "hunter2\u00e9", "a" * 201],
)
def test_what_is_typed_may_be_no_key(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Then it is said what one looks like, without repeating it."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", lambda *_: text)
    assert "personal API key" in refused(url=URL, organization="o")


def test_a_file_of_an_editor_that_marks_its_encoding(tmp_path: Path) -> None:
    """The mark at its beginning is no part of the key."""
    (tmp_path / "key").write_text(f"{KEY}\r\n", "utf-8-sig")
    assert access_of(url=URL, organization="o", api_key_file=str(tmp_path / "key")).key == KEY


@cases(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        (f"{KEY}\n{OTHER}\n", "holds 2 keys"),
        ("\nphc_hunter2hunter2", "line 2: it is a project key"),
        (f'"{KEY} "', "line 1: it can't be a personal API key"),
    ],
)
def test_a_file_holds_one_key(tmp_path: Path, text: str, words: str) -> None:
    """Anything else is reported by its place, without repeating it."""
    (tmp_path / "key").write_text(text)
    said = refused(url=URL, organization="o", api_key_file=str(tmp_path / "key"))
    assert said.startswith(f"--api-key-file: {tmp_path / 'key'}")
    assert words in said


def test_a_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is reported by the setting that names it."""
    settings(monkeypatch, url=URL, organization="o", api_key_file="/nowhere/at.all")
    assert refused().startswith(
        "management.api_key_file: /nowhere/at.all can't be read (No such file or directory)"
    )


@cases(
    "url",
    [
        "service.example.com",
        "https://user:hunter2@service.example.com",
        f"{URL}/api/",
        f"{URL}?a=1",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    """Is reported by its option, without what may be secret in it."""
    assert refused(url=url, organization="o").startswith("--url: it ")


@cases("timeout", ["5", "soon", "0s", "2h", "never"])
def test_a_time_that_is_none(timeout: str) -> None:
    """Is reported by its option."""
    assert refused(url=URL, organization="o", timeout=timeout).startswith("--timeout: ")


def test_the_usual_file_may_be_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon's own configuration is read if this user may; else it is
    passed over, and that is said.
    """
    file = written(tmp_path, f"management: {{url: {URL}, organization: o, api_key: {KEY}}}\n")
    monkeypatch.setattr(module, "DEFAULT_FILE", file)
    assert access_of().key == KEY
    assert capsys.readouterr().err == ""

    opens = os.open

    def closed(path: Any, *arguments: Any, **named: Any) -> int:
        if path == file:
            raise PermissionError
        return opens(path, *arguments, **named)

    monkeypatch.setattr(os, "open", closed)
    assert "--url URL is missing" in refused()
    assert capsys.readouterr().err == (
        f"{file} is not readable by this user and is skipped. Name another file with "
        "--config FILE.\n"
    )


@pytest.mark.parametrize(
    ("url", "times"),
    [("http://sandbox:8322", 1), ("http://127.0.0.1:8322", 0), ("http://[::1]:1", 0), (URL, 0)],
)
def test_a_key_in_the_clear_is_reported(
    url: str, times: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone on the way to another machine could read it."""
    settings(monkeypatch, api_key=KEY)
    access_of(url=url, organization="o")
    assert capsys.readouterr().err.count("without TLS") == times


def test_every_error_of_a_section_is_reported(tmp_path: Path) -> None:
    """With file, line and key; a section that is misspelled, too."""
    file = written(
        tmp_path,
        "management:\n  urll: x\n  api_key: phc_hunter2hunter2\nmanagment: {}\nlog: {level: x}\n",
    )
    said = refused(config=file)
    assert f"{file}:2: management.urll: unknown setting" in said
    assert f"{file}:3: management.api_key: it is a project key" in said
    assert f"{file}:4: managment: unknown setting" in said
    assert f"{file}:5: log.level: must be" in said


def body(name: str, data: str | None = None, /, **options: Any) -> Any:
    """The body of an endpoint's call."""
    return body_of(BY_NAME[name], options, data)


def rejected(name: str, data: str | None = None, /, **options: Any) -> str:
    """Why there is none."""
    with pytest.raises(ConfigurationError) as raised:
        body(name, data, **options)
    assert raised.value.hint
    return raised.value.message


def test_each_kind_becomes_its_json() -> None:
    """Numbers, switches, lists, times and JSON texts."""
    options = {
        "anonymize_ips": False,
        "week_start_day": "1",
        "app_urls": ["a", "b"],
        "data_attributes": '["x"]',
        "name": "7",
    }
    assert body("projects create", **options) == {
        **options,
        "week_start_day": 1,
        "data_attributes": ["x"],
    }


@cases(("text", "level"), [("member", 1), ("Admin", 8), ("owner", 15), ("8", 8), ("3", 3)])
def test_levels_have_names_and_numbers(text: str, level: int) -> None:
    """A number that the contract doesn't know is the service's to check."""
    assert body("members update", level=text) == {"level": level}


def test_null_empties_what_can_be_empty() -> None:
    """Only there: elsewhere it is a text like others."""
    assert body("batch-exports update", end_at="null", hogql_query="null") == {
        "end_at": None,
        "hogql_query": "null",
    }
    assert body("projects create", primary_dashboard="null", modifiers="null") == {
        "primary_dashboard": None,
        "modifiers": None,
    }


def test_json_may_stand_in_a_file(tmp_path: Path) -> None:
    """For one field, or for all of the body."""
    file = tmp_path / "destination.json"
    file.write_text('\ufeff{"type": "S3"}', "utf-8")
    assert body("batch-exports update", destination=f"@{file}") == {"destination": {"type": "S3"}}
    assert body("batch-exports update", f"@{file}") == {"type": "S3"}


def test_options_go_over_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field by field; what no option knows is kept."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"domain": "a.example.com", "newer": [1]}'))
    assert body("domains create", "-", domain="b.example.com") == {
        "domain": "b.example.com",
        "newer": [1],
    }


def test_nothing_typed_is_an_empty_body() -> None:
    """Where nothing is needed; where no body is taken there is none."""
    assert body("batch-exports pause") == {}
    assert body("projects create", app_urls=[]) == {}
    assert body("batch-exports logs") is None


def test_several_invites() -> None:
    """One for each address; other options hold for all, over what the data say."""
    assert body("invites bulk", target_email=["a@b.cd", "e@f.gh"], level="admin") == [
        {"target_email": "a@b.cd", "level": 8},
        {"target_email": "e@f.gh", "level": 8},
    ]
    data = json.dumps(
        [{"target_email": "a@b.cd", "level": 1}, {"target_email": "e@f.gh", "message": "hi"}]
    )
    assert body("invites bulk", data, level="admin", target_email=["i@j.kl"]) == [
        {"target_email": "a@b.cd", "level": 8},
        {"target_email": "e@f.gh", "message": "hi", "level": 8},
        {"level": 8, "target_email": "i@j.kl"},
    ]
    one = '{"target_email": "a@b.cd", "message": "hi"}'
    assert body("invites bulk", one) == [{"target_email": "a@b.cd", "message": "hi"}]
    assert body("invites bulk", one, target_email=["x@y.zz"]) == [
        {"target_email": "x@y.zz", "message": "hi"}
    ]


def test_a_needed_field_that_is_missing_is_named() -> None:
    """Before anything is sent, by its option; in each of several."""
    assert rejected("domains create") == "--domain is missing"
    assert (
        rejected("invites bulk", '[{"target_email": "a@b.cd"}, {"level": 1}]')
        == "--target-email is missing"
    )
    assert rejected("invites bulk") == "--target-email is missing"


def test_an_update_wants_a_change() -> None:
    """Sending nothing would change nothing, and look as if it had."""
    assert rejected("domains update") == "there is nothing to change"
    assert body("domains update", '{"newer": 1}') == {"newer": 1}


@cases(
    ("options", "words"),
    [
        ({"week_start_day": "monday"}, "--week-start-day: 'monday' is not a whole number"),
        ({"week_start_day": "٣"}, "--week-start-day: '٣' is not a whole number"),
        ({"modifiers": "{"}, "--modifiers: invalid JSON: Expecting property name"),
        ({"modifiers": "[NaN]"}, "--modifiers: invalid JSON: NaN is not allowed"),
        ({"modifiers": "[" * 100_000}, "--modifiers: JSON is nested too deeply"),
        (
            {"modifiers": "@/nowhere/at.all"},
            "--modifiers: /nowhere/at.all can't be read: No such file",
        ),
    ],
)
def test_what_cannot_be_meant_is_said_by_its_option(options: dict[str, Any], words: str) -> None:
    """Numbers, JSON and files that aren't any."""
    assert rejected("projects create", **options).startswith(words)


@cases("data", ["", "{", "[1]", "1", "null", '"x"', "@/nowhere/at.all"])
def test_data_that_are_no_body_are_refused(data: str) -> None:
    """The body is an object."""
    assert rejected("domains create", data).startswith("--data: ")


@cases("data", ["[1]", '[{"target_email": "a@b.cd"}, null]', "7"])
def test_data_that_are_no_list_of_bodies_are_refused(data: str) -> None:
    """Several are a list of objects."""
    assert rejected("invites bulk", data).startswith("--data: ")


def test_a_secret_in_data_is_not_repeated() -> None:
    """What can't be read isn't shown."""
    assert "hunter2" not in rejected("batch-exports update", '{"password": "hunter2"')


def test_an_unknown_level_says_which_there_are() -> None:
    """By their names."""
    assert (
        rejected("members update", level="boss")
        == "--level: 'boss' is not a level: write member, admin, owner, or a number"
    )
