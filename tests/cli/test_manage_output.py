"""What `forwarder manage` prints."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from forwarder.cli.manage_calls import PagedTable, cell, columns_of, print_answer, print_json, print_lines
from tests.cli.managing import BY_NAME

ODD = "[red]x[/red]\x1b[2J\x9b\u202e\ud800\n"
"""Markup, an escape, a C1 control, a mark of direction, half of a character, a break of line."""
SHOWN = r"[red]x[/red]\u001b[2J\u009b\u202e\ud800\u000a"


class Terminal(io.StringIO):
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
    whole, line = out[: out.index("\n}\n") + 3], out[out.index("\n}\n") + 3 :]
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


@pytest.mark.parametrize(
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
    """Whoever reads a pipe gets everything, whatever the width of the screen."""
    PagedTable(("id", "name")).print([{"id": "i" * 36, "name": "n" * 3000}])
    print_answer(BY_NAME["domains get"], {}, {"saml_x509_cert": "c" * 3000})
    out = capsys.readouterr().out
    assert "n" * 3000 in out
    assert "c" * 3000 in out


def test_lists_are_cut_on_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """To its width, the id excepted: it is what a thing is named by. The fields of a single thing aren't."""
    screen = Terminal()
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
def test_what_a_person_knows_a_thing_by_is_readable_on_narrow_terminals(monkeypatch: pytest.MonkeyPatch, columns: str, titles: int) -> None:
    """Columns for which there is no room beside the first two are left out."""
    screen = Terminal()
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
    """The titles come once, and later columns are as wide as the first; wide characters count twice."""
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
    """A column whose field isn't there is empty; a field that isn't known is shown with the others."""
    PagedTable(("user.email", "id")).print([{"user": 7}])
    print_answer(BY_NAME["domains get"], {}, {"newer": {"a": 1}, "latest_runs": [1], "domain": None})
    assert '{"a": 1}' in capsys.readouterr().out


def test_an_answer_without_a_body_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """What was done, and to what."""
    print_answer(BY_NAME["domains verify"], {"id": "a\x1b"}, None)
    print_answer(BY_NAME["invites bulk"], {}, None)
    assert capsys.readouterr().out == "Done: domains verify a\\u001b\nDone: invites bulk\n"


def test_runs_of_a_batch_export_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Below its other fields."""
    print_answer(BY_NAME["batch-exports get"], {}, {"latest_runs": [{"id": "r", "status": "Failed", "latest_error": "no"}], "name": "x"})
    assert [line.split() for line in capsys.readouterr().out.splitlines()][-1] == ["r", "Failed", "no"]
