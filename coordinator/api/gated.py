"""Queries of all kinds are let through the gate and sent in the same way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.protocol import client_of, connection_of
from coordinator.queries.cost import Estimate
from coordinator.queries.evaluation import Query, in_thread
from coordinator.queries.gate import LIGHT, Place
from coordinator.queries.running import RunningQuery
from coordinator.streaming import Body, respond, whole
from shared.array_memory import Account

Attempt = Callable[[Place], Awaitable[tuple[Body, Account | None]]]
"""Evaluates the query in a place, and makes the first piece of its answer; the account has the memory that the rest
holds."""


async def answer(
    request: web.Request, query: Query, estimate: Estimate, running: RunningQuery, identity: int, attempt: Attempt
) -> web.StreamResponse:
    """What `attempt` makes when there is a place for the query; the rest of it is made while it is sent. `identity`
    tells the same query from others. Raises what `attempt` raises, Overloaded, DeadlineExceeded."""
    context = request.app[CONTEXT]
    workers = context.links.worker_count()
    body, account = await context.gate.run(
        client_of(request),
        identity,
        query.deadline,
        running.waits(attempt),
        is_light=estimate.is_light(workers),
        is_heavy=estimate.is_heavy(workers),
        is_slow=partial(context.admission.is_slow, connection_of(request).holder),
    )
    running.enter("sending")
    if body.whole:
        return whole(body)
    with ExitStack() as held:
        if account is not None:
            held.enter_context(context.gate.sending(account))
        return await respond(request, body, lambda call: in_thread(call, query, LIGHT), held.close)
