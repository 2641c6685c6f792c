"""The service's own exports in flight back: from a sandbox's batch export into another project,
and files as the service, ClickHouse and queries write them.
"""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import brotli  # type: ignore[import-untyped]
import cramjam
import pyarrow as pa
import yaml
import zstandard
from pyarrow import parquet

from tests.end_to_end.importing import RunningSandbox, imported, sandbox
from tests.support.cases import cases
from tests.support.commands import LIMIT, Finished
from tests.support.management import EXPORT, PAUSED_EXPORT, SECOND_TOKEN, SEED, TOKEN

ELEMENTS: Final = 'button.primary:text="Buy"nth-child="1"'
ANN: Final = "ann@example.com"
HISTORY: Final = (
    {
        "event": "$autocapture",
        "distinct_id": "anonymous-1",
        "timestamp": "2024-01-01T00:00:00.123456Z",
        "properties": {
            "$elements_chain": ELEMENTS,
            "$browser": "Firefox",
            "large": 12345678901234567890,
            "$set": {"plan": "free"},
        },
    },
    {
        "event": "$identify",
        "distinct_id": ANN,
        "timestamp": "2024-01-01T00:01:00Z",
        "properties": {"$anon_distinct_id": "anonymous-1", "$set": {"seats": 1}},
        "$set": {"plan": "pro", "seats": 2},
        "$set_once": {"first_seen": "2024"},
    },
    {
        "event": "$groupidentify",
        "distinct_id": ANN,
        "timestamp": "2024-01-01T00:02:00Z",
        "properties": {
            "$group_type": "company",
            "$group_key": "acme",
            "$group_set": {"tier": "gold"},
        },
    },
    *(
        {
            "event": "order placed",
            "distinct_id": f"user-{number % 50}",
            "timestamp": f"2024-01-01T01:{number // 60:02}:{number % 60:02}Z",
            "properties": {"n": number, "$set": {"orders": number}, "$groups": {"company": "acme"}},
        }
        for number in range(600)
    ),
)
"""Events of an hour in the order of time."""
SET: Final = ("--person-properties", "history")


