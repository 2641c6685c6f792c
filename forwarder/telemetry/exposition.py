"""Metric families and how a scraper reads them: the Prometheus text format (0.0.4), or OpenMetrics (1.0.0) if it asks for that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from forwarder.telemetry.snapshot import Histogram

Labels: TypeAlias = dict[str, str]
Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Label values, and what they have."""

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPES_IN_QUOTES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A metric: its name, its type, what it means, and its samples, each with what follows the name."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    meaning: str
    samples: list[tuple[str, Labels, float]]


def counter(name: str, meaning: str, labels: tuple[str, ...], samples: Samples) -> MetricFamily:
    """A figure that only grows."""
    return MetricFamily(name, "counter", meaning, [("_total", _labels(labels, values), value) for values, value in samples])


def gauge(name: str, meaning: str, labels: tuple[str, ...], samples: Samples) -> MetricFamily:
    """A figure of now."""
    return MetricFamily(name, "gauge", meaning, [("", _labels(labels, values), value) for values, value in samples])


def histogram(name: str, meaning: str, counted: Histogram) -> MetricFamily:
    """Observations in buckets."""
    buckets = counted.cumulative()
    samples = [("_bucket", {"le": bound}, float(count)) for bound, count in buckets]
    return MetricFamily(name, "histogram", meaning, [*samples, ("_count", {}, buckets[-1][1]), ("_sum", {}, counted.sum)])


def expose(families: Iterable[MetricFamily], accept: str = "") -> tuple[bytes, str]:
    """The exposition and its content type: OpenMetrics if the `Accept` header names it, else Prometheus text."""
    if _asks_for_openmetrics(accept):
        text = "".join([line for family in families for line in _lines(family, family.name)])
        return f"{text}# EOF\n".encode(), f"{_OPENMETRICS}; version=1.0.0; charset=utf-8; escaping=underscores"
    lines = [line for family in families for line in _lines(family, family.name + ("_total" if family.type == "counter" else ""))]
    return "".join(lines).encode(), _TEXT


def _asks_for_openmetrics(accept: str) -> bool:
    for each in accept.split(","):
        kind, *parameters = [part.strip() for part in each.split(";")]
        versions = [parameter.removeprefix("version=") for parameter in parameters if parameter.startswith("version=")]
        if kind == _OPENMETRICS and not any(version.startswith("0.") for version in versions):
            return True
    return False


def _lines(family: MetricFamily, name: str) -> Iterator[str]:
    yield f"# HELP {name} {family.meaning.translate(_ESCAPES)}\n# TYPE {name} {family.type}\n"
    for suffix, labels, value in family.samples:
        pairs = ",".join([f'{label}="{text.translate(_ESCAPES_IN_QUOTES)}"' for label, text in sorted(labels.items())])
        yield f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {float(value)!r}\n"


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> Labels:
    return dict(zip(names, values, strict=True))
