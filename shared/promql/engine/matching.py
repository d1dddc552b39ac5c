"""Binary operators between two instant vectors: which series pair up, and the label sets of the result.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/operators/#vector-matching. Pairs are determined once,
from the label sets. Whether a pair is ambiguous depends on which series are present, and is decided at every step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np

from shared.errors import NotExecutable
from shared.histograms.references import stacked
from shared.labels import METRIC_NAME, LabelFrame, Rows, row_ids
from shared.promql.ast import Binary, Matching
from shared.promql.engine.context import EvalContext
from shared.promql.engine.kernels.aggregation import count_groups
from shared.promql.engine.operations import Outcome, operate
from shared.promql.engine.rows import layers, name_dropped, no_series, stack, take, united, without_empty
from shared.promql.model import Bool, Float, Int, Matrix
from shared.promql.operators import ARITHMETIC

MANY_TO_ONE = "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
GROUPING_LABELS = "multiple matches for labels: grouping labels must ensure unique matches"


def match_groups(left: LabelFrame, right: LabelFrame, matching: Matching) -> tuple[Rows, Rows, int]:
    """Number the match groups of two vectors: (int64[left.size], int64[right.size], number of groups)."""
    if matching.on:
        names = list(dict.fromkeys(matching.labels))
    else:
        ignored = {METRIC_NAME, *matching.labels}
        names = [name for name in dict.fromkeys((*left.columns, *right.columns)) if name not in ignored]
    columns = [np.concatenate([left.column(name), right.column(name)]) for name in names]
    ids, first = row_ids(columns, left.size + right.size)
    return ids[: left.size], ids[left.size :], len(first)


def presence_counts(present: Bool, ids: Rows, groups: int) -> Int:
    """int64[groups, steps]: how many series of each group are present at each step."""
    counts = np.zeros((groups, present.shape[1]), dtype=np.int64)
    count_groups(np.ascontiguousarray(present), ids, counts)
    return counts


@dataclass(slots=True)
class _Sides:
    """The operands in their roles in the match: `one` must be unique in its match group at every step, `many` need not.

    `many_ids`, `one_ids`: the match group of every series; `fill_many`, `fill_one`: the values for an absent side. Both
    sides refer to the same histograms.
    """

    node: Binary
    matching: Matching
    swapped: bool
    many: Matrix
    one: Matrix
    many_ids: Rows
    one_ids: Rows
    groups: int
    fill_many: float | None
    fill_one: float | None
    context: EvalContext

    def apply(self, many: Float, one: Float, matched: Bool) -> Outcome:
        """The operation on values of `many` and `one` where they match, in the order of the query."""
        left, right = (one, many) if self.swapped else (many, one)
        return operate(self.node, left, right, matched, self.many.histograms, self.context)


def evaluate_pairs(node: Binary, lhs: Matrix, rhs: Matrix, context: EvalContext) -> Matrix:
    """`lhs op rhs` for all operators except the set operators.

    Raises NotExecutable for ambiguous matches at any step.
    """
    matching = node.matching or Matching()
    swapped = matching.card == "one-to-many"
    many, one = _with_shared_histograms(*((rhs, lhs) if swapped else (lhs, rhs)))
    # Under group_right, too, Prometheus's fill_left is for the "many" side and fill_right for the "one" side.
    fill_many, fill_one = matching.fill_left, matching.fill_right
    many_ids, one_ids, groups = match_groups(many.labels, one.labels, matching)
    return _evaluate(
        _Sides(node, matching, swapped, many, one, many_ids, one_ids, groups, fill_many, fill_one, context)
    )


def _with_shared_histograms(many: Matrix, one: Matrix) -> tuple[Matrix, Matrix]:
    """The two matrices, both referring to one batch of histograms."""
    if many.histograms is one.histograms:
        return many, one
    (many_values, one_values), histograms = stacked([(many.values, many.histograms), (one.values, one.histograms)])
    return replace(many, values=many_values, histograms=histograms), replace(
        one, values=one_values, histograms=histograms
    )


def _evaluate(sides: _Sides) -> Matrix:
    many, one = sides.many, sides.one
    steps = many.present.shape[1]
    one_counts = presence_counts(one.present, sides.one_ids, sides.groups)
    _refuse_duplicates(sides, one_counts)
    one_present = one_counts > 0
    if sides.matching.card == "one-to-one":
        _refuse_many(sides, one_present)
    parts = []
    layer = layers(sides.one_ids)
    for k in range(int(layer.max()) + 1 if len(layer) else 0):
        sides.context.check()
        row_of = np.full(sides.groups, -1, dtype=np.int64)
        members = np.flatnonzero(layer == k)
        row_of[sides.one_ids[members]] = members
        parts.append(without_empty(_matched(sides, row_of)))
    if sides.fill_one is not None:
        parts.append(_filled_one(sides, one_present))
    if sides.fill_many is not None:
        parts.append(_filled_many(sides))
    parts = [part for part in parts if part.labels.size]
    if not parts:
        return no_series(many.labels.symbols, steps)
    return parts[0] if len(parts) == 1 else united(stack(parts))


def _refuse_duplicates(sides: _Sides, one_counts: Int) -> None:
    """Raise NotExecutable if two series of one match group are on the "one" side at a step that has something to
    compute."""
    if not len(one_counts) or one_counts.max() <= 1:
        return
    active = sides.many.present.any(axis=0)
    if sides.fill_many is not None:
        active = np.ones_like(active)
    groups, steps = np.nonzero((one_counts > 1) & active)
    if not len(groups):
        return
    members = np.flatnonzero((sides.one_ids == groups[0]) & sides.one.present[:, steps[0]])[:2]
    shown = sorted(label_text(sides.one.labels, row) for row in members)
    side = "left" if sides.swapped else "right"
    match_group = label_text(_match_labels(sides.one.labels, sides.matching), int(members[0]))
    raise NotExecutable(
        f"found duplicate series for the match group {match_group} on the {side} hand-side of the operation: "
        f"[{', '.join(shown)}];many-to-many matching not allowed: matching labels must be unique on one side"
    )


def _refuse_many(sides: _Sides, one_present: Bool) -> None:
    """Raise NotExecutable if a one-to-one match has two series of one match group on the "many" side."""
    many_counts = presence_counts(sides.many.present, sides.many_ids, sides.groups)
    if len(many_counts) and many_counts.max() > 1:
        matched = one_present if sides.fill_one is None else np.ones_like(one_present)
        if ((many_counts > 1) & matched).any():
            raise NotExecutable(MANY_TO_ONE)


def _matched(sides: _Sides, row_of: Rows) -> Matrix:
    """Pair every "many" series with the "one" series of its group. `row_of`: int64[groups], its row; -1: none."""
    partner = row_of[sides.many_ids]
    rows = np.flatnonzero(partner >= 0)
    partner = partner[rows]
    many = sides.many if len(rows) == sides.many.labels.size else take(sides.many, rows)
    # The common case of two vectors in the same order needs no copy.
    is_same_order = len(partner) == sides.one.labels.size and bool((np.diff(partner, prepend=-1) == 1).all())
    one = sides.one if is_same_order else take(sides.one, partner)
    matched = many.present & one.present
    outcome = sides.apply(many.values, one.values, matched)
    include = {name: one.labels.column(name) for name in sides.matching.include}
    return _result(sides, many.labels, many.drop_name, outcome, matched, include)


def _filled_one(sides: _Sides, one_present: Bool) -> Matrix:
    """The "many" series at the steps at which their group has no series on the other side."""
    many = sides.many
    matched = many.present & ~one_present[sides.many_ids]
    outcome = sides.apply(many.values, np.full_like(many.values, sides.fill_one), matched)
    one_labels = _match_labels(many.labels, sides.matching)
    include = {name: one_labels.column(name) for name in sides.matching.include}
    return without_empty(_result(sides, many.labels, many.drop_name, outcome, matched, include))


def _filled_many(sides: _Sides) -> Matrix:
    """The "one" series at the steps at which their group has no series on the other side, with the labels of their
    group."""
    one = sides.one
    many_present = presence_counts(sides.many.present, sides.many_ids, sides.groups) > 0
    matched = one.present & ~many_present[sides.one_ids]
    outcome = sides.apply(np.full_like(one.values, sides.fill_many), one.values, matched)
    labels = _match_labels(one.labels, sides.matching)
    include = {name: one.labels.column(name) for name in sides.matching.include}
    return without_empty(_result(sides, labels, np.zeros_like(one.drop_name), outcome, matched, include))


def _result(
    sides: _Sides,
    labels: LabelFrame,
    drop_name: Bool,
    outcome: Outcome,
    matched: Bool,
    include: dict[str, np.ndarray],
) -> Matrix:
    """The result of pairs: label sets from the "many" side and, for `include`, from the "one" side.

    Arithmetic removes the name at once, so that `group_left(__name__)` can give the result another one.
    """
    matching = sides.matching
    if sides.node.op in ARITHMETIC:
        labels, drop_name = name_dropped(labels), np.zeros_like(drop_name)
    if matching.card == "one-to-one":
        labels = labels.only(matching.labels) if matching.on else labels.without(matching.labels)
    for name, codes in include.items():
        labels = labels.with_column(name, codes)
    if sides.node.return_bool:
        drop_name = np.ones_like(drop_name)
    present = matched if outcome.is_kept is None else matched & outcome.is_kept
    result = Matrix(labels, outcome.values, present, drop_name, outcome.histograms)
    if matching.card == "one-to-one":  # a pair is ambiguous whether the comparison keeps it or not
        return united(result, message=MANY_TO_ONE, occupied=matched)
    return united(result, message=GROUPING_LABELS)


def _match_labels(labels: LabelFrame, matching: Matching) -> LabelFrame:
    """The labels that identify a series' match group."""
    return labels.only(matching.labels) if matching.on else labels.without((METRIC_NAME, *matching.labels))


def label_text(labels: LabelFrame, row: int) -> str:
    """`{name="value", …}`, with the metric name written like any other label."""
    pairs = []
    for name, value in labels.labels(row):
        is_plain = name.replace("_", "a").isalnum() and name.isascii() and not name[0].isdigit()
        name_text = name if is_plain else json.dumps(name, ensure_ascii=False)
        pairs.append(f"{name_text}={json.dumps(value, ensure_ascii=False)}")
    return "{" + ", ".join(pairs) + "}"
