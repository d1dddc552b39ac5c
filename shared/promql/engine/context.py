"""The context of an evaluation: the source of its samples, its limits, and the annotations it gathers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.errors import DeadlineExceeded, Internal, OverBudget, TooHeavy
from shared.histograms.batch import HistogramBatch
from shared.labels import Symbols
from shared.process.processor_time import UNBOUNDED, ProcessorTime
from shared.promql.ast import At, Duration, Expr, VectorSelector
from shared.promql.model import Annotations, Grid, SeriesSelection, Source, Value

LOOKBACK_MS = 300_000
"""How far an instant selector looks back for a sample: Prometheus's default of five minutes."""

FAR_MS = 1 << 60
"""Times of `@` are clamped to this distance from 1970. Samples lie within the years 1 to 9999, so no window that far
away has any, and 64 bits hold the time with any offset, range and lookback."""

SAMPLES_MAX = 50_000_000
"""Samples that one query may hold at a time by default, as Prometheus's `--query.max-samples`: 0.8 GB of timestamps and
values."""

TOO_MANY_SAMPLES = (
    "query processing would load too many samples into memory in query execution: {samples} at a time in one process; "
    "the limit is {limit} (TRIPTYCH_QUERY_SAMPLES_MAX); ask for fewer series, a shorter range or a longer step"
)
TIMED_OUT = "query timed out in expression evaluation"


def _never() -> bool:
    return False


def uncounted(samples: int) -> None:
    """The `counted` of an evaluation whose progress is not followed."""


def require_samples(samples: int, limit: int) -> None:
    """Raises OverBudget if a query may not hold this many samples at a time."""
    if samples > limit:
        raise OverBudget(TOO_MANY_SAMPLES.format(samples=samples, limit=limit))


def resolved(duration: Duration) -> int:
    """The milliseconds of a duration that `resolve_durations` has resolved. Raises Internal for any other."""
    if not isinstance(duration, int):
        raise Internal("a duration expression reached the evaluator unresolved")
    return duration


class BatchTooLarge(Exception):
    """The histograms of the batch being evaluated have more buckets than a batch may have. The batch has been made
    smaller, and is to be evaluated again."""


@dataclass(slots=True)
class SeriesBatch:
    """Restricts one selector to the series [first, first + size) while a batch of series is evaluated.

    The first scan of that selector sets `selection`, and each read sets `read_size`, the number of series to read next.
    A series has `steps` values. If they are histograms, those of the batch may have `buckets_max` buckets in total.
    """

    selector: VectorSelector
    size: int
    steps: int
    buckets_max: int
    first: int = 0
    selection: SeriesSelection | None = None
    read_size: int = 0

    @property
    def total(self) -> int:
        return self.selection.labels.size if self.selection is not None else 0

    def fit(self, histograms: HistogramBatch) -> None:
        """Reduces the size and raises BatchTooLarge if the batch would have too many buckets, judging by these
        histograms."""
        width = max(1, histograms.buckets // max(1, len(histograms)))
        size = max(1, self.buckets_max // (self.steps * width))
        if size < self.size:
            self.size = size
            raise BatchTooLarge


@dataclass
class EvalContext:
    """The source, limits and annotations of one evaluation; used by one thread at a time.

    `query_grid` is that of the whole query, to which `start()` and `end()` refer; `deadline` is a time of
    `time.monotonic()`; `processor` is bounded for a light query; `counted` is called with the number of samples as they
    are read. `remote[i]` is the value of the leaf `Remote(i)`. `samples_read` and `series_read` count up. A histogram
    counts as one sample plus one for each bucket; `buckets_read` are the buckets among `samples_read`.

    `samples_held`: the samples being read, and the values of the results that are still needed; `samples_max` is their
    limit, and `samples_peak` the most so far. A result counts until the result computed from it is complete. Copies
    that exist briefly do not count here, but in the account of memory.
    """

    source: Source | None
    symbols: Symbols
    query_grid: Grid
    lookback_ms: int = LOOKBACK_MS
    deadline: float = float("inf")
    samples_max: int = SAMPLES_MAX
    annotations: Annotations = field(default_factory=Annotations)
    remote: Sequence[Value] = ()
    cancelled: Callable[[], bool] = _never
    processor: ProcessorTime = UNBOUNDED
    counted: Callable[[int], None] = uncounted
    samples_held: int = 0
    samples_peak: int = 0
    samples_read: int = 0
    buckets_read: int = 0
    series_read: int = 0
    batch: SeriesBatch | None = None
    finds_resets: bool = False
    """Whether selectors replace unknown reset hints of histograms by what the preceding sample shows. Prometheus does
    so where only counts and sums are used, and warns of hints that contradict each other."""
    node_seconds: dict[int, float] | None = None
    """If asked for: id of a node → how long its subtree took."""
    invariant: dict[int, tuple[Expr, bool]] = field(default_factory=dict)
    """The cache of `invariance.step_invariant`: id of a node → (the node, so that no other node gets its id; the
    result)."""

    @property
    def is_light(self) -> bool:
        return self.processor.is_bounded

    def check(self) -> None:
        """Called between batches and nodes. Raises DeadlineExceeded past the deadline or when cancelled, and TooHeavy
        when a light query has used up its CPU time."""
        if self.cancelled():
            raise DeadlineExceeded("query was cancelled before it was done")
        if time.monotonic() > self.deadline:
            raise DeadlineExceeded(TIMED_OUT)
        if self.processor.is_over():
            raise TooHeavy("the query has had the processor time of a light one")

    @property
    def samples_left(self) -> int:
        """How many samples more may be held."""
        return max(0, self.samples_max - self.samples_held)

    def count(self, series: int, samples: int, buckets: int) -> None:
        """Record that so many series and samples were read from the source; `buckets`: those of the histograms."""
        self.series_read += series
        self.samples_read += samples + buckets
        self.buckets_read += buckets
        self.counted(samples + buckets)

    def require(self, samples: int) -> None:
        """Raises OverBudget if the query may not hold so many more samples."""
        require_samples(self.samples_held + samples, self.samples_max)

    def hold(self, samples: int) -> None:
        """Count so many more samples as held. Called before they are allocated if their number is known by then. Raises
        OverBudget."""
        self.require(samples)
        self.samples_held += samples
        self.samples_peak = max(self.samples_peak, self.samples_held)

    def release(self, samples: int) -> None:
        """Count so many samples as no longer held."""
        assert 0 <= samples <= self.samples_held
        self.samples_held -= samples

    def keep(self, held_before: int, samples: int) -> None:
        """Of everything held since `samples_held` was `held_before`, keep only a result of so many samples. Raises
        OverBudget."""
        self.samples_held = held_before
        self.hold(samples)

    def time_shift(self, offset_ms: int, at: At | None, grid: Grid) -> tuple[int, int]:
        """(first, step): the reference time of grid step k is `first + k * step`, after `@` and `offset`."""
        if at is None:
            return grid.start_ms - offset_ms, grid.step_ms
        if at.at == "start":
            return self.query_grid.start_ms - offset_ms, 0
        if at.at == "end":
            return self.query_grid.end_ms - offset_ms, 0
        return min(max(at.at, -FAR_MS), FAR_MS) - offset_ms, 0
