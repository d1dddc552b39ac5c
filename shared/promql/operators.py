"""PromQL's binary operators, by kind.

Source: https://prometheus.io/docs/prometheus/latest/querying/operators/. How tightly they bind is in grammar.lark; what
they compute is in `engine/binary.py` and `engine/setops.py`.
"""

from __future__ import annotations

from typing import Final

ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
TRIMS: Final = frozenset({"</", ">/"})
"""They trim native histograms: between floats they answer nothing."""
SET_OPERATORS: Final = frozenset({"and", "or", "unless"})

SCALAR_OPERATORS: Final = ARITHMETIC | COMPARISONS
"""Operators of which either operand may be a scalar."""
