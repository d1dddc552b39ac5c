"""Queries that are rarely written: parameters out of their domain, matches of everything with everything, functions of
the query's own times, durations that are computed."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from tests.conformance.generated_data import Draw
from tests.conformance.generated_selectors import GROUPINGS, Text, selectors, shifts

Vectors = Callable[[int], st.SearchStrategy[Text]]

OFTEN_WRONG = ("NaN", "Inf", "-Inf", "-1", "1e30", "0.9", "scalar(gauge)", "time() / 100", "scalar(nothing)", "2 ^ 63")
RATIOS = ("NaN", "2", "-2", "1e-9", "-1e-9", "time() / 600 - 1", "scalar(gauge)", "0.3", "-0.7")
QUANTILES = ("NaN", "-0.5", "2", "Inf", "-Inf", "time() / 600", "scalar(gauge)", "0.25")
BOUNDS = ("3, -3", "NaN, 1", "0, NaN", "time() / 100, 4", "-Inf, scalar(gauge)", "-1, Inf")
TO_NEAREST = ("0", "-2", "NaN", "Inf", "0.25", "time() / 100")
SPANS = (
    *("step() + 30s", "range() + 1m", "max_of(step(), 45s)", "2 * 30s", "min(range() + 1s, 2m)", "90", "1h"),
    *("(step() + 10s) / 2", "1m30s", "4m % 70s"),
)
SHIFTS = (
    *("offset step()", "offset -5m", "@ -60", "@ 1e4", "@ end() offset -1m", "offset -1m @ start()", "@ start()"),
    *("offset (range() - 30s)", "offset -step()", "", "", ""),
)
TIMES = (
    "start()",
    "end()",
    "step()",
    "range()",
    "time()",
    "max_of(start(), 100)",
    "min_of(time(), NaN)",
    "end() - time()",
)
SUBQUERY_STEPS = ("7s", "step() + 5s", "30s", "", "1m", "2 * 10s", "min_of(step(), 15s)")


@st.composite
def rarities(draw: Draw, depth: int, vectors: Vectors) -> Text:
    """`vectors(depth)`: queries for operands, of that depth."""
    found: Text = draw(draw(st.sampled_from(KINDS))(depth, vectors))
    return found


@st.composite
def _parameters(draw: Draw, depth: int, vectors: Vectors) -> Text:
    inner: Text = draw(vectors(depth - 1))
    grouping = draw(st.sampled_from(GROUPINGS))
    kind = draw(st.integers(0, 6))
    if kind == 0:
        return Text(f"quantile{grouping}({draw(st.sampled_from(QUANTILES))}, {inner.text})", False)
    if kind == 1:
        low_high = draw(st.sampled_from(BOUNDS))
        return Text(f"clamp({inner.text}, {low_high})", inner.exact and "time" not in low_high)
    if not inner.exact:
        return inner
    if kind == 2:
        return Text(f"round({inner.text}, {draw(st.sampled_from(TO_NEAREST))})", False)
    if kind == 3:
        name = draw(st.sampled_from(("job", "instance", "__name__", "a b")))
        return Text(f'count_values{grouping}("{name}", {inner.text})', False)
    if kind == 4:
        return Text(f"limit_ratio{grouping}({draw(st.sampled_from(RATIOS))}, {inner.text})")
    op = draw(st.sampled_from(("topk", "bottomk", "limitk")))
    return Text(f"{op}{grouping}({draw(st.sampled_from(OFTEN_WRONG))}, {inner.text})")


@st.composite
def _extended(draw: Draw, depth: int, vectors: Vectors) -> Text:
    """`anchored` and `smoothed`, also in a subquery, elsewhere in time."""
    mode = draw(st.sampled_from(("anchored", "smoothed")))
    func = draw(st.sampled_from(("rate", "increase", "delta", "changes", "resets")[: 5 if mode == "anchored" else 3]))
    extended = f"{func}({draw(selectors())}[{draw(st.sampled_from(SPANS))}] {mode} {draw(st.sampled_from(SHIFTS))})"
    outer = draw(
        st.sampled_from(("{}", "{}", "max_over_time({}[2m:20s])", "sum by (job) ({})", "last_over_time({}[1m:])"))
    )
    return Text(outer.format(extended), False)


@st.composite
def _subqueries(draw: Draw, depth: int, vectors: Vectors) -> Text:
    """Of anything, with computed ranges and steps, shifted, one in another."""
    inner: Text = draw(vectors(depth - 1))
    text = inner.text
    for _ in range(draw(st.integers(1, 2))):
        func = draw(
            st.sampled_from(("max_over_time", "last_over_time", "count_over_time", "min_over_time", "first_over_time"))
        )
        span, step = draw(st.sampled_from(SPANS)), draw(st.sampled_from(SUBQUERY_STEPS))
        text = f"{func}(({text})[{span}:{step}] {draw(st.sampled_from(SHIFTS))})"
    return Text(text, inner.exact)


@st.composite
def _of_times(draw: Draw, depth: int, vectors: Vectors) -> Text:
    """The query's times, the evaluation's and the samples' own."""
    inner: Text = draw(vectors(depth - 1))
    selector = f"{draw(selectors())}{draw(shifts())}"
    when = draw(st.sampled_from(TIMES))
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return Text(f"start_timestamp({selector})")
    if kind == 1:
        return Text(f"{when} - timestamp({selector})")
    if kind == 2 and inner.exact:
        return Text(f"({inner.text}) > {when} / 100")
    if kind == 3:
        return Text(f"vector({when} > bool {draw(st.sampled_from(TIMES))})")
    return Text(f"predict_linear({draw(selectors())}[5m], {when} - 100)", False)


