"""The samples a script has loaded so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from shared.labels import Labels
from tests.conformance.script import Load
from tests.conformance.series_text import Histogram
from tests.oracle_native_histograms import Hint, NativeHistogram, is_reset

NO_START = 0


@dataclass(slots=True)
class LoadedSamples:
    """`points`: timestamp in milliseconds → (value, start timestamp or `NO_START`)."""

    points: dict[int, tuple[float | NativeHistogram, int]] = field(default_factory=dict)

    @property
    def floats(self) -> dict[int, tuple[float, int]]:
        return {time: (value, start) for time, (value, start) in self.points.items() if isinstance(value, float)}

    @property
    def has_start(self) -> bool:
        return any(start != NO_START for _, start in self.points.values())

    @property
    def has_histogram(self) -> bool:
        return any(isinstance(value, NativeHistogram) for value, _ in self.points.values())

    def in_order(self) -> list[tuple[int, float | NativeHistogram, int]]:
        """(time, value, start timestamp), ascending. A histogram that does not say whether the counter was reset has
        the hint that Prometheus's storage gives it: not reset, if the one before it is a counter too and its counts are
        no larger."""
        rows: list[tuple[int, float | NativeHistogram, int]] = []
        before: float | NativeHistogram | None = None
        for time, (value, start) in sorted(self.points.items(), key=lambda item: item[0]):
            stored = value
            if isinstance(value, NativeHistogram) and isinstance(before, NativeHistogram):
                is_counter = value.hint is Hint.UNKNOWN and before.hint is not Hint.GAUGE
                if is_counter and not is_reset(before, value):
                    stored = replace(value, hint=Hint.NOT_RESET)
            rows.append((time, stored, start))
            before = value
        return rows


Data = dict[Labels, LoadedSamples]


@dataclass(slots=True)
class Holdings:
    """What the back end must hold."""

    data: Data = field(default_factory=dict)

    def clear(self) -> None:
        self.data = {}

    def load(self, load: Load) -> None:
        for labels, series in load.series.items():
            samples = self.data.setdefault(labels, LoadedSamples())
            offsets = series.start_offsets_ms or []
            for i, point in enumerate(series.points):
                time_ms = i * load.interval_ms
                if point is not None:
                    offset = offsets[i] if i < len(offsets) else None
                    value = point.value if isinstance(point, Histogram) else point
                    samples.points[time_ms] = (value, NO_START if offset is None else time_ms + offset)
            if not samples.points:
                del self.data[labels]
