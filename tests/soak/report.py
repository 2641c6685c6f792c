"""What a soak tells: a text, and a picture of its figures over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.charts import Axis, Line, Panel, picture, upper_axis
from benchmarks.report import percentile
from tests.crash.journal import PROMISED, UNKNOWN
from tests.soak.judge import Growth
from tests.soak.sender import AnswerEntry
from tests.soak.soak import SoakReport

BINS: Final = 120
"""Spans of time whose percentiles are drawn, but none of less than two seconds."""
SHARES: Final = {0.5: "p50", 0.99: "p99", 0.999: "p99.9"}
_DECADES: Final = [0.1, 1, 10, 100, 1000, 10_000, 100_000]


def soak_text(report: SoakReport) -> str:
    """The report, in lines for a person."""
    options = report.options
    http = report.http
    ended = ", ended early" if report.interrupted else ""
    rows: list[tuple[str | int, ...]] = [
        ("", "sent", "accepted", "at the sandbox", "dead letters", "came again"),
        ("HTTP, SDK's bodies", http.sent, http.accepted, http.distinct, http.dead, http.repeats),
        (
            "Kafka",
            report.kafka_events,
            report.kafka_events,
            report.kafka.distinct,
            0,
            report.kafka.repeats,
        ),
        (
            "import",
            report.import_events,
            report.import_events,
            report.imported.distinct,
            0,
            report.imported.repeats,
        ),
    ]
    failed = report.failed()
    quiet = [entry for entry in report.answers if not _in_fault(report, entry.due - report.began)]
    delivered = sorted(
        seconds for due, seconds in http.deliveries if not _in_fault(report, due - report.began)
    )
    lines = [
        (
            f"{_length(report.seconds)}{ended}, {options.rate:.0f} events/s, {len(report.faults)} "
            f"faults upstream, seed {options.seed}"
        ),
        *_aligned(rows),
        f"flags: {_statuses(report.flags)}",
        "answers: "
        f"{_percentiles([one.seconds for one in report.answers if one.status], 1000, 'ms')}; "
        "outside of faults "
        f"{_percentiles([one.seconds for one in quiet if one.status], 1000, 'ms')}",
        "from receipt to delivery: "
        f"{_percentiles([seconds for _, seconds in http.deliveries], 1, 's')}; "
        f"outside of faults {_percentiles(delivered, 1, 's')}",
        f"memory: {_growth(report.memory, 1e6, ' MB')}, "
        f"{max((look.memory for look in report.looks), default=0) / 1e6:.0f} MB at most; "
        f"the import {max((look.import_memory for look in report.looks), default=0) / 1e6:.0f} MB "
        "at most",
        f"descriptors: {_growth(report.descriptors, 1, '')}, "
        f"{max((look.descriptors for look in report.looks), default=0)} at most; "
        f"at rest {report.before} before the load, {report.after} after it",
        "books at the end:",
        *(f"  {line}" for line in report.books),
        *(
            [f"FAILED: {failure}" for failure in failed]
            or ["nothing was lost, changed or miscounted, and nothing has grown"]
        ),
    ]
    return "\n".join(lines)


def _aligned(rows: Sequence[tuple[str | int, ...]]) -> list[str]:
    cells = [[cell if isinstance(cell, str) else f"{cell:,}" for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
        for row in cells
    ]


def _percentiles(values: Sequence[float], factor: float, unit: str) -> str:
    if not values:
        return "none"
    return ", ".join(
        f"{name} {factor * percentile(values, share):.{1 if factor > 1 else 2}f} {unit}"
        for share, name in SHARES.items()
    )


def _growth(figures: Growth, factor: float, unit: str) -> str:
    return (
        f"{figures.early / factor:.0f}{unit} in the second quarter, "
        f"{figures.late / factor:.0f}{unit} in the last"
    )


def _statuses(entries: Sequence[AnswerEntry]) -> str:
    counts = Counter(entry.status for entry in entries)
    others = [
        f"{count:,} {_status(status)}"
        for status, count in sorted(counts.items())
        if status != PROMISED
    ]
    return f"{len(entries):,} calls, {', '.join([f'{counts[PROMISED]:,} answered 200', *others])}"


def _status(status: int) -> str:
    return "without an answer" if status == UNKNOWN else f"answered {status}"


def _in_fault(report: SoakReport, at: float) -> bool:
    """Whether something was wrong upstream then, or had been just before."""
    return any(fault.begins - 1.0 <= at <= fault.ends + 10.0 for fault in report.faults)


def draw_soak(report: SoakReport, path: Path) -> None:
    """Write the picture: what went through, latencies, memory and descriptors over time, with the
    faults shaded.
    """
    seconds = max(report.seconds, 1.0)
    x = _time_axis(seconds)
    unit = x.high / seconds
    spans = [(fault.begins * unit, fault.ends * unit) for fault in report.faults]
    looks = report.looks

    def looked(name: str, figure: Callable[[int], float]) -> Line:
        return Line(name, [(look.at * unit, figure(number)) for number, look in enumerate(looks)])

    def rate(total: Callable[[int], int]) -> Callable[[int], float]:
        return lambda number: (
            (total(number) - total(max(0, number - 5)))
            / max(0.001, looks[number].at - looks[max(0, number - 5)].at)
        )

    received = looked("received", rate(lambda n: looks[n].received))
    delivered = looked("delivered", rate(lambda n: looks[n].delivered))
    memory = [
        looked("daemon", lambda n: looks[n].memory / 1e6),
        looked("import, highest", lambda n: looks[n].import_memory / 1e6),
    ]
    descriptors = looked("open", lambda n: looks[n].descriptors)
    buffered = looked("buffered", lambda n: looks[n].buffered)
    answers = [
        (entry.due - report.began, 1000 * entry.seconds) for entry in report.answers if entry.status
    ]
    deliveries = [(due - report.began, 1000 * latency) for due, latency in report.http.deliveries]
    panels = [
        Panel(
            "Events a second through the daemon",
            x,
            _above(received, delivered),
            [received, delivered],
            spans,
        ),
        Panel("Buffered events", x, _above(buffered), [buffered], spans),
        _latencies("From when a request was due to its answer", x, answers, spans, unit),
        _latencies("From then to its events' arrival upstream", x, deliveries, spans, unit),
        Panel("Memory, MB", x, _above(*memory), memory, spans),
        Panel("Open descriptors", x, _above(descriptors), [descriptors], spans),
    ]
    path.write_text(
        picture(f"{_length(seconds)} of mixed load; the upstream fails in the shaded spans", panels)
    )


def _length(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def _latencies(
    title: str,
    x: Axis,
    values: Sequence[tuple[float, float]],
    spans: Sequence[tuple[float, float]],
    unit: float,
) -> Panel:
    """Percentiles of latencies, in milliseconds, over time."""
    width = max(2.0, x.high / unit / BINS)
    bins: dict[int, list[float]] = {}
    for at, value in values:
        bins.setdefault(int(at / width), []).append(value)
    times = {number: (number + 0.5) * width * unit for number in sorted(bins)}
    lines = [
        Line(name, [(at, percentile(bins[number], share)) for number, at in times.items()])
        for share, name in SHARES.items()
    ]
    latencies = [value for line in lines for _, value in line.points if value is not None] or [1.0]
    low = max(decade for decade in _DECADES if decade <= max(0.1, min(latencies)))
    high = min((decade for decade in _DECADES if decade >= max(latencies)), default=_DECADES[-1])
    ticks = [
        (decade, f"{decade:g} ms" if decade < 1000 else f"{decade / 1000:g} s")
        for decade in _DECADES
        if low <= decade <= high
    ]
    return Panel(title, x, Axis(low, max(high, 10 * low), ticks, logarithmic=True), lines, spans)


def _above(*lines: Line) -> Axis:
    return upper_axis(
        max(
            (value for line in lines for _, value in line.points if value is not None), default=1.0
        ),
        "",
    )


def _time_axis(seconds: float) -> Axis:
    """From the beginning to the end, in minutes, or in seconds where it is short."""
    unit, name = (60.0, "min") if seconds >= 180 else (1.0, "s")
    high = seconds / unit
    step = next(size for size in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1e9) if high / size <= 8)
    ticks = [(float(at), f"{at} {name}") for at in range(0, int(high) + 1, int(min(step, 1e6)))]
    return Axis(0.0, high, ticks)
