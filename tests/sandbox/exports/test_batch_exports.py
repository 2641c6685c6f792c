"""Batch exports and their runs."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import (
    BACKFILL_BATCH_EXPORT,
    DELETE_BATCH_EXPORT,
    GET_BATCH_EXPORT,
    LOGS_OF_BATCH_EXPORT,
    PAUSE_BATCH_EXPORT,
    PAUSE_ORGANIZATION_BATCH_EXPORT,
    RETRY_BATCH_EXPORT_RUN,
    UNPAUSE_BATCH_EXPORT,
    UNPAUSE_ORGANIZATION_BATCH_EXPORT,
    UPDATE_BATCH_EXPORT,
)
from forwarder.sandbox.exports.batch_exports import LATEST_RUNS
from forwarder.sandbox.exports.runs import write_log
from forwarder.sandbox.protocol.http import ManagementError
from forwarder.sandbox.protocol.times import format_time
from tests.sandbox.exporting import LATER, NOT_FOUND, NOW, Exports
from tests.sandbox.half import opened

OF_PROJECTS: Final[list[Any]] = [
    *(
        GET_BATCH_EXPORT,
        UPDATE_BATCH_EXPORT,
        DELETE_BATCH_EXPORT,
        BACKFILL_BATCH_EXPORT,
        PAUSE_BATCH_EXPORT,
        UNPAUSE_BATCH_EXPORT,
    ),
    LOGS_OF_BATCH_EXPORT,
]
MOMENTS: Final = [
    ("2026-01-01T00:00:00+14:00", "2025-12-31T10:00:00.000000Z"),
    ("2026-01-01T00:00:00.5-00:30", "2026-01-01T00:30:00.500000Z"),
    ("20260101T00+01", "2025-12-31T23:00:00.000000Z"),
    ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
    ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"),
    (None, None),
]


def test_a_batch_export_is_shown_without_its_secrets(exports: Exports) -> None:
    """Every field is there; `team_id` is its project."""
    assert exports.get() == {
        "id": exports.id,
        "team_id": exports.project,
        "name": "All",
        "model": "events",
        "destination": {"type": "S3", "config": {"bucket_name": "b"}},
        "interval": "hour",
        "paused": False,
        "created_at": NOW,
        "last_updated_at": NOW,
        "last_paused_at": None,
        "start_at": None,
        "end_at": None,
        "latest_runs": [],
        "hogql_query": "",
        "schema": None,
        "filters": None,
    }


def test_every_accepted_field_can_be_changed(exports: Exports) -> None:
    """And is shown as it was sent, times in UTC."""
    change = {
        "name": "Persons",
        "model": "persons",
        "destination": {"type": "S3", "config": {"bucket_name": "c"}},
        "interval": "every 5 minutes",
        "paused": True,
        "last_paused_at": "2025-06-01T00:00:00.000000Z",
        "start_at": "2025-01-01T00:00:00.000000Z",
        "end_at": "2027-01-01T00:00:00.000000Z",
        "hogql_query": "select 1",
        "filters": [{"key": "a", "value": None}],
    }
    before = exports.get()
    exports.half.later(hours=1)
    assert exports.update(**change) == {**before, **change, "last_updated_at": LATER}
    assert exports.get() == {**before, **change, "last_updated_at": LATER}


def test_a_change_of_nothing_changes_nothing(exports: Exports) -> None:
    """Not even `last_updated_at`; nor does sending back what was read."""
    before = exports.get()
    exports.half.later(hours=1)
    assert exports.update() == before
    writable = (
        "name",
        "model",
        "destination",
        "interval",
        "paused",
        "last_paused_at",
        "start_at",
        "end_at",
        "hogql_query",
        "filters",
    )
    assert exports.update(**{field: before[field] for field in writable}) == before
    assert exports.secret() == "hidden"


def test_a_secret_outlives_changes_that_leave_it_out(exports: Exports) -> None:
    """Until another one is sent, or the type of destination is another."""
    exports.update(
        destination={"type": "S3", "config": {"bucket_name": "c", "aws_secret_access_key": "***"}}
    )
    assert exports.secret() == "hidden"
    exports.update(destination={"type": "S3", "config": {"aws_secret_access_key": "new"}})
    assert exports.secret() == "new"
    exports.update(destination={"type": "Elsewhere", "config": {"bucket_name": "c"}})
    assert exports.secret() is None
    assert exports.get()["destination"] == {"type": "Elsewhere", "config": {"bucket_name": "c"}}
    assert exports.update(destination={"type": "NoOp"})["destination"] == {
        "type": "NoOp",
        "config": None,
    }


@pytest.mark.parametrize("field", ["start_at", "end_at", "last_paused_at"])
@pytest.mark.parametrize(("sent", "stored"), MOMENTS)
def test_times_are_kept_in_utc(
    exports: Exports, field: str, sent: str | None, stored: str | None
) -> None:
    """Whatever the zone that they are sent in; null takes one away."""
    assert exports.update(**{field: sent})[field] == stored


def test_an_export_starts_before_it_ends(exports: Exports) -> None:
    """Whichever of the two is changed, the instants count, not the texts."""
    same = {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T14:00:00+14:00"}
    assert exports.error(UPDATE_BATCH_EXPORT, same) == (400, "invalid", "end_at")
    exports.update(start_at="2026-01-01T00:00:00Z")
    assert exports.error(UPDATE_BATCH_EXPORT, {"end_at": "2026-01-01T00:00:00Z"}) == (
        400,
        "invalid",
        "end_at",
    )
    exports.update(end_at="2026-01-01T00:00:00.000001Z")
    assert exports.error(UPDATE_BATCH_EXPORT, {"start_at": "2026-01-02T00:00:00Z"}) == (
        400,
        "invalid",
        "start_at",
    )
    assert exports.update(start_at="2026-01-02T00:00:00Z", end_at=None)["end_at"] is None


ANY_TIME: Final = st.datetimes(
    datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.timezones()
).map(lambda time: time.isoformat())
"""That there is in UTC."""


@settings(max_examples=50, deadline=None)
@given(ANY_TIME, ANY_TIME)
def test_any_two_times_are_accepted_in_order_or_rejected(start: str, end: str) -> None:
    """And read back in a form in which texts sort as times do."""
    with opened() as half:
        exports = Exports(half)
        shown = half.outcome(
            UPDATE_BATCH_EXPORT,
            {"start_at": start, "end_at": end},
            project=exports.project,
            id=exports.id,
        )
        if isinstance(shown, ManagementError):
            assert shown.status == 400
        else:
            assert len(shown["start_at"]) == len(shown["end_at"]) == 27
            assert shown["start_at"] < shown["end_at"]


PAUSES: Final[list[tuple[Any, Any]]] = [
    (PAUSE_BATCH_EXPORT, UNPAUSE_BATCH_EXPORT),
    (PAUSE_ORGANIZATION_BATCH_EXPORT, UNPAUSE_ORGANIZATION_BATCH_EXPORT),
]


@pytest.mark.parametrize(("pause", "unpause"), PAUSES)
@pytest.mark.parametrize("strict", [False, True])
def test_an_export_is_paused_and_resumed(
    exports: Exports, pause: Any, unpause: Any, strict: bool
) -> None:
    """To do either twice changes nothing more; other fields of the body count for nothing. Only
    the real service has an answer.
    """
    where: Any = {
        "id": exports.id,
        "strict": strict,
        **({"project": exports.project} if pause is PAUSE_BATCH_EXPORT else {}),
    }
    exports.half.later(hours=1)
    for _ in range(2):
        assert exports.half.call(pause, {"name": "Other", "paused": False}, **where) == (
            {"paused": True} if strict else None
        )
        paused = exports.get()
        assert (
            paused["paused"],
            paused["last_paused_at"],
            paused["last_updated_at"],
            paused["name"],
        ) == (True, LATER, LATER, "All")
        exports.half.later(hours=1)
    for _ in range(2):
        assert exports.half.call(unpause, **where) == ({"paused": False} if strict else None)
    assert exports.get() == {
        **paused,
        "paused": False,
        "last_updated_at": "2026-01-01T03:00:00.000000Z",
    }


def test_a_change_of_paused_is_a_pause(exports: Exports) -> None:
    """It is said when; unless the change says so itself."""
    exports.half.later(hours=1)
    assert exports.update(paused=True)["last_paused_at"] == LATER
    exports.half.later(hours=1)
    assert exports.update(paused=True)["last_paused_at"] == LATER
    exports.update(paused=False)
    assert exports.update(paused=True, last_paused_at=NOW)["last_paused_at"] == NOW
    assert exports.update(last_paused_at=None)["paused"] is True


def test_a_deleted_export_is_gone_with_its_runs(exports: Exports) -> None:
    """And nothing of it is found any more; the sandbox's own list keeps the runs, and says that
    they were cancelled.
    """
    other = exports.half.export(exports.project)
    for export in (exports.id, other):
        exports.half.call(BACKFILL_BATCH_EXPORT, project=exports.project, id=export)
    assert exports.call(DELETE_BATCH_EXPORT) is None
    runs = exports.half.database.execute(
        "SELECT batch_export, status FROM batch_export_runs ORDER BY number"
    ).fetchall()
    assert runs == [(exports.id, "Cancelled"), (other, "Starting")]
    for endpoint in OF_PROJECTS:
        assert exports.error(endpoint, {}) == NOT_FOUND


def test_an_export_is_its_projects(exports: Exports) -> None:
    """In another project of the same organization it isn't found; across the organization it is."""
    second = exports.half.project()
    for endpoint in OF_PROJECTS:
        assert exports.half.error(endpoint, {}, project=second, id=exports.id) == NOT_FOUND
    assert exports.half.call(PAUSE_ORGANIZATION_BATCH_EXPORT, id=exports.id) is None


