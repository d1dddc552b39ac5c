"""The oracle's functions of instant vectors and scalars."""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import re2

from shared.labels import METRIC_NAME
from tests.oracle_values import OracleError, Sample, Value, as_labels

Function = Callable[[Sequence[Any]], Value]


def each(function: Callable[..., float]) -> Function:
    """Apply to every float; histograms are left out. The other arguments are the function's own."""

    def call(args: Sequence[Any]) -> Value:
        with np.errstate(all="ignore"):
            return [Sample(s.labels, float(function(v, *args[1:])), drop_name=True) for s, v in _floats(args[0])]

    return call


def _floats(vector: Sequence[Sample]) -> list[tuple[Sample, float]]:
    return [(sample, sample.value) for sample in vector if isinstance(sample.value, float)]


def full_match(pattern: str, text: str) -> Any:
    """RE2's syntax; the whole value must match, and `.` matches a line end."""
    try:
        return re2.fullmatch(f"(?s:{pattern})", text)
    except re2.error as error:
        raise OracleError(f"invalid regular expression {pattern!r}") from error


def _sign(value: float) -> float:
    return math.copysign(1.0, value) if value < 0 or value > 0 else value


def _round(value: float, to: float = 1.0) -> float:
    inverse = 1.0 / to if to else math.inf
    return float(np.floor(np.float64(value) * inverse + 0.5) / inverse)


def _clamp(args: Sequence[Any]) -> Value:
    vector, low, high = args
    if high < low:
        return []
    return each(lambda value, a, b: np.maximum(a, np.minimum(b, value)))([vector, low, high])


def _date(part: Callable[[datetime], int]) -> Function:
    return each(lambda value: float(part(datetime.fromtimestamp(math.trunc(value), UTC))))


def _days_in_month(date: datetime) -> int:
    return calendar.monthrange(date.year, date.month)[1]


def _label_replace(args: Sequence[Any]) -> Value:
    vector, target, replacement, source, pattern = args
    _check_name(target)
    found = []
    for sample in vector:
        match = full_match(pattern, sample.labels.get(source, ""))
        if match is None:
            found.append(sample)
            continue
        labels = {**sample.labels, target: _expanded(replacement, match)}
        found.append(Sample(labels, sample.value, sample.drop_name and target != METRIC_NAME))
    return _distinct(found)


def _check_name(name: str) -> None:
    """Any UTF-8 text but the empty one names a label."""
    if not name or any(0xD800 <= ord(char) <= 0xDFFF for char in name):
        raise OracleError(f"invalid label name {name!r}")


def _expanded(template: str, match: Any) -> str:
    """`$1`, `${1}`, `$name`, `${name}`, `$$`; a group that is not there is empty."""

    def group(reference: re.Match[str]) -> str:
        name = reference[1] or reference[2]
        if name is None:
            return "$"
        is_number = name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")
        key: int | str = int(name) if is_number else name
        try:
            return match[key] or ""
        except IndexError:
            return ""

    return re.sub(r"\$(?:\{(\w+)\}|(\w+)|\$)", group, template)


def _label_join(args: Sequence[Any]) -> Value:
    vector, target, separator, *sources = args
    for name in (target, *sources):
        _check_name(name)
    joined = (separator.join(s.labels.get(name, "") for name in sources) for s in vector)
    return _distinct(
        [
            Sample({**s.labels, target: text}, s.value, s.drop_name and target != METRIC_NAME)
            for s, text in zip(vector, joined, strict=True)
        ]
    )


def _distinct(samples: list[Sample]) -> list[Sample]:
    seen = [as_labels(sample.labels) for sample in samples]
    if len(set(seen)) < len(seen):
        raise OracleError("vector cannot contain metrics with the same labelset")
    return samples


def _scalar(args: Sequence[Any]) -> Value:
    floats = _floats(args[0])
    return floats[0][1] if len(floats) == 1 else math.nan


def _sorted(vector: Sequence[Sample], sign: int) -> list[Sample]:
    return [s for s, _ in sorted(_floats(vector), key=lambda one: (math.isnan(one[1]), sign * one[1]))]


FUNCTIONS: dict[str, Function] = {
    **{name: each(getattr(np, name)) for name in ("ceil", "exp", "floor", "log10", "log2", "sqrt")},
    **{name: each(getattr(np, name)) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{f"a{name}": each(getattr(np, f"arc{name}")) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "abs": each(abs),
    "ln": each(np.log),
    "sgn": each(_sign),
    "deg": each(lambda value: value * 180 / math.pi),
    "rad": each(lambda value: value * math.pi / 180),
    "round": each(_round),
    "clamp": _clamp,
    "clamp_max": each(lambda value, high: np.minimum(high, value)),
    "clamp_min": each(lambda value, low: np.maximum(low, value)),
    "day_of_month": _date(lambda date: date.day),
    "day_of_week": _date(lambda date: date.isoweekday() % 7),
    "day_of_year": _date(lambda date: date.timetuple().tm_yday),
    "days_in_month": _date(_days_in_month),
    "hour": _date(lambda date: date.hour),
    "minute": _date(lambda date: date.minute),
    "month": _date(lambda date: date.month),
    "year": _date(lambda date: date.year),
    "label_replace": _label_replace,
    "label_join": _label_join,
    "scalar": _scalar,
    "start_timestamp": lambda args: [Sample(s.labels, s.start_ms / 1000, drop_name=True) for s in args[0]],
    "vector": lambda args: [Sample({}, args[0])],
    "sort": lambda args: _sorted(args[0], 1),
    "sort_desc": lambda args: _sorted(args[0], -1),
    "sort_by_label": lambda args: args[0],
    "sort_by_label_desc": lambda args: args[0],
    "min_of": lambda args: float(np.minimum(*args)),
    "max_of": lambda args: float(np.maximum(*args)),
}
