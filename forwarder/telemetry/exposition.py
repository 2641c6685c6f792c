"""Metric families, and the exposition in the format that a scraper asks for, both by
`prometheus_client`.

The library is loaded by the first scrape: a daemon that is not scraped does without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from forwarder.telemetry.snapshot import Histogram

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Label values, and the figure that has them."""


def counter(name: str, meaning: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """A figure that only grows."""
    family = CounterMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def gauge(name: str, meaning: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """A figure of now."""
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def histogram(name: str, meaning: str, counted: Histogram) -> Metric:
    """Observations in buckets."""
    family = HistogramMetricFamily(name, meaning)
    family.add_metric((), counted.cumulative(), counted.sum)
    return family


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def expose(families: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """The exposition and its content type: OpenMetrics if the `Accept` header prefers it, else
    Prometheus text.
    """
    registry = CollectorRegistry(auto_describe=False)  # describing would read the families
    registry.register(_Families(families))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
