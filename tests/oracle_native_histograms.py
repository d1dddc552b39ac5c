"""The oracle of native histograms: an object for each, plain Python, written from the specification
(https://prometheus.io/docs/specs/native_histograms) and what the conformance scripts show beyond it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

CUSTOM = -53
FLOAT_MAX = math.ldexp(1 - 2.0**-53, 1024)


class Hint(Enum):
    UNKNOWN, RESET, NOT_RESET, GAUGE = range(4)


class Kind(Enum):
    NEGATIVE, ZERO, POSITIVE, CUSTOM = range(4)


class Bucket(NamedTuple):
    left: float
    right: float
    population: float
    kind: Kind


@dataclass(frozen=True)
class NativeHistogram:
    """`positive` and `negative`: index → count."""

    schema: int = 0
    count: float = 0.0
    sum: float = 0.0
    zero_threshold: float = 0.0
    zero_count: float = 0.0
    positive: dict[int, float] = field(default_factory=dict)
    negative: dict[int, float] = field(default_factory=dict)
    bounds: tuple[float, ...] = ()
    hint: Hint = Hint.UNKNOWN

    @property
    def is_custom(self) -> bool:
        return self.schema == CUSTOM

    @property
    def total(self) -> float:
        return sum(bucket.population for bucket in self.buckets())

    def buckets(self) -> list[Bucket]:
        """All of them, those without observations too, in the order of their values."""
        if self.is_custom:
            ends = (-math.inf, *self.bounds, math.inf)
            return [Bucket(ends[i], ends[i + 1], n, Kind.CUSTOM) for i, n in sorted(self.positive.items())]
        zero = Bucket(-self.zero_threshold, self.zero_threshold, self.zero_count, Kind.ZERO)
        buckets = [zero]
        for index, n in sorted(self.positive.items()):
            right = boundary(self.schema, index)
            buckets.append(Bucket(self._outside(boundary(self.schema, index - 1), right), right, n, Kind.POSITIVE))
        for index, n in sorted(self.negative.items()):
            right = boundary(self.schema, index)
            buckets.insert(0, Bucket(-right, -self._outside(boundary(self.schema, index - 1), right), n, Kind.NEGATIVE))
        return buckets

    def _outside(self, left: float, right: float) -> float:
        """Where a positive bucket begins: the zero bucket takes what the zero threshold cuts off."""
        return max(left, self.zero_threshold) if self.zero_threshold < right else left


def boundary(schema: int, index: int) -> float:
    """(2^(2^-schema))^index, but the largest finite float where that is the first that overflows."""
    exponent = index * 2.0**-schema
    if exponent >= 1024:
        return FLOAT_MAX if exponent == 1024 else math.inf
    return float(2.0**exponent)


def compact(h: NativeHistogram) -> NativeHistogram:
    """Without the buckets that have no observations."""
    return replace(
        h,
        positive={i: n for i, n in h.positive.items() if n != 0},
        negative={i: n for i, n in h.negative.items() if n != 0},
    )


def _grouped(pairs: list[tuple[int, float]]) -> dict[int, float]:
    counts: dict[int, list[float]] = {}
    for index, count in pairs:
        counts.setdefault(index, []).append(count)
    return {index: exact_sum(parts) for index, parts in counts.items()}


def exact_sum(parts: Sequence[float]) -> float:
    if all(map(math.isfinite, parts)):
        try:
            return math.fsum(parts)
        except OverflowError:
            pass
    return sum(parts)


def coarser(h: NativeHistogram, schema: int) -> NativeHistogram:
    """In a smaller schema: bucket i is in the one whose upper boundary is the next of the smaller schema."""
    merged = 2 ** (h.schema - schema)
    return replace(
        h,
        schema=schema,
        positive=_grouped([(math.ceil(i / merged), n) for i, n in h.positive.items()]),
        negative=_grouped([(math.ceil(i / merged), n) for i, n in h.negative.items()]),
    )


def wider_zero(h: NativeHistogram, threshold: float) -> NativeHistogram:
    """With a larger zero threshold; buckets inside it move to the zero bucket."""
    if threshold <= h.zero_threshold:
        return h
    inside = lambda i: boundary(h.schema, i) <= threshold  # noqa: E731
    moved = [n for side in (h.positive, h.negative) for i, n in side.items() if inside(i)]
    return replace(
        h,
        zero_threshold=threshold,
        zero_count=exact_sum([h.zero_count, *moved]),
        positive={i: n for i, n in h.positive.items() if not inside(i)},
        negative={i: n for i, n in h.negative.items() if not inside(i)},
    )


def fewer_bounds(h: NativeHistogram, bounds: tuple[float, ...]) -> NativeHistogram:
    """With some of its custom boundaries only."""
    ends = (*h.bounds, math.inf)
    place = lambda end: next((i for i, bound in enumerate(bounds) if bound >= end), len(bounds))  # noqa: E731
    return replace(h, bounds=bounds, positive=_grouped([(place(ends[i]), n) for i, n in h.positive.items()]))


def _cuts(h: NativeHistogram, threshold: float) -> float | None:
    """The end of a populated bucket that the threshold cuts through."""
    for side in (h.positive, h.negative):
        for index, count in side.items():
            if count != 0 and boundary(h.schema, index - 1) < threshold < boundary(h.schema, index):
                return boundary(h.schema, index)
    return None


def aligned(histograms: Sequence[NativeHistogram]) -> list[NativeHistogram]:
    """All of them in the layout that suits all. Raises ValueError for a mix of exponential and custom buckets."""
    if len({h.is_custom for h in histograms}) > 1:
        raise ValueError("exponential and custom buckets do not mix")
    if histograms[0].is_custom:
        common = set(histograms[0].bounds).intersection(*(h.bounds for h in histograms))
        return [fewer_bounds(h, tuple(sorted(common))) for h in histograms]
    threshold = max(h.zero_threshold for h in histograms)
    while ends := [end for h in histograms if h.zero_threshold < threshold and (end := _cuts(h, threshold))]:
        threshold = max(ends)
    schema = min(h.schema for h in histograms)
    return [coarser(wider_zero(h, threshold), schema) for h in histograms]


def summed(histograms: Sequence[NativeHistogram], weights: Sequence[float] | None = None) -> NativeHistogram:
    """Raises ValueError for a mix of exponential and custom buckets."""
    factors = weights or [1.0] * len(histograms)
    return joined(histograms, lambda values: exact_sum([f * x for f, x in zip(factors, values, strict=True)]))


def joined(histograms: Sequence[NativeHistogram], join: Callable[[Sequence[float]], float]) -> NativeHistogram:
    """One histogram, each number of which `join` makes of those of all. Raises ValueError for a mix of exponential and
    custom buckets."""
    parts = aligned(histograms)
    positive = {i for h in parts for i in h.positive}
    negative = {i for h in parts for i in h.negative}
    return replace(
        parts[0],
        count=join([h.count for h in parts]),
        sum=join([h.sum for h in parts]),
        zero_count=join([h.zero_count for h in parts]),
        positive={i: join([h.positive.get(i, 0.0) for h in parts]) for i in positive},
        negative={i: join([h.negative.get(i, 0.0) for h in parts]) for i in negative},
        hint=common_hint([h.hint for h in parts]),
    )


def common_hint(hints: Sequence[Hint]) -> Hint:
    if Hint.GAUGE in hints:
        return Hint.GAUGE
    return hints[0] if len(set(hints)) == 1 else Hint.UNKNOWN


def scaled(h: NativeHistogram, factor: float) -> NativeHistogram:
    """An empty bucket stays empty, as one that is not there."""
    h = h if math.isfinite(factor) else compact(h)
    return replace(
        h,
        count=h.count * factor,
        sum=h.sum * factor,
        zero_count=h.zero_count * factor if not h.is_custom else 0.0,
        positive={i: n * factor for i, n in h.positive.items()},
        negative={i: n * factor for i, n in h.negative.items()},
        hint=Hint.GAUGE if factor < 0 else h.hint,
    )


def divided(h: NativeHistogram, divisor: float) -> NativeHistogram:
    """Division by zero leaves no regular buckets. An empty bucket stays empty, as one that is not there."""
    h = compact(h) if math.isnan(divisor) else h
    quotient = lambda x: x / divisor if divisor else x * math.copysign(math.inf, divisor)  # noqa: E731
    sides = [{i: quotient(n) for i, n in side.items()} if divisor else {} for side in (h.positive, h.negative)]
    return replace(
        h,
        count=quotient(h.count),
        sum=quotient(h.sum),
        zero_count=0.0 if h.is_custom else quotient(h.zero_count),
        positive=sides[0],
        negative=sides[1],
        hint=Hint.GAUGE if divisor < 0 else h.hint,
    )


def same(a: NativeHistogram, b: NativeHistogram) -> bool:
    """As `==` compares: a bucket that is not there has no observations; hints do not count."""
    a, b = compact(a), compact(b)
    keys = ("schema", "zero_threshold", "bounds")
    return (
        all(getattr(a, key) == getattr(b, key) for key in keys)
        and all(_equal(getattr(a, key), getattr(b, key)) for key in ("count", "sum", "zero_count"))
        and a.positive == b.positive
        and a.negative == b.negative
    )


def _equal(x: float, y: float) -> bool:
    return x == y or (math.isnan(x) and math.isnan(y))


def is_reset(previous: NativeHistogram, current: NativeHistogram) -> bool:
    """Whether a counter was reset between two neighbouring histograms (the specification's procedure)."""
    if current.hint in (Hint.RESET, Hint.NOT_RESET):
        return current.hint is Hint.RESET
    if previous.is_custom != current.is_custom or current.count < previous.count:
        return True
    if current.is_custom:
        before, after = aligned([previous, current])
    else:
        if current.schema > previous.schema or current.zero_threshold < previous.zero_threshold:
            return True
        if current.zero_threshold > previous.zero_threshold and _cuts(previous, current.zero_threshold):
            return True
        before, after = coarser(wider_zero(previous, current.zero_threshold), current.schema), current
    return after.zero_count < before.zero_count or any(
        new.get(i, 0.0) < count
        for old, new in ((before.positive, after.positive), (before.negative, after.negative))
        for i, count in old.items()
    )


# What is read from a histogram


def _sided(h: NativeHistogram) -> list[Bucket]:
    """The populated buckets, with the boundaries that interpolation assumes: the zero bucket has one side if all other
    observations are on that side, and the lowest custom bucket begins at 0 if it ends above 0."""
    populated = [bucket for bucket in h.buckets() if bucket.population != 0]
    kinds = {bucket.kind for bucket in populated}
    result = []
    for bucket in populated:
        if bucket.kind is Kind.ZERO and Kind.NEGATIVE not in kinds and Kind.POSITIVE in kinds:
            bucket = bucket._replace(left=0.0)
        elif bucket.kind is Kind.ZERO and Kind.POSITIVE not in kinds and Kind.NEGATIVE in kinds:
            bucket = bucket._replace(right=0.0)
        elif bucket.kind is Kind.CUSTOM and bucket.left == -math.inf and 0 < bucket.right < math.inf:
            bucket = bucket._replace(left=0.0)
        result.append(bucket)
    return result


def quantile(q: float, h: NativeHistogram) -> float:
    """From the nearer end: a rank between two buckets gives the end of the lower one below the median, and the
    beginning of the higher one from the median on."""
    if math.isnan(q) or h.count == 0 or math.isnan(h.count):
        return math.nan
    if not 0 <= q <= 1:
        return math.copysign(math.inf, q - 0.5)
    buckets = _sided(h)
    if math.isnan(h.sum) or q < 0.5:
        return _from_below(q * h.count, buckets, math.isnan(h.sum))
    mirrored = [bucket._replace(left=-bucket.right, right=-bucket.left) for bucket in reversed(buckets)]
    return -_from_below((1 - q) * h.count, mirrored, False)


def _from_below(rank: float, buckets: list[Bucket], has_nan: bool) -> float:
    below = 0.0
    for bucket in buckets:
        if below + bucket.population >= rank:
            return _value_at((rank - below) / bucket.population, bucket)
        below += bucket.population
    return math.nan if has_nan or not buckets else _value_at(1.0, buckets[-1])


def _value_at(share: float, bucket: Bucket) -> float:
    left, right = bucket.left, bucket.right
    if math.isinf(left) and math.isinf(right):
        return math.nan
    if bucket.kind is Kind.CUSTOM and (math.isinf(left) or math.isinf(right)):
        return right if math.isinf(left) else left
    if share <= 0 or share >= 1:
        return left if share <= 0 else right
    if bucket.kind in (Kind.ZERO, Kind.CUSTOM) or left == 0 or right == 0:
        return left + (right - left) * share
    if math.isinf(left) or math.isinf(right):
        return left if math.isinf(left) else right
    sign = 1 if left > 0 else -1
    return sign * math.exp((1 - share) * math.log(sign * left) + share * math.log(sign * right))


def share_up_to(x: float, bucket: Bucket) -> float:
    """The share of the bucket's observations that are at most x. Infinitely wide custom buckets are not divided: those
    of the lowest one count as below every number, those of the highest one as above."""
    left, right = bucket.left, bucket.right
    if x >= right:
        return 1.0
    if x <= left:
        return 0.0
    if math.isinf(left):
        return 0.0 if math.isinf(right) else 1.0
    if math.isinf(right):
        return 0.0
    if bucket.kind in (Kind.ZERO, Kind.CUSTOM) or left == 0 or right == 0:
        return (x - left) / (right - left)
    return math.log(x / left) / math.log(right / left)


def fraction(lower: float, upper: float, h: NativeHistogram) -> float:
    if math.isnan(lower) or math.isnan(upper) or h.count == 0 or math.isnan(h.count):
        return math.nan
    if lower >= upper:
        return 0.0
    rank = lambda x: min(sum(b.population * share_up_to(x, b) for b in _sided(h)), h.count)  # noqa: E731
    return (rank(upper) - rank(lower)) / h.count


def variance(h: NativeHistogram) -> float:
    """All observations of a bucket are taken to be its mean: the geometric one in exponential buckets."""
    if h.count == 0:
        return math.nan
    mean = h.sum / h.count
    parts = [n * (_mean(left, right, kind) - mean) ** 2 for left, right, n, kind in h.buckets() if n != 0]
    return sum(parts) / h.count


def _mean(left: float, right: float, kind: Kind) -> float:
    if kind in (Kind.ZERO, Kind.CUSTOM):
        return (left + right) / 2
    return math.copysign(math.sqrt(abs(left)) * math.sqrt(abs(right)), left + right)


def trimmed(h: NativeHistogram, x: float, *, keeps_below: bool) -> NativeHistogram:
    """`h </ x` or `h >/ x`: without the observations above or below x. Where any is removed, count and sum are those of
    the remaining buckets, at their means."""
    if math.isnan(x):
        return h
    kept: list[tuple[Bucket, float, float]] = []
    for bucket in _sided(h):
        clipped = (
            bucket._replace(right=min(bucket.right, x)) if keeps_below else bucket._replace(left=max(bucket.left, x))
        )
        whole = bucket.left == -math.inf and bucket.right == math.inf
        if whole and math.isfinite(x):
            share = 0.0
        elif keeps_below:
            share = share_up_to(x, bucket)
        else:
            share = 1.0 if bucket.left >= x > -math.inf and bucket.right > x else 1 - share_up_to(x, bucket)
        kept.append((clipped, share, bucket.population))
    if all(share == 1 for _, share, _ in kept):
        return h
    counts = iter(share * count if share > 0 else 0.0 for _, share, count in kept)
    new = [bucket.population and next(counts) for bucket in h.buckets()]
    negative = len(h.negative) if not h.is_custom else 0
    zero = 0 if h.is_custom else 1
    return replace(
        h,
        count=exact_sum(new),
        sum=sum(share * count * _finite_mean(clipped) for clipped, share, count in kept if share > 0),
        zero_count=new[negative] if zero else 0.0,
        negative=dict(zip(sorted(h.negative, reverse=True), new[:negative], strict=True)) if zero else {},
        positive=dict(zip(sorted(h.positive), new[negative + zero :], strict=True)),
    )


def _finite_mean(bucket: Bucket) -> float:
    if bucket.kind is Kind.CUSTOM and (math.isinf(bucket.left) or math.isinf(bucket.right)):
        return bucket.right if math.isinf(bucket.left) else bucket.left
    return _mean(bucket.left, bucket.right, bucket.kind)
