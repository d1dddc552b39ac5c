"""Compares the results of two servers for a query."""

from __future__ import annotations

from typing import Any

import numpy as np

Answer = dict[tuple[tuple[str, str], ...], tuple[np.ndarray, np.ndarray]]


def parsed(envelope: dict[str, Any]) -> Answer:
    """Label set → (times in seconds, values) of a vector or matrix."""
    answer: Answer = {}
    for series in envelope["data"]["result"]:
        pairs = series.get("values") or [series["value"]]
        key = tuple(sorted(series["metric"].items()))
        answer[key] = (np.array([p[0] for p in pairs], dtype=float), np.array([p[1] for p in pairs], dtype=float))
    return answer


def difference(one: Answer, other: Answer) -> float:
    """The largest relative difference of two values, infinite where series or times are not the same."""
    if one.keys() != other.keys():
        return float("inf")
    worst = 0.0
    for key, (times, values) in one.items():
        other_times, other_values = other[key]
        if len(times) != len(other_times) or (times != other_times).any():
            return float("inf")
        scale = np.maximum(np.abs(values), np.abs(other_values))
        apart = np.abs(values - other_values) / np.where(scale == 0, 1, scale)
        worst = max(worst, float(apart.max(initial=0)))
    return worst
