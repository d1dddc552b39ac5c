"""Runs of integers as a predictor and residuals: small numbers, which compress well and decode fast.

The predictor of a run is a base, a slope, and whether its numbers follow a line or a walk. On a line, number i is
base + slope·i + residual[i]. In a walk, it is the number before it + slope + residual[i], where the number before the
first one is base − slope. Counters are walks, because their steps vary; times of scrapes that are a little late are
lines. Numbers that follow their predictor exactly have no residuals. Residuals that all fit in 16 bits are NARROW,
others WIDE. Sums may wrap around.
"""

from __future__ import annotations

import numpy as np

from shared.histograms.batch import INTS, Ints
from shared.kernels import inlined, kernel, types

EXACT, NARROW, WIDE = range(3)
"""How the residuals of a run are stored: not at all, as int16, or as int64."""
NARROW_MIN, NARROW_MAX = -(1 << 15), (1 << 15) - 1

_FLAGS = types.Array(types.boolean, 1, "C")
_FLAGS_IN = types.Array(types.boolean, 1, "C", readonly=True)


@inlined(allocates=False)
def _nearest_step(numbers: Ints, begin: int, end: int) -> int:
    """Of the steps between two neighbours, the one that is nearest to the mean step. The mean itself might lack a
    common factor of all numbers."""
    mean = (float(numbers[end - 1]) - float(numbers[begin])) / (end - begin - 1)
    step = numbers[begin + 1] - numbers[begin]
    least = abs(float(step) - mean)
    for i in range(begin + 2, end):
        candidate = numbers[i] - numbers[i - 1]
        distance = abs(float(candidate) - mean)
        if distance < least:
            least, step = distance, candidate
    return step


@inlined(allocates=False)
def _nearest_number(numbers: Ints, begin: int, end: int) -> int:
    """The number that is nearest to the mean."""
    total = 0.0
    for i in range(begin, end):
        total += float(numbers[i])
    mean = total / (end - begin)
    number = numbers[begin]
    least = abs(float(number) - mean)
    for i in range(begin + 1, end):
        distance = abs(float(numbers[i]) - mean)
        if distance < least:
            least, number = distance, numbers[i]
    return number


@inlined(allocates=False)
def _is_exact(numbers: Ints, begin: int, end: int) -> bool:
    step = numbers[begin + 1] - numbers[begin]
    differs = 0
    for i in range(begin + 2, end):
        differs |= (numbers[i] - numbers[i - 1]) ^ step
    return differs == 0


@kernel(
    types.void(
        INTS, INTS, _FLAGS_IN, types.boolean, types.int64[::1], _FLAGS, types.int64[::1], types.int64[::1],
        types.int16[::1], types.int64[::1],
    ),
    allocates=False,
)  # fmt: skip
def fold(
    numbers: Ints,
    bounds: Ints,
    skipped: np.ndarray,
    are_times: bool,
    kinds: Ints,
    walks: np.ndarray,
    bases: Ints,
    slopes: Ints,
    narrow: np.ndarray,
    wide: Ints,
) -> None:
    """Find the predictor of each run r, numbers[bounds[r]:bounds[r + 1]], that is not `skipped`: fill kinds[r],
    walks[r], bases[r] and slopes[r], and append its residuals to `narrow` or `wide`, one for each number. Lines of
    times begin at the first time and may rise; other lines are level."""
    in_narrow = in_wide = 0
    for r in range(len(kinds)):
        if skipped[r]:
            continue
        begin, end = bounds[r], bounds[r + 1]
        kinds[r], walks[r], bases[r], slopes[r] = EXACT, False, numbers[begin], 0
        if end - begin == 1:
            continue
        if _is_exact(numbers, begin, end):
            slopes[r] = numbers[begin + 1] - numbers[begin]
            continue
        step = _nearest_step(numbers, begin, end)
        base, slope = numbers[begin], 0
        if are_times:
            steps = end - begin - 1
            slope = (numbers[end - 1] - numbers[begin] + steps // 2) // steps
        else:
            base = _nearest_number(numbers, begin, end)
        off_line = off_walk = 0.0
        for i in range(begin + 1, end):
            off_line += abs(float(numbers[i] - base - slope * (i - begin)))
            off_walk += abs(float(numbers[i] - numbers[i - 1] - step))
        walks[r] = off_walk < off_line
        if walks[r]:
            base, slope = numbers[begin], step
        bases[r], slopes[r] = base, slope
        least = greatest = 0
        for i in range(begin, end):
            residual = numbers[i] - base - slope * (i - begin)
            if walks[r]:
                residual = numbers[i] - numbers[i - 1] - slope if i > begin else 0
            wide[in_wide + i - begin] = residual
            least, greatest = min(least, residual), max(greatest, residual)
        if least >= NARROW_MIN and greatest <= NARROW_MAX:
            kinds[r] = NARROW
            for i in range(end - begin):
                narrow[in_narrow + i] = wide[in_wide + i]
            in_narrow += end - begin
        else:
            kinds[r] = WIDE
            in_wide += end - begin
