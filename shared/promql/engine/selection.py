"""Aggregations that choose series instead of reducing them (topk, bottomk, limitk, limit_ratio), and aggregations that
need all values of a group at once (quantile, count_values).

The results do not depend on how the series are spread over shards: topk and bottomk order equal values by label set,
limitk and limit_ratio sample by the hash of the label set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from shared import labels as label_sets
from shared.hashing import hash64
from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference, rows_of
from shared.histograms.text import plain_texts
from shared.labels import METRIC_NAME, Codes, LabelFrame, Rows, Symbols
from shared.promql.ast import Aggregate
from shared.promql.engine.context import EvalContext
from shared.promql.engine.kernels.aggregation import quantile_groups, select_groups
from shared.promql.engine.numbers import plain
from shared.promql.engine.rows import take, without_empty
from shared.promql.model import Bool, Float, Int, Matrix

TEXTS_AT_ONCE = 1 << 13
"""Values written as texts, and label sets hashed, between two checks of the deadline: about 10 ms."""

BUCKET_TEXTS_AT_ONCE = 1 << 13
"""Buckets of histograms written as texts between two checks of the deadline, or those of one histogram: about 10 ms."""

VALUES_AT_ONCE = 1 << 19
"""Values that are read between two checks of the deadline, but one step at least: about 0.1 s if topk chooses half of
them, or if count_values finds many distinct ones."""

_CHARACTERS_PER_CELL = 8
"""The texts of histograms count towards the samples that the query holds: so many characters as one sample."""


def grouped(labels: LabelFrame, node: Aggregate) -> tuple[Rows, LabelFrame]:
    """(int64[labels.size]: the group of each series, the groups' label sets in the order of their first series)."""
    if node.without:
        return labels.group((*node.grouping, METRIC_NAME), without=True)
    return labels.group(node.grouping)


def hashes(labels: LabelFrame, context: EvalContext) -> NDArray[np.uint64]:
    """uint64[size]: xxh64 of each label set's canonical bytes, the hash that places series on shards."""
    columns = []
    for name in sorted(labels.columns, key=str.encode):
        codes, inverse = np.unique(labels.columns[name], return_inverse=True)
        encoded: list[bytes] = []
        for start in range(0, len(codes), TEXTS_AT_ONCE):
            context.check()
            texts = labels.symbols.texts(codes[start : start + TEXTS_AT_ONCE])
            encoded += [label_sets.encode(((name, text),)) if text else b"" for text in texts]
        columns.append((encoded, inverse))
    hashed = np.full(labels.size, hash64(b""), dtype=np.uint64)
    for start in range(0, labels.size if columns else 0, TEXTS_AT_ONCE):
        context.check()
        rows = slice(start, start + TEXTS_AT_ONCE)
        parts = ([encoded[i] for i in inverse[rows].tolist()] for encoded, inverse in columns)
        hashed[rows] = [hash64(b"".join(pieces)) for pieces in zip(*parts, strict=True)]
    return hashed


def step_slices(matrix: Matrix, context: EvalContext) -> Iterator[slice]:
    """All steps of the matrix, in slices of about VALUES_AT_ONCE values. The deadline is checked before each."""
    series, steps = matrix.present.shape
    at_once = max(1, VALUES_AT_ONCE // max(1, series))
    for first in range(0, steps, at_once):
        context.check()
        yield slice(first, min(first + at_once, steps))


def extremes(node: Aggregate, matrix: Matrix, k: Int, context: EvalContext) -> Matrix:
    """topk and bottomk: the series that are among the k (int64[steps]) best of their group at any step, and present
    only at those steps."""
    ids, groups = grouped(matrix.labels, node)
    if not len(k) or not groups.size or k.max() < 1:
        return take(matrix, np.zeros(0, dtype=np.int64))
    sizes = np.bincount(ids, minlength=groups.size)
    if k.min() >= sizes.max():
        return matrix
    capacities = np.minimum(sizes, k.max())
    chosen = np.zeros(matrix.present.shape, dtype=np.bool_)
    ranks, is_ranked = np.arange(len(ids), dtype=np.int64), False
    for steps in step_slices(matrix, context):
        values, present = (np.ascontiguousarray(plane[:, steps]) for plane in (matrix.values, matrix.present))
        part = np.zeros_like(present)
        terms = k[steps], capacities, node.op == "topk"
        if select_groups(values, present, ids, ranks, *terms, part) and not is_ranked:
            # Label sets are sorted only if some values are equal, because sorting is expensive.
            ranks[matrix.labels.sort_order()] = np.arange(len(ids), dtype=np.int64)
            is_ranked = True
            context.check()
            part[:] = False
            select_groups(values, present, ids, ranks, *terms, part)
        chosen[:, steps] = part
    return without_empty(Matrix(matrix.labels, matrix.values, chosen, matrix.drop_name, matrix.histograms))


def by_value(node: Aggregate, matrix: Matrix) -> Matrix:
    """Order the series of an instant topk or bottomk: group by group, best first, NaN last, equal values by label
    set."""
    matrix = take(matrix, matrix.labels.sort_order())
    ids, groups = grouped(matrix.labels, node)
    ids = np.argsort(groups.sort_order())[ids]
    column = matrix.values[:, 0]
    key = -column if node.op == "topk" else column
    return take(matrix, np.lexsort((key, np.isnan(column), ids)))


def first_by_hash(node: Aggregate, matrix: Matrix, k: Int, context: EvalContext) -> Matrix:
    """limitk: at each step, the k (int64[steps]) present series of each group with the smallest hashes."""
    ids, groups = grouped(matrix.labels, node)
    order = np.lexsort((hashes(matrix.labels, context), ids))
    ordered_ids = ids[order]
    starts = np.searchsorted(ordered_ids, np.arange(groups.size))
    chosen = np.empty_like(matrix.present)
    for steps in step_slices(matrix, context):
        present = matrix.present[order, steps]
        rank = np.cumsum(present, axis=0, dtype=np.int32)
        before = np.zeros((groups.size, rank.shape[1]), dtype=np.int32)
        before[1:] = rank[starts[1:] - 1]
        chosen[order, steps] = present & (rank - before[ordered_ids] <= k[steps])
    return without_empty(Matrix(matrix.labels, matrix.values, chosen, matrix.drop_name, matrix.histograms))


def sampled_by_hash(matrix: Matrix, ratio: Float, context: EvalContext) -> Matrix:
    """limit_ratio: the series whose hash, as a fraction, is below the ratio (float64[steps]) or, for a negative ratio,
    at least 1 + ratio."""
    fraction = (hashes(matrix.labels, context) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    position = fraction[:, np.newaxis]
    chosen = np.where(ratio >= 0.0, position < ratio, position >= 1.0 + ratio)
    present = matrix.present & chosen
    return without_empty(Matrix(matrix.labels, matrix.values, present, matrix.drop_name, matrix.histograms))


def quantiles(node: Aggregate, matrix: Matrix, q: Float, context: EvalContext) -> tuple[LabelFrame, Rows, Float, Bool]:
    """The q-quantile (float64[steps]) of every group: (groups, group of each series, values, presence)."""
    ids, groups = grouped(matrix.labels, node)
    order = np.argsort(ids, kind="stable")
    offsets = np.searchsorted(ids[order], np.arange(groups.size + 1))
    shape = (groups.size, matrix.present.shape[1])
    out, seen = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    values, present = np.ascontiguousarray(matrix.values), np.ascontiguousarray(matrix.present)
    q = np.ascontiguousarray(q)
    for steps in step_slices(matrix, context):
        quantile_groups(values, present, order, offsets, q, steps.start, steps.stop, out, seen)
    return groups, ids, out, seen


def value_counts(node: Aggregate, matrix: Matrix, label: str, context: EvalContext) -> tuple[LabelFrame, Float, Bool]:
    """count_values: (label sets of groups and values, counts: float64[groups, steps], where the name is to be dropped:
    bool[groups, steps]).

    The value's text becomes a label of every series before they are grouped, so it may replace a label that
    distinguishes groups, and `without` may remove it. Raises NotExecutable if there are more cells than the query may
    have.
    """
    has_value_label = not (node.without and label in (*node.grouping, METRIC_NAME))
    ids, groups = grouped(matrix.labels.without((label,)), node)
    total_steps = matrix.present.shape[1]
    distinct, codes, text_index = np.zeros(1, np.int64), None, None
    if has_value_label:
        # Each distinct float is in a cell at least. Equal histograms may be in several rows, so their texts distinguish
        # them.
        cells_each = total_steps if matrix.histograms is None else 0
        bits = (_bits(matrix, steps)[0] for steps in step_slices(matrix, context))
        distinct = _union(bits, cells_each, context)
        if matrix.histograms is not None:
            texts = _text_codes(distinct.view(np.float64), matrix.histograms, matrix.labels.symbols, context)
            codes, text_index = np.unique(texts, return_inverse=True)
    value_count = max(len(distinct) if codes is None else len(codes), 1)

    def placed(steps: slice) -> tuple[NDArray[np.int64], Rows, Rows]:
        """(group · value_count + value, row and column) of each present value at these steps."""
        bits, rows, columns = _bits(matrix, steps)
        if not has_value_label:
            return ids[rows], rows, columns
        value_index = np.searchsorted(distinct, bits)
        return ids[rows] * value_count + (value_index if text_index is None else text_index[value_index]), rows, columns

    cells = _union((placed(steps)[0] for steps in step_slices(matrix, context)), total_steps, context)
    counts = np.zeros((len(cells), total_steps))
    dropped = np.zeros(counts.shape, dtype=np.bool_)
    for steps in step_slices(matrix, context):
        keys, rows, columns = placed(steps)
        shape = len(cells), steps.stop - steps.start
        places, size = np.searchsorted(cells, keys) * shape[1] + columns, shape[0] * shape[1]
        counts[:, steps] = np.bincount(places, minlength=size).reshape(shape)
        if label != METRIC_NAME:
            dropped[:, steps] = np.bincount(places, matrix.drop_name[rows], size).reshape(shape) > 0
    named = groups.take(cells // value_count)
    if has_value_label:
        if codes is None:
            codes = _text_codes(distinct.view(np.float64), None, matrix.labels.symbols, context)
        named = named.with_column(label, codes[cells % value_count])
    return named, counts, dropped


def _bits(matrix: Matrix, steps: slice) -> tuple[NDArray[np.int64], Rows, Rows]:
    """(bits, row, column within `steps`) of each present value at these steps. Values have equal texts if they have
    equal bits: there is one NaN, but two zeros."""
    rows, columns = np.nonzero(matrix.present[:, steps])
    values = matrix.values[rows, columns + steps.start]
    is_nan = np.isnan(values) if matrix.histograms is None else np.isnan(values) & ~is_reference(values)
    values[is_nan] = np.nan
    return values.view(np.int64), rows, columns


def _union(parts: Iterable[NDArray[np.int64]], cells_each: int, context: EvalContext) -> NDArray[np.int64]:
    """The distinct numbers of all parts, ascending. Raises OverBudget if the query may not hold `cells_each` cells for
    each of them."""
    union, later, later_count = np.zeros(0, np.int64), list[NDArray[np.int64]](), 0
    for part in parts:
        later.append(_distinct(part))
        later_count += len(later[-1])
        # Uniting waits until the later parts are as large as the union, so the total work is nearly linear.
        if later_count >= len(union):
            union, later, later_count = _distinct(np.concatenate([union, *later])), [], 0
            context.require(len(union) * cells_each)
    union = _distinct(np.concatenate([union, *later]))
    context.require(len(union) * cells_each)
    return union


def _distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The distinct numbers, ascending. (np.unique hashes, which takes up to fifty times as long.)"""
    numbers = np.sort(numbers)
    return numbers[np.concatenate(([True], numbers[1:] != numbers[:-1]))] if len(numbers) else numbers


def _text_codes(values: Float, histograms: HistogramBatch | None, symbols: Symbols, context: EvalContext) -> Codes:
    """int32[n]: the codes of the values' texts. Raises OverBudget if those of histograms take too much memory."""
    codes = np.empty(len(values), dtype=np.int32)
    for start in range(0, len(values), TEXTS_AT_ONCE):
        context.check()
        end = start + TEXTS_AT_ONCE
        codes[start:end] = [symbols.code_of_made(plain(value)) for value in values[start:end].tolist()]
    if histograms is None:
        return codes
    histogram_places = np.flatnonzero(is_reference(values))
    rows = rows_of(values[histogram_places])
    ends = np.cumsum(np.diff(histograms.columns.start)[rows] + 1)
    characters = first = 0
    while first < len(rows):
        context.check()
        done = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + BUCKET_TEXTS_AT_ONCE, side="right")))
        texts = plain_texts(histograms, rows[first:last])
        characters += sum(map(len, set(texts)))
        context.require(characters // _CHARACTERS_PER_CELL)
        codes[histogram_places[first:last]] = list(map(symbols.code_of_made, texts))
        first = last
    return codes
