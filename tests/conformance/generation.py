"""Random queries over random data, for comparing evaluators.

A query is text; beside it stands whether its values are exact in floating point whatever the order of additions.
What is not continuous (comparisons, selections by rank, floor, division …) is only applied to exact values, so that two
evaluators that differ in the last bit of a mean still agree.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import strategies as st

from tests.conformance.generated_data import DataSet, Draw, data_sets
from tests.conformance.generated_rarities import rarities
from tests.conformance.generated_selectors import GROUPINGS, Text, duration, selectors, shifts

COMPARISON_CASES = int(os.environ.get("TRIPTYCH_COMPARISON_CASES", "300"))
COMPARISON_SEED = int(os.environ.get("TRIPTYCH_COMPARISON_SEED", "20241"))

STEPS_MS = (7_000, 15_000, 30_000, 60_000, 150_000)
DEPTH_MAX = 4
QUERIES_MAX = 6
"""Queries on one data set: hypothesis varies the data more eagerly than the queries."""


@st.composite
def ranges(draw: Draw, depth: int) -> Text:
    """A range selector or a subquery."""
    span = duration(draw(st.sampled_from((30_000, 60_000, 61_000, 150_000, 300_000, 300_000, 1))))
    shift = draw(shifts())
    if depth <= 1 or draw(st.integers(0, 3)):
        return Text(f"{draw(selectors())}[{span}]{shift}")
    step = draw(st.sampled_from(("15s", "30s", "7s", "")))
    inner: Text = draw(vectors(depth - 1))
    return Text(f"({inner.text})[{span if span != '1ms' else '45s'}:{step}]{shift}", inner.exact)


EXACT_WINDOWS = (
    *("sum_over_time", "min_over_time", "max_over_time", "last_over_time", "first_over_time", "count_over_time"),
    *("present_over_time", "changes", "resets", "idelta"),
)
TIMES_OF = ("ts_of_first_over_time", "ts_of_last_over_time", "ts_of_min_over_time", "ts_of_max_over_time")
COUNTERS = ("rate", "rate", "increase", "irate")
CONTINUOUS = (
    "delta",
    "deriv",
    "avg_over_time",
    "stddev_over_time",
    "stdvar_over_time",
    "mad_over_time",
    "max_over_time",
)
"""Functions that the last bit of a sample cannot change by much: of a counter it can make a reset."""
EXTENDED = {"anchored": ("rate", "increase", "delta", "changes", "resets"), "smoothed": ("rate", "increase", "delta")}


@st.composite
def windows(draw: Draw, depth: int) -> Text:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        mode = draw(st.sampled_from(tuple(EXTENDED)))
        func = draw(st.sampled_from(EXTENDED[mode]))
        span = draw(st.sampled_from(("15s", "1m", "150s")))
        return Text(f"{func}({draw(selectors())}[{span}] {mode})", False)
    ranged: Text = draw(ranges(depth))
    if kind == 1:
        q = draw(st.sampled_from(("0", "0.5", "0.9", "1", "-1", "2", "NaN", "time() / 600")))
        return Text(f"quantile_over_time({q}, {ranged.text})", False)
    if kind == 2:
        return Text(f"predict_linear({ranged.text}, {draw(st.sampled_from(('60', '-30', '1h')))})", False)
    if kind == 3 and draw(st.booleans()):
        return Text(f"absent_over_time({ranged.text})")
    if kind == 3:
        return Text(f"double_exponential_smoothing({ranged.text}, 0.3, 0.6)", False)
    if ranged.exact and kind < 7:
        exact_names = EXACT_WINDOWS if kind < 6 else TIMES_OF
        return Text(f"{draw(st.sampled_from(exact_names))}({ranged.text})")
    names = (*COUNTERS, *CONTINUOUS) if ranged.exact else CONTINUOUS
    return Text(f"{draw(st.sampled_from(names))}({ranged.text})", False)


@st.composite
def aggregations(draw: Draw, depth: int) -> Text:
    inner: Text = draw(vectors(depth - 1))
    grouping = draw(st.sampled_from(GROUPINGS))
    if inner.exact and draw(st.integers(0, 2)) == 0:
        k = draw(st.sampled_from(("1", "2", "0", "100", "scalar(gauge)", "time() / 100")))
        op = draw(st.sampled_from(("topk", "bottomk", "limitk", "limit_ratio", "count_values")))
        if op == "limit_ratio":
            k = draw(st.sampled_from(("0.5", "-0.5", "1", "0")))
        elif op == "count_values":
            k = '"value"'
        elif k == "scalar(gauge)":
            k = "1 + 0 * time()"
        # The boundaries of buckets in texts that count_values writes of histograms may have other last digits.
        return Text(f"{op}{grouping}({k}, {inner.text})", op != "count_values")
    op = draw(st.sampled_from(["sum", "sum", "min", "max", "count", "group", "avg", "stddev", "stdvar", "quantile"]))
    if op == "quantile":
        return Text(f"quantile{grouping}({draw(st.sampled_from(('0.5', '0', '0.9', '1')))}, {inner.text})", False)
    return Text(f"{op}{grouping}({inner.text})", inner.exact and op not in ("avg", "stddev", "stdvar"))


ANY_ARGUMENT = (
    "abs({})",
    "clamp({}, -5, 5)",
    "clamp_max({}, 3)",
    "clamp_min({}, 3)",
    "-({})",
    "+({})",
    "deg({})",
    "({})",
)
EXACT_ARGUMENT = (
    "ceil({})",
    "floor({})",
    "round({})",
    "sgn({})",
    "round({}, 5)",
    "timestamp({})",
    "sort({})",
    "absent({})",
)
EXACT_TO_INEXACT = ("exp({})", "ln({})", "sqrt({})", "sin({})", "atan({})", "log2({})", "asinh({})", "rad({})")
LABELS = (
    'label_replace({}, "instance", "h$1", "instance", "(.*)")',
    'label_replace({}, "zone", "", "zone", ".*")',
    'label_replace({}, "new", "$1", "job", "(a)")',
    'label_join({}, "new", "-", "job", "instance")',
    'label_replace({}, "job", "same", "", "")',
    'label_replace({}, "__name__", "renamed_$1", "__name__", "(.*)")',
    'label_replace({}, "old", "$1", "__name__", "(.*)")',
)
INFO = ("info({})", 'info({}, {{version=~"v.+"}})', 'info({}, {{version="v1"}})', 'info({}, {{__name__=~".+_info"}})')
DATES = ("hour({})", "minute({})", "day_of_week({})", "days_in_month({})", "year({})")


@st.composite
def histograms(draw: Draw, depth: int) -> Text:
    q = draw(st.sampled_from(("0.5", "0", "0.9", "1", "-1", "1.5")))
    inner = draw(
        st.sampled_from(("lat_bucket", "rate(lat_bucket[1m])", "sum by (le) (lat_bucket)", "increase(lat_bucket[2m])"))
    )
    call = draw(st.sampled_from((f"histogram_quantile({q}, {inner})", f"histogram_fraction(0.2, {q}, {inner})")))
    several = f'histogram_quantiles({inner}, "q", 0.1, {q})'
    return Text(str(several if draw(st.integers(0, 4)) == 0 else call), False)


EXACT_READOUTS = (
    "histogram_count({})",
    "histogram_sum({})",
)
READOUTS = (
    "histogram_avg({})",
    "histogram_stddev({})",
    "histogram_stdvar({})",
    "histogram_quantile(0.9, {})",
    "histogram_quantile(0.5, {})",
    "histogram_quantile(0.01, {})",
    "histogram_quantile(1.5, {})",
    "histogram_fraction(0, 1.5, {})",
    "histogram_fraction(-Inf, 0.3, {})",
    'histogram_quantiles({}, "q", 0.25, 1)',
)
"""A count that is zero but for the last bit, and another that is zero, make them differ by much."""


@st.composite
def readouts(draw: Draw, depth: int) -> Text:
    """What is read from native histograms."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        func = draw(st.sampled_from(("rate", "increase", "irate", "delta", "sum_over_time", "avg_over_time")))
        ranged = f"{func}({draw(selectors())}[{draw(st.sampled_from(('1m', '150s', '5m')))}])"
        grouping = draw(st.sampled_from(GROUPINGS))
        inner = Text(str(draw(st.sampled_from((ranged, f"sum{grouping}({ranged})")))))
    else:
        inner = draw(vectors(depth - 1))
    if inner.exact and kind != 1:
        return Text(str(draw(st.sampled_from(READOUTS))).format(inner.text), False)
    return Text(str(draw(st.sampled_from(EXACT_READOUTS))).format(inner.text), inner.exact and kind != 0)


