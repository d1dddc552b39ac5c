"""What a query tells about itself: `explain=true`, the plan as a tree; `stats=all`, the time and samples it took."""

from __future__ import annotations

import time
from typing import Any

from coordinator.queries.cost import Estimate
from coordinator.queries.evaluation import Conclusion, Query, WorkerShare
from coordinator.queries.planner import Leaf, Plan
from shared.labels import Symbols
from shared.promql.ast import Expr, Remote, children
from shared.promql.engine.context import EvalContext
from shared.promql.model import Grid


def explain(query: Query, conclusion: Conclusion, estimate: Estimate) -> dict[str, Any]:
    """The tree of the plan, and what the query was expected to cost. A node is evaluated by the coordinator unless it
    has a `shards` member: what was sent."""
    return {
        "plan": explained_plan(conclusion.plan, query),
        "estimate": estimate.told(),
        "shards": [
            {"worker": share.worker, "shards": list(share.shards), "time": _seconds(share.elapsed_ms)}
            for share in conclusion.shares
        ],
    }


def explained_plan(plan: Plan, query: Query) -> dict[str, Any]:
    """The tree of the plan."""
    return _node(plan.root, plan, EvalContext(None, Symbols(), query.grid, query.lookback_ms))


def _node(expr: Expr, plan: Plan, clock: EvalContext) -> dict[str, Any]:
    first, last = expr.span
    named = plan.leaves[expr.index].expr if isinstance(expr, Remote) else expr
    node: dict[str, Any] = {"node": type(named).__name__, "text": plan.text[first:last]}
    if isinstance(expr, Remote):
        return node | _sent(plan.leaves[expr.index], clock)
    sent = [leaf for leaf in plan.leaves if leaf.mode == "samples" and leaf.expr is expr]
    if sent:
        return node | _sent(sent[0], clock)
    node["where"] = "coordinator"
    inner = [_node(child, plan, clock) for child in children(expr)]
    if inner:
        node["children"] = inner
    return node


def _sent(leaf: Leaf, clock: EvalContext) -> dict[str, Any]:
    subquery = leaf.subquery(clock)
    grid = Grid(subquery.start_ms, subquery.end_ms, subquery.step_ms)
    return {
        "where": "shards",
        "query": leaf.text,
        "mode": leaf.mode,
        "merge": leaf.merge(),
        "grid": {"start": grid.start_ms / 1000, "end": grid.end_ms / 1000, "step": grid.step_ms / 1000},
    }


def stats(query: Query, conclusion: Conclusion) -> dict[str, Any]:
    """Prometheus's members, and beside them what each worker took."""
    timings = dict(conclusion.timings_s)
    timings["innerEvalTime"] = timings["shardsTime"] + timings["mergeTime"]
    timings["evalTotalTime"] = timings["queryPreparationTime"] + timings["innerEvalTime"] + timings["resultSortTime"]
    timings["execTotalTime"] = time.perf_counter() - query.asked_at
    return {
        "timings": {name: round(seconds, 6) for name, seconds in timings.items()},
        "samples": {
            "totalQueryableSamples": conclusion.merged.samples_read,
            "peakSamples": conclusion.merged.samples_peak,
        },
        "shards": [_of_worker(share) for share in conclusion.shares],
    }


def _of_worker(share: WorkerShare) -> dict[str, Any]:
    return {
        "worker": share.worker,
        "shards": list(share.shards),
        "elapsedTime": _seconds(share.elapsed_ms),
        "timings": {name: _seconds(ms) for name, ms in share.timings_ms.items()},
        "samples": sum(part.samples_read for part in share.evaluated.answers),
        "peakSamples": share.evaluated.samples_peak,
        "subqueries": [
            {"samples": part.samples_read, "evalTime": _seconds(part.elapsed_ms), "form": part.shape.kind}
            for part in share.evaluated.answers
        ],
    }


def _seconds(ms: float) -> float:
    return round(ms / 1000, 6)
