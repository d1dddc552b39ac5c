"""Results of queries as text: series in PromQL's notation, histograms, sparklines, and plans as trees."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coordinator.commands.output import printable, time_text, write_table

METRIC_NAME = "__name__"
BARS = "▁▂▃▄▅▆▇█"
BARS_COLUMNS = 40
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_NUMBERS = {"inf", "nan"}
_NO_METRICS = {"bool", "on", "ignoring", "group_left", "group_right", *_NUMBERS}
"""Words that are not metric names at the start of an expression, in upper or lower case."""
_EDGES = (("(", "]"), ("[", ")"), ("(", ")"), ("[", "]"))
"""The brackets of a bucket, by the number that the API has for its boundaries."""


def write_result(data: Mapping[str, Any]) -> None:
    kind, result = data["resultType"], data["result"]
    if not result:
        sys.stderr.write("no series\n")
    elif kind == "vector":
        rows = [(series_text(one["metric"]), _value(one)) for one in result]
        write_table(("series", "value"), rows, right=() if _has_histograms(result) else ("value",))
    elif kind == "matrix" and sys.stdout.isatty():
        write_table(("series", "", "min", "max", "last"), map(_summary, result), right=("min", "max", "last"))
    elif kind == "matrix":
        write_table((), _points(result))
    else:  # a scalar or a string
        sys.stdout.write(printable(str(result[1])) + "\n")


def series_text(labels: Mapping[str, str]) -> str:
    """A series as a selector: `up{job="a"}`."""
    name = labels.get(METRIC_NAME, "")
    pairs = [f"{_label(key)}={_quoted(value)}" for key, value in sorted(labels.items()) if key != METRIC_NAME]
    if name and (not _NAME.fullmatch(name) or name.lower() in _NO_METRICS):
        pairs.insert(0, _quoted(name))
        name = ""
    return f"{name}{{{', '.join(pairs)}}}" if pairs or not name else name


def _label(name: str) -> str:
    return name if _LABEL.fullmatch(name) and name.lower() not in _NUMBERS else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _has_histograms(result: Sequence[Mapping[str, Any]]) -> bool:
    return any("histogram" in one for one in result)


def _value(one: Mapping[str, Any]) -> str:
    return histogram_text(one["histogram"][1]) if "histogram" in one else str(one["value"][1])


def histogram_text(histogram: Mapping[str, Any]) -> str:
    """A histogram in Prometheus's notation: `{count:3, sum:4.5, [1,2):3}`."""
    parts = [f"count:{histogram['count']}", f"sum:{histogram['sum']}"]
    for boundaries, left, right, count in histogram.get("buckets", ()):
        opening, closing = _EDGES[boundaries]
        parts.append(f"{opening}{left},{right}{closing}:{count}")
    return f"{{{', '.join(parts)}}}"


def _points(result: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yields (series, time, value) for every sample, in the order of time within a series."""
    for one in result:
        series = series_text(one["metric"])
        floats = [(at, value) for at, value in one.get("values", ())]
        histograms = [(at, histogram_text(value)) for at, value in one.get("histograms", ())]
        for at, value in sorted([*floats, *histograms]):
            yield series, time_text(at), value


def _summary(one: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    series = series_text(one["metric"])
    numbers = [float(value) for _, value in one.get("values", ())]
    finite = [number for number in numbers if math.isfinite(number)]
    if not finite:
        count = len(numbers) + len(one.get("histograms", ()))
        return series, f"{count} samples", "", "", ""
    last = one["values"][-1][1]
    return series, sparkline(numbers), f"{min(finite):.6g}", f"{max(finite):.6g}", str(last)


def sparkline(numbers: Sequence[float], columns: int = BARS_COLUMNS) -> str:
    """A bar for each number, or for the mean of neighbours if there are more than `columns` numbers; a space where
    there is no finite number."""
    width = max(1, math.ceil(len(numbers) / columns))
    means = [_mean(numbers[at : at + width]) for at in range(0, len(numbers), width)]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return " " * len(means)
    low, high = min(finite), max(finite)
    # Halved first, so that the difference of finite numbers cannot overflow.
    span = high / 2 - low / 2
    return "".join(
        " " if mean is None else BARS[round((mean / 2 - low / 2) / span * (len(BARS) - 1)) if span else 0]
        for mean in means
    )


def _mean(numbers: Sequence[float]) -> float | None:
    finite = [number for number in numbers if math.isfinite(number)]
    return math.fsum(number / len(finite) for number in finite) if finite else None


def write_plan(data: Mapping[str, Any]) -> None:
    """Writes the tree of the plan: where each part was evaluated, and how long it took."""
    explained = data["explain"]
    measured = {one["id"]: one for one in explained["measured"]}
    sys.stdout.writelines(f"{printable(line)}\n" for line in _tree(explained["plan"], measured, "", ""))


def _tree(node: Mapping[str, Any], measured: Mapping[int, Mapping[str, Any]], first: str, rest: str) -> Iterator[str]:
    """`first`: the prefix of the node's own line. `rest`: the prefix of the lines of its children."""
    took = measured.get(node["id"], {})
    counts = [f"{took['time'] * 1000:.3g} ms"] if "time" in took else []
    counts += [f"{took[name]} {name}" for name in ("series", "samples") if name in took]
    yield f"{first}{node['where']}: {node.get('query', node['text'])}" + (f"  ({', '.join(counts)})" if counts else "")
    children = node.get("children", ())
    for child in children[:-1]:
        yield from _tree(child, measured, f"{rest}├─ ", f"{rest}│  ")
    for child in children[-1:]:
        yield from _tree(child, measured, f"{rest}└─ ", f"{rest}   ")
