"""Calls of the kernels over windows: their arguments, and how long calls are split into short ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shared.promql.engine.context import EvalContext
from shared.promql.engine.scan import NO_FLAGS, Windows
from shared.promql.model import Bool, Float, Int, Samples

KERNEL_WORK = 1 << 25
"""Samples in all windows of one kernel call, counted once for each window that they are in. The worst case takes about
an eighth of a second, after which the deadline is checked."""
LIGHT_KERNEL_WORK = 1 << 21
"""The same for a light query, which is to stop soon after it has used up its CPU time."""

NO_NOTES = np.zeros(0, dtype=np.uint8)


@dataclass(slots=True)
class Reading:
    """One call of a kernel: the samples of some series, their windows, and the output arrays.

    `out`: float64[n, steps], `present`: bool[n, steps]; `parameters`: float64[steps] each, the scalar arguments in
    order; `now`, `now_step`: the evaluation times in ms, which `@` and `offset` do not change. `events`: bool[m], or
    empty: resets or changes before a sample that its value does not show. `notes`: uint8[n], the notes on each series.
    `weight`: the kernel's work for each sample in a window, as a multiple of that of most kernels.
    """

    samples: Samples
    windows: Windows
    out: Float
    present: Bool
    parameters: list[Float]
    now: int
    now_step: int
    smoothed: bool
    lookback_ms: int
    notes: NDArray[np.uint8] = field(default_factory=lambda: NO_NOTES)
    events: Bool = field(default_factory=lambda: NO_FLAGS)
    weight: int = 1

    @property
    def series(self) -> tuple[Int, Int, Float]:
        return self.samples.offsets, self.samples.timestamps_ms, self.samples.values

    @property
    def edges(self) -> tuple[int, int, int]:
        return self.windows.first, self.windows.step, self.windows.range_ms


def run(function: Callable[[Reading], None], reading: Reading, context: EvalContext) -> None:
    """Run a kernel in bounded calls."""
    work_max = LIGHT_KERNEL_WORK if context.is_light else KERNEL_WORK
    if _work(reading) <= work_max:
        function(reading)
        return
    for part in parts(reading, work_max):
        context.check()
        function(part)


def _work(reading: Reading) -> int:
    """An upper bound of the samples in all windows, times the weight, plus the number of windows."""
    return len(reading.samples.values) * _weight_of_sample(reading) + reading.out.size


def _weight_of_sample(reading: Reading) -> int:
    return _windows_of_sample(reading.windows) * reading.weight


def _windows_of_sample(windows: Windows) -> int:
    """The largest number of windows that a sample can be in."""
    if not windows.step:
        return windows.steps
    return min(windows.steps, (windows.range_ms + windows.before_ms + windows.after_ms) // windows.step + 1)


def parts(reading: Reading, work_max: int) -> Iterator[Reading]:
    """Splits the reading into groups of series whose windows have few samples together, and a single series that has
    many into runs of steps. A run has at least as many steps as the weight, because a kernel that keeps windows sorted
    sorts the first window of each run."""
    offsets, windows = reading.samples.offsets, reading.windows
    work = offsets * _weight_of_sample(reading) + np.arange(len(offsets)) * windows.steps
    first = 0
    while first < len(offsets) - 1:
        last = max(first + 1, int(np.searchsorted(work, work[first] + work_max, side="right")) - 1)
        series = _of_series(reading, first, last)
        if last - first == 1 and work[last] - work[first] > work_max:
            work_of_step = max(int(offsets[last] - offsets[first]), 1) * reading.weight
            yield from _runs_of_steps(series, max(reading.weight, work_max // work_of_step))
        else:
            yield series
        first = last


def parts_of_values(reading: Reading, values_max: int) -> Iterator[Reading]:
    """Splits the reading into parts that have few values. Each part reads its samples once, however many windows they
    are in."""
    steps = reading.windows.steps
    size = max(1, values_max // max(steps, 1))
    for first in range(0, len(reading.out), size):
        series = _of_series(reading, first, min(first + size, len(reading.out)))
        if steps > values_max:
            yield from _runs_of_steps(series, values_max)
        else:
            yield series


def _of_series(reading: Reading, first: int, last: int) -> Reading:
    samples = reading.samples
    begin, end = int(samples.offsets[first]), int(samples.offsets[last])
    starts = samples.start_timestamps_ms
    return replace(
        reading,
        samples=Samples(
            samples.offsets[first : last + 1] - begin,
            samples.timestamps_ms[begin:end],
            samples.values[begin:end],
            None if starts is None else starts[begin:end],
            samples.histograms,
        ),
        out=reading.out[first:last],
        present=reading.present[first:last],
        notes=reading.notes[first:last],
        events=reading.events[begin:end],
    )


def _runs_of_steps(reading: Reading, length: int) -> Iterator[Reading]:
    for k in range(0, reading.windows.steps, length):
        last = min(k + length, reading.windows.steps)
        yield replace(
            reading,
            windows=replace(reading.windows, first=reading.windows.first + k * reading.windows.step, steps=last - k),
            out=reading.out[:, k:last],
            present=reading.present[:, k:last],
            parameters=[parameter[k:last] for parameter in reading.parameters],
            now=reading.now + k * reading.now_step,
        )
