"""From options and `--data` to the body of a call."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from forwarder.cli.manage_request import body_of
from forwarder.core.errors import ConfigurationError
from tests.cli.managing import BY_NAME


def body(name: str, data: str | None = None, /, **options: Any) -> Any:
    """The body of an endpoint's call."""
    return body_of(BY_NAME[name], options, data)


def refused(name: str, data: str | None = None, /, **options: Any) -> str:
    """Why there is none."""
    with pytest.raises(ConfigurationError) as raised:
        body(name, data, **options)
    assert raised.value.hint
    return raised.value.message


def test_each_kind_becomes_its_json() -> None:
    """Numbers, switches, lists, times and JSON texts."""
    options = {"anonymize_ips": False, "week_start_day": "1", "app_urls": ["a", "b"], "data_attributes": '["x"]', "name": "7"}
    assert body("projects create", **options) == {**options, "week_start_day": 1, "data_attributes": ["x"]}


@pytest.mark.parametrize(("text", "level"), [("member", 1), ("Admin", 8), ("owner", 15), ("8", 8), ("3", 3)])
def test_levels_have_names_and_numbers(text: str, level: int) -> None:
    """A number that the contract doesn't know is the service's to judge."""
    assert body("members update", level=text) == {"level": level}


def test_null_empties_what_can_be_empty() -> None:
    """Only there: elsewhere it is a text like others."""
    assert body("batch-exports update", end_at="null", hogql_query="null") == {"end_at": None, "hogql_query": "null"}
    assert body("projects create", primary_dashboard="null", modifiers="null") == {"primary_dashboard": None, "modifiers": None}


def test_json_may_stand_in_a_file(tmp_path: Path) -> None:
    """For one field, or for all of the body."""
    file = tmp_path / "destination.json"
    file.write_text('\ufeff{"type": "S3"}', "utf-8")
    assert body("batch-exports update", destination=f"@{file}") == {"destination": {"type": "S3"}}
    assert body("batch-exports update", f"@{file}") == {"type": "S3"}


def test_options_go_over_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field by field; what no option knows is kept."""
    monkeypatch.setattr("sys.stdin", io.StringIO('{"domain": "a.example.com", "newer": [1]}'))
    assert body("domains create", "-", domain="b.example.com") == {"domain": "b.example.com", "newer": [1]}


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
    data = json.dumps([{"target_email": "a@b.cd", "level": 1}, {"target_email": "e@f.gh", "message": "hi"}])
    assert body("invites bulk", data, level="admin", target_email=["i@j.kl"]) == [
        {"target_email": "a@b.cd", "level": 8},
        {"target_email": "e@f.gh", "message": "hi", "level": 8},
        {"level": 8, "target_email": "i@j.kl"},
    ]
    one = '{"target_email": "a@b.cd", "message": "hi"}'
    assert body("invites bulk", one) == [{"target_email": "a@b.cd", "message": "hi"}]
    assert body("invites bulk", one, target_email=["x@y.zz"]) == [{"target_email": "x@y.zz", "message": "hi"}]


def test_a_needed_field_that_is_missing_is_named() -> None:
    """Before anything is sent, by its option; in each of several."""
    assert refused("domains create") == "--domain is missing"
    assert refused("invites bulk", '[{"target_email": "a@b.cd"}, {"level": 1}]') == "--target-email is missing"
    assert refused("invites bulk") == "--target-email is missing"


def test_an_update_wants_a_change() -> None:
    """Sending nothing would change nothing, and look as if it had."""
    assert refused("domains update") == "there is nothing to change"
    assert body("domains update", '{"newer": 1}') == {"newer": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"week_start_day": "monday"}, "--week-start-day: 'monday' is not a whole number"),
        ({"week_start_day": "٣"}, "--week-start-day: '٣' is not a whole number"),
        ({"modifiers": "{"}, "--modifiers: invalid JSON: Expecting property name"),
        ({"modifiers": "[NaN]"}, "--modifiers: invalid JSON: NaN is not allowed"),
        ({"modifiers": "[" * 100_000}, "--modifiers: JSON is nested too deeply"),
        ({"modifiers": "@/nowhere/at.all"}, "--modifiers: /nowhere/at.all can't be read: No such file"),
    ],
)
def test_what_cannot_be_meant_is_said_by_its_option(options: dict[str, Any], words: str) -> None:
    """Numbers, JSON and files that aren't any."""
    assert refused("projects create", **options).startswith(words)


@pytest.mark.parametrize("data", ["", "{", "[1]", "1", "null", '"x"', "@/nowhere/at.all"])
def test_data_that_are_no_body_are_refused(data: str) -> None:
    """The body is an object."""
    assert refused("domains create", data).startswith("--data: ")


@pytest.mark.parametrize("data", ["[1]", '[{"target_email": "a@b.cd"}, null]', "7"])
def test_data_that_are_no_list_of_bodies_are_refused(data: str) -> None:
    """Several are a list of objects."""
    assert refused("invites bulk", data).startswith("--data: ")


def test_a_secret_in_data_is_not_repeated() -> None:
    """What can't be read isn't shown."""
    assert "hunter2" not in refused("batch-exports update", '{"password": "hunter2"')


def test_an_unknown_level_says_which_there_are() -> None:
    """By their names."""
    assert refused("members update", level="boss") == "--level: 'boss' is not a level: write member, admin, owner, or a number"
