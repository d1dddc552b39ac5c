"""Native histograms for hypothesis: few indexes and boundaries, so that buckets of different ones meet.

hypothesis draws a number for each, from which the histogram is made: drawing every bucket takes ten times as long, and
a list of histograms still shrinks to those that matter.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from hypothesis import strategies as st

from tests.oracle_native_histograms import CUSTOM, Hint, NativeHistogram

THRESHOLDS = [0.0, 0.0, 0.0, 0.001, 0.25, 0.3, 0.5, 0.7, 1.0, 1.5, 3.0]
BOUNDS = [-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 7.5, 10.0]
SCHEMAS = [-4, -1, 0, 0, 0, 1, 1, 2, 8]
WHOLE = [0.0, 0.0, 1.0, 2.0, 3.0, 17.0]
FRACTIONAL = [*WHOLE, 0.25, 1 / 3, 1e-3, 123.456, 98765.4321]
SUMS = [0.0, 1.5, -2.25, 1e6 / 3, math.nan, math.inf]


def _counts(random: Random, first: int, last: int, counts: list[float]) -> dict[int, float]:
    indexes = random.sample(range(first, last + 1), random.randint(0, min(6, last + 1 - first)))
    return {index: random.choice(counts) for index in indexes}


def _finished(h: NativeHistogram, random: Random) -> NativeHistogram:
    """With a count that fits the buckets, to which observations of NaN may add."""
    unseen = random.choice([0.0, 0.0, 0.0, 2.0])
    return replace(h, count=h.total + unseen, sum=math.nan if unseen else random.choice(SUMS))


def _exponential(random: Random, counts: list[float], reach: int) -> NativeHistogram:
    h = NativeHistogram(
        schema=random.choice(SCHEMAS),
        zero_threshold=random.choice(THRESHOLDS),
        zero_count=random.choice(counts),
        positive=_counts(random, -reach, reach, counts),
        negative=_counts(random, -reach, reach, counts),
        hint=random.choice(list(Hint)),
    )
    return _finished(h, random)


def _custom(random: Random, counts: list[float]) -> NativeHistogram:
    bounds = tuple(sorted(random.sample(BOUNDS, random.randint(0, 6))))
    h = NativeHistogram(
        schema=CUSTOM,
        positive=_counts(random, 0, len(bounds), counts),
        bounds=bounds,
        hint=random.choice(list(Hint)),
    )
    return _finished(h, random)


_randoms = st.integers(0, (1 << 32) - 1).map(Random)


def exponential(counts: list[float] = FRACTIONAL, reach: int = 6) -> st.SearchStrategy[NativeHistogram]:
    """Of bucket indexes -reach to reach."""
    return _randoms.map(lambda random: _exponential(random, counts, reach))


def custom(counts: list[float] = FRACTIONAL) -> st.SearchStrategy[NativeHistogram]:
    return _randoms.map(lambda random: _custom(random, counts))


histograms = st.one_of(exponential(), exponential(), custom())
alike = st.one_of(st.lists(exponential(), min_size=1, max_size=5), st.lists(custom(), min_size=1, max_size=5))
"""Histograms that can be added up."""
