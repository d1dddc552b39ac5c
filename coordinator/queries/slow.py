"""The log of slow queries: one line for each, and the last of them in memory with their plans."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

import orjson

from coordinator.queries.explain import explained_plan
from coordinator.queries.running import RunningQuery, described
from shared.telemetry import event

KEPT = 100
EXPLAINED_TEXT_MAX = 2000
"""The plan of a longer query is not kept: its tree has the text of each node, which may be long."""
PLAN_BYTES_MAX = 8 << 10
"""As JSON. All that is kept takes some MB at the worst."""
ERROR_MAX = 500
"""Characters of an error that are shown."""


class SlowQueries:
    """Queries that took `after_s` or longer, beside waits for new records of the log; 0: none. For the event loop's
    thread only."""

    def __init__(self, after_s: float, *, shows_texts: bool) -> None:
        self._after_s = after_s
        self._shows_texts = shows_texts
        self._kept: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def ended(self, running: RunningQuery) -> None:
        """The query has been answered or has failed."""
        if self._after_s and running.age_s >= self._after_s and running.busy_s >= self._after_s:
            self._keep(running)

    def kept(self, by: str) -> list[dict[str, Any]]:
        """The last slow queries: by `seconds` or `samples`, most first, or by `start`, newest first."""
        return sorted(self._kept, key=lambda told: float(told[by]), reverse=True)

    def _keep(self, running: RunningQuery) -> None:
        spent = running.seconds()
        answers = [answer for share in running.shares for answer in share.evaluated.answers]
        series = sum(answer.series_read for answer in answers)
        workers = [
            {
                "worker": share.worker,
                "seconds": round(share.elapsed_ms / 1000, 6),
                "ownSeconds": round(share.timings_ms.get("total", 0.0) / 1000, 6),
                "samples": sum(answer.samples_read for answer in share.evaluated.answers),
            }
            for share in running.shares
        ]
        told = {
            **described(running, shows_texts=self._shows_texts),
            "seconds": round(sum(spent.values()), 6),
            "states": {state: round(seconds, 6) for state, seconds in spent.items()},
            "status": running.status,
            "error": running.error[:ERROR_MAX],
            "samples": running.samples_read,
            "series": series,
            "workers": workers,
            "plan": _plan(running) if self._shows_texts else None,
        }
        self._kept.append(told)
        _log(told)


def _plan(running: RunningQuery) -> Any:
    """The plan as `explain=true` shows it; None if there is none, or it is too long."""
    query, plan = running.query, running.plan
    if query is None or plan is None or len(query.text) > EXPLAINED_TEXT_MAX:
        return None
    encoded = orjson.dumps(explained_plan(plan, query))
    return orjson.Fragment(encoded) if len(encoded) <= PLAN_BYTES_MAX else None


def _log(told: dict[str, Any]) -> None:
    estimate, grid = told.get("estimate", {}), told.get("grid", {})
    slowest = sorted(told["workers"], key=lambda worker: -float(worker["seconds"]))
    event(
        logging.WARNING,
        "slow query",
        kind=told["kind"],
        query=told["query"],
        **grid,
        client=told["client"],
        status=told["status"],
        seconds=told["seconds"],
        **{f"{state}_s": spent for state, spent in told["states"].items()},
        samples=told["samples"],
        series=told["series"],
        **{f"estimated_{name}": count for name, count in estimate.items()},
        place=told.get("place", "none"),
        workers=" ".join(f"{worker['worker']}:{worker['seconds']:.3f}s" for worker in slowest),
    )
