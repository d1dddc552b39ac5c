"""PromQL's functions and aggregation operators: their signatures, and what the planner and the engine need to know.

Source: https://prometheus.io/docs/prometheus/latest/querying/functions/ and …/operators/ (3.14, with the experimental
functions). Functions of native histograms are included: they take any vector and return nothing for floats. The
implementations are in `engine/range_functions.py` and `engine/functions/`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

from shared.promql.ast import ValueType

UNBOUNDED: Final = -1


class Scope(enum.Enum):
    """The series that a function must see to compute one series of its result."""

    NONE = "no series"
    """The function takes scalars only."""
    ONE = "one series"
    """Each series of the result comes from one series of the argument."""
    RELABELLED = "one series, whose labels change"
    """As `ONE`, but two series of the result may become equal, which must be refused."""
    ARGUMENT = "all series of the argument"
    """The result depends on all series together: on whether there are any, on their order, on a histogram's buckets."""
    BEYOND_ARGUMENT = "series beside the argument's"
    """The function also reads series that its argument does not select."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's types, and the properties that decide how a call is planned and evaluated.

    `variadic` 0: exactly `args`; n > 0: the last type occurs 0 to n times; -1: any number of times.
    `depends_on_time`: the value may differ between steps even if the values of the arguments do not.
    `of_samples`: over a plain selector, the function reads the selected samples' timestamps instead of their values.
    `unevaluated_from`: arguments from this index on are not evaluated.
    `keeps_name`: the result of a function of range vectors keeps the metric names.
    `gives_order`: the function orders the result of an instant query, and warns about its use in a range query.
    `modifiers`: which of `anchored` and `smoothed` the function's range selector may have.
    """

    name: str
    args: tuple[ValueType, ...]
    returns: ValueType
    scope: Scope
    variadic: int = 0
    depends_on_time: bool = False
    of_samples: bool = False
    unevaluated_from: int | None = None
    keeps_name: bool = False
    gives_order: bool = False
    modifiers: frozenset[str] = frozenset()

    @property
    def args_min(self) -> int:
        return len(self.args) if self.variadic == 0 else len(self.args) - 1

    @property
    def args_max(self) -> int | None:
        """None: no limit."""
        if self.variadic == UNBOUNDED:
            return None
        return self.args_min + self.variadic

    @property
    def takes_range(self) -> bool:
        return ValueType.MATRIX in self.args

    def arg_type(self, position: int) -> ValueType:
        return self.args[min(position, len(self.args) - 1)]


_V, _M, _S, _T = ValueType.VECTOR, ValueType.MATRIX, ValueType.SCALAR, ValueType.STRING


def _signatures(
    scope: Scope, names: str, args: tuple[ValueType, ...], returns: ValueType = _V, **facts: Any
) -> list[Signature]:
    return [Signature(name, args, returns, scope, **facts) for name in names.split()]


_ONE, _RELABELLED, _ARGUMENT = Scope.ONE, Scope.RELABELLED, Scope.ARGUMENT
_ANCHORED: Final = frozenset({"anchored"})
_EXTENDED: Final = frozenset({"anchored", "smoothed"})

FUNCTIONS: Final[dict[str, Signature]] = {
    signature.name: signature
    for signature in (
        # Of each sample of an instant vector.
        *_signatures(_ONE, "abs ceil exp floor ln log10 log2 sgn sqrt", (_V,)),
        *_signatures(_ONE, "acos acosh asin asinh atan atanh cos cosh deg rad sin sinh tan tanh", (_V,)),
        *_signatures(_ONE, "clamp", (_V, _S, _S)),
        *_signatures(_ONE, "clamp_max clamp_min", (_V, _S)),
        *_signatures(_ONE, "round", (_V, _S), variadic=1),
        *_signatures(_ONE, "histogram_avg histogram_count histogram_stddev histogram_stdvar histogram_sum", (_V,)),
        *_signatures(_ONE, "day_of_month day_of_week day_of_year", (_V,), variadic=1, depends_on_time=True),
        *_signatures(_ONE, "days_in_month hour minute month year", (_V,), variadic=1, depends_on_time=True),
        *_signatures(_ONE, "timestamp", (_V,), of_samples=True, depends_on_time=True),
        *_signatures(_ONE, "start_timestamp", (_V,), of_samples=True),
        # Of a range vector.
        *_signatures(_ONE, "delta increase rate", (_M,), modifiers=_EXTENDED),
        *_signatures(_ONE, "changes resets", (_M,), modifiers=_ANCHORED),
        *_signatures(_ONE, "deriv idelta irate mad_over_time", (_M,)),
        *_signatures(_ONE, "predict_linear", (_M, _S), depends_on_time=True),
        *_signatures(_ONE, "double_exponential_smoothing", (_M, _S, _S)),
        *_signatures(_ONE, "avg_over_time count_over_time max_over_time min_over_time present_over_time", (_M,)),
        *_signatures(_ONE, "stddev_over_time stdvar_over_time sum_over_time", (_M,)),
        *_signatures(_ONE, "first_over_time last_over_time", (_M,), keeps_name=True),
        *_signatures(_ONE, "ts_of_first_over_time ts_of_last_over_time", (_M,)),
        *_signatures(_ONE, "ts_of_max_over_time ts_of_min_over_time", (_M,)),
        *_signatures(_ONE, "quantile_over_time", (_S, _M)),
        # Of label sets.
        *_signatures(_RELABELLED, "label_join", (_V, _T, _T, _T), variadic=UNBOUNDED),
        *_signatures(_RELABELLED, "label_replace", (_V, _T, _T, _T, _T)),
        # Of all series together.
        *_signatures(_ARGUMENT, "absent", (_V,)),
        *_signatures(_ARGUMENT, "absent_over_time", (_M,)),
        *_signatures(_ARGUMENT, "scalar", (_V,), _S),
        *_signatures(_ARGUMENT, "sort sort_desc", (_V,), gives_order=True),
        *_signatures(_ARGUMENT, "sort_by_label sort_by_label_desc", (_V, _T), variadic=UNBOUNDED, gives_order=True),
        *_signatures(_ARGUMENT, "histogram_quantile", (_S, _V)),
        *_signatures(_ARGUMENT, "histogram_fraction", (_S, _S, _V)),
        *_signatures(_ARGUMENT, "histogram_quantiles", (_V, _T, _S, _S), variadic=9),
        # The second argument is a set of matchers.
        *_signatures(Scope.BEYOND_ARGUMENT, "info", (_V, _V), variadic=1, unevaluated_from=1),
        # Of scalars.
        *_signatures(Scope.NONE, "vector", (_S,)),
        *_signatures(Scope.NONE, "end pi range start step", (), _S),
        *_signatures(Scope.NONE, "time", (), _S, depends_on_time=True),
        *_signatures(Scope.NONE, "max_of min_of", (_S, _S), _S),
    )
}

ALIASES: Final = {"holt_winters": "double_exponential_smoothing"}
"""Older names. The parser puts the newer one into `Call.func`."""


def functions_with(modifier: str) -> list[str]:
    """The functions whose range selector may be `anchored` or `smoothed`, in alphabetical order."""
    return sorted(name for name, signature in FUNCTIONS.items() if modifier in signature.modifiers)


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
"""Aggregation operators and the type of their parameter; None if they have none."""

ORDERING_AGGREGATORS: Final = frozenset({"bottomk", "topk"})
"""Aggregation operators that order the result of an instant query."""
