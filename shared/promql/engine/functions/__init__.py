"""All functions that take no range vector: name → implementation, which takes evaluated arguments."""

from __future__ import annotations

from shared.promql.engine.functions import histogram, info, labels, math, native_histogram, sort, time, vectors
from shared.promql.engine.functions.arguments import Function

INSTANT_FUNCTIONS: dict[str, Function] = {
    **math.FUNCTIONS,
    **time.FUNCTIONS,
    **vectors.FUNCTIONS,
    **labels.FUNCTIONS,
    **sort.FUNCTIONS,
    **histogram.FUNCTIONS,
    **native_histogram.FUNCTIONS,
    **info.FUNCTIONS,
}