@st.composite
def enriched(draw: Draw, depth: int) -> Text:
    vector: Text = draw(vectors(depth - 1))
    return Text(str(draw(st.sampled_from(INFO))).format(vector.text), vector.exact)


@st.composite
def functions(draw: Draw, depth: int) -> Text:
    kind = draw(st.integers(1, 11))
    vector: Text = draw(vectors(depth - 1))
    if kind == 1:
        return Text(f"vector(scalar({vector.text}))", vector.exact)
    if kind == 2:
        inner = "gauge * 1000 + 86400" if draw(st.booleans()) else "vector(time() * 1000)"
        return Text(str(draw(st.sampled_from(DATES))).format(f"clamp({inner}, -1e9, 1e9) > -1e9"))
    if kind <= 5:
        return Text(str(draw(st.sampled_from(LABELS))).format(vector.text), vector.exact)
    if vector.exact and kind <= 8:
        return Text(str(draw(st.sampled_from(EXACT_ARGUMENT))).format(vector.text))
    if vector.exact and kind == 9:
        return Text(str(draw(st.sampled_from(EXACT_TO_INEXACT))).format(vector.text), False)
    template = str(draw(st.sampled_from(ANY_ARGUMENT)))
    return Text(template.format(vector.text), vector.exact and "deg" not in template)


