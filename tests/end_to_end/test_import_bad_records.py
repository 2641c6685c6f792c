"""Bad records among good ones, by the command alone: the good ones arrive, the bad ones are dead
letters with file and line.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Final

from typer.testing import CliRunner

from forwarder.cli import dead_letters
from tests.end_to_end.importing import Service, imported, manifest_of
from tests.sources.imports.samples.native import as_json, complete_events

_REST: Final = '"distinct_id":"u1","timestamp":"2024-05-01T00:00:00Z"'
BAD: Final = (
    (b'{"event":"cut","distinct_id":"u1","timest', "not_json"),
    (b'{"event":"caf\xe9",' + _REST.encode() + b"}", "not_json"),
    (b'{"event":"half \\ud83d",' + _REST.encode() + b"}", "not_json"),
    (b'{"event":NaN,' + _REST.encode() + b"}", "no_event"),
    (b'{"event":"e",' + _REST.encode() + b',"properties":"none"}', "wrong_type"),
    (
        b'{"event":"e",' + _REST.encode() + b',"properties":{"text":"' + b"x" * 1_050_000 + b'"}}',
        "too_large",
    ),
    (b'{"event":"e","timestamp":"2024-05-01T00:00:00Z"}', "no_id"),
    (b'{"event":"e","distinct_id":"null","timestamp":"2024-05-01T00:00:00Z"}', "illegal_id"),
    (b'{"event":"e","distinct_id":"u1"}', "no_time"),
    (b"{" + _REST.encode() + b"}", "no_event"),
    (b'{"event":"e",' + _REST.encode() + b',"properties":{"n":1e400}}', "not_json"),
    (b'{"event":"e",' + _REST.encode() + b',"properties":{"n":' + b"9" * 400 + b"}}", "not_json"),
    (
        b'{"event":"e",'
        + _REST.encode()
        + b',"properties":{"n":'
        + b"[" * 200
        + b"]" * 200
        + b"}}",
        "not_json",
    ),
)
"""Bad records, and why each is refused."""


def test_bad_records_are_dead_letters_and_the_others_arrive(
    service: Service, tmp_path: Path
) -> None:
    """A hundred among ten thousand: nothing is sent before what stops it is accepted, and then all
    but the hundred arrives.
    """
    path = tmp_path / "events.jsonl.gz"
    expected = write(path, 10_000, 100)
    stopped = imported(service, tmp_path / "state", "native", path)
    assert stopped.code == 1
    assert "--accept illegal-ids" in stopped.out + stopped.err
    assert service.ask("summary")["arrivals"] == 0

    done = imported(service, tmp_path / "state", "native", path, "--accept", "illegal-ids")
    assert done.code == 1, done.err
    manifest = manifest_of(tmp_path / "state")
    assert manifest.complete
    assert (manifest.books.read, manifest.books.delivered, manifest.events) == (
        10_000,
        9_900,
        9_900,
    )
    assert manifest.books.refused == Counter(expected.values())
    assert service.counts(manifest.job.id) == (9_900, 0, 0)
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
    found = CliRunner().invoke(
        dead_letters.app, ["ls", "--path", str(state), "--output", "json", "--limit", "1000"]
    )
    listed = json.loads(found.stdout)
    assert listed["count"] == len(listed["results"])
    return {each["coordinates"]: each["attributes"]["refused_as"] for each in listed["results"]}
