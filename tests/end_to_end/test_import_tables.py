"""Tables as databases and warehouses write them, by the command alone: without a header, without
quotes, with columns that stay here, and with another column for persons without an id.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

from tests.end_to_end.importing import RunningSandbox, imported, manifest_of
from tests.end_to_end.sent import events_of

ROWS: Final = 2_000
UTC: Final = ("--time-offset", "0")


def moment(number: int) -> str:
    """The time of a row."""
    return f"2024-03-{1 + number // 600:02} {number // 60 % 10:02}:{number % 60:02}:00"


def test_quote_in_a_tab_separated_cell_swallows_no_rows(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """It is a character like any other; the preflight shows the row, and waits until it is said."""
    path = tmp_path / "export.tsv"
    lines = ["event\tdistinct_id\ttimestamp\ttext"]
    for number in range(ROWS):
        text = {7: '"unfinished', 900: 'and over"', 1200: '5" pipe'}.get(number, f"text {number}")
        lines.append(f"said\tu{number % 50}\t{moment(number)}\t{text}")
    path.write_text("\n".join(lines) + "\n")

    stopped = imported(service, tmp_path / "state", "csv", path, *UTC)
    assert stopped.code == 1
    assert "--accept quotes" in stopped.out
    assert "1 row has a cell that begins with a quotation mark" in stopped.out
    assert f'{path}, line 9: {{"event":"said"' in stopped.out
    assert '"text":"\\"unfinished"' in stopped.out

    done = imported(service, tmp_path / "state", "csv", path, *UTC, "--quote", "none")
    assert done.code == 0, done.err
    manifest = manifest_of(tmp_path / "state")
    assert (manifest.books.read, manifest.events) == (ROWS, ROWS)
    texts = [event["properties"]["text"] for event in events_of(service, manifest.job.id)]
    assert [text for text in texts if '"' in text] == ['"unfinished', 'and over"', '5" pipe']


def test_tab_separated_file_with_quotes_is_read_if_it_says_so(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Line breaks and tabs within quotes, as of a spreadsheet."""
    path = tmp_path / "export.tsv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(("event", "distinct_id", "timestamp", "text"))
        for number in range(ROWS):
            writer.writerow(("noted", f"u{number % 9}", moment(number), f"line\n\ttwo {number}"))
    done = imported(service, tmp_path / "state", "csv", path, *UTC, "--quote", '"')
    assert done.code == 0, done.err
    manifest = manifest_of(tmp_path / "state")
    assert (manifest.books.read, manifest.events) == (ROWS, ROWS)
    assert events_of(service, manifest.job.id)[0]["properties"]["text"] == "line\n\ttwo 0"


def test_headerless_table_with_fallback_and_without_a_column(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Half of the rows have no user_id, as in Segment's warehouse: they are of the anonymous_id,
    which stays a property of the others. A column that is dropped is sent with none.
    """
    path = tmp_path / "tracks.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        for number in range(ROWS):
            user = f"user-{number % 7}" if number % 2 else ""
            anonymous = f"anon-{number % 11}"
            writer.writerow((f"m{number}", "bought", user, anonymous, moment(number), "x@y.z", 5))
    command: tuple[str | Path, ...] = (
        *("csv", path, *UTC, "--header", "id,event,user_id,anonymous_id,sent_at,email,amount"),
        *(
            "--distinct-id-column",
            "user_id,anonymous_id",
            "--timestamp-column",
            "received_at,sent_at",
        ),
        *("--uuid-column", "id", "--drop-column", "email", "--number-column", "amount"),
    )
    done = imported(service, tmp_path / "state", *command)
    assert done.code == 0, done.err
    manifest = manifest_of(tmp_path / "state")
    assert (manifest.books.read, manifest.events) == (ROWS, ROWS)
    assert not manifest.books.refused
    events = events_of(service, manifest.job.id)
    ids = {event["distinct_id"] for event in events}
    assert ids == {*(f"user-{n}" for n in range(7)), *(f"anon-{n}" for n in range(11))}
    for event in events:
        own = {name for name in event["properties"] if not name.startswith("$")}
        by_user = event["distinct_id"].startswith("user-")
        assert own == ({"amount", "anonymous_id"} if by_user else {"amount"})
        assert event["properties"]["amount"] == 5
    assert not any("x@y.z" in str(event) for event in events)

    again = imported(service, tmp_path / "other", *command)
    assert again.code == 0
    assert service.counts(manifest.job.id) == (ROWS, ROWS, 0)


def test_roles_that_no_column_fills_are_named(service: RunningSandbox, tmp_path: Path) -> None:
    """The columns that were looked into, and that they are empty."""
    path = tmp_path / "t.csv"
    rows = ["event,user_id,anonymous_id,timestamp", "e,,,2024-03-01 10:00:00"]
    path.write_text("\n".join(rows + ["e,u,,2024-03-01 10:00:00"] * 200) + "\n")
    done = imported(
        service,
        tmp_path / "state",
        *("csv", path, *UTC, "--distinct-id-column", "user_id,anonymous_id"),
    )
    assert done.code == 1
    assert "columns user_id, anonymous_id are empty" in done.out + done.err
