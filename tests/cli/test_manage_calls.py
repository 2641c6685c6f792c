"""Calls of `forwarder manage`, and what it prints."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from forwarder.cli.manage_calls import (
    PagedTable,
    cell,
    columns_of,
    print_answer,
    print_json,
    print_lines,
)
from tests.cli.managing import BY_NAME, Manager, Typed, aside, line, typed
from tests.contract.calls import serving
from tests.support import management as seed
from tests.support.cases import cases
from tests.support.commands import running

KEY = "phx_0123456789hunter2good"
REMOVALS = {
    "domains": (f"domain example.com ({seed.DOMAIN})", "domains list"),
    "invites": (f"invite of nina@example.com ({seed.INVITE})", "invites list"),
    "members": (f"member mia@example.com ({seed.MEMBER})", "members list"),
    "batch-exports": (f"batch export All events ({seed.EXPORT})", None),
}


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[Manager]:
    """Someone who types commands for a sandbox."""
    async with serving(tmp_path) as service:
        yield Manager(service)


def without_yes(name: str) -> list[str]:
    """The command as it asks."""
    return [word for word in line(name) if word != "--yes"]


@pytest.mark.parametrize("resource", REMOVALS)
async def test_a_removal_names_what_goes_and_asks(manager: Manager, resource: str) -> None:
    """By its name and its id; without a yes it stays, and the exit code is 1."""
    words = without_yes(f"{resource} delete")
    (thing, _) = REMOVALS[resource]
    refused = await manager.type(*words)
    assert (refused.code, refused.out) == (1, "")
    assert (
        refused.err
        == f"Remove {thing}? [y/N] \nNothing was changed. Use --yes to skip this question.\n"
    )
    assert (await manager.type(*words, stdin="n\n")).code == 1
    assert (await manager.type(*words, stdin="y\n")).code == 0
    assert (await manager.type(*words, stdin="y\n")).code == 1


def test_every_removal_asks() -> None:
    """None is left out above."""
    assert set(REMOVALS) == {
        endpoint.resource for endpoint in BY_NAME.values() if endpoint.destructive
    }


async def test_what_is_not_there_is_not_asked_about(manager: Manager) -> None:
    """Where it can be read from the call; else the id alone is asked about, and the service says
    so.
    """
    gone = await manager.type("domains", "delete", seed.UNKNOWN, stdin="y\n")
    assert (gone.code, "Remove" in gone.err, "HTTP 404" in gone.err) == (1, False, True)
    unlisted = await manager.type("invites", "delete", seed.UNKNOWN, stdin="y\n")
    assert (
        unlisted.code,
        f"Remove invite of {seed.UNKNOWN}?" in unlisted.err,
        "HTTP 404" in unlisted.err,
    ) == (1, True, True)


async def test_an_id_may_be_written_large(manager: Manager) -> None:
    """It is found by whom it means."""
    done = await manager.type("members", "delete", seed.MEMBER.upper(), stdin="y\n")
    assert (done.code, "Remove member mia@example.com" in done.err) == (0, True)


async def test_bodies_of_the_real_service_are_printed(tmp_path: Path) -> None:
    """Where contract and service disagree, what comes is shown."""
    async with serving(tmp_path, strict=True) as service:
        manager = Manager(service)
        assert (await manager.call("batch-exports pause")).json == {"paused": True}
        assert list((await manager.call("batch-exports backfill")).json) == ["backfill_id"]
        assert list((await manager.call("batch-exports logs")).json) == ["results"]
        shown = await manager.type("domains", "verify", seed.DOMAIN)
        assert "verification_challenge" in shown.out


async def test_an_offset_beside_all_is_wrong_usage(manager: Manager) -> None:
    """One of them can't be meant."""
    done = await manager.type("domains", "list", "--all", "--offset", "1")
    assert (done.code, "--offset and --all exclude each other" in done.err) == (2, True)


def test_standard_input_is_one() -> None:
    """It can't be the key and the data."""
    done = typed("domains", "create", "--data", "-", "--api-key-file", "-", stdin="{}")
    assert (done.code, "can't both be read from standard input" in done.err) == (2, True)


@cases(
    "words",
    [
        ["nonsense"],
        ["domains", "nonsense"],
        ["domains", "get"],
        ["domains", "list", "--limit", "0"],
        ["domains", "list", "--nonsense"],
    ],
)
def test_what_the_table_does_not_have_is_wrong_usage(words: list[str]) -> None:
    """Exit code 2, and how it is used."""
    done = typed(*words)
    assert (done.code, done.out, "Usage: " in done.err) == (2, "", True)


def test_an_id_that_is_none_is_not_sent() -> None:
    """A slash would make another path of it."""
    done = typed(
        "domains", "get", "../invites", url="http://127.0.0.1:9", organization="o", api_key=KEY
    )
    assert (done.code, done.out, "no id holds slashes" in done.err) == (2, "", True)


