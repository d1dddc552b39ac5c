"""The parameter of an aggregation, checked once for all steps: k, ratio, quantile or label name.

Semantics and texts: https://prometheus.io/docs/prometheus/latest/querying/operators/#aggregation-operators.
"""

from __future__ import annotations

import numpy as np

from shared.errors import NotExecutable
from shared.promql.engine.context import EvalContext
from shared.promql.engine.numbers import general
from shared.promql.model import Float, Int, Scalar, String, Value

INT64_MIN = -9223372036854775808.0
INT64_MAX = 9223372036854774784.0
"""The largest float64 that is an int64."""

REMARKS_MAX = 10
"""At most this many distinct bad values get an annotation, since a value may change at every step."""


def scalar_of(param: Value | None) -> Float:
    """The parameter's value at every step, float64[steps]. Raises NotExecutable unless it is a scalar."""
    if not isinstance(param, Scalar):
        raise NotExecutable(f"the parameter must be a scalar, not {type(param).__name__.lower()}")
    return param.values


def limits(param: Value | None) -> Int:
    """The k of topk, bottomk and limitk, int64[steps]. Raises NotExecutable for NaN and for values that int64 cannot
    hold."""
    values = scalar_of(param)
    if np.isnan(values).any():
        raise NotExecutable("Parameter value is NaN")
    if len(values) and values.max() > INT64_MAX:
        raise NotExecutable(f"Scalar value {general(float(values.max()))} overflows int64")
    if len(values) and values.min() < INT64_MIN:
        raise NotExecutable(f"Scalar value {general(float(values.min()))} underflows int64")
    return values.astype(np.int64)


def ratios(param: Value | None, offset: int | None, context: EvalContext) -> Float:
    """The ratio of limit_ratio, float64[steps], capped to [-1, 1] with a warning. Raises NotExecutable for NaN."""
    values = scalar_of(param)
    if np.isnan(values).any():
        raise NotExecutable("Ratio value is NaN")
    for cap, value in ((1.0, values.max(initial=0.0)), (-1.0, values.min(initial=0.0))):
        if abs(value) > 1.0:
            context.annotations.warn(
                f"ratio value should be between -1 and 1, got {general(float(value))}, capping to {general(cap)}",
                offset,
            )
    return np.clip(values, -1.0, 1.0)


def warn_of_quantiles(values: Float, offset: int | None, context: EvalContext) -> None:
    """Warn of quantiles (float64[steps]) outside [0, 1]."""
    bad = np.unique(values[~((values >= 0.0) & (values <= 1.0))])
    for value in bad[:REMARKS_MAX]:
        context.annotations.warn(quantile_remark(value), offset)


def quantile_remark(value: float) -> str:
    """The text of the warning about a quantile outside [0, 1]."""
    return f"quantile value should be between 0 and 1, got {general(float(value))}"


def label_name(param: Value | None) -> str:
    """The label name of count_values. Raises NotExecutable for text that cannot name a label."""
    name = param.value if isinstance(param, String) else ""
    if not is_label_name(name):
        raise NotExecutable(f"invalid label name {name!r}")
    return name


def is_label_name(name: str) -> bool:
    """Whether `name` may name a label: any non-empty UTF-8 text."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False
