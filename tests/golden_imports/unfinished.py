"""State folders that forwarder 0.1.0 left: imports that were killed midway, or finished, with
marked dead letters, some of them repaired.

That version also recorded how it resumed them. They can't be made anew: no later version writes
what it left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.golden_imports.exports import EXPORTS
from tests.golden_imports.recording import (
    GOLDEN,
    SOON,
    UNTIL,
    GoldenCase,
    RecordingService,
    command,
    day_of,
    letters,
    recording,
    refuses,
    stable,
    target,
)
from tests.support.commands import Finished


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
    return (
        "import",
        *EXPORTS[old.export](620).words,
        "--until",
        UNTIL,
        *old.options,
        *target(service, state),
    )


def verify(state: Path, folder: Path, *sent: dict[str, list[list[str]]]) -> Finished:
    """Compare the manifest with an export of all that the service has: of each event
    uuid and day.
    """
    job = json.loads((state / "manifest.json").read_text())["job"]["id"]
    stored_events = {
        (uuid, day_of(time), digest)
        for by_id in sent
        for events in by_id.values()
        for uuid, time, digest in events
    }
    rows = [
        {"uuid": uuid, "timestamp": f"{day}T00:00:00Z", "properties": {"$import_job_id": job}}
        for uuid, day, _ in sorted(stored_events)
    ]
    (folder / "service.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return command("import", "verify", "--state", state, "--export", folder / "service.jsonl")


def resume(old: OldState, folder: Path, before: dict[str, list[list[str]]]) -> dict[str, Any]:
    """Put the folder in its place, and run the command again; what came of it. The service accepts
    what was marked.
    """
    export = EXPORTS[old.export](620)
    state = folder / "state"
    export.write(folder)
    with tarfile.open(old.archive) as archive:
        archive.extractall(state, filter="data")
    state.chmod(0o700)
    marked = {letter["uuid"] for letter in letters(state, folder) if letter["mark"]}
    with (
        recording(lambda event: refuses(event) and event.uuid not in marked) as service,
        contextlib.chdir(folder),
    ):
        move(state, folder, service.url)
        saved = json.loads((state / "checkpoint.json").read_text())["checkpoint"]
        done = command(*words_of(old, service, state), "--output", "json", env=SOON)
        again = len(service.batches)
        repeated = command(*words_of(old, service, state), "--output", "json", env=SOON)
        verified = verify(state, folder, before, service.by_id)
        assert (repeated.code, len(service.batches)) == (done.code, again), (
            "a complete import sends something again"
        )
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
    body = (
        json.dumps(saved, separators=(",", ":"), ensure_ascii=False)
        .replace(place["folder"], str(folder))
        .replace(place["url"], url)
    )
    digest = hashlib.sha256(body.encode()).hexdigest()
    (state / "checkpoint.json").write_text(
        f'{{"version":1,"sha256":"{digest}","checkpoint":{body}}}\n'
    )
    for name in ("manifest.json", "report.json"):
        if (state / name).exists():
            content = (
                (state / name)
                .read_text()
                .replace(place["folder"], str(folder))
                .replace(place["url"], url)
            )
            (state / name).write_text(content)
    with contextlib.closing(sqlite3.connect(state / "dead-letters.db")) as connection, connection:
        connection.execute(
            "UPDATE letters SET coordinates = replace(coordinates, ?, ?)",
            (place["folder"], str(folder)),
        )
