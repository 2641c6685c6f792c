"""Bad records among good ones, by the command alone: the good ones arrive, the bad ones are dead
letters with file and line.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from forwarder.cli import dead_letters
from tests.end_to_end.importing import RunningSandbox, imported, manifest_of
from tests.sources.imports.samples.native import as_json, complete_events

_REST: Final = '"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"'
BAD: Final = (
    (b'{"event":"cut","distinct_id":"u1","timest', "undecodable"),
    (b'{"event":"caf\xe9",' + _REST.encode() + b"}", "undecodable"),
    (b'{"event":"half \\ud83d",' + _REST.encode() + b"}", "undecodable"),
    (b'{"event":NaN,' + _REST.encode() + b"}", "missing_event"),
    (b'{"event":"e",' + _REST.encode() + b',"properties":"none"}', "invalid_event"),
    (
        b'{"event":"e",' + _REST.encode() + b',"properties":{"text":"' + b"x" * 1_050_000 + b'"}}',
        "too_large",
    ),
    (b'{"event":"e","timestamp":"2024-05-01T00:00:00Z"}', "missing_distinct_id"),
    (
        b'{"event":"$create_alias",' + _REST.encode() + b',"properties":{"alias":"nil"}}',
        "illegal_distinct_id",
    ),
    (b'{"event":"e","distinct_id":"u1"}', "missing_timestamp"),
    (b"{" + _REST.encode() + b"}", "missing_event"),
    (b'{"event":"e",' + _REST.encode() + b',"properties":{"n":1e400}}', "undecodable"),
    (
        b'{"event":"e",' + _REST.encode() + b',"properties":{"n":' + b"9" * 400 + b"}}",
        "undecodable",
    ),
    (
        b'{"event":"e",'
        + _REST.encode()
        + b',"properties":{"n":'
        + b"[" * 200
        + b"]" * 200
        + b"}}",
        "undecodable",
    ),
)
"""Bad records, and why each is refused."""


def test_bad_records_are_dead_letters_and_the_others_arrive(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Twenty among two thousand: nothing is sent before what stops it is accepted, and then all
    but the twenty arrives.
    """
    path = tmp_path / "events.jsonl.gz"
    expected = write(path, 2_000, 20)
    stopped = imported(service, tmp_path / "state", "native", path)
    assert stopped.code == 1
    assert "--accept illegal-merges" in stopped.out + stopped.err
    assert service.ask("summary")["arrivals"] == 0

    accepted = ("--accept", "illegal-merges", "--output", "json")
    done = imported(service, tmp_path / "state", "native", path, *accepted)
    assert done.code == 1, done.err
    assert json.loads(done.out)["books"]["refused"] == Counter(expected.values())
    assert "dead-letters ls --path" in done.err
    manifest = manifest_of(tmp_path / "state")
    assert manifest.complete
    assert (manifest.books.read, manifest.books.delivered, manifest.events) == (
        2_000,
        1_980,
        1_980,
    )
    assert manifest.books.refused == Counter(expected.values())
    assert service.counts(manifest.job.id) == (1_980, 0, 0)
    assert letters(tmp_path / "state") == {f"{path}:{line}": why for line, why in expected.items()}


def write(path: Path, count: int, bad: int) -> dict[int, str]:
    """A file of so many records, some of them bad, at even distances; the lines of the bad ones,
    and why each is.
    """
    step = count // bad
    expected = {}
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number, event in enumerate(complete_events(count, 1)):
            record, why = (
                BAD[number // step % len(BAD)]
                if number % step == step // 2
                else (as_json(event), None)
            )
            file.write(record + b"\n")
            if why is not None:
                expected[number + 1] = why
    return expected


def letters(state: Path) -> dict[str, str]:
    """Where each dead letter of an import is from, and why it is one."""
    result = CliRunner().invoke(
        dead_letters.app, ["ls", "--path", str(state), "--output", "json", "--limit", "1000"]
    )
    listed = json.loads(result.stdout)
    assert listed["count"] == len(listed["results"])
    return {
        letter["coordinates"]: letter["attributes"]["refused_as"] for letter in listed["results"]
    }


@pytest.mark.parametrize("form", ["native", "csv", "segment", "amplitude", "mixpanel"])
def test_events_of_ids_that_many_share_arrive_and_merge_nothing(
    service: RunningSandbox, tmp_path: Path, form: str
) -> None:
    """`guest` and `0` are ids to the service: it has their events, each id a person, and merges
    nothing with them. The preflight says how many there are.
    """
    key = f"phc_shared_ids_of_{form}_01"
    path = tmp_path / ("events.csv" if form == "csv" else "events.jsonl")
    path.write_text(SHARED[form])
    zone = ("--time-offset", "0") if form in ("csv", "mixpanel") else ()
    done = imported(service, tmp_path / "state", form, path, *zone, key=key)
    assert done.code == 0, done.out + done.err
    assert "illegal-ids: " in done.out + done.err
    events = service.ask(f"events?api_key={key}")["results"]
    assert {event["distinct_id"] for event in events} >= {"guest", "0"}
    persons = service.ask(f"persons?api_key={key}")["results"]
    assert all(len(person["distinct_ids"]) == 1 for person in persons)
    assert {"guest", "0"} <= {person["distinct_id"] for person in persons}
    assert manifest_of(tmp_path / "state").books.refused == {}


_AT: Final = "2024-05-01T00:00:00Z"


def _lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


SHARED: Final = {
    "native": _lines(
        *(
            {"event": "e", "distinct_id": distinct_id, "timestamp": _AT}
            for distinct_id in ("guest", 0)
        ),
        {
            "event": "$identify",
            "distinct_id": "u1",
            "timestamp": _AT,
            "properties": {"$anon_distinct_id": "guest"},
        },
    ),
    "csv": f"event,distinct_id,timestamp\ne,guest,{_AT}\ne,0,{_AT}\n",
    "segment": _lines(
        *(
            {
                "type": "track",
                "event": "e",
                "userId": user_id,
                "messageId": user_id,
                "timestamp": _AT,
            }
            for user_id in ("guest", "0")
        ),
        {
            "type": "identify",
            "userId": "u1",
            "anonymousId": "guest",
            "messageId": "m3",
            "timestamp": _AT,
        },
    ),
    "amplitude": _lines(
        *(
            {
                "event_type": "e",
                "user_id": user_id,
                "device_id": "d1",
                "event_time": "2024-05-01 00:00:00",
            }
            for user_id in ("guest", "0")
        )
    ),
    "mixpanel": _lines(
        *(
            {"event": "e", "properties": {"time": 1_714_521_600, "distinct_id": distinct_id}}
            for distinct_id in ("guest", 0)
        )
    ),
}
"""Of each format, events of two ids that many share, and a merge with one of them."""