def test_an_export_is_its_organizations(exports: Exports) -> None:
    """Another one doesn't find it."""
    stranger = exports.half.member("theirs@example.org", organization=exports.half.organization())
    for endpoint in PAUSES[1]:
        assert exports.half.error(endpoint, by=stranger, id=exports.id) == NOT_FOUND
    assert not exports.get()["paused"]


def test_the_log_has_a_body_in_strict_mode(exports: Exports) -> None:
    """It is of all runs, the newest line last, and says no secrets; the contract has no body."""
    assert exports.call(LOGS_OF_BATCH_EXPORT) is None
    assert exports.call(LOGS_OF_BATCH_EXPORT, strict=True) == {"results": []}
    backfill(exports, start_at=EARLIER)
    run = latest(exports)[0]["id"]
    database = exports.half.database
    now = exports.half.now
    for level, message in (("info", "one"), ("error", "https://ann:secret@example.com failed")):
        write_log(database, run, level, message, now)  # type: ignore[arg-type]  # both are levels
    assert exports.call(LOGS_OF_BATCH_EXPORT, strict=True) == {
        "results": [
            {"timestamp": NOW, "level": "info", "message": f"Run {run}: one"},
            {
                "timestamp": NOW,
                "level": "error",
                "message": f"Run {run}: https://…@example.com failed",
            },
        ]
    }


