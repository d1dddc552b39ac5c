"""Aggregations that choose series instead of reducing them (topk, bottomk, limitk, limit_ratio), and aggregations that
need all values of a group at once (quantile, count_values).

The results do not depend on how the series are spread over shards: topk and bottomk order equal values by label set,
limitk and limit_ratio sample by the hash of the label set.
"""

from __future__ import annotations

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
from shared.promql.engine.kernels.aggregation import STEP_BLOCK, quantile_groups, select_groups
from shared.promql.engine.numbers import plain
from shared.promql.engine.rows import take, without_empty
from shared.promql.model import Bool, Float, Int, Matrix

TEXTS_AT_ONCE = 1 << 13
"""Values written as texts, and label sets hashed, between two checks of the deadline: about 10 ms."""

BUCKET_TEXTS_AT_ONCE = 1 << 13
"""Buckets of histograms written as texts between two checks of the deadline, or those of one histogram: about 10 ms."""

VALUES_AT_ONCE = 1 << 21
"""Values from which topk and bottomk choose between two checks of the deadline: about 0.3 s if they choose half."""

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
        context.check()
        codes, inverse = np.unique(labels.columns[name], return_inverse=True)
        texts = labels.symbols.texts(codes)
        columns.append(([label_sets.encode(((name, text),)) if text else b"" for text in texts], inverse))
    hashed = np.full(labels.size, hash64(b""), dtype=np.uint64)
    for start in range(0, labels.size if columns else 0, TEXTS_AT_ONCE):
        context.check()
        rows = slice(start, start + TEXTS_AT_ONCE)
        parts = ([encoded[i] for i in inverse[rows].tolist()] for encoded, inverse in columns)
        hashed[rows] = [hash64(b"".join(pieces)) for pieces in zip(*parts, strict=True)]
    return hashed


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
    at_once = max(STEP_BLOCK, VALUES_AT_ONCE // len(ids))
    for first in range(0, len(k), at_once):
        context.check()
        steps = slice(first, first + at_once)
        values, present = (np.ascontiguousarray(plane[:, steps]) for plane in (matrix.values, matrix.present))
        part = np.zeros_like(present)
        terms = k[steps], capacities, node.op == "topk"
        if select_groups(values, present, ids, ranks, *terms, part) and not is_ranked:
            # Label sets are sorted only if some values are equal, because sorting is expensive.
            ranks[matrix.labels.sort_order()] = np.arange(len(ids), dtype=np.int64)
            is_ranked = True
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
    starts = np.searchsorted(ids[order], np.arange(groups.size))
    rank = np.cumsum(matrix.present[order], axis=0, dtype=np.int32)
    before = np.zeros((groups.size, rank.shape[1]), dtype=np.int32)
    before[1:] = rank[starts[1:] - 1]
    chosen = np.empty_like(matrix.present)
    chosen[order] = matrix.present[order] & (rank - before[ids[order]] <= k)
    return without_empty(Matrix(matrix.labels, matrix.values, chosen, matrix.drop_name, matrix.histograms))


def sampled_by_hash(matrix: Matrix, ratio: Float, context: EvalContext) -> Matrix:
    """limit_ratio: the series whose hash, as a fraction, is below the ratio (float64[steps]) or, for a negative ratio,
    at least 1 + ratio."""
    fraction = (hashes(matrix.labels, context) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    position = fraction[:, np.newaxis]
    chosen = np.where(ratio >= 0.0, position < ratio, position >= 1.0 + ratio)
    present = matrix.present & chosen
    return without_empty(Matrix(matrix.labels, matrix.values, present, matrix.drop_name, matrix.histograms))


def quantiles(node: Aggregate, matrix: Matrix, q: Float) -> tuple[LabelFrame, Rows, Float, Bool]:
    """The q-quantile (float64[steps]) of every group: (groups, group of each series, values, presence)."""
    ids, groups = grouped(matrix.labels, node)
    order = np.argsort(ids, kind="stable")
    offsets = np.searchsorted(ids[order], np.arange(groups.size + 1))
    shape = (groups.size, matrix.present.shape[1])
    out, seen = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    values, present = np.ascontiguousarray(matrix.values), np.ascontiguousarray(matrix.present)
    quantile_groups(values, present, order, offsets, np.ascontiguousarray(q), out, seen)
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
    rows, columns = np.nonzero(matrix.present)
    # Equal texts are equal values: one NaN, but two zeros.
    bits = matrix.values[rows, columns]
    is_nan = np.isnan(bits) if matrix.histograms is None else np.isnan(bits) & ~is_reference(bits)
    bits[is_nan] = np.nan
    distinct, value_index = np.unique(bits.view(np.int64), return_inverse=True)
    codes = None
    if matrix.histograms is not None:
        # Equal histograms may be in several rows, so they are distinguished by their texts.
        texts = _text_codes(distinct.view(np.float64), matrix.histograms, matrix.labels.symbols, context)
        codes, text_index = np.unique(texts, return_inverse=True)
        value_index = text_index[value_index]
    value_count = max(len(distinct) if codes is None else len(codes), 1)
    cells, cell_index = np.unique(
        ids[rows] * value_count + (value_index if has_value_label else 0), return_inverse=True
    )
    steps = matrix.present.shape[1]
    context.require(len(cells) * steps)
    places, shape = cell_index * steps + columns, (len(cells), steps)
    counts = np.bincount(places, minlength=len(cells) * steps).astype(np.float64)
    dropped = np.bincount(places, weights=matrix.drop_name[rows], minlength=len(cells) * steps) > 0
    origin = cells // value_count
    named = groups.take(origin)
    if has_value_label:
        if codes is None:
            codes = _text_codes(distinct.view(np.float64), None, matrix.labels.symbols, context)
        named = named.with_column(label, codes[cells % value_count])
    return named, counts.reshape(shape), dropped.reshape(shape) & (label != METRIC_NAME)


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
