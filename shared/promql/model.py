"""The values of a PromQL evaluation, as columns, and the interface of the source of its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import HistogramBatch
from shared.labels import LabelFrame, Symbols
from shared.promql.ast import Matcher

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]
Int = NDArray[np.int64]

METADATA_LABELS = ("__name__", "__type__", "__unit__")
"""The metric name, and the labels that a series loses together with it (Prometheus's type and unit labels)."""

ANNOTATIONS_MAX = 1_000
"""An evaluation keeps at most this many warnings, and as many infos: far more than a response lists. Without the limit,
a parameter that changes at every step of a subquery, or a great number of metrics, would cause millions of them, which
no account of memory covers."""

STALE_NAN_BITS = 0x7FF0000000000002
"""The bits of the NaN that marks a series as ended (Prometheus's staleness marker)."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The evaluation timestamps: start, start + step … ≤ end, in Unix milliseconds. An instant query has one timestamp
    and a step of 0. A range query may also have one timestamp, but its step is at least 1."""

    start_ms: int
    end_ms: int
    step_ms: int = 0

    @property
    def steps(self) -> int:
        if self.end_ms <= self.start_ms:
            return int(self.end_ms == self.start_ms)
        return (self.end_ms - self.start_ms) // self.step_ms + 1

    @property
    def instant(self) -> bool:
        """Whether this is the grid of an instant query, for which `step()` and `range()` are 0."""
        return self.step_ms == 0

    def times_ms(self) -> Int:
        """int64[steps]."""
        return self.start_ms + self.step_ms * np.arange(self.steps, dtype=np.int64)


@dataclass(slots=True)
class Samples:
    """Ragged samples of n series: series i owns [offsets[i], offsets[i+1]) of the flat arrays, ascending in time.

    `offsets`: int64[n+1], `timestamps_ms`: int64[m], `values`: float64[m]. Timestamps of a series are unique.
    `start_timestamps_ms` (int64[m], 0 = none) is None where no sample has a start timestamp.

    A sample that is a histogram has as its value a reference to a row of `histograms`
    (`shared.histograms.references`), which is None where all samples are floats. Staleness markers are floats.
    """

    offsets: Int
    timestamps_ms: Int
    values: Float
    start_timestamps_ms: Int | None = None
    histograms: HistogramBatch | None = None

    @property
    def buckets(self) -> int:
        """The total number of buckets of all histograms."""
        return 0 if self.histograms is None else self.histograms.buckets


class SeriesSelection(Protocol):
    """The series that a selector matches; samples are read in batches of series, to bound memory."""

    @property
    def labels(self) -> LabelFrame: ...

    def read(self, first: int, last: int) -> Samples:
        """Samples of series first ≤ i < last within the selected time range, staleness markers included."""
        ...


class Source(Protocol):
    """Where an evaluation's samples come from: a worker's shards, or memory in tests."""

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> SeriesSelection:
        """Series matching all `matchers` that may have samples with start_ms ≤ t ≤ end_ms.

        Label codes of the selection are codes of `symbols`. Raises BadData for a regular expression that RE2 refuses.
        """
        ...


@dataclass(slots=True)
class Scalar:
    """`values`: float64[steps]."""

    values: Float


@dataclass(slots=True)
class String:
    value: str


@dataclass(slots=True)
class Matrix:
    """An instant vector at every step: n series × steps.

    `values`: float64[n, steps]; `present`: bool[n, steps] (a NaN is a value, absence is the mask);
    `drop_name`: bool[n], series whose metric name is to be dropped at the end of the evaluation.
    Where `present` is false, the value is unspecified. A value that is a histogram is a reference to a row of
    `histograms`, which is None if all values are floats. Several values may refer to one row.
    """

    labels: LabelFrame
    values: Float
    present: Bool
    drop_name: Bool
    histograms: HistogramBatch | None = None


@dataclass(slots=True)
class RangeVector:
    """A range vector at one instant (the result of `m[5m]` or of a subquery as an instant query)."""

    labels: LabelFrame
    samples: Samples
    drop_name: Bool


Value = Scalar | String | Matrix | RangeVector


def cells(value: Value) -> int:
    """How many numbers the series of a value hold: one for each sample, and one more for each bucket of a histogram."""
    if isinstance(value, Matrix):
        return value.values.size + (0 if value.histograms is None else value.histograms.buckets)
    return len(value.samples.values) + value.samples.buckets if isinstance(value, RangeVector) else 0


@dataclass(slots=True)
class Annotation:
    """A remark on the result. `text` is Prometheus's full text without the position. `offset` is a character offset
    into the query text, or None if the remark has no position."""

    level: str  # "warning" or "info"
    text: str
    offset: int | None = None


@dataclass(slots=True)
class Annotations:
    """The remarks gathered during one evaluation: each (level, text, offset) once, in order of appearance, and only the
    first ANNOTATIONS_MAX of each level."""

    items: dict[tuple[str, str, int | None], Annotation] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    def warn(self, text: str, offset: int | None) -> None:
        self.add(Annotation("warning", f"PromQL warning: {text}", offset))

    def info(self, text: str, offset: int | None) -> None:
        self.add(Annotation("info", f"PromQL info: {text}", offset))

    def add(self, annotation: Annotation) -> None:
        key = (annotation.level, annotation.text, annotation.offset)
        count = self._counts.get(annotation.level, 0)
        if count < ANNOTATIONS_MAX and key not in self.items:
            self.items[key] = annotation
            self._counts[annotation.level] = count + 1