COMPARISONS = ("==", "!=", ">", "<", ">=", "<=")
MATCHINGS = (
    "",
    "",
    "",
    " ignoring(zone)",
    " on(job, instance)",
    " on(job, instance, zone)",
    " ignoring(le)",
    " fill(0)",
    " fill_left(1)",
    " on(instance, job, zone) fill_right(2)",
)


@st.composite
def operations(draw: Draw, depth: int) -> Text:
    """Vector with scalar, vector with vector, and set operators."""
    lhs: Text = draw(vectors(depth - 1))
    kind = draw(st.integers(0, 9))
    if kind <= 3:
        scalar = str(
            draw(st.sampled_from(("2", "-3", "0", "0.5", "time()", "NaN", "Inf", "scalar(gauge)", "end() - start()")))
        )
        op = str(draw(st.sampled_from(("+", "-", "*", "+", *((*COMPARISONS, "/", "%", "^") if lhs.exact else ())))))
        flag = " bool" if op in COMPARISONS and draw(st.booleans()) else ""
        exact = lhs.exact and op not in ("/", "^")
        sides = (f"({lhs.text})", scalar) if draw(st.booleans()) else (scalar, f"({lhs.text})")
        return Text(f"{sides[0]} {op}{flag} {sides[1]}", exact)
    rhs: Text = draw(vectors(depth - 1))
    if kind <= 5:
        op = str(draw(st.sampled_from(("and", "or", "unless"))))
        on = str(draw(st.sampled_from(("", "", " on(job)", " ignoring(instance)", " on()"))))
        return Text(f"({lhs.text}) {op}{on} ({rhs.text})", lhs.exact and rhs.exact)
    both = lhs.exact and rhs.exact
    op = str(draw(st.sampled_from(("+", "-", "*", *((*COMPARISONS, "/", "%", "atan2") if both else ())))))
    flag = " bool" if op in COMPARISONS and draw(st.booleans()) else ""
    matching = str(draw(st.sampled_from(MATCHINGS)))
    exact = both and op not in ("/", "atan2")
    if kind == 9:
        one = f"max by (job) ({rhs.text})"
        left = str(draw(st.sampled_from((" on(job) group_left", " on(job) group_left(zone)"))))
        if draw(st.booleans()):
            return Text(f"({lhs.text}) {op}{flag}{left} {one}", exact)
        return Text(f"{one} {op}{flag}{left.replace('left', 'right')} ({lhs.text})", exact)
    return Text(f"({lhs.text}) {op}{flag}{matching} ({rhs.text})", exact)


@st.composite
def trims(draw: Draw, depth: int) -> Text:
    lhs: Text = draw(vectors(depth - 1))
    op = draw(st.sampled_from(("</", ">/")))
    limit = draw(
        st.sampled_from(("1", "0", "1.5", "-1.2", "0.3", "5", "Inf", "-Inf", "NaN", "on(job) max by (job) (gauge)"))
    )
    if not lhs.exact:
        return lhs
    return Text(f"({lhs.text}) {op} {limit}", False)


def vectors(depth: int) -> st.SearchStrategy[Text]:
    """Queries whose answer is an instant vector."""
    return _vectors(depth) if depth > 0 else _leaves()


@st.composite
def _leaves(draw: Draw) -> Text:
    if draw(st.integers(0, 19)) == 0:
        return Text(f"{draw(selectors())}{draw(shifts())} smoothed", False)
    return Text(f"{draw(selectors())}{draw(shifts())}")


@st.composite
def _vectors(draw: Draw, depth: int) -> Text:
    return draw(draw(st.sampled_from(BRANCHES))(depth))


BRANCHES: tuple[Callable[[int], st.SearchStrategy[Text]], ...] = (
    *(lambda depth: _leaves(), histograms, enriched),
    *(windows, windows, windows, aggregations, aggregations, aggregations),
    *(functions, functions, operations, operations, operations),
    lambda depth: rarities(depth, vectors),
)


@st.composite
def queries(draw: Draw) -> str:
    depth = draw(st.sampled_from((1, 2, 2, 3, DEPTH_MAX)))
    found: Text = draw(_vectors(depth))
    return found.text


@st.composite
def native_queries(draw: Draw) -> str:
    """Half of them read numbers from histograms or trim them at last."""
    if draw(st.booleans()):
        return str(draw(queries()))
    found: Text = draw(draw(st.sampled_from((readouts, readouts, trims)))(draw(st.sampled_from((1, 2, 2, 3)))))
    return found.text


@st.composite
def cases(draw: Draw) -> tuple[DataSet, list[str]]:
    """A data set and queries over it. A third of the cases is about native histograms."""
    histograms = draw(st.integers(0, 9)) >= 6
    queries_ = native_queries() if histograms else queries()
    texts: list[str] = draw(st.lists(queries_, min_size=1, max_size=QUERIES_MAX))
    return draw(data_sets(histograms)), texts
