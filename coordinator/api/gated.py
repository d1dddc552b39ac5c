"""The common path of all kinds of queries: through the gate, and to the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

from aiohttp import web

from coordinator.context import CONTEXT, Context
from coordinator.http.protocol import connection_of
from coordinator.http.streaming import Body, respond, whole
from coordinator.limits.admission import Holder
from coordinator.queries.cost import Estimate
from coordinator.queries.evaluation import Query, in_thread
from coordinator.queries.gate import LIGHT, Place
from coordinator.queries.running import RunningQuery
from shared.process.array_memory import Account

Attempt = Callable[[Place], Awaitable[tuple[Body, Account | None]]]
"""Evaluates the query in its place at the gate, and makes the first piece of its answer. The account has the memory
that the rest of the answer holds."""


async def answer(
    request: web.Request, query: Query, estimate: Estimate, running: RunningQuery, identity: int, attempt: Attempt
) -> web.StreamResponse:
    """Sends the answer that `made` returns."""
    context, holder = request.app[CONTEXT], connection_of(request).holder
    body, account = await made(context, holder, query, estimate, running, identity, attempt)
    return await sent(request, query, running, body, account)


async def made(
    context: Context,
    holder: Holder,
    query: Query,
    estimate: Estimate,
    running: RunningQuery,
    identity: int,
    attempt: Attempt,
) -> tuple[Body, Account | None]:
    """The result of `attempt` when there is a place for the query. `identity` distinguishes the query from others.
    Raises what `attempt` raises, Overloaded, DeadlineExceeded."""
    workers = context.links.worker_count()
    return await context.gate.run(
        holder.client.name,
        identity,
        query.deadline,
        running.waits(attempt),
        is_light=estimate.is_light(workers),
        is_heavy=estimate.is_heavy(workers),
        is_slow=partial(context.admission.is_slow, holder),
    )


async def sent(
    request: web.Request, query: Query, running: RunningQuery, body: Body, account: Account | None
) -> web.StreamResponse:
    """The answer with this body, whose rest is made while it is sent."""
    running.enter("sending")
    if body.whole:
        return whole(body)
    with ExitStack() as held:
        if account is not None:
            held.enter_context(request.app[CONTEXT].gate.sending(account))
        return await respond(request, body, lambda call: in_thread(call, query, LIGHT), held.close)
