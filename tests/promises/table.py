"""The cells: each promise at each entrance, and the table that shows them."""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forwarder.testing.sandbox import AnalyticsSandbox, running_sandbox
from tests.promises.agreed import SERVICES
from tests.promises.entrance import Entrance
from tests.promises.entrances import ENTRANCES
from tests.promises.promises import PROMISES, PromiseRow
from tests.promises.seen import CellEvidence, WorldEvidence


class CellState(StrEnum):
    """What is known of a cell, as the table shows it."""

    OK = "ok"
    INAPPLICABLE = "-"
    UNTESTED = "?"
    BROKEN = "BROKEN"


@dataclass(frozen=True, slots=True)
class Cell:
    """One promise at one entrance. `why`: it doesn't apply, isn't tested, or is broken."""

    promise: str
    entrance: str
    state: CellState
    why: str = ""


def worlds(entrances: Iterable[type[Entrance]] = ENTRANCES) -> dict[str, list[type[Entrance]]]:
    """Entrances by the world that they share."""
    by_world: dict[str, list[type[Entrance]]] = defaultdict(list)
    for entrance in entrances:
        by_world[entrance.kind.name].append(entrance)
    return dict(by_world)


@contextmanager
def running_services() -> Iterator[Mapping[str, AnalyticsSandbox]]:
    """A sandbox for each destination that is a service."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_sandbox("--strict")) for name in SERVICES}


async def cells_of(
    columns: Iterable[type[Entrance]],
    folder: Path,
    services: Mapping[str, AnalyticsSandbox],
    kafka: str = "",
) -> list[Cell]:
    """All cells of entrances that share a world. Cancellation ends its processes."""
    entrances = [make() for make in columns]
    world = entrances[0].kind(folder, services, entrances, kafka)
    try:
        await world.run()
    except Exception as error:
        for entrance in entrances:
            world.evidence.failures.setdefault(entrance.name, error)
    return [
        judge(promise, entrance, world.evidence) for entrance in entrances for promise in PROMISES
    ]


def judge(promise: PromiseRow, entrance: Entrance, evidence: WorldEvidence) -> Cell:
    """What became of a promise; never raises for a broken one."""
    if why := entrance.inapplicable.get(promise.name):
        return Cell(promise.name, entrance.name, CellState.INAPPLICABLE, why)
    if why := entrance.untested.get(promise.name):
        return Cell(promise.name, entrance.name, CellState.UNTESTED, why)
    try:
        seen = CellEvidence(promise, entrance, evidence)
        seen.check_worked()
        promise.check(seen)
    except Exception as error:
        return Cell(promise.name, entrance.name, CellState.BROKEN, _words(error))
    return Cell(promise.name, entrance.name, CellState.OK)


def _words(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    notes = "; ".join(getattr(error, "__notes__", []))
    said = f"{type(error).__name__}: {error} {notes}".strip()
    return f"{Path(place.filename).name}:{place.lineno}: {place.line}: {said}"


def untested(names: Iterable[str], why: str) -> list[Cell]:
    """The cells of entrances that can't be tried here."""
    return [
        Cell(promise.name, name, CellState.UNTESTED, why) for name in names for promise in PROMISES
    ]


def as_text(cells: Sequence[Cell]) -> str:
    """The table, its counts, and the reasons below."""
    table = {(cell.promise, cell.entrance): cell for cell in cells}
    columns = [
        entrance.name
        for entrance in ENTRANCES
        if any(cell.entrance == entrance.name for cell in cells)
    ]
    letters = {name: chr(ord("A") + number) for number, name in enumerate(columns)}
    width = max(len(promise.name) for promise in PROMISES)
    lines = [f"  {letters[name]}  {name}" for name in columns]
    lines += ["", " ".join([" " * width, *(f"{letters[name]:>6}" for name in columns)])]
    for promise in PROMISES:
        row = [table[promise.name, name] for name in columns]
        lines.append(" ".join([promise.name.ljust(width), *(f"{cell.state:>6}" for cell in row)]))
    counts = Counter(cell.state for cell in cells)
    words = {
        CellState.OK: "ok",
        CellState.INAPPLICABLE: "don't apply",
        CellState.UNTESTED: "aren't tested",
        CellState.BROKEN: "are BROKEN",
    }
    figures = ", ".join(f"{counts[state]} {word}" for state, word in words.items())
    lines += ["", f"{len(cells)} cells: {figures}"]
    for state in (CellState.BROKEN, CellState.UNTESTED, CellState.INAPPLICABLE):
        reasons = [cell for cell in cells if cell.state is state]
        if reasons:
            lines += ["", f"{words[state]}:".capitalize(), *_grouped(reasons)]
    return "\n".join(lines)


def _grouped(cells: Sequence[Cell]) -> Iterator[str]:
    """The reasons of cells, each once."""
    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for cell in cells:
        names[cell.entrance, cell.why].append(cell.promise)
    for (entrance, why), promises in names.items():
        yield f"  {entrance}: {', '.join(promises)}: {why}"
