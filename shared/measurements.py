"""Values of a process's metrics, by metric name and label values, as workers send them to the coordinator.

Code counts events in plain integers where they happen. The values are gathered only when they are requested. The
meanings, types and label names of metrics are in `coordinator.watching.catalogue`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

LONG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)
"""Bounds of histograms of HTTP requests, in seconds."""
SHORT_S = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
"""Bounds of histograms of steps inside the service, in seconds."""

Value = float | list[float]
"""A number; for a histogram, the counts of its buckets (not cumulative), then the sum of all observations."""


class Latencies:
    """A histogram of durations. `counts[i]`: observations of at most `bounds_s[i]` and more than the bound before; the
    last: more than all bounds. One thread at a time may add; any thread may read."""

    __slots__ = ("bounds_s", "counts", "seconds")

    def __init__(self, bounds_s: Sequence[float] = SHORT_S) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.seconds += seconds


class Values:
    """Metric name → (label values, value) of each of its series, in insertion order."""

    def __init__(self, by_name: dict[str, list[tuple[list[str], Value]]] | None = None) -> None:
        self.by_name = {} if by_name is None else by_name

    def put(self, name: str, value: float | Latencies, *labels: str) -> None:
        """Add one series. The label values are in the order of the label names in the catalogue."""
        number: Value = [*value.counts, value.seconds] if isinstance(value, Latencies) else float(value)
        self.by_name.setdefault(name, []).append((list(labels), number))

    def update(self, other: Values) -> None:
        """Add all series of `other`."""
        for name, series in other.by_name.items():
            self.by_name.setdefault(name, []).extend(series)

    def get(self, name: str, *labels: str) -> Value:
        """The value of one series. Raises KeyError."""
        for label_values, value in self.by_name[name]:
            if label_values == list(labels):
                return value
        raise KeyError(labels)


class Measurements(msgspec.Struct):
    """All values of one worker."""

    values: dict[str, list[tuple[list[str], Value]]]