def test_a_service_that_is_not_there() -> None:
    """Exit code 3, where it was looked for, and no key."""
    done = typed(
        "domains",
        "list",
        "--timeout",
        "1s",
        url="http://127.0.0.1:9",
        organization="o",
        api_key=KEY,
    )
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("Error: domains list: ")
    assert "hunter2" not in done.err


Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def odd(answer: Answer) -> AsyncIterator[str]:
    """A service that answers everything so; its address."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def asked(answer: Answer, *words: str) -> Typed:
    """What a command says of such a service."""
    async with odd(answer) as url:
        return await aside(*words, "--timeout", "5s", url=url, api_key=KEY, organization="o")


def error(status: int, **more: Any) -> Answer:
    """An error of that status, with words that a terminal would obey."""

    async def answer(_: web.Request) -> web.StreamResponse:
        body = {
            "type": "t",
            "code": "c\x1b[2J",
            "detail": f"\x1b]0;x\x07 no {KEY}",
            "attr": "f\x9b",
        }
        return web.json_response(body, status=status, **more)

    return answer


@cases(
    ("status", "code"),
    [
        (400, 1),
        (401, 3),
        (403, 3),
        (404, 1),
        (407, 3),
        (408, 3),
        (409, 1),
        (413, 1),
        (429, 3),
        (302, 3),
        (500, 3),
    ],
)
async def test_exit_codes_tell_kinds_of_refusals(status: int, code: int) -> None:
    """The service says no (1), or can't or won't now (3); in words, without what a terminal would
    obey, and without the key.
    """
    done = await asked(
        error(status, headers={"Retry-After": "60", "Location": "/"}),
        "domains",
        "create",
        "--domain",
        "a.b",
    )
    assert (done.code, done.out) == (code, "")
    assert f"HTTP {status}" in done.err
    assert done.err.replace("\n", "").isprintable()
    assert "hunter2" not in done.err


async def test_a_list_that_breaks_off_is_printed_as_far_as_it_came() -> None:
    """Then the error, and its exit code."""
    item = {"id": "a", "domain": "\x1b[31mred"}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "offset" in request.query:
            return web.json_response({}, status=404)
        following = f"{request.url}?limit=1&offset=1"
        return web.json_response(
            {"count": 2, "next": following, "previous": None, "results": [item]}
        )

    done = await asked(answer, "domains", "list", "--all", "--output", "json")
    assert (done.code, json.loads(done.out)) == (1, item)
    assert "HTTP 404" in done.err


@pytest.mark.slow
async def test_the_reader_of_a_list_may_leave(tmp_path: Path) -> None:
    """As with `head`: no traceback."""
    async with serving(tmp_path) as service:
        settings = {
            "URL": service.client.sandbox.url,
            "API_KEY": seed.OWNER_KEY,
            "ORGANIZATION": seed.ORGANIZATION,
        }
        settings |= {"PROJECT": str(seed.PROJECT)}
        environ = {f"FORWARDER_MANAGEMENT__{name}": value for name, value in settings.items()}
        async with running(
            "manage", "dashboards", "list", "--limit", "1", "--all", "--output", "json", env=environ
        ) as command:
            assert json.loads(await command.line("Dashboard 1"))["id"] == 1
            assert await command.ended() == 0
            assert not any("Traceback" in output_line for output_line in command.lines)


@pytest.mark.slow
async def test_an_interruption_is_130() -> None:
    """Ctrl-C while the service is silent."""
    heard = asyncio.Event()
    gone = asyncio.Event()

    async def answer(_: web.Request) -> web.StreamResponse:
        heard.set()
        await gone.wait()
        return web.Response()

    async with odd(answer) as url:
        environ = {
            "FORWARDER_MANAGEMENT__URL": url,
            "FORWARDER_MANAGEMENT__API_KEY": KEY,
            "FORWARDER_MANAGEMENT__ORGANIZATION": "o",
        }
        async with running("manage", "domains", "list", env=environ) as command:
            await heard.wait()
            command.send(signal.SIGINT)
            code = await command.ended()
        gone.set()
    assert (code, [output_line for output_line in command.lines if "Traceback" in output_line]) == (
        130,
        [],
    )


ODD = "[red]x[/red]\x1b[2J\x9b\u202e\ud800\n"
"""Markup, an escape, a C1 control, a mark of direction, half of a character, a break of line."""
SHOWN = r"[red]x[/red]\u001b[2J\u009b\u202e\ud800\u000a"


class FakeTerminal(io.StringIO):
    """What takes itself for a screen."""

    def isatty(self) -> bool:
        """It does."""
        return True


def test_json_is_what_was_answered(capsys: pytest.CaptureFixture[str]) -> None:
    """Value by value, whatever it holds; on one line where lists stream; nothing of nothing."""
    value = {"a": [ODD, {"ä": 1.5}], "b": None}
    print_json(value)
    print_lines([value])
    print_json(None)
    out = capsys.readouterr().out
    whole = out[: out.index("\n}\n") + 3]
    line = out[out.index("\n}\n") + 3 :]
    assert json.loads(whole) == json.loads(line) == value
    assert line.count("\n") == 1
    assert "ä" in line
    assert out.replace("\n", "").isprintable()


def test_tables_show_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No markup of others is obeyed, nor are their control characters."""
    PagedTable(("id", "name")).print([{"id": 1, "name": ODD}])
    print_answer(BY_NAME["domains get"], {}, {"domain": ODD, ODD: 1})
    out = capsys.readouterr().out
    assert out.count(SHOWN) == 3
    assert out.replace("\n", "").isprintable()