MATCHED = (
    *("({many}) {op} on() group_left ({one})", "({one}) {op} on() group_right(job) ({many})"),
    *("({many}) {op} on() (sum({one}))", "({many}) {op} ignoring(job, instance, zone) group_left ({one})"),
    *("({many}) {op} on(job) group_left(__name__) (max by (job, __name__) ({one}))", "({many}) {op} ({many})"),
    "({many}) {op} on(job, zone) group_left(instance) fill_right(3) (max by (job, zone, instance) ({one}))",
    *("({many}) {op} on(job) group_left(instance) fill(0) (min by (job) ({one}))", "({many}) {op} fill(NaN) ({one})"),
    "(count by (job) ({one})) {op} on(job) group_right(zone) fill_left(-1) ({many})",
)
SETS = ("", "on(zone)", "ignoring(zone, instance)", "on(nothing)", "on(__name__)", "ignoring(job)", "on(job, le)")


@st.composite
def _matches(draw: Draw, depth: int, vectors: Vectors) -> Text:
    many: Text = draw(vectors(depth - 1))
    one: Text = draw(vectors(depth - 1))
    both = many.exact and one.exact
    if draw(st.integers(0, 2)) == 0:
        op = f"{draw(st.sampled_from(('and', 'or', 'unless')))} {draw(st.sampled_from(SETS))}"
        return Text(f"({many.text}) {op} ({one.text})", both)
    op = draw(st.sampled_from(("+", "-", "*", *(("==", "!= bool", "<", ">= bool") if both else ()))))
    template = str(draw(st.sampled_from(MATCHED)))
    return Text(template.format(many=many.text, one=one.text, op=op), both)


@st.composite
def _mixed_buckets(draw: Draw, depth: int, vectors: Vectors) -> Text:
    """Classic and native histograms together, and parameters that vary or are no numbers."""
    inner = draw(
        st.sampled_from(
            (
                '{__name__=~"lat_bucket|req_total"}',
                'sum by (job, le) ({__name__=~"lat_bucket|req_total|up_total"})',
                'rate({__name__=~"lat_bucket|req_total"}[2m])',
                "lat_bucket offset -30s",
                'label_replace(lat_bucket, "le", "", "le", "1")',
                'label_replace(lat_bucket, "le", "x", "le", "2")',
            )
        )
    )
    q = draw(st.sampled_from(("NaN", "scalar(gauge)", "time() / 600", "-Inf", "0.5", "0.99")))
    call = f"histogram_quantile({q}, {inner})"
    fraction = f"histogram_fraction({q}, {draw(st.sampled_from(('0.7', 'Inf', 'NaN', '-1', 'time() / 300')))}, {inner})"
    return Text(str(draw(st.sampled_from((call, fraction)))), False)


RARE_INFO = (
    'info({}, {{version!~"v1"}})',
    'info({}, {{__name__!="target_info"}})',
    'info({}, {{__name__=~"target_info|up_total", version=~"v.*"}})',
    'info({}, {{nothing=""}})',
    'info({}, {{nothing="x"}})',
    "info(info({}))",
)


@st.composite
def _enriched(draw: Draw, depth: int, vectors: Vectors) -> Text:
    vector: Text = draw(vectors(depth - 1))
    return Text(str(draw(st.sampled_from(RARE_INFO))).format(vector.text), vector.exact)


KINDS = (_parameters, _parameters, _extended, _subqueries, _subqueries, _of_times, _matches, _matches, _mixed_buckets,
         _enriched)  # fmt: skip
