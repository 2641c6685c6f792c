"""Rows by the names of their columns, and pages of them."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.sandbox.manage.call import Listing, PageBounds, list_page, row, rows
from tests.sandbox.half import ManagementTables


def test_a_row_is_read_by_names(half: ManagementTables) -> None:
    """The first that there is, or None; the connection's own rows stay as they were."""
    assert [
        member["level"]
        for member in rows(half.database, "SELECT * FROM members WHERE level = ?", 15)
    ] == [15]
    member = row(half.database, "SELECT level AS other FROM members")
    assert member is not None
    assert member["other"] == 15
    assert row(half.database, "SELECT * FROM members WHERE level = ?", 8) is None
    assert half.database.execute("SELECT level FROM members").fetchone() == (15,)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (PageBounds(2, 0), [9, 8]),
        (PageBounds(2, 1), [8, 7]),
        (PageBounds(10_000, 2), [7]),
        (PageBounds(1, 3), []),
        (PageBounds(1, 10**18), []),
    ],
)
def test_a_page_says_how_many_there_are_in_all(
    half: ManagementTables, page: PageBounds, expected: list[Any]
) -> None:
    """Whichever page it is, also one beyond the end."""
    statement = "SELECT value FROM json_each(?) WHERE value > ? ORDER BY value DESC"
    assert list_page(
        half.database, page, lambda record: {"n": record["value"]}, statement, "[6, 7, 8, 9]", 6
    ) == Listing(3, [{"n": n} for n in expected])
