"""What the workers reply to a query, made into its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from coordinator.fanout.links import Links
from coordinator.queries.evaluation import Query, Replies, ask, planned
from coordinator.queries.gate import Place
from coordinator.queries.joining import AskAgain
from coordinator.queries.planner import Plan
from coordinator.queries.running import RunningQuery
from coordinator.queries.whereabouts import Whereabouts

T = TypeVar("T")


async def answered(
    query: Query,
    running: RunningQuery,
    plan: Plan,
    links: Links,
    place: Place,
    finish: Callable[[Replies], Awaitable[T]],
    whereabouts: Whereabouts | None,
    *,
    careful: bool = False,
) -> T:
    """What `finish` makes of the replies; of those to a careful question, where it raises AskAgain. Raises as `ask`
    and `finish`."""
    try:
        return await finish(await ask(query, plan, links, place, whereabouts, careful=careful))
    except AskAgain:
        careful_plan = await planned(query, relabel=False)
        running.enter("running")
        return await finish(await ask(query, careful_plan, links, place, careful=True))
