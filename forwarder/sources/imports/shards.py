"""An import in shards, all of them together: which are complete, whether they divide one list of
files, and the sums of their books.

Each shard has a state folder of its own (`job.Shard.folder`), and these are in one folder. What is
said of all of them follows from their checkpoints. Days add up, also their digests of uuids; an
event that is in the files of two shards is counted by both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forwarder.sources.imports.checkpoint import FILE, ImportJob
from forwarder.sources.imports.import_books import EXAMPLES, DayTally, RecordBooks, RefusalExample
from forwarder.sources.imports.job import Shard, read_shards
from forwarder.sources.imports.report import (
    ImportManifest,
    ImportStatus,
    balance,
    by_count,
    file_progress,
    manifest_of,
    sentence,
    to_second,
)
from forwarder.storage.directory import is_locked
from forwarder.telemetry.readable import duration, plain, plural


class ShardGaps(Struct, frozen=True):
    """What keeps an import in shards from being complete; as JSON, it is what machines get. Shards
    are counted from 0.
    """

    of: int
    not_started: list[int]
    """There is no checkpoint of them, and no process."""
    unfinished: list[int]
    same_list: bool
    """Whether those that have begun divide the same list of files."""

    @property
    def complete(self) -> bool:
        """Whether all of the source is settled."""
        return self.same_list and not (self.not_started or self.unfinished)


@dataclass(frozen=True)
class ImportShards:
    """Those of one import: `shards` has each that has begun, by its number; of a `damaged` one the
    checkpoint can't be read.
    """

    folder: Path
    of: int
    shards: dict[int, ImportStatus]
    damaged: frozenset[int] = frozenset()

    @cached_property
    def manifests(self) -> dict[int, ImportManifest]:
        """Of those of which something is settled."""
        return {
            number: manifest_of(shard.checkpoint)
            for number, shard in self.shards.items()
            if shard.checkpoint is not None
        }

    @cached_property
    def gaps(self) -> ShardGaps:
        """What is missing."""
        not_started = [
            number
            for number in range(self.of)
            if number not in self.shards and number not in self.damaged
        ]
        complete = {number for number, manifest in self.manifests.items() if manifest.complete}
        unfinished = [
            number
            for number in range(self.of)
            if number not in complete and number not in not_started
        ]
        return ShardGaps(self.of, not_started, unfinished, len(self._lists()) <= 1)

    @property
    def job(self) -> ImportJob | None:
        """What they have in common; None if that isn't known."""
        job = next(iter(manifest.job for manifest in self.manifests.values()), None) or read_shards(
            self.folder
        )
        return job and msgspec.structs.replace(job, shard=None)

    @property
    def job_ids(self) -> list[str]:
        """What their events say that they are from: one id, if they divide the same list."""
        return sorted({manifest.job.id for manifest in self.manifests.values()})

    @cached_property
    def whole(self) -> ImportManifest | None:
        """The manifest of all of them together; None if nothing is settled."""
        return (
            added_up([*self.manifests.values()], complete=self.gaps.complete)
            if self.manifests
            else None
        )

    @property
    def running(self) -> bool:
        """Whether a process has one of them now."""
        return any(shard.running for shard in self.shards.values())

    def page(self, now: float) -> RenderableType:
        """What each is about, and all of them; `now` in seconds since 1970."""
        job = self.job
        whole = self.whole
        name = self.folder.name if job is None else f"{job.format} {job.source}"
        head = Text(f"{plain(name)} in {plural(self.of, 'shard')}: ")
        head.append(
            "complete" if self.gaps.complete else "not complete",
            style="green" if self.gaps.complete else "yellow",
        )
        ids = f"import {', '.join(self.job_ids)}, " if self.job_ids else ""
        parts: list[RenderableType] = [
            head,
            Text(f"  {ids}in {plain(str(self.folder))}"),
            self._table(now),
        ]
        if whole is not None:
            balanced = Text(f"  {sentence(whole.books)}: ")
            balanced.append(
                balance(whole.books), style="bold red" if whole.books.difference else "green"
            )
            span = f", of {whole.first} to {whole.last}" if whole.first else ""
            parts += [balanced, Text(f"  {plural(whole.events, 'event')} delivered{span}")]
        return Group(*parts, *self._problems())

    def plain(self) -> dict[str, Any]:
        """For machines: as of an import in one process (`ImportStatus.plain`), and each shard."""
        saved = [shard.checkpoint for shard in self.shards.values() if shard.checkpoint is not None]
        whole = self.whole
        gaps = self.gaps
        listed = [
            {"shard": number, **self.shards[number].plain()} for number in sorted(self.shards)
        ]
        document: dict[str, Any] = {
            "folder": str(self.folder),
            "job": self.job,
            "running": self.running,
            "complete": gaps.complete,
        }
        if whole is not None:
            done, known, all_known = zip(*map(file_progress, saved), strict=True)
            counted = [shard.counted for shard in self.shards.values()]
            document |= {
                "started": to_second(min(checkpoint.started_at for checkpoint in saved)),
                "written": to_second(max(checkpoint.written_at for checkpoint in saved)),
                "counted": None
                if gaps.not_started or None in counted
                else sum(filter(None, counted)),
                "books": {
                    **msgspec.to_builtins(whole.books),
                    "difference": whole.books.difference,
                },
                "events": whole.events,
                "first": whole.first,
                "last": whole.last,
                "files": {
                    "done": sum(done),
                    "known": sum(known),
                    "all_known": all(all_known) and not gaps.not_started,
                },
            }
        return {**document, "shards": {**msgspec.structs.asdict(gaps), "each": listed}}

    def _table(self, now: float) -> Table:
        table = Table(box=None, pad_edge=True, header_style="dim")
        for name in ("shard", "state"):
            table.add_column(name, no_wrap=True)
        for name in ("read", "delivered", "refused", "left out", "repeats", "events", "files"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("last checkpoint", no_wrap=True)
        for number in range(self.of):
            made = self.manifests.get(number)
            shard = self.shards.get(number)
            figures: list[str] = []
            if made is not None and shard is not None and shard.checkpoint is not None:
                done, known, _ = file_progress(shard.checkpoint)
                figures = [
                    *_figures(made),
                    f"{done:,} of {known:,}",
                    f"{duration(now - shard.checkpoint.written_at)} ago",
                ]
            table.add_row(f"{number}/{self.of}", self._state(number), *figures)
        if self.whole is not None:
            table.add_row("all", "", *_figures(self.whole), style="bold")
        return table

    def _state(self, number: int) -> Text:
        if number in self.damaged:
            return Text("checkpoint damaged", style="red")
        if (shard := self.shards.get(number)) is None:
            return Text("not started", style="yellow")
        made = self.manifests.get(number)
        share = (
            f", {made.books.read / shard.counted:.0%}"
            if made and shard.counted and not made.complete
            else ""
        )
        if shard.running:
            return Text(f"running{share}")
        return (
            Text("complete", style="green")
            if made and made.complete
            else Text(f"not complete{share}", style="yellow")
        )

    def _problems(self) -> Iterator[Text]:
        waiting: dict[str, list[int]] = {}
        for number, shard in self.shards.items():
            if shard.running and shard.checkpoint is not None and shard.checkpoint.waiting:
                waiting.setdefault(shard.checkpoint.waiting, []).append(number)
        for why, numbers in waiting.items():
            yield Text(f"  waiting: {self._named(numbers)}: {plain(why)}", style="yellow")
        if self.gaps.not_started:
            yield Text(f"  not started: {self._named(self.gaps.not_started)}", style="yellow")
        stopped = [
            number
            for number in self.gaps.unfinished
            if number in self.shards and not self.shards[number].running
        ]
        if stopped:
            yield Text(
                f"  not complete: {self._named(stopped)}: the same commands resume them",
                style="yellow",
            )
        if not self.gaps.same_list:
            lists = "; ".join(
                f"{plural(files, 'file')} for {self._named(numbers)}"
                for (files, _), numbers in self._lists().items()
            )
            yield Text(
                f"  the shards divide different lists of files: {lists}. Some files may be read "
                "twice and others never: the `sources` of "
                "each shard's manifest are what it reads. Import what is missing by itself.",
                style="bold red",
            )

    def _lists(self) -> dict[tuple[int, str], list[int]]:
        """The lists of files that they divide: how long, what tells them apart, and whose."""
        lists: dict[tuple[int, str], list[int]] = {}
        for number, made in sorted(self.manifests.items()):
            shard = made.job.shard
            lists.setdefault((0, "") if shard is None else (shard.files, shard.listing), []).append(
                number
            )
        return lists

    def _named(self, numbers: Sequence[int]) -> str:
        """Shards as they are typed, neighbours together."""
        runs: list[list[int]] = []
        for number in sorted(numbers):
            if runs and runs[-1][-1] == number - 1:
                runs[-1].append(number)
            else:
                runs.append([number])
        return ", ".join(
            f"{run[0]}/{self.of}" if len(run) == 1 else f"{run[0]}/{self.of} to {run[-1]}/{self.of}"
            for run in runs
        )


def _figures(manifest: ImportManifest) -> list[str]:
    books = manifest.books
    counts = (
        books.read,
        books.delivered,
        sum(books.refused.values()),
        sum(books.left_out.values()),
        books.repeats,
        manifest.events,
    )
    return [f"{count:,}" for count in counts]


def shard_folders(folder: Path) -> dict[int, dict[int, Path]]:
    """The state folders of the shards in a folder that have begun: by the number of shards, and by
    their numbers. Raises OSError.
    """
    by_count: dict[int, dict[int, Path]] = {}
    for inside in folder.iterdir() if folder.is_dir() else ():
        shard = Shard.of_folder(inside.name)
        if shard is not None and ((inside / FILE).is_file() or is_locked(inside)):
            by_count.setdefault(shard.of, {})[shard.number] = inside
    begun = read_shards(folder)
    if begun is not None and begun.shard is not None:
        by_count.setdefault(begun.shard.of, {})
    return by_count


def added_up(manifests: Sequence[ImportManifest], *, complete: bool) -> ImportManifest:
    """One manifest of the shards of an import."""
    first = manifests[0]
    books = RecordBooks()
    days = dict[str, DayTally]()
    names = Counter[str]()
    examples = dict[str, list[RefusalExample]]()
    for manifest in manifests:
        books.add(manifest.books)
        names.update(manifest.names)
        for day, tally in manifest.days.items():
            days.setdefault(day, DayTally()).add(
                tally.source, tally.delivered, int(tally.uuids, 16)
            )
        for reason, some in manifest.examples.items():
            examples[reason] = [*examples.get(reason, ()), *some][:EXAMPLES]
    return msgspec.structs.replace(
        first,
        job=msgspec.structs.replace(first.job, shard=None),
        complete=complete,
        started=min(manifest.started for manifest in manifests),
        ended=max(manifest.ended for manifest in manifests),
        books=books,
        events=sum(manifest.events for manifest in manifests),
        first=min(
            _known(manifest.first for manifest in manifests),
            key=datetime.fromisoformat,
            default=None,
        ),
        last=max(
            _known(manifest.last for manifest in manifests),
            key=datetime.fromisoformat,
            default=None,
        ),
        sources=[*chain.from_iterable(manifest.sources for manifest in manifests)],
        files=[*chain.from_iterable(manifest.files for manifest in manifests)],
        days=dict(sorted(days.items())),
        names=dict(by_count(names)),
        examples=examples,
    )


def _known(times: Iterable[str | None]) -> Iterator[str]:
    return (time for time in times if time is not None)
