"""What a query tells about itself: `explain=true`, the plan as a tree; `stats=all`, the time and samples it took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from coordinator.queries.cost import Demand, Estimate
from coordinator.queries.evaluation import Conclusion, Query, WorkerShare
from coordinator.queries.planner import Leaf, Plan
from shared.labels import Symbols
from shared.messages.sub_queries import SubQueryReply
from shared.promql.ast import Expr, Remote, children, without_parens
from shared.promql.engine.context import EvalContext
from shared.promql.model import Grid


def explain(
    query: Query, conclusion: Conclusion, estimate: Estimate, leaf_estimates: Mapping[Demand, Estimate] | None = None
) -> dict[str, Any]:
    """The tree of the plan, what the query was expected to cost, and what it took. A node is evaluated by the
    coordinator unless it has a `shards` member: what was sent. `leaf_estimates`: what was expected of leaves."""
    tree = _Tree(conclusion.plan, query)
    estimates = leaf_estimates or {}
    return {
        "plan": tree.root,
        "estimate": estimate.told(),
        "measured": [
            {"id": number, **measured}
            for number, (expr, leaf) in enumerate(tree.nodes)
            if (measured := _measured(expr, leaf, conclusion, estimates))
        ],
        "shards": [
            {"worker": share.worker, "shards": list(share.shards), "time": _seconds(share.elapsed_ms)}
            for share in conclusion.shares
        ],
    }


def explained_plan(plan: Plan, query: Query) -> dict[str, Any]:
    """The tree of the plan."""
    return _Tree(plan, query).root


class _Tree:
    """`root`: the tree as it is told. `nodes`: by their ids, each with the index of its leaf if it was sent."""

    def __init__(self, plan: Plan, query: Query) -> None:
        self.nodes: list[tuple[Expr, int | None]] = []
        self._plan = plan
        self._clock = EvalContext(None, Symbols(), query.grid, query.lookback_ms)
        self.root = self._node(plan.root)

    def _node(self, expr: Expr) -> dict[str, Any]:
        first, last = expr.span
        index = self._leaf_index(expr)
        named = expr if index is None else self._plan.leaves[index].expr
        node: dict[str, Any] = {
            "id": len(self.nodes),
            "node": type(named).__name__,
            "text": self._plan.text[first:last],
            "span": [first, last],
        }
        self.nodes.append((expr, index))
        if index is not None:
            return node | _sent(self._plan.leaves[index], self._clock)
        node["where"] = "coordinator"
        inner = [self._node(child) for child in children(expr)]
        if inner:
            node["children"] = inner
        return node

    def _leaf_index(self, expr: Expr) -> int | None:
        if isinstance(expr, Remote):
            return expr.index
        leaves = enumerate(self._plan.leaves)
        return next((index for index, leaf in leaves if leaf.mode == "samples" and leaf.expr is expr), None)


def _measured(
    expr: Expr, leaf: int | None, conclusion: Conclusion, estimates: Mapping[Demand, Estimate]
) -> dict[str, Any] | None:
    """What a node took: its own time with that of all below it, or what workers did for a leaf; None if nothing is
    known."""
    merged = conclusion.merged
    if leaf is None:
        seconds = merged.node_seconds.get(id(without_parens(expr)))
        return None if seconds is None else {"time": round(seconds, 6)}
    parts = [(share.worker, share.evaluated.answers[leaf]) for share in conclusion.shares]
    estimate = estimates.get(conclusion.plan.demands[leaf])
    return {
        "leaf": leaf,
        "time": _seconds(max([part.elapsed_ms for _, part in parts], default=0.0)),
        "mergeTime": round(merged.leaf_seconds[leaf], 6) if leaf < len(merged.leaf_seconds) else 0.0,
        "series": sum(part.series_read for _, part in parts),
        "samples": sum(part.samples_read for _, part in parts),
        "estimate": None if estimate is None else estimate.told(),
        "workers": [_of_part(worker, part) for worker, part in parts],
    }


def _of_part(worker: str, part: SubQueryReply) -> dict[str, Any]:
    return {
        "worker": worker,
        "time": _seconds(part.elapsed_ms),
        "series": part.series_read,
        "samples": part.samples_read,
        "form": part.shape.kind,
        "shards": [
            {
                "shard": read.shard,
                "series": read.series,
                "samples": read.samples,
                "readTime": _seconds(read.elapsed_ms),
            }
            for read in part.shard_reads
        ],
    }


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
