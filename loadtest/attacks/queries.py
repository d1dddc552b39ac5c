"""Attacks by what a query asks for: costly expressions, wide grids, long subqueries, everything at once."""

from __future__ import annotations

from loadtest.attacks.sending import Request, form
from loadtest.attacks.target import GRID_METRIC, LONG_METRIC, METRIC, Target

QUERY, RANGE = "/api/v1/query", "/api/v1/query_range"
SERIES, LABELS = "/api/v1/series", "/api/v1/labels"

# Each costs RE2 much for a text of 60,000 times a or b: the first ones by automata with more states than its memory
# holds, the others by long programs.
PATTERNS = (
    "[ab]*a[ab]{900}c",
    "(([ab]{1,30}){1,30}c)?[ab]*a[ab]{400}d",
    "([ab]?){900}.*a.{800}c",
    "(a|b|ab|ba)*a(a|b){700}c",
    ".*(a.{300}b|b.{300}a).{300}c",
    "(?i)[a-z]*a[a-z]{800}0",
    "(.*a.{100}){5}c",
    "a?" * 11_000 + "c",
)
REPLACE_PATTERN = "a?" * 80_000
GRID_LEAVES = 16
GRID_STEPS = 11_000
QUANTILES = 20
SUBQUERIES = (
    "max_over_time(vector(1)[1y:1s])",
    "count_over_time(vector(time())[1y:1s])",
    "quantile_over_time(0.5, vector(time())[1y:1s])",
    f"avg_over_time(sum({METRIC})[1y:1s])",
)


def costly_expressions(target: Target) -> list[Request]:
    """Four queries and four lists, each with another expression, over the long values and over many short ones."""
    selectors = [f'{LONG_METRIC}{{text=~"{pattern}"}}' for pattern in PATTERNS]
    everywhere = [f'{{pod=~"{pattern}"}}' for pattern in PATTERNS[:2]]
    return [
        *(form(QUERY, query=f"count({selector})", time=target.end_s) for selector in selectors[:3]),
        form(QUERY, query=f"count({selectors[7]} or {everywhere[0]})", time=target.end_s),
        form(SERIES, match=selectors[3]),
        form(SERIES, match=selectors[4]),
        form(LABELS, match=selectors[5]),
        Request("GET", f"/api/v1/label/pod/values?{form(SERIES, match=selectors[6]).body.decode()}"),
    ]


def long_replacement(target: Target) -> list[Request]:
    """In the coordinator, in the workers, and with nothing to match."""
    subjects = (f"sum by (pod) ({METRIC})", METRIC, "vector(1)")
    return [
        form(QUERY, query=f'label_replace({subject}, "x", "$1", "pod", "{REPLACE_PATTERN}")', time=target.end_s)
        for subject in subjects
    ]


def wide_grid(target: Target) -> list[Request]:
    """One query over few samples, whose leaves are 11,000 steps wide and all held at once: each step lies within the
    lookback of the only sample."""
    leaves = [GRID_METRIC, *(f"{GRID_METRIC} offset {n}s" for n in range(1, GRID_LEAVES))]
    span_s = GRID_STEPS // 50
    times = {"start": target.end_s + 20, "end": target.end_s + 20 + span_s, "step": span_s / (GRID_STEPS - 1)}
    return [form(RANGE, query="+".join(leaves), **times)]


def long_subqueries(target: Target) -> list[Request]:
    return [form(QUERY, query=query, time=target.end_s) for query in SUBQUERIES]


def quantiles_of_everything(target: Target) -> list[Request]:
    """Over all samples, with a grid of 61 steps; each query another one, so that no answer is shared."""
    return [
        form(
            RANGE,
            query=f'quantile_over_time(0.{50 + number}, {{__name__=~".+"}}[1h])',
            start=target.end_s - 3600,
            end=target.end_s,
            step=60,
        )
        for number in range(QUANTILES)
    ]
