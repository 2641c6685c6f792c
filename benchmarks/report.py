"""Results for people (a table that can be put into a document as it is) and for programs (JSON)."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.cases import Case
from benchmarks.memory import MemoryResult
from benchmarks.throughput import Figure


def row(case: Case, figure: Figure, against: Figure) -> dict[str, Any]:
    """One case's line. `against` is its floor or the case that it is to be compared with."""
    return measured(
        case.name,
        figure,
        str(case.floor) if case.base == case.name else case.base,
        against,
        case.share,
    )


def measured(
    name: str, figure: Figure, against: str, floor: Figure, wanted: float | None
) -> dict[str, Any]:
    """The line of what was measured; `against`: what its floor is called."""
    return {
        "case": name,
        "events_per_cpu_second": round(figure.rate),
        "against": against,
        "against_per_cpu_second": round(floor.rate),
        "ratio": round(figure.rate / floor.rate, 3),
        "wanted": wanted,
        "busy": round(mean(figure.busy), 2),
        "others": round(mean(figure.others), 2),
        "all_rates": [round(rate) for rate in figure.rates],
        "floor_rates": [round(rate) for rate in floor.rates],
        "answers": {str(status): count for status, count in sorted(figure.statuses.items())},
        "lost": figure.lost,
    }


def table(rows: Iterable[dict[str, Any]]) -> str:
    """The lines as a Markdown table."""
    cells = [
        [
            "case",
            "events/CPU-s",
            "held against",
            "its events/CPU-s",
            "ratio",
            "wanted",
            "core busy",
            "others",
            "503",
            "lost",
        ]
    ]
    cells += [_cells(row) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in cells
    )


def _cells(row: dict[str, Any]) -> list[str]:
    wanted = "" if row["wanted"] is None else f"≥ {row['wanted']}"
    figures = [
        f"{row['events_per_cpu_second']:,}",
        row["against"],
        f"{row['against_per_cpu_second']:,}",
        f"{row['ratio']:.2f}",
    ]
    core = [f"{row['busy']:.2f}", f"{row['others']:.2f}"]
    return [
        row["case"],
        *figures,
        wanted,
        *core,
        f"{row['answers'].get('503', 0):,}",
        f"{row['lost']:,}",
    ]


def memory_lines(results: Iterable[MemoryResult]) -> str:
    """The measurements of memory, a line each."""
    return "\n".join(
        f"{result.name}: peak {result.peak / 1e6:.0f} MB of {result.allowed / 1e6:.0f}, "
        f"{result.accepted:,} events accepted, "
        f"{result.answers.get(503, 0):,} requests answered 503, {result.arrived:,} events "
        f"arrived: {'good' if result.good else 'NOT GOOD'}"
        for result in results
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values is at or below."""
    ordered = sorted(values)
    return ordered[max(0, ceil(round(share * len(ordered), 6)) - 1)]


def machine() -> dict[str, Any]:
    """What it was measured on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
