"""The signatures of PromQL's functions and aggregation operators.

Source: https://prometheus.io/docs/prometheus/latest/querying/functions/ and …/operators/ (3.14, with
the experimental functions). Functions of native histograms are here too: they take any vector and answer nothing for
floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shared.promql.ast import ValueType

UNBOUNDED: Final = -1


@dataclass(frozen=True, slots=True)
class Signature:
    """`variadic` 0: exactly `args`; n > 0: the last type comes 0 to n times; -1: any number of times."""

    name: str
    args: tuple[ValueType, ...]
    variadic: int
    returns: ValueType
    experimental: bool = False

    @property
    def args_min(self) -> int:
        return len(self.args) if self.variadic == 0 else len(self.args) - 1

    @property
    def args_max(self) -> int | None:
        """None: no limit."""
        if self.variadic == UNBOUNDED:
            return None
        return self.args_min + self.variadic

    def arg_type(self, position: int) -> ValueType:
        return self.args[min(position, len(self.args) - 1)]


_V, _M, _S, _T = ValueType.VECTOR, ValueType.MATRIX, ValueType.SCALAR, ValueType.STRING


def _signatures(
    names: str,
    args: tuple[ValueType, ...],
    returns: ValueType = _V,
    *,
    variadic: int = 0,
    experimental: bool = False,
) -> list[Signature]:
    return [Signature(name, args, variadic, returns, experimental) for name in names.split()]


FUNCTIONS: Final[dict[str, Signature]] = {
    signature.name: signature
    for signature in (
        # Instant vector in, instant vector out.
        *_signatures(
            "abs absent ceil exp floor ln log10 log2 sgn sqrt timestamp start_timestamp sort sort_desc", (_V,)
        ),
        *_signatures("acos acosh asin asinh atan atanh cos cosh deg rad sin sinh tan tanh", (_V,)),
        *_signatures("histogram_avg histogram_count histogram_stddev histogram_stdvar histogram_sum", (_V,)),
        *_signatures("clamp", (_V, _S, _S)),
        *_signatures("clamp_max clamp_min", (_V, _S)),
        *_signatures("round", (_V, _S), variadic=1),
        *_signatures("day_of_month day_of_week day_of_year days_in_month hour minute month year", (_V,), variadic=1),
        *_signatures("histogram_quantile", (_S, _V)),
        *_signatures("histogram_fraction", (_S, _S, _V)),
        *_signatures("histogram_quantiles", (_V, _T, _S, _S), variadic=9, experimental=True),
        *_signatures("label_join", (_V, _T, _T, _T), variadic=UNBOUNDED),
        *_signatures("label_replace", (_V, _T, _T, _T, _T)),
        *_signatures("sort_by_label sort_by_label_desc", (_V, _T), variadic=UNBOUNDED, experimental=True),
        *_signatures("info", (_V, _V), variadic=1, experimental=True),
        # Range vector in.
        *_signatures("changes delta deriv idelta increase irate rate resets", (_M,)),
        *_signatures("predict_linear", (_M, _S)),
        *_signatures("double_exponential_smoothing holt_winters", (_M, _S, _S), experimental=True),
        *_signatures("absent_over_time avg_over_time count_over_time last_over_time max_over_time", (_M,)),
        *_signatures("min_over_time present_over_time stddev_over_time stdvar_over_time sum_over_time", (_M,)),
        *_signatures("first_over_time mad_over_time ts_of_first_over_time", (_M,), experimental=True),
        *_signatures("ts_of_last_over_time ts_of_max_over_time ts_of_min_over_time", (_M,), experimental=True),
        *_signatures("quantile_over_time", (_S, _M)),
        # Scalars.
        *_signatures("scalar", (_V,), _S),
        *_signatures("vector", (_S,)),
        *_signatures("pi time", (), _S),
        *_signatures("end range start step", (), _S, experimental=True),
        *_signatures("max_of min_of", (_S, _S), _S, experimental=True),
    )
}

ALIASES: Final = {"holt_winters": "double_exponential_smoothing"}
"""Older names; the parser's `Call.func` always has the newer one."""

AGGREGATORS: Final[dict[str, ValueType | None]] = {
    "avg": None,
    "count": None,
    "group": None,
    "max": None,
    "min": None,
    "stddev": None,
    "stdvar": None,
    "sum": None,
    "bottomk": _S,
    "limit_ratio": _S,
    "limitk": _S,
    "quantile": _S,
    "topk": _S,
    "count_values": _T,
}
"""Aggregation operators and the type of their parameter, None where they take none."""

EXTENDED_RANGE_FUNCTIONS: Final = {
    "anchored": frozenset({"changes", "delta", "increase", "rate", "resets"}),
    "smoothed": frozenset({"delta", "increase", "rate"}),
}
"""Which functions take a range selector with the `anchored` or `smoothed` modifier."""
