"""The description of a metric: its name, type, labels and help text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.measurements import SHORT_S


@dataclass(frozen=True, slots=True)
class Metric:
    """`type`: "counter", "gauge" or "histogram"; `bounds_s`: of a histogram's buckets, in seconds."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    bounds_s: Sequence[float] = ()

    def series_names(self) -> tuple[str, ...]:
        """The names of its series."""
        if self.type != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{suffix}" for suffix in ("bucket", "count", "sum"))


def counter(name: str, labels: str, help: str) -> Metric:
    assert name.endswith("_total"), name
    return Metric(name, "counter", tuple(labels.split()), help)


def gauge(name: str, labels: str, help: str) -> Metric:
    return Metric(name, "gauge", tuple(labels.split()), help)


def histogram(name: str, labels: str, help: str, bounds_s: Sequence[float] = SHORT_S) -> Metric:
    return Metric(name, "histogram", tuple(labels.split()), help, bounds_s)
