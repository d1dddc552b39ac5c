"""The set operators `and`, `or` and `unless`, decided at every step by the label sets present there.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/operators/#logical-set-binary-operators.
"""

from __future__ import annotations

from shared.promql.ast import Binary, Matching
from shared.promql.engine.matching import match_groups, presence_counts
from shared.promql.engine.rows import stack, united, without_empty
from shared.promql.model import Matrix


def evaluate_set(node: Binary, lhs: Matrix, rhs: Matrix) -> Matrix:
    """`lhs and|or|unless rhs`: the operands' series, without the steps that the other side excludes."""
    matching = node.matching or Matching(card="many-to-many")
    left_ids, right_ids, groups = match_groups(lhs.labels, rhs.labels, matching)
    if node.op == "or":
        in_left = presence_counts(lhs.present, left_ids, groups) > 0
        right_only = Matrix(rhs.labels, rhs.values, rhs.present & ~in_left[right_ids], rhs.drop_name, rhs.histograms)
        # The same label set may come from the left at one step and from the right at another.
        return united(stack([without_empty(lhs), without_empty(right_only)]))
    in_right = presence_counts(rhs.present, right_ids, groups) > 0
    is_chosen = in_right[left_ids] if node.op == "and" else ~in_right[left_ids]
    return without_empty(Matrix(lhs.labels, lhs.values, lhs.present & is_chosen, lhs.drop_name, lhs.histograms))
