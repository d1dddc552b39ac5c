"""The samples a script has loaded so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shared.labels import Labels
from tests.conformance.script import Load
from tests.conformance.series_text import Histogram

NO_START = 0


@dataclass(slots=True)
class LoadedSamples:
    """`floats`: timestamp in milliseconds → (value, start timestamp or `NO_START`)."""

    floats: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def has_start(self) -> bool:
        return any(start != NO_START for _, start in self.floats.values())

    def timestamps_ms(self) -> NDArray[np.int64]:
        return np.array(sorted(self.floats), dtype=np.int64)

    def values(self) -> NDArray[np.float64]:
        return np.array([self.floats[time][0] for time in sorted(self.floats)], dtype=np.float64)

    def start_timestamps_ms(self) -> NDArray[np.int64]:
        return np.array([self.floats[time][1] for time in sorted(self.floats)], dtype=np.int64)


Data = dict[Labels, LoadedSamples]


@dataclass(slots=True)
class Holdings:
    """What the back end must hold, and which series it cannot hold: native histograms."""

    data: Data = field(default_factory=dict)
    histograms: set[Labels] = field(default_factory=set)

    def clear(self) -> None:
        self.data = {}
        self.histograms = set()

    def load(self, load: Load) -> None:
        self.histograms |= load.custom_bucket_histograms
        for labels, series in load.series.items():
            samples = self.data.setdefault(labels, LoadedSamples())
            offsets = series.start_offsets_ms or []
            for i, point in enumerate(series.points):
                time_ms = i * load.interval_ms
                if isinstance(point, Histogram):
                    self.histograms.add(labels)
                elif point is not None:
                    offset = offsets[i] if i < len(offsets) else None
                    samples.floats[time_ms] = (point, NO_START if offset is None else time_ms + offset)
            if not samples.floats:
                del self.data[labels]
