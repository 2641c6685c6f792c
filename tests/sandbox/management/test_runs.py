"""Runs of batch exports: what backfills and retries make of them."""

from __future__ import annotations

from typing import Any

import pytest

from forwarder.contract.endpoints import BACKFILL_BATCH_EXPORT, GET_BATCH_EXPORT, RETRY_BATCH_EXPORT_RUN
from forwarder.sandbox.management.runs import LATEST
from tests.sandbox.management.exporting import NOT_FOUND, NOW, Exports

EARLIER = "2025-12-01T00:00:00.000000Z"


def latest(exports: Exports) -> list[dict[str, Any]]:
    """The runs that the export shows."""
    runs: list[dict[str, Any]] = exports.get()["latest_runs"]
    return runs


def backfill(exports: Exports, **body: Any) -> None:
    """Ask for a backfill."""
    assert exports.call(BACKFILL_BATCH_EXPORT, body) is None


def test_a_backfill_makes_a_run_that_starts(exports: Exports) -> None:
    """Over the range that was asked for; nothing runs it here, so it says nothing more."""
    backfill(exports, start_at="2025-12-01T01:00:00+01:00", end_at=NOW)
    [run] = latest(exports)
    assert len(run.pop("id")) == 36
    assert run == {
        "status": "Starting",
        "records_completed": 0,
        "latest_error": "",
        "data_interval_start": EARLIER,
        "data_interval_end": NOW,
        "cursor": "",
        "created_at": NOW,
        "finished_at": None,
        "last_updated_at": NOW,
        "records_total_count": None,
        "batch_export": exports.id,
    }


@pytest.mark.parametrize("body", [{}, {"start_at": None, "end_at": None}])
def test_a_backfill_without_a_range_is_of_everything_until_now(exports: Exports, body: Any) -> None:
    """One of its ends can be left out too, or be null."""
    backfill(exports, **body)
    backfill(exports, start_at=EARLIER)
    backfill(exports, end_at=EARLIER)
    ranges = [(run["data_interval_start"], run["data_interval_end"]) for run in latest(exports)]
    assert ranges == [(None, EARLIER), (EARLIER, NOW), (None, NOW)]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"start_at": EARLIER, "end_at": EARLIER}, "end_at"),
        ({"start_at": NOW, "end_at": EARLIER}, "end_at"),
        ({"start_at": NOW}, "start_at"),
        ({"start_at": "2026-01-01T00:00:00.000001Z"}, "start_at"),
        ({"start_at": EARLIER, "end_at": "2026-01-01T00:00:01Z"}, "end_at"),
    ],
)
def test_a_backfill_is_of_the_past_and_in_order(exports: Exports, body: Any, field: str) -> None:
    """Otherwise there is no run, and the field is named."""
    assert exports.error(BACKFILL_BATCH_EXPORT, body) == (400, "invalid", field)
    assert latest(exports) == []


def test_a_backfill_changes_nothing_of_the_export(exports: Exports) -> None:
    """Its body has the fields of an export, which only say the range."""
    before = exports.get()
    backfill(exports, start_at=EARLIER, name="Other", paused=True, destination={"type": "NoOp"})
    assert exports.get() == {**before, "latest_runs": latest(exports)}


def test_the_real_service_names_the_backfill(exports: Exports) -> None:
    """So does a retry; it is the new run here."""
    first = exports.call(BACKFILL_BATCH_EXPORT, strict=True)
    assert first == {"backfill_id": latest(exports)[0]["id"]}
    run = latest(exports)[0]["id"]
    again = exports.half.call(RETRY_BATCH_EXPORT_RUN, project=exports.project, batch_export_id=exports.id, id=run, strict=True)
    assert again == {"backfill_id": latest(exports)[0]["id"]} != first


def test_a_retry_is_a_new_run_over_the_same_range(exports: Exports) -> None:
    """The old one stays as it was, whatever the body says."""
    backfill(exports, start_at=EARLIER, end_at=NOW)
    [old] = latest(exports)
    exports.half.database.execute("UPDATE batch_export_runs SET status = 'Failed', records_completed = 3, records_total_count = 7")
    exports.half.later(hours=1)
    body = {"status": "Completed", "data_interval_start": None, "cursor": "x"}
    assert exports.half.call(RETRY_BATCH_EXPORT_RUN, body, project=exports.project, batch_export_id=exports.id, id=old["id"]) is None
    [new, kept] = latest(exports)
    assert kept == {**old, "status": "Failed", "records_completed": 3, "records_total_count": 7}
    later = "2026-01-01T01:00:00.000000Z"
    assert new == {**old, "id": new["id"], "created_at": later, "last_updated_at": later}
    assert new["id"] != old["id"]


def test_an_export_shows_its_newest_runs_first(exports: Exports) -> None:
    """Ten of them, in the order in which they were made, and no run of another export."""
    other = exports.half.export(exports.project)
    for _ in range(LATEST + 2):
        backfill(exports)
        exports.half.call(BACKFILL_BATCH_EXPORT, project=exports.project, id=other)
    made = exports.half.database.execute("SELECT id FROM batch_export_runs WHERE batch_export = ? ORDER BY number", (exports.id,))
    ids = [row[0] for row in made]
    assert [run["id"] for run in latest(exports)] == ids[: -LATEST - 1 : -1]
    assert len(exports.half.answer(GET_BATCH_EXPORT, project=exports.project, id=other)["latest_runs"]) == LATEST


def test_a_run_is_found_where_it_belongs_only(exports: Exports) -> None:
    """Not by another export's id, nor in another project or organization."""
    backfill(exports)
    [run] = latest(exports)
    half, sibling = exports.half, exports.half.export(exports.project)
    theirs = half.project(half.organization())
    for project, export in ((exports.project, sibling), (half.project(), exports.id), (theirs, exports.id)):
        assert half.error(RETRY_BATCH_EXPORT_RUN, project=project, batch_export_id=export, id=run["id"]) == NOT_FOUND
    assert half.error(RETRY_BATCH_EXPORT_RUN, project=exports.project, batch_export_id=exports.id, id=exports.id) == NOT_FOUND
    assert latest(exports) == [run]