def posted(url: str, body: object) -> None:
    """Send something to the sandbox."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        assert answer.status == 200


def seed(folder: Path, file_format: str, compression: str) -> Path:
    """Two projects; the first exports its events to `events`, and its persons to `persons`."""
    document = copy.deepcopy(SEED)
    exports = {
        export["id"]: export
        for export in document["organizations"][0]["projects"][0]["batch_exports"]
    }
    for identity, model in ((EXPORT, "events"), (PAUSED_EXPORT, "persons")):
        config = {"path": model, "file_format": file_format, "compression": compression}
        exports[identity] |= {
            "destination": {"type": "Folder", "config": config},
            "interval": "day",
            "model": model,
            "runs": [],
        }
    path = folder / "seed.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def events(service: RunningSandbox, key: str) -> dict[str, Any]:
    """What a project has by uuid, but for what an import adds, and for where an event says
    something about its person: beside its properties or in them.
    """
    stored_events = {}
    offset = 0
    while page := service.ask(f"events?api_key={key}&limit=1000&offset={offset}")["results"]:
        offset += len(page)
        for event in page:
            raw = json.loads(event["raw"])
            properties = json.loads(event["raw"])["properties"]
            for name in ("$set", "$set_once"):
                if name in raw:
                    properties[name] = {**properties.get(name, {}), **raw[name]}
            for name in ("$import_job_id", "$geoip_disable"):
                properties.pop(name, None)
            stored_events[event["uuid"]] = (
                *(event[name] for name in ("event", "distinct_id", "timestamp", "groups")),
                *(event["person_properties"], properties),
            )
    return stored_events


def persons(service: RunningSandbox, key: str) -> list[Any]:
    """The persons of a project: ids, properties, first times, and whether they are identified."""
    stored_persons = service.ask(f"persons?api_key={key}&limit=1000")["results"]
    return sorted(
        (
            sorted(person["distinct_ids"]),
            person["properties"],
            person["created_at"],
            person["is_identified"],
        )
        for person in stored_persons
    )


def groups(service: RunningSandbox, key: str) -> list[Any]:
    """The groups of a project."""
    return [
        (group["group_type"], group["group_key"], group["properties"])
        for group in service.ask(f"groups?api_key={key}")["results"]
    ]


@cases(("file_format", "compression"), [("JSONLines", "gzip"), ("Parquet", "zstd")])
def test_a_project_comes_back_from_its_export(
    tmp_path: Path, file_format: str, compression: str
) -> None:
    """Sandbox, batch export, `import posthog` into another project: the same events, persons and
    groups; and the persons alone, of their own export, have the same ids and properties.
    """
    written = seed(tmp_path, file_format, compression)
    with sandbox("--seed", str(written), "--export-root", str(tmp_path)) as service:
        for first in range(0, len(HISTORY), 300):
            batch = HISTORY[first : first + 300]
            posted(f"{service.url}/batch/", {"api_key": TOKEN, "batch": batch})
        for identity, start, end in (
            (EXPORT, "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"),
            (PAUSED_EXPORT, service.ask("clock")["now"][:10] + "T00:00:00Z", None),
        ):
            ranged = {"start_at": start, "end_at": end} if end else {"start_at": start}
            posted(f"{service.url}/sandbox/batch-exports/{identity}/backfill", ranged)
        posted(f"{service.url}/sandbox/clock?settle=true", {})

        done = imported(
            *(service, tmp_path / "state", "posthog", tmp_path / "events", "--sort", *SET),
            key=SECOND_TOKEN,
        )
        assert done.code == 0, done.out + done.err
        assert len(events(service, TOKEN)) == len(HISTORY)
        assert events(service, SECOND_TOKEN) == events(service, TOKEN)
        assert persons(service, SECOND_TOKEN) == persons(service, TOKEN)
        assert groups(service, SECOND_TOKEN) == groups(service, TOKEN)

        # They are there already: their own export changes nothing.
        done = imported(
            *(service, tmp_path / "persons-state", "posthog", tmp_path / "persons", "--sort", *SET),
            key=SECOND_TOKEN,
        )
        assert done.code == 0, done.out + done.err
        assert [person[:2] for person in persons(service, SECOND_TOKEN)] == [
            person[:2] for person in persons(service, TOKEN)
        ]


PERSON_ROWS: Final = tuple(
    {
        "team_id": 1,
        "distinct_id": distinct_id,
        "person_id": person_id,
        "properties": {"plan": plan},
        "person_distinct_id_version": 0,
        "person_version": 4,
        "created_at": "2024-01-01T00:00:00+00:00",
        "is_deleted": deleted,
    }
    for distinct_id, person_id, plan, deleted in (
        (ANN, "018f3c1e-0000-7000-8000-000000000001", "pro", False),
        ("bo", "018f3c1e-0000-7000-8000-000000000002", "free", False),
        ("anonymous-1", "018f3c1e-0000-7000-8000-000000000001", "pro", False),
        ("gone", "018f3c1e-0000-7000-8000-000000000003", "free", True),
    )
)


def test_persons_alone_are_imported_with_their_ids(service: RunningSandbox, tmp_path: Path) -> None:
    """One person of two ids, one of one, none that was deleted; as a list of ids, too."""
    for name, lines in (
        ("rows", PERSON_ROWS),
        (
            "lists",
            (
                {
                    "id": "018f3c1e-0000-7000-8000-000000000001",
                    "distinct_ids": [ANN, "anonymous-1"],
                    "properties": {"plan": "pro"},
                    "created_at": "2024-01-01T00:00:00Z",
                },
                {
                    "id": "018f3c1e-0000-7000-8000-000000000002",
                    "distinct_ids": ["bo"],
                    "properties": {"plan": "free"},
                    "created_at": "2024-01-01T00:00:00Z",
                },
            ),
        ),
    ):
        key = f"phc_exported_persons_{name}_1"
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = imported(service, tmp_path / name, "posthog", path, *SET, "--sort", key=key)
        assert done.code == 0, done.out + done.err
        assert [person[:2] for person in persons(service, key)] == [
            ([ANN, "anonymous-1"], {"plan": "pro"}),
            (["bo"], {"plan": "free"}),
        ]


UUID: Final = "0f8fad5b-d9cb-469f-a165-70867728950e"
ROW: Final = {
    "uuid": UUID,
    "event": "$autocapture",
    "properties": '{"n": 1.50}',
    "elements_chain": ELEMENTS,
    "distinct_id": ANN,
    "person_id": "018f3c1e-0000-7000-8000-000000000001",
    "person_properties": '{"plan":"pro"}',
    "created_at": "2024-01-01 00:00:01.000",
    "timestamp": "2024-01-01 00:00:00.123456",
    "team_id": 1,
    "set": None,
    "set_once": "",
    "_inserted_at": "2024-01-01 00:00:02.000",
    "inserted_at": "2024-01-01 00:00:02.000",
}
"""A row as ClickHouse writes it: times have no zone, and objects are texts."""


def _lines() -> bytes:
    return json.dumps(ROW).encode() + b"\n"


def _table() -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, ROW)
    writer.writeheader()
    writer.writerow(ROW)
    return text.getvalue().encode()


def _parquet(codec: str) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist([ROW]), file, compression=codec)
    return file.getvalue()


def _exported() -> bytes:
    """JSON lines as the service's batch export writes them: objects are objects."""
    row = ROW | {"properties": {"n": 1.5}, "timestamp": "2024-01-01T00:00:00.123456+00:00"}
    return json.dumps(row).encode() + b"\n"


