"""State folders that forwarder 0.1.0 left: imports that were killed midway, or finished, with marked dead letters, some of them repaired.

`python -m tests.golden_imports.unfinished --write` makes them anew, by the code as it is, and records how it resumes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import sqlite3
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.golden_imports.exports import EXPORTS
from tests.golden_imports.making import ONCE
from tests.golden_imports.recording import (
    GOLDEN,
    SOON,
    UNTIL,
    GoldenCase,
    RecordingService,
    command,
    day_of,
    letters,
    load,
    recording,
    refuses,
    save,
    stable,
    target,
)
from tests.support.commands import Finished, running
from tests.support.upstream import Answer, Request, Upstream

SMALL: Final = SOON | {"FORWARDER_BATCH__MAX_EVENTS": "1", "FORWARDER_DELIVERY__CONCURRENCY": "8"}
QUIET: Final = 2.0
"""Seconds without a request after which all is settled that doesn't wait for the one that isn't answered."""
FILES: Final = 40
"""Above so many bits of a dead letter's place is the number of its file, below them that of its record."""
RECORDS: Final = (1 << FILES) - 1
REPAIRED: Final[dict[str, bytes]] = {
    "native": b'{"event":"repaired","distinct_id":"u1","timestamp":"2024-05-02T09:00:00Z","properties":{"n":1}}',
    "amplitude": b'{"event_type":"repaired","user_id":"user-1@example.com","device_id":"new","event_time":"2024-05-02 09:00:00.5"}',
}


@dataclass(frozen=True, slots=True)
class OldState:
    """A state folder, and how it was made."""

    name: str
    export: str
    options: tuple[str, ...] = ()
    killed: bool = True

    @property
    def golden(self) -> GoldenCase:
        """The name of its file: of how it was resumed, and what had been sent before."""
        return GoldenCase(f"old-{self.name}", 620)

    @property
    def archive(self) -> Path:
        """The folder itself."""
        return GOLDEN / f"old-{self.name}.tar.xz"


OLD: Final = (
    OldState("native", "native"),
    OldState("amplitude", "amplitude", ("--limit", "450")),
    OldState("finished", "native", killed=False),
    OldState("finished-sorted", "native", ("--sort",), killed=False),
)


def words_of(old: OldState, service: RecordingService, state: Path) -> tuple[str | Path, ...]:
    """The command, the same each time."""
    return ("import", *EXPORTS[old.export](620).words, "--until", UNTIL, *old.options, *target(service, state))


