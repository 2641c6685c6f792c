"""Metric families: a name, what it means, its labels, and its samples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from forwarder.telemetry.snapshot import Histogram

Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
"""Label values, and what they have."""


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
