"""The commands of the management API as they are made of the contract's table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from forwarder.cli.manage import app
from forwarder.cli.manage_fields import (
    OWNERS,
    RUNS,
    WORDS,
    FieldKind,
    endpoint_of,
    example,
    fields_of,
)
from forwarder.contract.endpoints import ENDPOINTS, Endpoint
from forwarder.contract.resources import BatchExportRun, User
from tests.cli.managing import BY_NAME, typed
from tests.support.cases import cases

ROOT: Any = get_command(app)


def command(endpoint: Endpoint[Any, Any]) -> Any:
    """The command of an endpoint."""
    return ROOT.commands[endpoint.resource].commands[endpoint.verb]


def options(endpoint: Endpoint[Any, Any]) -> dict[str, Any]:
    """The options of its command, by each of their spellings."""
    parameters = [
        parameter for parameter in command(endpoint).params if parameter.param_type_name == "option"
    ]
    return {
        name: parameter
        for parameter in parameters
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def test_there_is_a_command_for_each_endpoint_and_no_other() -> None:
    """Resources and verbs are the table's, in its order."""
    made = [
        f"{resource} {verb}" for resource, group in ROOT.commands.items() for verb in group.commands
    ]
    assert made == [endpoint.name for endpoint in ENDPOINTS]


@cases("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_what_a_command_takes_is_what_its_endpoint_takes(endpoint: Endpoint[Any, Any]) -> None:
    """Ids in the order of the path, options for organization or project, each field, and for pages
    and removals what they need.
    """
    arguments = [
        parameter.name
        for parameter in command(endpoint).params
        if parameter.param_type_name == "argument"
    ]
    assert arguments == [
        parameter.name for parameter in endpoint.parameters if parameter.name not in OWNERS
    ]
    known_options = options(endpoint)
    owners = {
        f"--{OWNERS[parameter.name]}"
        for parameter in endpoint.parameters
        if parameter.name in OWNERS
    }
    assert {name for name in ("--organization", "--project") if name in known_options} == owners
    payload = endpoint.request.__annotations__ if endpoint.takes_body else {}
    assert [field.name for field in fields_of(endpoint)] == list(payload)
    assert {field.option for field in fields_of(endpoint)} <= set(known_options)
    assert ("--data" in known_options) == endpoint.takes_body
    assert (
        ("--limit" in known_options)
        == ("--offset" in known_options)
        == ("--all" in known_options)
        == endpoint.paginated
    )
    assert ("--yes" in known_options) == endpoint.destructive


@cases("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_no_two_options_are_spelled_the_same(endpoint: Endpoint[Any, Any]) -> None:
    """A field never hides an option that all commands have; and no option takes a key."""
    spelled = [
        name
        for parameter in command(endpoint).params
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    assert len(spelled) == len(set(spelled))
    assert "--api-key" not in spelled


@cases("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_help_says_what_it_does_and_what_the_key_needs(endpoint: Endpoint[Any, Any]) -> None:
    """The contract's line, the scope, and an example that names its command."""
    done = typed(*endpoint.name.split(), "--help")
    assert done.code == 0
    said = " ".join(done.out.split())
    assert endpoint.summary in said
    assert f"requires the scope {endpoint.scope}." in said
    assert example(endpoint) in said


@cases("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_examples_name_options_that_there_are(endpoint: Endpoint[Any, Any]) -> None:
    """An example can be typed: as many ids as the command takes, and options that it has."""
    words = example(endpoint).split()[4:]
    assert {word for word in words if word.startswith("--")} <= set(options(endpoint))
    ids = [word for word in words if not word.startswith("--")][: len(endpoint.parameters)]
    assert len(ids) >= sum(parameter.name not in OWNERS for parameter in endpoint.parameters)


def inner(response: Any) -> Iterator[str]:
    """The fields of a resource, and of the people in it, as columns name them."""
    yield from response.__annotations__
    yield from (
        f"user.{name}" for name in User.__annotations__ if "user" in response.__annotations__
    )


def test_every_resource_has_words_that_fit_the_contract() -> None:
    """A line of help each; what is shown and asked for are fields that it
    has; each list has columns.
    """
    assert list(WORDS) == list(dict.fromkeys(endpoint.resource for endpoint in ENDPOINTS))
    for endpoint in ENDPOINTS:
        words = WORDS[endpoint.resource]
        if endpoint.paginated:
            assert {*words.columns, words.id, words.name} <= {*inner(endpoint.response), "name"}
            assert words.columns[0] == words.id
    assert set(RUNS) <= set(BatchExportRun.__annotations__)


def test_whatever_can_be_removed_can_be_named() -> None:
    """Before it goes, it is looked up by an endpoint that there is."""
    for endpoint in ENDPOINTS:
        if endpoint.destructive:
            assert endpoint_of(endpoint.resource, "get") or endpoint_of(endpoint.resource, "list")


def test_levels_and_choices_are_known_fields() -> None:
    """What is completed comes from the contract."""
    invite_fields = {field.name: field for field in fields_of(BY_NAME["invites create"])}
    assert (invite_fields["level"].kind, invite_fields["level"].choices) == (
        FieldKind.LEVEL,
        ("member", "admin", "owner"),
    )
    export = {field.name: field for field in fields_of(BY_NAME["batch-exports update"])}
    assert export["model"].choices == ("events", "persons")
    assert "every 5 minutes" in export["interval"].choices
    assert (export["filters"].kind, export["start_at"].kind, export["start_at"].nullable) == (
        FieldKind.JSON,
        FieldKind.TIME,
        True,
    )