@cases(
    ("field", "value", "shown"),
    [
        ("a", None, ""),
        ("a", True, "yes"),
        ("a", False, "no"),
        ("a", 8, "8"),
        ("level", 8, "admin"),
        ("level", 3, "3"),
        ("a", "", ""),
        ("created_by", {"id": 1, "email": "olga@example.com"}, "olga@example.com"),
        ("tags", ["a", "b"], "a, b"),
        ("tags", ["a", 1], '["a", 1]'),
        ("a", {"b": "ü\x07"}, '{"b": "ü\\u0007"}'),
    ],
)
def test_cells(field: str, value: Any, shown: str) -> None:
    """A value as a person reads it."""
    assert cell(field, value) == shown


def test_tables_are_not_cut_for_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Anyone who reads a pipe gets everything, whatever the width of the screen."""
    PagedTable(("id", "name")).print([{"id": "i" * 36, "name": "n" * 3000}])
    print_answer(BY_NAME["domains get"], {}, {"saml_x509_cert": "c" * 3000})
    out = capsys.readouterr().out
    assert "n" * 3000 in out
    assert "c" * 3000 in out


def test_lists_are_cut_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its width, the id excepted: it is what a thing is named by. The fields
    of a single thing aren't.
    """
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "dumb")  # which has 80 columns
    table = PagedTable(("id", "name"))
    for _ in range(2):
        table.print([{"id": "i" * 20, "name": "n" * 3000}])
    print_answer(BY_NAME["domains get"], {}, {"saml_x509_cert": "c" * 3000})
    shown = screen.getvalue().splitlines()
    assert max(map(len, shown[:4])) <= 80
    assert [("i" * 20) in line for line in shown] == [False, True, False, True, False]
    assert shown[1].rstrip().endswith("n…")
    assert shown[4] == f" saml_x509_cert  {'c' * 3000}"


@pytest.mark.parametrize(("columns", "titles"), [("80", 4), ("60", 2), ("20", 2), ("300", 8)])
def test_what_a_person_knows_a_thing_by_is_readable_on_narrow_terminals(
    monkeypatch: pytest.MonkeyPatch, columns: str, titles: int
) -> None:
    """Columns for which there is no room beside the first two are left out."""
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    fields = {name.rpartition(".")[2]: "v" * 9 for name in columns_of(BY_NAME["members list"])}
    user = {**fields, "uuid": "u" * 36, "email": "olga@example.com"}
    PagedTable(columns_of(BY_NAME["members list"])).print([{**fields, "user": user}])
    _, row = screen.getvalue().splitlines()
    assert len(row.split()) == titles
    assert ("olga@example.com" in row, len(row) <= int(columns)) == (columns != "20",) * 2


def test_a_table_in_pieces_is_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The titles come once, and later columns are as wide as the first;
    wide characters count twice.
    """
    table = PagedTable(("id", "name", "level"))
    table.print([{"id": 1, "name": "漢字漢字", "level": 1}])
    table.print([{"id": 2, "name": "a", "level": 15}])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["id", "name", "level"]
    assert (first.index("level"), third.index("owner")) == (second.index("member") + 4,) * 2


def test_an_empty_list_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Not an empty screen."""
    PagedTable(("id",)).print([])
    assert capsys.readouterr().out == "None.\n"


def test_what_is_missing_or_new_does_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    """A column whose field isn't there is empty; a field that isn't known is shown
    with the others.
    """
    PagedTable(("user.email", "id")).print([{"user": 7}])
    print_answer(
        BY_NAME["domains get"], {}, {"newer": {"a": 1}, "latest_runs": [1], "domain": None}
    )
    assert '{"a": 1}' in capsys.readouterr().out


def test_an_answer_without_a_body_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """What was done, and to what."""
    print_answer(BY_NAME["domains verify"], {"id": "a\x1b"}, None)
    print_answer(BY_NAME["invites bulk"], {}, None)
    assert capsys.readouterr().out == "Done: domains verify a\\u001b\nDone: invites bulk\n"


def test_runs_of_a_batch_export_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Below its other fields."""
    print_answer(
        BY_NAME["batch-exports get"],
        {},
        {"latest_runs": [{"id": "r", "status": "Failed", "latest_error": "no"}], "name": "x"},
    )
    assert [line.split() for line in capsys.readouterr().out.splitlines()][-1] == [
        "r",
        "Failed",
        "no",
    ]


def test_a_log_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a row; a service without one says that it is done."""
    logs = BY_NAME["batch-exports logs"]
    print_answer(
        logs,
        {},
        {
            "results": [
                {"timestamp": "now", "level": "info", "message": "Completed with 2 records."}
            ]
        },
    )
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "now",
        "info",
        "Completed",
        "with",
        "2",
        "records.",
    ]
    print_answer(logs, {}, {"results": []})
    print_answer(logs, {}, None)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Done: batch-exports logs")
