"""PromQL's binary operators, by kind.

Source: https://prometheus.io/docs/prometheus/latest/querying/operators/. Their precedence is defined in grammar.lark;
`engine/binary.py` and `engine/setops.py` evaluate them.
"""

from __future__ import annotations

from typing import Final

ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "^", "atan2"})
COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
TRIMS: Final = frozenset({"</", ">/"})
"""Operators that trim native histograms; between floats they return nothing."""
SET_OPERATORS: Final = frozenset({"and", "or", "unless"})

SCALAR_OPERATORS: Final = ARITHMETIC | COMPARISONS
"""Operators either of whose operands may be a scalar."""