EARLIER = "2025-12-31T23:00:00.000000Z"
"""One interval before."""


def latest(exports: Exports) -> list[dict[str, Any]]:
    """The runs that the export shows."""
    runs: list[dict[str, Any]] = exports.get()["latest_runs"]
    return runs


def backfill(exports: Exports, **body: Any) -> None:
    """Ask for a backfill."""
    assert exports.call(BACKFILL_BATCH_EXPORT, body) is None


def test_a_backfill_makes_a_run_that_starts(exports: Exports) -> None:
    """Over the range that was asked for; until the scheduler begins it, it says nothing more."""
    backfill(exports, start_at="2026-01-01T00:00:00+01:00", end_at=NOW)
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
    """From the first event on, or the export's `start_at`; without either it is the last interval.
    One end can be left out, or be null.
    """
    before = "2025-12-31T22:00:00.000000Z"
    assert ranges(exports, **body) == [(EARLIER, NOW)]
    assert ranges(exports, start_at=EARLIER) == [(EARLIER, NOW)]
    assert ranges(exports, end_at=EARLIER) == [(before, EARLIER)]
    exports.half.event(exports.project, "2025-12-31T22:30:00.000000Z")
    assert ranges(exports, **body) == [("2025-12-31T22:30:00.000000Z", EARLIER), (EARLIER, NOW)]
    exports.update(start_at=before)
    assert ranges(exports, **body) == [(before, EARLIER), (EARLIER, NOW)]
    exports.update(start_at=LATER)
    assert ranges(exports, **body) == [("2025-12-31T22:30:00.000000Z", EARLIER), (EARLIER, NOW)]


def ranges(exports: Exports, **body: Any) -> list[tuple[str, str]]:
    """The ranges of the runs that a backfill makes, in their order."""
    made = len(list(exports.half.database.execute("SELECT 1 FROM batch_export_runs")))
    backfill(exports, **body)
    statement = (
        "SELECT data_interval_start, data_interval_end FROM batch_export_runs ORDER BY number "
        "LIMIT -1 OFFSET ?"
    )
    return exports.half.database.execute(statement, (made,)).fetchall()