def files() -> Iterator[tuple[str, bytes]]:
    """Files with the same row, as the service, ClickHouse and queries write them."""
    yield "e.jsonl", _exported()
    yield "e.jsonl.gz", gzip.compress(_exported())
    yield "e.jsonl.br", brotli.compress(_exported())
    yield "dump.json", _lines()
    yield "dump.json.zst", zstandard.compress(_lines())
    yield "dump.json.lz4", bytes(cramjam.lz4.compress(_lines()))
    yield "dump.json.sz", bytes(cramjam.snappy.compress(_lines()))
    yield "query.csv", _table()
    yield "query.csv.br", brotli.compress(_table())
    for codec, end in (
        ("zstd", "zst"),
        ("lz4", "lz4"),
        ("snappy", "sz"),
        ("gzip", "gz"),
        ("brotli", "br"),
    ):
        yield f"e.parquet.{end}", _parquet(codec)


@cases(("name", "content"), files())
def test_every_file_brings_the_event_and_its_elements(
    service: RunningSandbox, tmp_path: Path, name: str, content: bytes
) -> None:
    """Whatever packs it: the elements are where ingestion takes them from, and nothing of what
    belongs to the old project is sent.
    """
    key = f"phc_{name.replace('.', '_')}"
    path = tmp_path / name
    path.write_bytes(content)
    done = imported(service, tmp_path / "state", "posthog", path, key=key)
    assert done.code == 0, done.out + done.err
    [event] = service.ask(f"events?api_key={key}")["results"]
    raw = json.loads(event["raw"])
    assert raw.keys() == {"event", "distinct_id", "uuid", "timestamp", "properties"}
    assert (raw["uuid"], event["timestamp"]) == (UUID, "2024-01-01T00:00:00.123456Z")
    assert raw["properties"].items() >= {"$elements_chain": ELEMENTS, "n": 1.5}.items()
    assert raw["properties"].keys() == {"$elements_chain", "n", "$import_job_id", "$geoip_disable"}


@cases("form", ["native", "csv"])
def test_other_formats_keep_the_elements_and_point_to_this_one(
    service: RunningSandbox, tmp_path: Path, form: str
) -> None:
    """An autocaptured event has its elements also where its file is read as another format, and
    the preflight says which one knows all columns.
    """
    key = f"phc_elements_of_{form}_01"
    path = tmp_path / ("e.csv" if form == "csv" else "e.jsonl")
    path.write_bytes(_table() if form == "csv" else _exported())
    zone = ("--zone", "UTC") if form == "csv" else ()
    done = imported(service, tmp_path / "state", form, path, *zone, key=key)
    assert done.code == 0, done.out + done.err
    assert "Try `forwarder import posthog …`" in done.out + done.err
    [event] = service.ask(f"events?api_key={key}")["results"]
    assert json.loads(event["raw"])["properties"]["$elements_chain"] == ELEMENTS


def test_native_refuses_a_parquet_export_and_names_the_format(
    service: RunningSandbox, tmp_path: Path
) -> None:
    """Its properties are texts, of which no event can be made as it stands."""
    path = tmp_path / "e.parquet"
    path.write_bytes(_parquet("snappy"))
    done: Finished = imported(service, tmp_path / "state", "native", path, key="phc_parquet_1")
    assert done.code == 1
    assert "`forwarder import posthog …`" in done.out + done.err
