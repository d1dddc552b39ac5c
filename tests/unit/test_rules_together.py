"""Rules that are asked in one message have the results, and the errors, that each has alone."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from coordinator.queries.merge import Terms, message
from coordinator.queries.planner import plan
from coordinator.rules.together import joined, merged_apart
from coordinator.rules.vectors import vector_of
from shared.errors import NotExecutable
from shared.promql.model import Grid
from shared.wire import pack
from tests.sharded import ask, evaluate_sharded, split

TIMES = [0, 15_000, 30_000, 45_000, 60_000]
SERIES = {
    (("__name__", name), ("i", str(i)), ("job", "ab"[i % 2])): (TIMES, [float(i * n * n) for n in range(5)])
    for name in ("m", "n")
    for i in range(7)
}
GRID = Grid(60_000, 60_000)
EXPRESSIONS = (
    "sum by (job) (rate(m[1m]))",
    "vector(3)",
    "m > 20",
    "quantile by (job) (0.5, m) / on (job) sum by (job) (n)",
    "absent(nothing)",
    "1 + 1",
    "nothing",
    "topk(2, n)",
)
WRONG = "m + on () n"


def asked_together(expressions: tuple[str, ...]) -> list[Any]:
    plans = [plan(text, GRID) for text in expressions]
    together = joined(plans)
    terms = Terms(GRID, 300_000, 50_000_000, time.monotonic() + 60)
    body = pack(message(together, terms))
    replies = []
    for number, source in enumerate(split(SERIES, 3)):
        evaluated, frames = ask(source, body, terms)
        reply = SimpleNamespace(body=pack(evaluated), frames=frames, timings_ms={})
        replies.append(SimpleNamespace(worker=f"w{number}", shards=[number], elapsed_ms=1.0, message=reply))
    fan_out = SimpleNamespace(replies=replies, warnings=list)
    asked: Any = SimpleNamespace(plan=together, terms=terms, fan_out=fan_out)
    vectors, conclusion = merged_apart(plans, asked)
    assert conclusion.plan is together and len(conclusion.shares) == 3
    return list(vectors)


def alone(text: str) -> Any:
    value: Any = evaluate_sharded(text, split(SERIES, 3), GRID).value
    return vector_of(value)


def test_results_are_those_of_each_alone() -> None:
    for text, vector in zip(EXPRESSIONS, asked_together(EXPRESSIONS), strict=True):
        assert sorted(vector) == sorted(alone(text)), text


def test_an_error_is_that_of_its_rule_only() -> None:
    first, wrong, last = asked_together(("sum(m)", WRONG, "count(n)"))
    assert isinstance(wrong, NotExecutable)
    assert (first, last) == (alone("sum(m)"), alone("count(n)")) and last == [((), 7.0)]