def verify(state: Path, folder: Path, *sent: dict[str, list[list[str]]]) -> Finished:
    """Compare the manifest with an export of all that the service has: of each event uuid and day."""
    job = json.loads((state / "manifest.json").read_text())["job"]["id"]
    found = {(uuid, day_of(time), digest) for by_id in sent for events in by_id.values() for uuid, time, digest in events}
    rows = [{"uuid": uuid, "timestamp": f"{day}T00:00:00Z", "properties": {"$import_job_id": job}} for uuid, day, _ in sorted(found)]
    (folder / "service.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return command("import", "verify", "--state", state, "--export", folder / "service.jsonl")


def resume(old: OldState, folder: Path, before: dict[str, list[list[str]]]) -> dict[str, Any]:
    """Put the folder in its place, and run the command again; what came of it. The service accepts what was marked."""
    export, state = EXPORTS[old.export](620), folder / "state"
    export.write(folder)
    with tarfile.open(old.archive) as archive:
        archive.extractall(state, filter="data")
    state.chmod(0o700)
    marked = {letter["uuid"] for letter in letters(state, folder) if letter["mark"]}
    with recording(lambda event: refuses(event) and event.uuid not in marked) as service, contextlib.chdir(folder):
        move(state, folder, service.url)
        saved = json.loads((state / "checkpoint.json").read_text())["checkpoint"]
        done = command(*words_of(old, service, state), "--output", "json", env=SOON)
        again = len(service.batches)
        repeated = command(*words_of(old, service, state), "--output", "json", env=SOON)
        verified = verify(state, folder, before, service.by_id)
        assert (repeated.code, len(service.batches)) == (done.code, again), "a complete import sends something again"
    return {
        "code": done.code,
        "verified": (verified.out + verified.err).replace(f"{folder}/", ""),
        "settled": sum(day["delivered"] for day in saved["totals"]["days"].values()),
        "events": service.by_id,
        "manifest": stable(json.loads((state / "manifest.json").read_text()), folder),
        "letters": letters(state, folder),
    }


def move(state: Path, folder: Path, url: str) -> None:
    """Give what is in the folder today's place of the source, and today's address."""
    place = json.loads((state / "place.json").read_text())
    (state / "place.json").unlink()
    saved = json.loads((state / "checkpoint.json").read_text())["checkpoint"]
    body = json.dumps(saved, separators=(",", ":"), ensure_ascii=False).replace(place["folder"], str(folder)).replace(place["url"], url)
    digest = hashlib.sha256(body.encode()).hexdigest()
    (state / "checkpoint.json").write_text(f'{{"version":1,"sha256":"{digest}","checkpoint":{body}}}\n')
    for name in ("manifest.json", "report.json"):
        if (state / name).exists():
            content = (state / name).read_text().replace(place["folder"], str(folder)).replace(place["url"], url)
            (state / name).write_text(content)
    with contextlib.closing(sqlite3.connect(state / "dead-letters.db")) as connection, connection:
        connection.execute("UPDATE letters SET coordinates = replace(coordinates, ?, ?)", (place["folder"], str(folder)))


def make(old: OldState) -> None:
    """Import, to the end or until some of each file is settled; mark dead letters; keep the folder, and record how it is resumed."""
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        state = folder / "state"
        EXPORTS[old.export](620).write(folder)
        with contextlib.chdir(folder):
            if old.killed:
                service = asyncio.run(interrupt(old, state))
                files = json.loads((state / "checkpoint.json").read_text())["checkpoint"]["files"]
                sys.stdout.write(f"{[(each['name'], each['books']) for each in files]} of {len(service.delivered)} accepted\n")
            else:
                with recording() as service:
                    command(*words_of(old, service, state), env=SOON)
        mark(old, state, folder)
        with contextlib.closing(sqlite3.connect(state / "dead-letters.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (state / "place.json").write_text(json.dumps({"folder": str(folder), "url": service.url}))
        with tarfile.open(old.archive, "w:xz") as archive:
            for path in sorted(state.iterdir()):
                if path.suffix in {".json", ".db"} and path.name not in {"preflight.json"}:
                    archive.addfile(_plain(archive.gettarinfo(path, path.name)), io.BytesIO(path.read_bytes()))
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        recorded = resume(old, Path(name), service.by_id)
    save(old.golden, {**recorded, "before": service.by_id})


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


async def interrupt(old: OldState, state: Path) -> RecordingService:
    """Kill an import when it waits for one request, in which a person is alone, and all that doesn't wait for that is settled."""
    service = RecordingService()
    never = asyncio.Event()

    def answer(request: Request) -> Answer:
        return Answer(when=never) if ONCE.encode() in request.body else service.answer(request)

    async with Upstream(answer, keeps=False) as upstream:
        service.url = upstream.url
        env = SMALL | {"PYTHONPATH": str(Path(__file__).parents[2])}
        async with running(*map(str, words_of(old, service, state)), env=env) as importer, asyncio.timeout(60):
            seen = -1
            while len(service.batches) != seen or not (state / "dead-letters.db").exists():
                seen = len(service.batches)
                if importer.process.returncode is not None:
                    raise AssertionError(await importer.ended(), importer.lines)
                await asyncio.sleep(QUIET)
            importer.process.kill()
            await importer.process.wait()
    return service


def mark(old: OldState, state: Path, folder: Path) -> None:
    """Mark settled dead letters: a record repaired, one as it is, an event as it is, and one edited. The others stay."""
    read = dict(enumerate(file["read"] for file in json.loads((state / "checkpoint.json").read_text())["checkpoint"]["files"]))
    with contextlib.closing(sqlite3.connect(state / "dead-letters.db")) as connection:
        found = connection.execute("SELECT number, sequence, reason FROM letters ORDER BY sequence").fetchall()
    settled = [(str(number), reason) for number, place, reason in found if place & RECORDS < read.get(place >> FILES, 0)]
    records = [number for number, reason in settled if reason != "refused"]
    events = [number for number, reason in settled if reason == "refused"]
    (folder / "repaired.json").write_bytes(REPAIRED[old.export])
    marks: list[tuple[str | Path, ...]] = [(records[0], "--with", folder / "repaired.json"), (records[1],)]
    marks += [(number, *words) for number, words in zip(events, ((), ("--edit", ".properties.edited = true")), strict=False)]
    sys.stdout.write(f"marked: {len(records)} records and {len(events)} events of {len(found)} dead letters\n")
    for words in marks:
        done = command("dead-letters", "replay", *words, "--path", state, "--yes")
        assert done.code == 0, done


if __name__ == "__main__" and "--write" in sys.argv:
    for each in OLD:
        make(each)
        sys.stdout.write(f"{each.name}: {load(each.golden)['verified']}\n")
