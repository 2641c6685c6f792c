"""How the database finds what a listing wants."""

from __future__ import annotations

from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.stored_records import EventFilter
from tests.support.cases import cases


@cases(
    ("wanted", "way"),
    [
        (EventFilter(uuid="u"), "SEARCH events USING INDEX versions"),
        (EventFilter(request=7), "SEARCH events USING INDEX events_of"),
        (EventFilter(request=7, arrivals=True), "SEARCH events USING INDEX events_of"),
        (EventFilter(distinct_id="d"), "SCAN events"),
        (EventFilter(person="p"), "SCAN events"),
        (EventFilter(text="x"), "SCAN events"),
    ],
)
def test_the_way_to_events(wanted: EventFilter, way: str) -> None:
    """A uuid and a request have an index; else the table is read in its order: by way of an index
    that takes several times as long.
    """
    store = Store(None)
    condition, parameters = wanted.condition()
    for question in (
        f"SELECT count(*) FROM events WHERE {condition}",
        f"SELECT raw FROM events WHERE {condition} ORDER BY events.id",
    ):
        rows = store.select(f"EXPLAIN QUERY PLAN {question}", parameters)
        assert (
            next(
                row[3].partition(" (")[0].replace("COVERING ", "")
                for row in rows
                if "events" in row[3]
            )
            == way
        )
    store.close()
