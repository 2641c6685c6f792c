"""What the sandbox's `/decide` and its start cost with many events stored: the time of a request,
beside that of the same sandbox with few.

The databases are written by SQL, as they are once everything that arrived is folded into persons
and groups, but for `PENDING` arrivals: what a sandbox that is killed while it receives leaves.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.processes import BenchmarkError, Program, running
from benchmarks.targets import Machine
from forwarder.sandbox.store.database import Store
from forwarder.sandbox.store.thread import BEHIND

NAME: Final = "decide-stored"
FEW: Final = 100_000
MANY: Final = 2_000_000
ALLOWED_RATIO: Final = 2.0
ALLOWED_START: Final = 2.0
"""Seconds from the start to the first answer."""
REQUESTS: Final = 3000
WARM: Final = 100
PENDING: Final = BEHIND
KEY: Final = "phc_benchmark_of_stored_events_1"
EVENTS_OF_A_REQUEST: Final = 50
EVENTS_OF_A_PERSON: Final = 20
EVENTS_OF_A_GROUP: Final = 100
_FLAG: Final = {
    "filters": {
        "aggregation_group_type_index": None,
        "groups": [{"properties": [{"key": "plan", "value": "pro", "type": "person"}]}],
    }
}
_FILL: Final = """
CREATE TEMP TABLE numbers AS
    WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted LIMIT {events})
    SELECT n FROM counted;
INSERT INTO requests (id, received_at, path, query, headers, api_key, historical_migration, size,
        status, answer, events, duplicates, conflicts, not_ingested)
    SELECT n, '2026-01-01T00:00:00.000000Z', '/batch/', '', '{{}}', '{key}', 0, 20000, 200,
        '{{"status":"Ok"}}', {of_request}, 0, 0, 0
    FROM numbers WHERE n <= {events} / {of_request};
INSERT INTO events (id, request, position, kind, api_key, historical, uuid, event, distinct_id,
        timestamp, properties, raw)
    SELECT n, 1 + (n - 1) / {of_request}, (n - 1) % {of_request}, 'new', '{key}', 0,
        printf('00000000-0000-4000-8000-%012x', n), 'seen', 'visitor-' || ((n - 1) / {of_person}),
        '2026-01-01T00:00:00.000000Z', '{{"n":1}}',
        CAST(printf('{{"event":"seen","distinct_id":"visitor-%d","properties":{{"n":1}}}}',
            (n - 1) / {of_person}) AS BLOB)
    FROM numbers;
INSERT INTO persons (id, uuid, api_key, distinct_id, properties, created_at, is_identified, created,
        changed, version)
    SELECT n, printf('00000000-0000-5000-8000-%012x', n), '{key}', 'visitor-' || (n - 1),
        '{{"plan":"pro","seats":7}}', '2026-01-01T00:00:00.000000Z', 1, first, first, first
    FROM (SELECT n, 1 + (n - 1) * {of_person} AS first FROM numbers
        WHERE n <= {events} / {of_person});
INSERT INTO event_persons (event, person, version, differs)
    SELECT n, person, 1 + (person - 1) * {of_person}, 0
    FROM (SELECT n, 1 + (n - 1) / {of_person} AS person FROM numbers WHERE n <= {folded});
INSERT INTO distinct_ids (api_key, distinct_id, person)
    SELECT '{key}', 'visitor-' || (n - 1), n FROM numbers WHERE n <= {events} / {of_person};
INSERT INTO groups (id, api_key, group_type, group_key, properties, created_at, updated_at)
    SELECT n, '{key}', CASE n % 2 WHEN 0 THEN 'team' ELSE 'company' END, n, '{{}}',
        '2026-01-01T00:00:00.000000Z', '2026-01-01T00:00:00.000000Z'
    FROM numbers WHERE n <= {events} / {of_group};
UPDATE progress SET arrival = {folded};
DROP TABLE numbers;
"""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """Seconds, with few events stored and with many."""

    name: str
    few: float
    """The 99th percentile of a request."""
    many: float
    start: float
    """From the start to the first answer, with many."""

    @property
    def ratio(self) -> float:
        """How many times longer a request takes with many."""
        return self.many / self.few

    @property
    def good(self) -> bool:
        """Whether neither takes longer than wanted."""
        return self.ratio <= ALLOWED_RATIO and self.start <= ALLOWED_START


def measure_stored(port: int, machine: Machine, few: int = FEW, many: int = MANY) -> StoredResult:
    """Ask a sandbox with few events, and one with many, for flags. Takes about two minutes, and
    700 MB of disk. Raises `BenchmarkError`.
    """
    times = {}
    starts = {}
    for events in (few, many):
        with tempfile.TemporaryDirectory(prefix="forwarder-benchmark-") as folder:
            database = Path(folder) / "sandbox.db"
            fill(database, events)
            began = time.perf_counter()
            with _sandbox(database, port, machine):
                ask(port, range(1))
                starts[events] = time.perf_counter() - began
                _put_flag(port)
                ask(port, range(WARM))
                latencies = sorted(ask(port, range(REQUESTS)))
                times[events] = latencies[len(latencies) * 99 // 100]
    return StoredResult(NAME, times[few], times[many], starts[many])


def stored_line(result: StoredResult) -> str:
    """The measurement in a line."""
    return (
        f"{result.name}: p99 of /decide {result.many * 1000:.1f} ms with {MANY:,} events stored, "
        f"{result.few * 1000:.1f} ms with {FEW:,}: {result.ratio:.2f} times, at most "
        f"{ALLOWED_RATIO:g} is wanted; start {result.start:.2f} s, at most {ALLOWED_START:g} s is "
        f"wanted: {'good' if result.good else 'NOT GOOD'}"
    )


def fill(database: Path, events: int, pending: int = PENDING) -> None:
    """Write a sandbox's database with so many events, `pending` of them not folded yet."""
    store = Store(database)
    script = _FILL.format(
        events=events,
        key=KEY,
        of_request=EVENTS_OF_A_REQUEST,
        of_person=EVENTS_OF_A_PERSON,
        of_group=EVENTS_OF_A_GROUP,
        folded=max(0, events - pending),
    )
    store.connection.executescript(f"BEGIN; {script} COMMIT;")
    store.close()


def ask(port: int, visitors: range) -> list[float]:
    """Ask for the flags of visitors, one after the other: seconds of each request."""
    latencies = []
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ) as connection:
        for number in visitors:
            body = json.dumps(
                {
                    "api_key": KEY,
                    "distinct_id": f"visitor-{number * 37 % 5000}",
                    "groups": {"company": str(number)},
                }
            )
            began = time.perf_counter()
            connection.request("POST", "/decide/?v=3", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            latencies.append(time.perf_counter() - began)
            if response.status != 200:
                raise BenchmarkError(f"/decide answers {response.status}: {content!r}")
    return latencies


@contextlib.contextmanager
def _sandbox(database: Path, port: int, machine: Machine) -> Iterator[Program]:
    command = [
        str(Path(sys.executable).parent / "forwarder"),
        "sandbox",
        "--listen",
        f"127.0.0.1:{port}",
        "--database",
        str(database),
    ]
    with running(command, machine.target_core, port) as program:
        yield program


def _put_flag(port: int) -> None:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    ) as connection:
        path = f"/sandbox/flags/for-pros?api_key={KEY}"
        connection.request("PUT", path, json.dumps(_FLAG), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise BenchmarkError(f"the flag is answered {response.status}: {response.read()!r}")