def test_a_backfill_is_cut_into_intervals(exports: Exports) -> None:
    """The oldest first, clipped to the range, a week to its Monday; its first run names it. Too
    many are refused.
    """
    exports.half.later(days=14)
    for interval, cuts in (
        (
            "hour",
            [
                "2026-01-01T10:30",
                "2026-01-01T11:00",
                "2026-01-01T12:00",
                "2026-01-01T12:00:00.000001",
            ],
        ),
        ("every 15 minutes", ["2026-01-01T10:31", "2026-01-01T10:45", "2026-01-01T11:00"]),
        ("every 5 minutes", ["2026-01-01T10:30", "2026-01-01T10:35", "2026-01-01T10:39:59"]),
        ("day", ["2025-12-31T23:00", "2026-01-01T00:00", "2026-01-02T00:00"]),
        ("week", ["2026-01-01T00:00", "2026-01-05T00:00", "2026-01-12T00:00", "2026-01-14T00:00"]),
    ):
        exports.update(interval=interval)
        times = [format_time(datetime.fromisoformat(f"{cut}+00:00")) for cut in cuts]
        assert ranges(exports, start_at=times[0], end_at=times[-1]) == list(pairwise(times))
    exports.update(interval="hour")
    first = exports.call(
        BACKFILL_BATCH_EXPORT, {"start_at": EARLIER, "end_at": "2026-01-01T02:00:00Z"}, strict=True
    )
    assert first == {"backfill_id": latest(exports)[2]["id"]}
    exports.update(interval="every 5 minutes")
    assert exports.error(BACKFILL_BATCH_EXPORT, {"start_at": "2020-01-01T00:00:00Z"}) == (
        400,
        "invalid",
        "start_at",
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"start_at": EARLIER, "end_at": EARLIER}, "end_at"),
        ({"end_at": "0001-01-01T00:00:00Z"}, "end_at"),
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
    again = exports.half.call(
        RETRY_BATCH_EXPORT_RUN,
        project=exports.project,
        batch_export_id=exports.id,
        id=run,
        strict=True,
    )
    assert again == {"backfill_id": latest(exports)[0]["id"]} != first


def test_a_retry_is_a_new_run_over_the_same_range(exports: Exports) -> None:
    """The old one stays as it was, whatever the body says."""
    backfill(exports, start_at=EARLIER, end_at=NOW)
    [old] = latest(exports)
    exports.half.database.execute(
        "UPDATE batch_export_runs SET status = 'Failed', records_completed = 3, "
        "records_total_count = 7"
    )
    exports.half.later(hours=1)
    body = {"status": "Completed", "data_interval_start": None, "cursor": "x"}
    assert (
        exports.half.call(
            RETRY_BATCH_EXPORT_RUN,
            body,
            project=exports.project,
            batch_export_id=exports.id,
            id=old["id"],
        )
        is None
    )
    [new, retried] = latest(exports)
    assert retried == {**old, "status": "Failed", "records_completed": 3, "records_total_count": 7}
    later = "2026-01-01T01:00:00.000000Z"
    assert new == {**old, "id": new["id"], "created_at": later, "last_updated_at": later}
    assert new["id"] != old["id"]


def test_an_export_shows_its_newest_runs_first(exports: Exports) -> None:
    """Ten of them, in the order in which they were made, and no run of another export."""
    other = exports.half.export(exports.project)
    for _ in range(LATEST_RUNS + 2):
        backfill(exports)
        exports.half.call(BACKFILL_BATCH_EXPORT, project=exports.project, id=other)
    made = exports.half.database.execute(
        "SELECT id FROM batch_export_runs WHERE batch_export = ? ORDER BY number", (exports.id,)
    )
    ids = [row[0] for row in made]
    assert [run["id"] for run in latest(exports)] == ids[: -LATEST_RUNS - 1 : -1]
    assert (
        len(exports.half.answer(GET_BATCH_EXPORT, project=exports.project, id=other)["latest_runs"])
        == LATEST_RUNS
    )


def test_a_run_is_found_where_it_belongs_only(exports: Exports) -> None:
    """Not by another export's id, nor in another project or organization."""
    backfill(exports)
    [run] = latest(exports)
    half = exports.half
    sibling = exports.half.export(exports.project)
    theirs = half.project(half.organization())
    for project, export in (
        (exports.project, sibling),
        (half.project(), exports.id),
        (theirs, exports.id),
    ):
        assert (
            half.error(
                RETRY_BATCH_EXPORT_RUN, project=project, batch_export_id=export, id=run["id"]
            )
            == NOT_FOUND
        )
    assert (
        half.error(
            RETRY_BATCH_EXPORT_RUN,
            project=exports.project,
            batch_export_id=exports.id,
            id=exports.id,
        )
        == NOT_FOUND
    )
    assert latest(exports) == [run]
