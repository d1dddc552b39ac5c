"""Samples that the workers sent as they are, for range functions that only the coordinator can evaluate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shared.errors import Internal
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference, rows_of, shifted
from shared.labels import LabelFrame, Symbols
from shared.promql.ast import Matcher
from shared.promql.model import Float, RangeVector, Samples


@dataclass(frozen=True, slots=True)
class _Held:
    start_ms: int
    end_ms: int
    vector: RangeVector


@dataclass(slots=True)
class Fetched:
    """A `model.Source` of what was fetched for exactly these selectors and time ranges."""

    _held: dict[tuple[Matcher, ...], list[_Held]] = field(default_factory=dict)

    def add(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, vector: RangeVector) -> None:
        """`vector`: all samples with start_ms ≤ t ≤ end_ms of the series that match."""
        self._held.setdefault(tuple(matchers), []).append(_Held(start_ms, end_ms, vector))

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> FetchedSelection:
        for held in self._held.get(tuple(matchers), ()):
            if held.start_ms <= start_ms and end_ms <= held.end_ms:
                assert held.vector.labels.symbols is symbols
                return FetchedSelection(held.vector, start_ms, end_ms)
        raise Internal("the plan fetched no samples for a selector that is evaluated in the coordinator")


@dataclass(frozen=True, slots=True)
class FetchedSelection:
    vector: RangeVector
    start_ms: int
    end_ms: int

    @property
    def labels(self) -> LabelFrame:
        return self.vector.labels

    def read(self, first: int, last: int) -> Samples:
        samples = self.vector.samples
        offsets = samples.offsets[first : last + 1]
        span = slice(int(offsets[0]), int(offsets[-1]))
        times, values, starts = samples.timestamps_ms[span], samples.values[span], samples.start_timestamps_ms
        inside = (times >= self.start_ms) & (times <= self.end_ms)
        kept = np.concatenate([[0], np.cumsum(inside, dtype=np.int64)])
        kept_values, histograms = _narrowed(values[inside], samples.histograms)
        return Samples(
            kept[offsets - offsets[0]],
            times[inside],
            kept_values,
            None if starts is None else starts[span][inside],
            histograms,
        )


def _narrowed(values: Float, histograms: HistogramBatch | None) -> tuple[Float, HistogramBatch | None]:
    """The values, and the histograms from the first to the last that they refer to, which are not copied."""
    if histograms is None:
        return values, None
    rows = rows_of(values[is_reference(values)])
    if not len(rows):
        return values, None
    first, last = int(rows.min()), int(rows.max()) + 1
    return shifted(values, -first), histograms.rows(first, last)
